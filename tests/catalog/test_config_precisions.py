"""Quantisation sections of configs: each method, and the precision of each module."""

from __future__ import annotations

from typing import Any

import pytest
from config_builders import LLAMA, catalogue, faults, read

from sizing.specs.model import (
    Stored,
)

USUAL = {"embedding", "lm_head", "norm", "router"}

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
