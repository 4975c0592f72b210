"""Every model type of a public library's defaults is counted rightly or refused by name, never counted wrongly in silence.

tests/data/model_types.json.gz holds the default configs of Transformers 5.24 (820 model types), without what hundreds of them
have alike, and what is expected: `parameters` as that library's own model classes count them, built without weights (165 of 168
types; `ours` is what we count), or the field that a refusal names. Six configs are completed, because their defaults build no model.
"""

from __future__ import annotations

import csv
import gzip
import json
from typing import Any

import pytest
from places import DATA, ROOT

from sizing.catalog.config.fields import family
from sizing.catalog.config.model import read_model
from sizing.catalog.models import load_model
from sizing.model.architecture import Layout, layer_cache, parameters
from sizing.specs.errors import InputError
from sizing.specs.model import CompressedAttention, Model, ShortConv, SlidingWindowAttention, SsmAttention

TYPES: dict[str, dict[str, Any]] = json.loads(gzip.decompress((DATA / "model_types.json.gz").read_bytes()))
COUNTED = sorted(name for name, row in TYPES.items() if "ours" in row)
REFUSED = sorted(name for name, row in TYPES.items() if "refused" in row)

PLAIN: dict[str, Any] = {
    "model_type": "something_new",
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


def read(config: dict[str, Any]) -> Model:
    return read_model(config, name="org/Model", source="a test", where="config.json")


def fields_of_faults(config: dict[str, Any]) -> set[str | None]:
    with pytest.raises(InputError) as caught:
        read(config)
    return {fault.field for fault in caught.value.faults}


@pytest.mark.parametrize("name", COUNTED)
def test_a_known_type_is_counted_as_its_own_library_counts_it(name: str) -> None:
    row = TYPES[name]
    found = parameters(read(row["config"]))
    assert found == pytest.approx(row["ours"], rel=1e-6)
    if row["parameters"] is not None:
        assert found == pytest.approx(row["parameters"], rel=0.01)


def test_most_types_that_generate_text_are_counted() -> None:
    assert len(TYPES) == 820
    assert len(COUNTED) == 168
    assert sum(row.get("parameters") is not None for row in TYPES.values()) == 165


def test_every_other_type_is_refused_by_a_field() -> None:
    for name in REFUSED:
        assert TYPES[name]["refused"] in fields_of_faults(TYPES[name]["config"]), name


def test_every_type_of_the_table_has_one_line_and_known_keys() -> None:
    with (ROOT / "workloads" / "models" / "_families.csv").open(newline="") as file:
        types = [row[0] for row in csv.reader(file)]
    assert len(types) == len(set(types)) > 800
    assert all(family(name) is not None for name in types)


@pytest.mark.parametrize(
    "stated",
    [
        {"rope_theta": 1e6, "rms_norm_eps": 1e-6, "bos_token_id": 1, "attention_dropout": 0.1},
        {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28},
        {"router_aux_loss_coef": 0.001, "norm_topk_prob": True, "output_router_logits": True},
        {"new_switch": False, "new_count": 0, "new_text": "x", "new_list": []},
    ],
)
def test_a_plain_config_passes_with_keys_that_change_no_size(stated: dict[str, Any]) -> None:
    assert read({**PLAIN, **stated}).kinds == read(PLAIN).kinds


def test_experts_that_a_switch_turns_off_are_not_counted() -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
    assert parameters(read({**PLAIN, **experts, "use_moe": False})) == parameters(read(PLAIN))


def test_a_gate_or_a_tied_head_that_only_the_family_knows_is_taken() -> None:
    gelu = {**PLAIN, "model_type": "gemma", "hidden_act": "gelu_pytorch_tanh"}
    del gelu["tie_word_embeddings"]
    model = read(gelu)
    assert model.tied_embeddings
    assert model.kinds == read({**PLAIN, "model_type": "llama"}).kinds


def test_an_unknown_type_must_state_what_only_a_family_knows() -> None:
    silent = {key: value for key, value in PLAIN.items() if key != "tie_word_embeddings"}
    assert fields_of_faults(silent) == {"tie_word_embeddings"}
    assert fields_of_faults({**PLAIN, "hidden_act": "gelu"}) == {"hidden_act"}
    assert read({**PLAIN, "hidden_act": "gelu", "ffn_type": "plain"}).kinds != read(PLAIN).kinds


def test_a_width_that_counts_both_halves_is_halved() -> None:
    # Qwen-7B, first release: 22,016 is the width of gate and value together; 7.7 billion published.
    config = {**PLAIN, "model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32}
    config |= {"num_attention_heads": 32, "num_key_value_heads": None, "vocab_size": 151936}
    assert parameters(read(config)) == pytest.approx(7.72e9, rel=0.01)


def test_defaults_that_a_wrapped_config_leaves_out_are_those_of_its_type() -> None:
    # Gemma 3 4B as published: five sizes of its text part are stated, the others are the library's.
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    model = read({"model_type": "gemma3", "text_config": {**text, "sliding_window": 1024}, "torch_dtype": "bfloat16"})
    assert parameters(model) - model.extra_parameters == pytest.approx(3.88e9, rel=0.01)
    assert (model.max_position, model.tied_embeddings) == (131072, True)
    # At the top a size that is missing is missing: nothing tells a default from a mistake.
    assert "vocab_size" in fields_of_faults({**text, "num_attention_heads": 8})


def test_sizes_listed_by_layer_are_each_layers_own() -> None:
    model = read({**PLAIN, "intermediate_size": [1024, 2048, 1024, 2048]})
    assert [model.kinds[index].mlps[0].intermediate for index in model.layers] == [1024, 2048, 1024, 2048]
    moe = {"num_experts": 8, "moe_topk": [2] * 4, "moe_intermediate_size": [512] * 4}
    assert parameters(read({**PLAIN, **moe})) == parameters(
        read({**PLAIN, "num_experts": 8, "moe_topk": 2, "moe_intermediate_size": 512})
    )


def test_values_may_be_narrower_than_keys() -> None:
    full, narrow = read(PLAIN), read({**PLAIN, "v_head_dim": 32})
    # 4 layers, 4 KV heads and 16 query heads, each 32 of 64 values narrower, times the hidden size.
    assert parameters(full) - parameters(narrow) == 4 * (4 + 16) * 32 * 1024


def cached(model: Model, kv_bytes: float) -> float:
    return sum(layer_cache(model.kinds[index], Layout(), kv_bytes).bytes_per_token for index in model.layers)


def test_caches_by_hand() -> None:
    # DeepSeek-V3.2 in FP8: 656 bytes a latent and 132 an index key on each of 61 layers; 16 bit: 1,152 and 132.
    sparse = read(TYPES["deepseek_v32"]["config"])
    assert cached(sparse, 1.0) == 61 * (656 + 132)
    assert cached(sparse, 2.0) == 61 * (1152 + 132)
    # Keys that choose blocks: 4 KV heads of 64 and one index key of 32 in two of four layers, at 16 bit.
    sparse_config = {"use_sparse_attention": True, "sparse_attention_freq": [0, 0, 1, 1], "sparse_index_dim": 32}
    blocks = read({**PLAIN, "sparse_attention_config": {**sparse_config, "sparse_num_index_heads": 4}})
    assert cached(blocks, 2.0) == 4 * 2 * 4 * 64 * 2 + 2 * 32 * 2
    # DeepSeek-V4-Flash: a page of 47,808 bytes for 256 tokens in each of 22 tuples of layers (vLLM issue 44376).
    assert cached(read(TYPES["deepseek_v4"]["config"]), 1.0) == pytest.approx(22 * 47808 / 256)


def test_kinds_of_layers_beside_attention() -> None:
    falcon = read(TYPES["falcon_h1"]["config"])
    assert sum(isinstance(kind.mixer, SsmAttention) for kind in falcon.kinds) == 1
    lfm2 = {**TYPES["lfm2"]["config"], "layer_types": ["conv", "full_attention"] * 16}
    assert any(isinstance(kind.mixer, ShortConv) for kind in read(lfm2).kinds)
    flash = read(TYPES["deepseek_v4"]["config"])
    ratios = [
        mixer.ratio for index in flash.layers if isinstance(mixer := flash.kinds[index].mixer, CompressedAttention)
    ]
    assert set(ratios) == {4, 128} and len(ratios) == 43
    pictured = read(TYPES["mllama"]["config"])
    windows = {kind.mixer.window for kind in pictured.kinds if isinstance(kind.mixer, SlidingWindowAttention)}
    assert len(windows) == 1


ROUTED: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"n_routed_experts": None}, "num_experts"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size"),
        ({"quantization_config": []}, "quantization_config"),
        ({"quantization_config": "fp8"}, "quantization_config"),
        ({"rope_scaling": "yarn"}, "rope_scaling"),
        ({"rope_parameters": 3}, "rope_parameters"),
        ({"vision_config": "clip"}, "vision_config"),
        ({"expert_dtype": "fp3", "quantization_config": {"quant_method": "fp8"}}, "expert_dtype"),
        (
            {"quantization_config": {"quant_method": "fp8", "skipped_modules": ["model.layers.0.mlp"]}},
            "quantization_config.skipped_modules",
        ),
    ],
)
def test_what_would_be_another_model_in_silence_is_refused(changed: dict[str, Any], field: str) -> None:
    assert read({**PLAIN, **ROUTED}) is not None
    assert field in fields_of_faults({**PLAIN, **ROUTED, **changed})


def test_what_is_taken_for_a_config_that_leaves_it_out_is_told() -> None:
    shared = {key: value for key, value in ROUTED.items() if key not in ("n_shared_experts", "first_k_dense_replace")}
    assert {
        "n_shared_experts absent: no expert is shared",
        "first_k_dense_replace absent: every layer routes to experts",
    } <= set(read({**PLAIN, **shared}).notes)
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    notes = read({"model_type": "gemma3", "text_config": text, "torch_dtype": "bfloat16"}).notes
    (told,) = [note for note in notes if note.startswith("absent, and taken from the defaults")]
    assert "max_position_embeddings 131,072" in told and "hidden_size" not in told


def test_what_a_wrapped_config_writes_as_null_is_none_and_no_default() -> None:
    """Mistral Small 3.x and Pixtral write no window; the default of their type is 4,096 tokens."""
    wrapped = {"model_type": "mistral3", "torch_dtype": "bfloat16", "tie_word_embeddings": False}
    text = {**PLAIN, "model_type": "mistral"}
    kinds = {
        written: {kind.mixer.kind for kind in read({**wrapped, "text_config": {**text, **window}}).kinds if kind.mixer}
        for written, window in (
            ("null", {"sliding_window": None}),
            ("absent", {}),
            ("other", {"sliding_window_size": None}),
        )
    }
    assert kinds == {"null": {"gqa"}, "absent": {"sliding_window"}, "other": {"gqa"}}


def test_a_default_gives_way_to_another_word_for_the_same_size() -> None:
    text = {
        "model_type": "qwen3_vl_moe_text",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
    }
    other = {**text, "num_experts": text["num_local_experts"]}
    del other["num_local_experts"]
    wrapped = {"model_type": "qwen3_vl_moe", "torch_dtype": "bfloat16"}
    assert parameters(read({**wrapped, "text_config": text})) == parameters(read({**wrapped, "text_config": other}))


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", 40 * 2 * 8 * 128 * 2),
        ("mistralai/Magistral-Small-2509", 40 * 2 * 8 * 128 * 2),
        ("mistralai/Pixtral-12B-2409", 40 * 2 * 8 * 128 * 2),
    ],
)
def test_caches_of_mistral_s_small_models_are_whole(name: str, per_token: int) -> None:
    model = load_model(name).spec
    assert {kind.mixer.kind for kind in model.kinds if kind.mixer} == {"gqa"}
    assert cached(model, 2.0) == per_token


@pytest.mark.parametrize(
    "stated",
    [
        {"quant_method": "gptq", "dynamic": {"+:.*down_proj.*": {"bits": 8}}},
        {"quant_method": "gptq", "dynamic": {".*down_proj.*": {"bits": 8}}},
        {"quant_method": "auto-round", "extra_config": {"model.layers.*.mlp.down_proj": {"bits": 8}}},
    ],
)
def test_modules_with_bits_of_their_own_are_stored_in_them(stated: dict[str, Any]) -> None:
    model = read({**PLAIN, "quantization_config": {"bits": 4, "group_size": 128, **stated}})
    assert model.quantisation.precision == "int4"
    (one,) = model.quantisation.stored
    assert (one.role, one.precision, one.share) == ("dense_mlp", "int8", pytest.approx(1 / 3))
    odd = {"bits": 4, "group_size": 128, **{key: value for key, value in stated.items() if key == "quant_method"}}
    odd |= {"dynamic": {"+:.*down_proj.*": {"bits": 3}}}
    assert "quantization_config.dynamic.+:.*down_proj.*.bits" in fields_of_faults({**PLAIN, "quantization_config": odd})


def test_a_projection_named_alone_is_that_of_every_layer() -> None:
    config = {**PLAIN, "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    config["quantization_config"]["llm_int8_skip_modules"] = ["down_proj", "k_proj"]
    kept = {one.role: one.share for one in read(config).quantisation.stored}
    assert kept == {"dense_mlp": pytest.approx(1 / 3), "attention": pytest.approx(256 / (2 * 1024 + 2 * 256))}
