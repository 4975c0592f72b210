"""Published configs read by field: layouts worked by hand, faults by name, and every parameter count."""

from __future__ import annotations

import csv
import json
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import active_parameters
from places import ROOT, SHARED

from sizing.catalog.config.model import read_model
from sizing.model.architecture import parameters
from sizing.specs.errors import InputError
from sizing.specs.model import (
    DenseMlp,
    GqaAttention,
    LayerKind,
    LinearAttention,
    MlaAttention,
    Model,
    ModelFile,
    MoeMlp,
    SlidingWindowAttention,
    SsmAttention,
    Stored,
)

CATALOGUE = sorted((ROOT / "workloads" / "models").glob("[!_]*.yaml"))
FACTS = SHARED / "facts"

USUAL = {"embedding", "lm_head", "norm", "router"}

LLAMA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "vocab_size": 32000,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 2816,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def read(config: dict[str, Any], **more: Any) -> Model:
    return read_model(config, name="org/Model", source="a test", where="config.json", **more)


def faults(config: dict[str, Any], **more: Any) -> dict[str | None, str]:
    with pytest.raises(InputError) as caught:
        read(config, **more)
    assert all(fault.file == "config.json" for fault in caught.value.faults)
    return {fault.field: str(fault) for fault in caught.value.faults}


def catalogue(stem: str) -> Model:
    entry = profile(ROOT / "workloads" / "models" / f"{stem}.yaml")
    return read_model(entry.config, name=entry.name, source=entry.source, where=f"{stem}.yaml")


@cache
def profile(path: Path) -> ModelFile:
    return ModelFile(**yaml.safe_load(path.read_text(encoding="utf-8")))


def layers(model: Model) -> list[LayerKind]:
    return [model.kinds[index] for index in model.layers]


def mixers(model: Model) -> Counter[str]:
    return Counter(layer.mixer.kind if layer.mixer else "none" for layer in layers(model))


def routed(model: Model) -> list[int]:
    return [i for i, layer in enumerate(layers(model)) if any(isinstance(mlp, MoeMlp) for mlp in layer.mlps)]


def gqa(model: Model, index: int = 0) -> GqaAttention | SlidingWindowAttention:
    mixer = layers(model)[index].mixer
    assert isinstance(mixer, GqaAttention | SlidingWindowAttention)
    return mixer


def moe(model: Model) -> MoeMlp:
    return next(mlp for layer in layers(model) for mlp in layer.mlps if isinstance(mlp, MoeMlp))


# --- attention ---


def test_stated_head_width_wins_over_the_hidden_size_shared_out() -> None:
    # 1024 / 16 heads would be 64; the config says 128.
    assert gqa(catalogue("qwen3-0.6b")).head_dim == 128
    assert gqa(read(LLAMA)).head_dim == 1024 // 16


def test_gpt_oss_alternates_windows_of_128_first() -> None:
    model = catalogue("gpt-oss-120b")
    assert mixers(model) == {"sliding_window": 18, "gqa": 18}
    windows = {i for i, layer in enumerate(layers(model)) if isinstance(layer.mixer, SlidingWindowAttention)}
    assert windows == set(range(0, 36, 2))
    assert all(layer.mixer.window == 128 for layer in layers(model) if isinstance(layer.mixer, SlidingWindowAttention))


@pytest.mark.parametrize(
    ("stem", "full", "windowed", "first_full"),
    [
        ("gemma-2-27b", 23, 23, 1),  # no pattern stated: window, full, window, full
        ("gemma-3-27b", 10, 52, 5),  # every 6th of 62 is full: 62 // 6 = 10
        ("gemma-3-1b", 4, 22, 5),  # 26 // 6 = 4
        ("llama-4-scout-17b-16e", 12, 36, 3),  # chunked but for every 4th
        ("command-a-03-2025", 16, 48, 3),
        ("mistral-7b-v0.1", 0, 32, None),
        ("phi-3-mini-4k", 0, 32, None),
        ("phi-3.5-mini", 32, 0, 0),  # a window of 262,144 never binds in a context of 131,072
        ("qwen2.5-72b", 80, 0, 0),  # window stated but switched off
    ],
)
def test_window_layouts(stem: str, full: int, windowed: int, first_full: int | None) -> None:
    model = catalogue(stem)
    is_full = [isinstance(layer.mixer, GqaAttention) for layer in layers(model)]
    assert (sum(is_full), len(is_full) - sum(is_full)) == (full, windowed)
    assert first_full is None or is_full.index(True) == first_full


def test_window_from_a_layer_on_when_switched_on() -> None:
    config = {**LLAMA, "use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 3}
    assert [layer.mixer.kind for layer in layers(read(config)) if layer.mixer] == ["gqa"] * 3 + ["sliding_window"]


def test_llama_4_takes_full_layers_from_its_list_where_it_has_one() -> None:
    config = {**LLAMA, "attention_chunk_size": 4096, "no_rope_layers": [0, 1, 1, 1]}
    assert [layer.mixer.kind for layer in layers(read(config)) if layer.mixer] == ["gqa"] + ["sliding_window"] * 3


def test_gemma_4_full_layers_have_their_own_heads_and_store_one_tensor() -> None:
    model = catalogue("gemma-4-26b-a4b")
    window, full = gqa(model, 0), gqa(model, 5)
    assert (window.kind, window.head_dim, window.kv_heads, window.shared_kv) == (
        "sliding_window",
        256,
        8,
        False,
    )
    assert full == GqaAttention(16, 2, 512, shared_kv=True, norm_heads=True)
    dense, experts = layers(model)[0].mlps
    assert isinstance(dense, DenseMlp) and dense.intermediate == 2112
    assert isinstance(experts, MoeMlp) and (experts.experts, experts.experts_per_token) == (128, 8)


def test_gemma_4_last_layers_reuse_the_cache_and_widen() -> None:
    model = catalogue("gemma-4-e2b")
    reuse = [gqa(model, index).reuses_cache for index in range(35)]
    assert reuse == [False] * 15 + [True] * 20
    widths = [mlp.intermediate for layer in layers(model) for mlp in layer.mlps if isinstance(mlp, DenseMlp)]
    assert widths == [6144] * 15 + [12288] * 20


def test_deepseek_latent_attention_and_indexer() -> None:
    mixer = layers(catalogue("deepseek-v3"))[0].mixer
    assert mixer == MlaAttention(128, 1536, 512, 128, 64, 128)
    assert layers(catalogue("deepseek-v3.2"))[0].mixer == MlaAttention(128, 1536, 512, 128, 64, 128, 64, 128, 2048)
    lite = layers(catalogue("deepseek-v2-lite"))[0].mixer
    assert isinstance(lite, MlaAttention) and lite.q_lora_rank is None


def test_a_shared_indexer_has_no_weights_but_the_same_choice() -> None:
    # GLM-5.2: the first three layers index on their own, then one in four (78 layers: 3 + 75 // 4 = 21).
    found = [layer.mixer for layer in layers(catalogue("glm-5.2"))]
    assert all(isinstance(mixer, MlaAttention) and mixer.index_topk == 2048 for mixer in found)
    assert sum(isinstance(mixer, MlaAttention) and mixer.index_heads == 32 for mixer in found) == 21


def test_qwen3_next_is_one_full_layer_in_four_with_a_gate() -> None:
    model = catalogue("qwen3-next-80b-a3b")
    assert mixers(model) == {"linear": 36, "gqa": 12}
    assert gqa(model, 3).output_gate
    assert layers(model)[0].mixer == LinearAttention(16, 32, 128, 128, 4)


def test_kimi_linear_numbers_its_layers_from_one() -> None:
    found = [layer.mixer for layer in layers(catalogue("kimi-linear-48b-a3b"))]
    full = [index for index, mixer in enumerate(found) if isinstance(mixer, MlaAttention)]
    assert full == [3, 7, 11, 15, 19, 23, 26]
    assert found[0] == LinearAttention(32, 32, 128, 128, 4, gate_rank=128)


def test_falcon_is_parallel_with_few_kv_heads() -> None:
    # Falcon-7B: multi_query rules. Falcon-180B: the newer decoder's own count, whatever multi_query says.
    small, large = catalogue("falcon-7b"), catalogue("falcon-180b")
    assert (gqa(small).kv_heads, gqa(large).kv_heads) == (1, 8)
    assert small.parallel_blocks and large.parallel_blocks
    written = {**profile(ROOT / "workloads/models/falcon-7b.yaml").config, "num_kv_heads": 71}
    assert gqa(read(written)).kv_heads == 1


def test_parallel_blocks_by_field() -> None:
    assert catalogue("gpt-j-6b").parallel_blocks
    assert catalogue("c4ai-command-r-plus").parallel_blocks
    assert not catalogue("llama-3.1-8b").parallel_blocks
    assert not catalogue("mpt-7b").parallel_blocks


def test_searched_blocks_may_lack_attention() -> None:
    model = catalogue("llama-3_3-nemotron-super-49b-v1")
    assert mixers(model) == {"gqa": 49, "none": 31}
    widths = Counter(mlp.intermediate for layer in layers(model) for mlp in layer.mlps if isinstance(mlp, DenseMlp))
    # Width is 2*m*8192/3 up to a multiple of 256: m = 5.25 gives 28672, m = 0.5 gives 2730.7 -> 2816.
    assert widths[28672] == 49 and widths[2816] == 6


def test_kv_heads_by_layer() -> None:
    model = read({**LLAMA, "num_key_value_heads": None, "num_key_value_heads_per_layer": [4, 2, 1, 1]})
    assert [gqa(model, index).kv_heads for index in range(4)] == [4, 2, 1, 1]


def test_windowed_layers_may_have_more_query_heads() -> None:
    model = catalogue("step-3.5-flash")
    assert (gqa(model, 0).kind, gqa(model, 0).q_heads) == ("gqa", 64)
    assert (gqa(model, 1).kind, gqa(model, 1).q_heads) == ("sliding_window", 96)


# --- state-space layouts ---


def test_nemotron_super_is_eight_attention_forty_mamba_forty_moe() -> None:
    model = catalogue("nemotron-3-super-120b-a12b")
    assert len(model.layers) == 88
    assert mixers(model) == {"gqa": 8, "ssm": 40, "none": 40}
    assert len(routed(model)) == 40
    assert all(layer.mixer is None or not layer.mlps for layer in layers(model))
    experts = moe(model)
    assert (experts.experts, experts.experts_per_token, experts.latent, experts.gated) == (
        512,
        22,
        1024,
        False,
    )
    assert layers(model)[0].mixer == SsmAttention(128, 64, 8, 128, 4)


def test_granite_mamba_layers_keep_their_mlps() -> None:
    model = catalogue("granite-4.0-h-small")
    assert mixers(model) == {"ssm": 36, "gqa": 4}
    assert len(routed(model)) == 40


def test_state_bytes_follow_the_stated_type() -> None:
    config = {
        **profile(ROOT / "workloads/models/granite-4.0-h-small.yaml").config,
        "mamba_ssm_dtype": "bfloat16",
    }
    assert layers(read(config))[0].mixer == SsmAttention(128, 64, 1, 128, 4, state_bytes=2)


# --- MLPs ---


def test_deepseek_v3_has_three_dense_layers() -> None:
    model = catalogue("deepseek-v3")
    assert routed(model) == list(range(3, 61))
    assert moe(model) == MoeMlp(256, 8, 2048, True, shared_intermediate=2048)
    assert layers(model)[0].mlps == (DenseMlp(18432, True),)


def test_llama_4_interleaves_and_shares_an_expert() -> None:
    maverick = catalogue("llama-4-maverick-17b-128e")
    assert routed(maverick) == list(range(1, 48, 2))
    assert layers(maverick)[0].mlps == (DenseMlp(16384, True),)
    assert moe(maverick) == MoeMlp(128, 1, 8192, True, shared_intermediate=8192)
    assert routed(catalogue("llama-4-scout-17b-16e")) == list(range(48))


def test_mixtral_experts_take_the_plain_width() -> None:
    assert moe(catalogue("mixtral-8x7b-v0.1")) == MoeMlp(8, 2, 14336, True)


def test_minimax_m3_has_its_own_dense_width() -> None:
    model = catalogue("minimax-m3")
    assert routed(model) == list(range(3, 60))
    assert layers(model)[0].mlps == (DenseMlp(12288, True),)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, [1]),
        ({"moe_layer_freq": 2}, [0, 2]),
        ({"moe_layer_freq": [0, 0, 1, 1]}, [2, 3]),
        ({"first_k_dense_replace": 3}, [3]),
        ({"mlp_layer_types": ["dense", "sparse", "sparse", "dense"]}, [1, 2]),
        ({"moe_layers_enum": "2,3"}, [2, 3]),
        ({"moe_layer_start_index": 1, "moe_layer_interval": 1}, [1, 2, 3]),
    ],
)
def test_which_layers_route(stated: dict[str, Any], expected: list[int]) -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
    assert routed(read({**LLAMA, **experts, **stated})) == expected


@pytest.mark.parametrize(
    ("stem", "width", "gated"),
    [
        ("gpt-j-6b", 4 * 4096, False),  # n_inner null
        ("mpt-7b", 4 * 4096, False),  # expansion_ratio 4
        ("falcon-7b", 4 * 4544, False),
        ("opt-13b", 20480, False),
        ("bloom-7b1", 4 * 4096, False),
        ("phi-2", 10240, False),
        ("nemotron-h-56b", 32768, False),  # squared ReLU
        ("gemma-2-9b", 14336, True),  # GELU under a key that only gated families write
        ("llama-3.1-8b", 14336, True),
    ],
)
def test_width_and_gate(stem: str, width: int, gated: bool) -> None:
    found = {mlp for layer in layers(catalogue(stem)) for mlp in layer.mlps}
    assert {(mlp.intermediate, mlp.gated) for mlp in found} == {(width, gated)}


# --- wrappers, outer level, vocabulary ---


@pytest.mark.parametrize("wrapper", ["text_config", "llm_config", "language_config"])
def test_a_wrapped_language_model_reads_as_itself(wrapper: str) -> None:
    inner = {key: value for key, value in LLAMA.items() if key not in ("tie_word_embeddings", "torch_dtype")}
    outer = {"tie_word_embeddings": True, "torch_dtype": "float16", wrapper: inner}
    model = read({**outer, "quantization_config": {"quant_method": "fp8"}})
    assert model.kinds == read(LLAMA).kinds
    assert (model.tied_embeddings, model.activation_precision, model.quantisation.precision) == (
        True,
        "fp16",
        "fp8",
    )
    assert read({"thinker_config": {wrapper: LLAMA}}).kinds == model.kinds


def test_a_null_inside_does_not_hide_a_value_outside() -> None:
    outer = {"torch_dtype": "float16", "text_config": {**LLAMA, "torch_dtype": None}}
    assert read(outer).activation_precision == "fp16"


def test_tied_embeddings_are_inferred_from_fields_and_said_so() -> None:
    silent = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    gemma = read({**silent, "query_pre_attn_scalar": 256})
    assert gemma.tied_embeddings and any("query_pre_attn_scalar" in note for note in gemma.notes)
    assert not read(silent).tied_embeddings


def test_vision_tower_is_counted_where_its_fields_suffice() -> None:
    # 2 layers x (4 x 8^2 + 2 x 8 x 16) = 1024; one patch embedding 2 x 2 x 3 x 8 = 96.
    tower = {"hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 16, "patch_size": 2}
    assert read({**LLAMA, "vision_config": tower}).extra_parameters == 1024 + 96
    lacking = read({**LLAMA, "vision_config": {"hidden_size": 8}})
    assert lacking.extra_parameters == 0 and any("vision tower not counted" in note for note in lacking.notes)


def test_a_learned_position_table_is_counted_unless_alibi() -> None:
    config = profile(ROOT / "workloads/models/mpt-7b.yaml").config
    assert read(config).extra_parameters == 0
    assert read({**config, "attn_config": {"alibi": False}}).extra_parameters == 2048 * 4096


# --- defaults that are taken because a key is absent ---

MOE = {"num_local_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("absent", "stated", "noted"),
    [
        # 16 query heads: one KV head each; 1024 / 16 = 64.
        ("num_key_value_heads", {}, "num_key_value_heads absent: one KV head for each of the 16 attention heads"),
        ("head_dim", {}, "head_dim absent: the hidden size over the attention heads, 1024 / 16 = 64"),
        ("tie_word_embeddings", {}, "tie_word_embeddings absent: untied"),
        ("tie_word_embeddings", {"query_pre_attn_scalar": 256}, "tie_word_embeddings absent: tied"),
        ("torch_dtype", {}, "torch_dtype absent: bf16 taken"),
        ("hidden_act", {}, "hidden_act absent: MLPs with a gate"),
        ("intermediate_size", {"n_inner": None}, "intermediate_size absent: 4 times the hidden size"),
        ("no_rope_layers", {"attention_chunk_size": 1024}, "no_rope_layers absent: every layer chunked but each 4th"),
        ("sliding_window_pattern", {"sliding_window": 1024, "cache_implementation": "hybrid"}, "sliding_window_pattern absent"),
        ("max_window_layers", {"sliding_window": 1024, "use_sliding_window": True}, "max_window_layers absent"),
        ("n_shared_experts", {**MOE, "interleave_moe_layer_step": 1, "intermediate_size_mlp": 64, "n_shared_experts": 2}, "n_shared_experts absent: one"),
        ("parallel_attn", {"logit_scale": 0.1}, "parallel_attn absent: attention and MLP in parallel"),
    ],
)  # fmt: skip
def test_a_default_is_noted_where_it_is_taken_and_only_there(absent: str, stated: dict[str, Any], noted: str) -> None:
    whole = {**LLAMA, "head_dim": 64, "no_rope_layers": [1, 1, 1, 0], "sliding_window_pattern": 2,
             "max_window_layers": 3, "parallel_attn": False, **stated}  # fmt: skip
    del_ = {key: value for key, value in whole.items() if key != absent}
    if absent == "max_window_layers":
        del_.pop("sliding_window_pattern")
    assert any(note.startswith(noted) for note in read(del_).notes), read(del_).notes
    assert not any(note.startswith(f"{absent} absent") for note in read({**whole}).notes)


def test_a_config_that_states_everything_has_no_notes() -> None:
    assert read({**LLAMA, "head_dim": 64}).notes == ()


# --- faults ---


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("num_expert", "num_experts"),
        ("num_local_expert", "num_local_experts"),
        ("num_key_value_head", "num_key_value_heads"),
        ("num_kv_head", "num_kv_heads"),
        ("head_dims", "head_dim"),
        ("head-dim", "head_dim"),
        ("Sliding_Window", "sliding_window"),
        ("slidingwindow", "sliding_window"),
        ("quantisation_config", "quantization_config"),
        ("tie_word_embedding", "tie_word_embeddings"),
        ("torch_dtypes", "torch_dtype"),
        ("kv_lora_rang", "kv_lora_rank"),
        ("layers_type", "layer_types"),
        ("text_confg", "text_config"),
    ],
)
def test_a_misspelt_key_is_not_left_to_its_default(written: str, meant: str) -> None:
    silent = {key: value for key, value in LLAMA.items() if key != meant and "key_value" not in key}
    found = faults({**silent, written: 8})
    assert found.keys() == {written}
    assert "unknown key" in found[written] and found[written].endswith(f"did you mean {meant}?")


@pytest.mark.parametrize(
    ("written", "absent", "meant"),
    [
        ("hiden_size", "hidden_size", "hidden_size"),
        ("num_layer", "num_hidden_layers", "num_layers"),
        ("num_attn_heads", "num_attention_heads", "num_attention_heads"),
        ("vocabsize", "vocab_size", "vocab_size"),
        ("intermidiate_size", "intermediate_size", "intermediate_size"),
    ],
)
def test_a_missing_size_is_reported_at_the_key_that_was_written_for_it(written: str, absent: str, meant: str) -> None:
    config = {key: value for key, value in LLAMA.items() if key != absent}
    found = faults({**config, written: 16})
    assert found.keys() == {written}
    assert f"unknown key, and {absent} is missing" in found[written]
    assert found[written].endswith(f"did you mean {meant}?")


@pytest.mark.parametrize(
    "stated",
    [
        {"num_expert": 0, **MOE},  # a synonym of the key is stated: no default is taken
        {"rope_theta": 1e4, "initializer_range": 0.02, "use_cache": True},
        {"n_group": 8, "topk_group": 4, "q_lora_rank": None},
    ],
)
def test_an_unknown_key_alone_is_no_mistake(stated: dict[str, Any]) -> None:
    assert read({**LLAMA, **stated}).hidden_size == 1024


def test_each_missing_size_is_named_at_once() -> None:
    assert set(faults({})) == {
        "num_hidden_layers",
        "hidden_size",
        "vocab_size",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    }


@pytest.mark.parametrize(
    ("stated", "field"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": 15.5}, "num_attention_heads"),
        ({"num_attention_heads": True}, "num_attention_heads"),
        ({"hidden_size": -1024}, "hidden_size"),
        ({"hidden_size": 1e400}, "hidden_size"),
        ({"vocab_size": 10**400}, "vocab_size"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"num_key_value_heads": 32}, "num_key_value_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_size": 1023}, "head_dim"),
        ({"torch_dtype": "int4"}, "torch_dtype"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"layer_types": ["full_attention"] * 3 + ["sliding_atention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window"),
        ({"num_experts": 8}, "num_experts_per_tok"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"mamba_n_heads": 64, "mamba_d_state": 128}, "layer_types"),
        ({"num_hidden_layers": 2**39}, "num_hidden_layers"),
        ({"layer_types": [{}, [], None, 1]}, "layer_types"),
        ({"num_key_value_heads_per_layer": [4, 2, 1]}, "num_key_value_heads_per_layer[3]"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim"),
        ({"compress_ratios": [4, 128, 5, 4]}, "compress_ratios"),
    ],
)
def test_an_absurd_or_inexpressible_field_is_named(stated: dict[str, Any], field: str) -> None:
    assert field in faults({**LLAMA, **stated})


def test_a_misspelt_layer_type_gets_its_nearest_name() -> None:
    found = faults({**LLAMA, "layer_types": ["full_attention"] * 3 + ["sliding_atention"]})
    assert "did you mean sliding_attention?" in found["layer_types"]


@pytest.mark.parametrize("path", CATALOGUE[::6], ids=lambda path: path.stem)
@pytest.mark.parametrize("odd", [None, True, -1, 0, 0.5, "x", [], [{}], {}, {"x": 1}, 1e400, 2**50])
def test_an_odd_value_anywhere_is_a_model_or_a_fault_never_a_crash(path: Path, odd: Any) -> None:
    config = profile(path).config
    for key in config:
        for changed in (
            {**config, key: odd},
            {**config, "text_config": {**config.get("text_config", {}), key: odd}},
        ):
            try:
                model = read(changed)
            except InputError:
                continue
            assert model.layers


# --- quantisation ---

GROUP = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}


@pytest.mark.parametrize(
    ("stated", "precision", "block"),
    [
        ({"quant_method": "fp8"}, "fp8", None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", 128),
        ({"quant_method": "fbgemm_fp8"}, "fp8", None),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4", None),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", None),
        ({"quant_method": "awq", "w_bit": 4}, "int4", None),
        ({"quant_method": "mxfp4"}, "mxfp4", None),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", None),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", None),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", None),
        ({"quant_method": "modelopt", "config_groups": {"group_0": GROUP}}, "nvfp4", None),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
            },
            "int4",
            None,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 32}}},
            },
            "mxfp4",
            None,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {
                            "num_bits": 8,
                            "type": "float",
                            "strategy": "block",
                            "block_structure": [128, 128],
                        }
                    }
                },
            },
            "fp8_block",
            128,
        ),
    ],
)
def test_methods(stated: dict[str, Any], precision: str, block: int | None) -> None:
    found = read({**LLAMA, "quantization_config": stated}).quantisation
    assert (found.precision, found.block) == (precision, block)
    assert found.kept_16bit == USUAL


def test_an_unquantised_model_is_stored_as_it_computes() -> None:
    assert read({**LLAMA, "torch_dtype": "float16"}).quantisation.precision == "fp16"


@pytest.mark.parametrize(
    ("stated", "field", "named"),
    [
        ({"quant_method": "quip"}, "quantization_config.quant_method", "compressed-tensors"),
        ({"quant_method": "gptq", "bits": 3}, "quantization_config.bits", "4, 8"),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP5"},
            "quantization_config.quant_algo",
            "did you mean NVFP4",
        ),
        ({"quant_method": "modelopt"}, "quantization_config.config_groups", "quant_algo"),
        ({"quant_algo": "MIXED_PRECISION"}, "quantization_config.quantized_layers", "each module with its quant_algo"),
        (
            {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"layers.0.mlp": {"quant_algo": "FP7"}}},
            "quantization_config.quantized_layers.layers.0.mlp.quant_algo",
            "unknown algorithm",
        ),
    ],
)
def test_an_unknown_method_is_refused(stated: dict[str, Any], field: str, named: str) -> None:
    assert named in faults({**LLAMA, "quantization_config": stated})[field]


def test_the_cache_precision_of_a_checkpoint() -> None:
    scheme = {"num_bits": 8, "type": "float"}
    stated = {"quant_algo": "FP8", "kv_cache_scheme": scheme}
    assert read({**LLAMA, "quantization_config": stated}).quantisation.kv_precision == "fp8"
    assert read({**LLAMA, "quantization_config": {"quant_algo": "FP8"}}).quantisation.kv_precision is None


def test_modelopts_file_stands_in_for_a_missing_section() -> None:
    beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    found = read(LLAMA, hf_quant_config=beside).quantisation
    assert (found.precision, found.kv_precision, found.method) == ("fp8", "fp8", "modelopt")


def test_a_mixed_checkpoint_states_the_precision_of_each_module() -> None:
    layers = {"model.layers.*.mlp.*": {"quant_algo": "W4A16_NVFP4"}, "lm_head": {"quant_algo": "W4A16_NVFP4"}}
    layers |= {f"model.layers.{index}.self_attn.o_proj": {"quant_algo": "FP8"} for index in range(4)}
    found = read({**LLAMA, "quantization_config": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}})
    held = found.quantisation
    assert (held.precision, held.weight_only, held.kept_16bit) == ("nvfp4", True, USUAL - {"lm_head"})
    # Of queries (16 heads), keys and values (4 each) and output (16) only the output is quantised.
    assert {(one.role, one.precision): one.share for one in held.stored} == {
        ("attention", "fp8"): 16 / 40,
        ("attention", None): 24 / 40,
    }
    assert any("40% of attention fp8" in note for note in found.notes)


def test_groups_of_compressed_tensors_may_differ_by_module() -> None:
    eight_bit = {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type": "float"}}
    stated = {"quant_method": "compressed-tensors", "config_groups": {"a": GROUP, "b": eight_bit}}
    held = read({**LLAMA, "quantization_config": stated}).quantisation
    assert held.precision == "nvfp4"
    assert held.stored == (Stored("attention", "fp8", 1.0),)


def test_the_group_of_integer_weights_sets_the_bits_of_a_value() -> None:
    # Kimi K2.5: groups of 32 with a 16-bit scale and no zero point, 4 + 16/32.
    assert catalogue("kimi-k2.5").quantisation.bits == 4.5
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    assert read({**LLAMA, "quantization_config": awq}).quantisation.bits == 4 + 20 / 128


def test_gpt_oss_keeps_attention_in_16_bit() -> None:
    found = catalogue("gpt-oss-120b").quantisation
    assert (found.precision, found.kept_16bit) == ("mxfp4", USUAL | {"attention"})


def test_kimi_keeps_all_but_its_experts() -> None:
    found = catalogue("kimi-k2.5").quantisation
    assert (found.precision, found.kept_16bit) == (
        "int4",
        USUAL | {"attention", "dense_mlp", "shared_expert"},
    )


EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}


@pytest.mark.parametrize(
    ("ignored", "kept"),
    [
        ([f"model.layers.{i}.self_attn*" for i in range(4)], {"attention"}),
        ([f"model.layers.{i}.self_attn*" for i in range(3)], set()),  # one layer's attention is quantised
        (["model.layers.0*"], {"dense_mlp"}),  # the only dense layer, whole; one layer of attention
        (["re:.*self_attn.*", "re:.*shared_experts.*"], {"attention", "shared_expert"}),
        (["re:.*mlp\\.(gate|up|gate_up|down)_proj.*"], {"dense_mlp"}),
        ([f"model.layers.{i}.mlp.gate" for i in range(4)], set()),  # the router, kept anyhow
        ([f"model.layers.{i}.post_attention_layernorm" for i in range(4)], set()),  # a norm, not attention
        (
            [f"model.layers.{i}.self_attn.{p}_proj" for i in range(4) for p in "qk"],
            set(),
        ),  # neither values nor output
        ([f"model.layers.{i}.self_attn.{p}_proj" for i in range(4) for p in "qkvo"], {"attention"}),
        ([f"mtp.layers.{i}.self_attn*" for i in range(4)] + ["vision_tower*"], set()),
        (["*.mlp.shared_experts.*"], {"shared_expert"}),
    ],
)
def test_kept_roles_need_every_layer(ignored: list[str], kept: set[str]) -> None:
    stated = {"quant_algo": "NVFP4", "ignore": ignored}
    found = read({**LLAMA, **EXPERTS, "quantization_config": stated}).quantisation
    assert found.kept_16bit == USUAL | kept


# --- the catalogue ---

# Why a computed total is not the published one, and how far below or above it may lie.
TOTALS: dict[str, tuple[float, str]] = {
    "falcon-7b": (0.05, "the published total counts the tied head twice"),
    "falcon-40b": (0.02, "the published total counts the tied head twice"),
    "kimi-k2": (0.03, "published as one trillion"),
    "kimi-k2.5": (0.03, "published as one trillion"),
    "kimi-k2.6": (0.03, "published as one trillion"),
    "gemma-4-e2b": (0.012, "its towers are those of the library's defaults"),
    "gemma-4-e4b": (0.016, "its towers are those of the library's defaults"),
}
ACTIVE: dict[str, tuple[float, str]] = {
    "kimi-vl-a3b": (0.05, "published for the language decoder, embedding partly counted"),
}


def rounding(published: float) -> float:
    """Half a unit of the last digit that a published count states."""
    exponent = Decimal(str(int(published) if published == int(published) else published)).as_tuple().exponent
    assert isinstance(exponent, int)
    return 0.5 * 10.0**exponent


@pytest.mark.parametrize("path", CATALOGUE, ids=lambda path: path.stem)
def test_a_profile_counts_the_published_parameters(path: Path) -> None:
    entry, model = profile(path), catalogue(path.stem)
    total, text = parameters(model) / 1e9, (parameters(model) - model.extra_parameters) / 1e9
    share = TOTALS.get(path.stem, (0.01, ""))[0]
    room = max(share * entry.parameters_b, rounding(entry.parameters_b))
    # Some publishers count the vision tower and some do not.
    assert min(abs(total - entry.parameters_b), abs(text - entry.parameters_b)) <= room
    if entry.active_parameters_b is not None:
        active = (active_parameters(model) - model.extra_parameters) / 1e9
        embedding = model.vocab_size * model.hidden_size / 1e9
        share = ACTIVE.get(path.stem, (0.03, ""))[0]
        room = max(share * entry.active_parameters_b, rounding(entry.active_parameters_b))
        # Nor do they agree on counting the input embedding and the head.
        assert min(abs(active - k * embedding - entry.active_parameters_b) for k in (0, 1, 2)) <= room


@pytest.mark.parametrize("stem", sorted(TOTALS.keys() | ACTIVE.keys()))
def test_an_exception_is_still_needed(stem: str) -> None:
    entry, model = profile(ROOT / "workloads" / "models" / f"{stem}.yaml"), catalogue(stem)
    total = (parameters(model) - model.extra_parameters) / 1e9
    off_total = abs(total / entry.parameters_b - 1) > 0.01
    active = (active_parameters(model) - model.extra_parameters) / 1e9
    off_active = entry.active_parameters_b is not None and abs(active / entry.active_parameters_b - 1) > 0.03
    assert off_total if stem in TOTALS else off_active


@pytest.mark.parametrize("path", CATALOGUE, ids=lambda path: path.stem)
def test_a_profile_is_complete(path: Path) -> None:
    model = catalogue(path.stem)
    assert model.hidden_size > 1 and model.vocab_size > 1 and model.max_position > 1
    assert len(model.layers) > 1 and set(model.layers) == set(range(len(model.kinds)))
    assert path.stem == path.stem.lower()
    lines = path.read_text(encoding="utf-8").splitlines()
    first, second, *_ = (line for line in lines if not line.startswith("#"))
    entry = profile(path)
    assert first == f"name: {entry.name}"
    assert second == f"aliases: [{', '.join(entry.aliases)}]"


def test_a_profile_states_whether_its_embeddings_are_tied() -> None:
    silent = [
        path.stem for path in CATALOGUE if any("tie_word_embeddings" in note for note in catalogue(path.stem).notes)
    ]
    assert silent == []


def test_names_and_aliases_are_unique() -> None:
    names = [
        name.rpartition("/")[2].lower() for path in CATALOGUE for name in (profile(path).name, *profile(path).aliases)
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []


# --- published configs ---

# Configs that can't be read, and the field that says why.
REFUSED = {
    "openai__whisper-large-v3": "model_type",
    # These copies lack the algorithm and its lists.
    "nvidia__MiniMax-M3-NVFP4": "quantization_config.config_groups",
    "nvidia__Qwen3.6-27B-NVFP4": "quantization_config.config_groups",
    "nvidia__Qwen3.6-35B-A3B-NVFP4": "quantization_config.config_groups",
}
# The indexer of DeepSeek-V3.2 is in our count and not in the independent one (0.85 B).
ACTIVE_SHARE = {"deepseek-ai__DeepSeek-V3.2": 0.03}


@pytest.mark.skipif(not FACTS.is_dir(), reason="the published configs are not part of the project")
def test_no_published_key_passes_for_a_misspelt_one() -> None:
    read_or_refused = 0
    for path in sorted((FACTS / "configs").glob("*.json")):
        try:
            read(json.loads(path.read_text(encoding="utf-8")))
        except InputError as error:
            mistaken = [fault for fault in error.faults if "unknown key" in fault.message]
            assert not mistaken, path.stem
        read_or_refused += 1
    assert read_or_refused > 100


@pytest.mark.skipif(not FACTS.is_dir(), reason="the published configs are not part of the project")
def test_published_configs_agree_with_an_independent_count() -> None:
    with (FACTS / "models.csv").open(encoding="utf-8") as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    compared = 0
    for path in sorted((FACTS / "configs").glob("*.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        if path.stem in REFUSED:
            assert REFUSED[path.stem] in faults(config), path.stem
            continue
        model = read(config)
        row = rows.get(path.stem)
        if row is not None:
            extra = model.extra_parameters
            total, active = (parameters(model) - extra) / 1e9, (active_parameters(model) - extra) / 1e9
            assert total == pytest.approx(float(row["total_params_computed_b"]), rel=0.01), path.stem
            share = ACTIVE_SHARE.get(path.stem, 0.02)
            assert active == pytest.approx(float(row["active_params_computed_b"]), rel=share), path.stem
            compared += 1
    assert compared > 60
