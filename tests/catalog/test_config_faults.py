"""What a config leaves out or misspells: defaults that are said, and faults by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from config_builders import CATALOGUE, LLAMA, faults, profile, read

from sizing.specs.errors import InputError

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
        ("max_window_layers", {"sliding_window": 1024, "use_sliding_window": True}, "layer_types absent, and no other layout"),
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


ODD = (None, True, -1, 0, 0.5, "x", [], [{}], {}, {"x": 1}, 1e400, 2**50)
ZOO = CATALOGUE[::6]


@cache
def first_with_key() -> dict[str, Path]:
    """The first model of the zoo that has a key, by key."""
    return {key: path for path in reversed(ZOO) for key in profile(path).config}


@pytest.mark.parametrize("path", ZOO, ids=lambda path: path.stem)
def test_an_odd_value_anywhere_is_a_model_or_a_fault_never_a_crash(path: Path) -> None:
    """All odd values of each key in the first model that has it, and one of them, in turn, in each later model."""
    config = profile(path).config
    for turn, key in enumerate(config, ZOO.index(path)):
        for odd in ODD if first_with_key()[key] == path else (ODD[turn % len(ODD)],):
            for changed in (
                {**config, key: odd},
                {**config, "text_config": {**config.get("text_config", {}), key: odd}},
            ):
                try:
                    model = read(changed)
                except InputError:
                    continue
                assert model.layers, f"{key}: {odd!r}"
