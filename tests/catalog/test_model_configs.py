"""Published configs read by field: layouts worked by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from config_builders import LLAMA, catalogue, profile, read
from places import ROOT

from sizing.specs.model import (
    DenseMlp,
    GqaAttention,
    LayerKind,
    LinearAttention,
    MlaAttention,
    Model,
    MoeMlp,
    SlidingWindowAttention,
    SsmAttention,
)


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
