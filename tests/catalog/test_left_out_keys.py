"""What a config leaves to its library's code: gates, windowed layers, the longest length, the scales of loaded weights."""

from __future__ import annotations

import pytest
from config_builders import LLAMA, read

from sizing.model.architecture import parameters
from sizing.specs.errors import InputError
from sizing.specs.model import Model


def mixers(model: Model) -> list[str]:
    return [mixer.kind for index in model.layers if (mixer := model.kinds[index].mixer)]


@pytest.mark.parametrize(
    ("model_type", "kinds"),
    [  # what Transformers 5.24 makes of a window without a layout
        ("qwen2", "ffffffff"),
        ("qwen2_moe", "ffffffff"),
        ("qwen3", "ffffffff"),
        ("qwen3_moe", "ffffffff"),
        ("gpt_oss", "wfwfwfwf"),
        ("gemma2", "wfwfwfwf"),
        ("gemma3_text", "wwwwwfww"),
        ("cohere2", "wwwfwwwf"),
        ("cwm", "fwwwfwww"),
        ("mistral", "wwwwwwww"),
    ],
)
def test_a_window_without_a_layout_has_the_layout_of_its_family(model_type: str, kinds: str) -> None:
    config = {**LLAMA, "model_type": model_type, "num_hidden_layers": 8, "sliding_window": 1024}
    found = "".join("w" if kind == "sliding_window" else "f" for kind in mixers(read(config)))
    assert found == kinds
    assert not any("sliding window" in note for note in read(config).notes)


def test_a_stated_layout_of_windows_goes_before_that_of_the_family() -> None:
    config = {**LLAMA, "model_type": "gemma3_text", "sliding_window": 1024, "_sliding_window_pattern": 2}
    assert mixers(read(config)) == ["sliding_window", "gqa"] * 2
    config = {
        **LLAMA,
        "model_type": "qwen3",
        "sliding_window": 1024,
        "use_sliding_window": True,
        "max_window_layers": 3,
    }
    assert mixers(read(config)) == ["gqa"] * 3 + ["sliding_window"]


def test_dbrx_is_gated_where_its_config_leaves_the_activation_out() -> None:
    config = {
        "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768, "vocab_size": 100352,
        "attn_config": {"kv_n_heads": 8},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    }  # fmt: skip
    assert parameters(read(config)) == pytest.approx(131.6e9, rel=0.001)


def test_an_unknown_type_without_an_activation_is_no_guess_at_a_gate() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "hidden_act"}
    with pytest.raises(InputError, match="it is not known whether the MLPs of this model_type are gated"):
        read({**config, "model_type": "something_new", "tie_word_embeddings": False})


def test_the_gate_that_a_section_states_goes_before_that_of_the_family() -> None:
    config = {
        "model_type": "mpt",
        "d_model": 256,
        "n_heads": 4,
        "n_layers": 2,
        "vocab_size": 1000,
        "expansion_ratio": 4,
    }
    gated = read({**config, "max_seq_len": 2048, "ffn_config": {"ffn_type": "mptglu"}})
    assert parameters(gated) > parameters(read({**config, "max_seq_len": 2048}))


def test_falcon_and_starcoder2_are_read_as_published() -> None:
    falcon = {"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
              "vocab_size": 65024, "multi_query": True, "parallel_attn": True, "bias": False}  # fmt: skip
    assert read(falcon).max_position == 2048
    starcoder = {**LLAMA, "model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh"}
    assert parameters(read({**starcoder, "mlp_type": "default"})) == parameters(read(starcoder))
    with pytest.raises(InputError, match="'gated' is not modelled"):
        read({**starcoder, "mlp_type": "gated"})


@pytest.mark.parametrize(("doubled", "bits"), [(None, 4.5), (False, 4.5), (True, 4 + (8 + 32 / 256) / 64)])
def test_weights_that_bitsandbytes_loads_in_4_bits_have_the_scales_of_their_blocks(
    doubled: bool | None, bits: float
) -> None:
    quantisation = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": doubled}
    assert read({**LLAMA, "quantization_config": quantisation}).quantisation.bits == pytest.approx(bits)
