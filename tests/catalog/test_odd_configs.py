"""Configs that state a size in an odd way are counted as they are meant, or refused by the key's name; none is counted wrongly.

The sums are worked by hand: H is the hidden size, W the width of an MLP, V the vocabulary, and four layers have 16 heads of 64
values and 4 KV heads. Norms are left out of the sums, so that they hold within a thousandth.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sizing.catalog.config.model import read_model
from sizing.catalog.models import load_model
from sizing.model.architecture import parameters
from sizing.specs.errors import InputError

H, W, V, LAYERS, HEADS, KV, DIM, EXPERT = 1024, 2816, 32_000, 4, 16, 4, 64, 512
PLAIN: dict[str, Any] = {
    "model_type": "something_new",
    "num_hidden_layers": LAYERS,
    "hidden_size": H,
    "vocab_size": V,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "intermediate_size": W,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
ROUTED = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT}
SHARED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT}
UNTOLD: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2}
NO_MLP, NO_TIE, NO_KV = {"intermediate_size": None}, {"tie_word_embeddings": None}, {"num_key_value_heads": None}

ENDS, ATTENTION, MLP = 2 * V * H, 2 * H * HEADS * DIM + 2 * H * KV * DIM, 3 * H * W
EXPERTS = 8 * 3 * H * EXPERT + 8 * H
DENSE = ENDS + LAYERS * (ATTENTION + MLP)
MOE = ENDS + LAYERS * (ATTENTION + EXPERTS)
BERT = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "vocab_size": 30522,
}
BERT |= {"max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu", "pad_token_id": 0}
OF_BERT = (30_522 + 512 + 2) * 768 + 12 * (4 * 768**2 + 2 * 768 * 3072)


def read(config: dict[str, Any]) -> float:
    return parameters(read_model(config, name="org/Model", source="a test", where="config.json"))


ANSWERED: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("as it is", {}, DENSE),
    ("a tied head", {"tie_word_embeddings": True}, DENSE - V * H),
    ("a gated MLP under another name", {"hidden_act": "geglu"}, DENSE),
    ("a gated MLP that the config names", {"hidden_act": "gelu", "ffn_type": "glu"}, DENSE),
    ("a plain MLP that the config names", {"hidden_act": "gelu", "ffn_type": "plain"}, DENSE - LAYERS * H * W),
    ("a gate that only the family knows", {"model_type": "gemma", "hidden_act": "gelu_pytorch_tanh"}, DENSE),
    ("a width of both halves", {"model_type": "qwen", "intermediate_size": 2 * W}, DENSE),
    ("widths by layer", {"intermediate_size": [1024, 2048, 1024, 2048]}, DENSE - 3 * H * (4 * W - 6144)),
    ("KV heads by layer", {"num_key_value_heads": [4, 4, 8, 8]}, DENSE + 2 * 2 * H * 4 * DIM),
    ("one size in a list", {"hidden_size": [H] * LAYERS}, DENSE),
    ("values narrower than keys", {"v_head_dim": 32}, DENSE - LAYERS * (KV + HEADS) * 32 * H),
    ("wider heads", {"head_dim": 128}, DENSE + LAYERS * ATTENTION),
    ("one KV head for each head", NO_KV, DENSE + LAYERS * 2 * H * (HEADS - KV) * DIM),
    ("experts", ROUTED, MOE),
    ("experts as wide as the MLP", {"num_local_experts": 8, "num_experts_per_tok": 2}, ENDS + LAYERS * (ATTENTION + 8 * MLP)),
    ("sizes of experts by layer", {**UNTOLD, "num_experts_per_tok": [2] * 4, "moe_intermediate_size": [EXPERT] * 4}, MOE),
    ("experts in every second layer", {**ROUTED, "moe_layer_freq": 2}, (DENSE + MOE) / 2),
    ("two shared experts", {**SHARED, "n_shared_experts": 2}, MOE + LAYERS * 2 * 3 * H * EXPERT),
    ("a dense MLP beside the experts", {**ROUTED, "enable_moe_block": True}, MOE + LAYERS * MLP),
    ("experts that a switch turns off", {**ROUTED, "use_moe": False}, DENSE),
    ("experts that another switch turns off", {**ROUTED, "enable_moe_block": False}, DENSE),
    ("no experts", {**ROUTED, "num_experts": 0}, DENSE),
    ("a nested MLP", {**NO_MLP, "ffn_config": {"ffn_hidden_size": W, "moe_num_experts": 8, "moe_top_k": 2}}, ENDS + LAYERS * (ATTENTION + 8 * MLP)),
    ("one other layer", {"per_layer_config": {"1": {"intermediate_size": 2 * W}}}, DENSE + MLP),
    ("two names that agree", {"n_embd": H, "num_heads": HEADS}, DENSE),
)  # fmt: skip

REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("experts' width under another key", {**UNTOLD, "ffn_dim_exps": EXPERT}, "ffn_dim_exps"),
    ("experts' width under another key", {**UNTOLD, "expert_ffn_hidden_size": EXPERT}, "expert_ffn_hidden_size"),
    ("a shared width under another key", {**ROUTED, "shared_ffn_dim": 1024}, "shared_ffn_dim"),
    ("experts that compute nothing", {**ROUTED, "zero_expert_num": 4}, "zero_expert_num"),
    ("experts that compute nothing", {**ROUTED, "n_copy_experts": 2}, "n_copy_experts"),
    ("experts that compute nothing", {**ROUTED, "expert_kinds": ["ffn", "zero"]}, "expert_kinds"),
    ("a nested MLP", {**NO_MLP, "mlp": {"hidden_dim": W}}, "mlp"),
    ("a nested MLP beside another", {"mlp_config": {"intermediate_size": 4096}}, "mlp_config"),
    ("nested experts", {"moe": {"num_experts": 8, "top_k": 2}}, "moe"),
    ("a gate under another name", {"gated_mlp": True}, "gated_mlp"),
    ("a gate that is switched off", {"gated_mlp": False}, "gated_mlp"),
    ("an activation that says nothing of a gate", {"hidden_act": "gelu_new"}, "hidden_act"),
    ("an activation that says nothing of a gate", {"hidden_act": "relu"}, "hidden_act"),
    ("an activation that nobody knows", {"hidden_act": "mish"}, "hidden_act"),
    ("a width of both halves", {"ffn_hidden_size_is_fused": True}, "ffn_hidden_size_is_fused"),
    ("a dense MLP beside the experts", {**ROUTED, "parallel_attn_mlp_res": True}, "parallel_attn_mlp_res"),
    ("a dense MLP beside the experts", {**ROUTED, "moe_residual": True}, "moe_residual"),
    ("experts of attention", {"num_attention_experts": 8}, "num_attention_experts"),
    ("experts of attention", {**ROUTED, "model_type": "jetmoe"}, "model_type"),
    ("experts off", {**ROUTED, "is_moe": False}, "is_moe"),
    ("experts off", {**ROUTED, "use_experts": False}, "use_experts"),
    ("experts off", {**ROUTED, "is_sparse": False}, "is_sparse"),
    ("experts off", {**ROUTED, "disable_experts": True}, "disable_experts"),
    ("experts without their number", {"num_experts_per_tok": 2}, "num_experts"),
    ("experts without their number", {"moe_intermediate_size": EXPERT}, "moe_intermediate_size"),
    ("experts without their number", {"n_shared_experts": 1}, "n_shared_experts"),
    ("projections at the embedding", {"embedding_size": 128}, "embedding_size"),
    ("projections at the embedding", {"word_embed_proj_dim": 512}, "word_embed_proj_dim"),
    ("projections at the embedding", {"factorized_embedding_rank": 64}, "factorized_embedding_rank"),
    ("shared layers", {"num_hidden_groups": 1}, "num_hidden_groups"),
    ("shared layers", {"num_loops": 4}, "num_loops"),
    ("shared layers", {"share_layers": True}, "share_layers"),
    ("a shared cache", {"use_cla": True}, "use_cla"),
    ("a tied head that is not stated", NO_TIE, "tie_word_embeddings"),
    ("a tied head under another name", {**NO_TIE, "tie_lm_head": True}, "tie_word_embeddings"),
    ("a tied head in two words", {"text_config": {**PLAIN, "tie_word_embeddings": True}}, "tie_word_embeddings"),
    ("an encoder without its type", {"type_vocab_size": 2}, "type_vocab_size"),
    ("encoders of images and text", {"logit_scale_init_value": 2.6, "projection_dim": 512}, "logit_scale_init_value"),
    ("encoders of images and text", {"model_type": "clip"}, "model_type"),
    ("an encoder beside a decoder", {"is_encoder_decoder": True}, "is_encoder_decoder"),
    ("a decision transformer", {"model_type": "decision_transformer"}, "model_type"),
    ("a decision transformer without its type", {"act_dim": 4}, "act_dim"),
    ("a list that is too short", {"intermediate_size": [W, W]}, "intermediate_size"),
    ("experts for text and images", {**UNTOLD, "num_experts": [8, 8], "moe_intermediate_size": EXPERT}, "num_experts"),
    ("a list of hidden sizes", {"hidden_size": [H, H, H, 512]}, "hidden_size"),
    ("heads by layer without their width", {"num_attention_heads": [16, 16, 8, 8]}, "head_dim"),
    ("keys of another width", {"qk_head_dim": 32}, "qk_head_dim"),
    ("values under another name", {"value_head_dim": 32}, "value_head_dim"),
    ("two names for a size", {"n_embd": 512}, "n_embd"),
    ("two names for a size", {**ROUTED, "n_routed_experts": 16}, "n_routed_experts"),
    ("pruned heads", {"pruned_heads": {"0": [1, 2]}}, "pruned_heads"),
    ("sparse attention without its layers", {"index_topk": 2048, "index_n_heads": 64}, "index_n_heads"),
    ("layers without a layout", {"mamba_d_state": 16}, "layer_types"),
    ("a layer of another kind", {"layer_types": ["full_attention", "memory_attention"] * 2}, "layer_types"),
)  # fmt: skip


@pytest.mark.parametrize(("changed", "by_hand"), [row[1:] for row in ANSWERED], ids=[row[0] for row in ANSWERED])
def test_an_odd_config_is_counted_as_it_is_meant(changed: dict[str, Any], by_hand: float) -> None:
    assert read({**PLAIN, **changed}) == pytest.approx(by_hand, rel=1e-3)


def test_an_encoder_is_counted_by_its_type() -> None:
    assert read({**BERT, "model_type": "bert"}) == pytest.approx(OF_BERT, rel=1e-3)


@pytest.mark.parametrize(
    ("changed", "field"), [row[1:] for row in REFUSED], ids=[f"{row[0]}: {row[2]}" for row in REFUSED]
)
def test_what_would_be_counted_wrongly_is_refused_by_name(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        read({**PLAIN, **changed})
    assert field in {fault.field for fault in caught.value.faults}


@pytest.mark.parametrize(
    ("name", "config", "says"),
    [
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}, "how weights are stored"),
        ("adapter_config.json", {"peft_type": "LORA", "r": 16}, "config of an adapter"),
    ],
)
def test_another_file_of_a_checkpoint_is_no_model(name: str, config: dict[str, Any], says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(InputError, match=says):
        load_model(str(tmp_path / name))
