"""Reads the parts of a layer: its mixer, its MLPs, and the modules for multi-token prediction.

A mixer is grouped-query, windowed, latent, linear or state-space. An MLP is dense or routed. It is gated (three projections) or
not (two). The first of these fields that a config has decides:

- `ffn_type`: gated if it names a GLU;
- `hidden_activation`: gated, because only gated families write this key;
- the activation: SiLU, SwiGLU and similar are gated; ReLU, squared ReLU and GELU are not;
- `intermediate_size`: gated, because families without gates use a multiple of the hidden size instead.

A config states the number of modules for multi-token prediction. Their layers equal the last layer, or follow a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from sizing.catalog.config.fields import UNKNOWN_GATE, Fields, Mixer, is_known, shown, spelled
from sizing.catalog.config.layers import NAMED_BY_DEEPSEEK, MlpName, Slot, block_slots
from sizing.specs.model import (
    Attention,
    BidirectionalAttention,
    CompressedAttention,
    DenseMlp,
    GqaAttention,
    Heads,
    LayerKind,
    LinearAttention,
    MlaAttention,
    Mlp,
    MoeMlp,
    Mtp,
    ShortConv,
    SlidingWindowAttention,
    SsmAttention,
)

KV_HEADS_BY_LAYER = "num_key_value_heads_per_layer"
STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def read_mixer(fields: Fields, mixer: Mixer, index: int, layers: int) -> Attention:
    """The mixer of layer `index` of `layers`."""
    if mixer == "linear":
        return _linear(fields)
    if mixer == "ssm":
        return _ssm(fields)
    if mixer == "conv":
        return ShortConv(fields.integer("conv_dim", "HIDDEN"), fields.integer("conv_L_cache"))
    if mixer == "compressed":
        return _compressed(fields, index, layers)
    if mixer == "bidirectional":
        heads = fields.integer("Q_HEADS")
        return BidirectionalAttention(heads, heads, head_dim_of(fields, heads), bias=fields.text("ffn_type") != GLU)
    if mixer == "cross":
        return _cross(fields, index)
    if fields.stated("kv_lora_rank"):
        return _latent(fields, index, layers)
    window = _window(fields, mixer)
    reuses = index >= layers - (fields.optional_integer("num_kv_shared_layers") or 0)
    grouped = _grouped(fields, index, windowed=mixer != "full", reuses_cache=reuses)
    if window is None:
        return grouped
    return _windowed(grouped, window, chunked=mixer == "chunk")


def _windowed(heads: Heads, window: int, *, chunked: bool = False) -> SlidingWindowAttention:
    shape = {name: getattr(heads, name) for name in Heads.__dataclass_fields__}
    return SlidingWindowAttention(window=window, chunked=chunked, **shape)


def _window(fields: Fields, mixer: Mixer) -> int | None:
    """The window in tokens; None for a window as long as the context, because it never applies."""
    if mixer == "full":
        return None
    size = fields.integer("attention_chunk_size" if mixer == "chunk" else "WINDOW")
    return size if size < fields.integer("MAX_POSITION") else None


def _grouped(fields: Fields, index: int, *, windowed: bool, reuses_cache: bool) -> GqaAttention:
    """Heads and widths of a layer. Windowed and full layers may differ (`global_head_dim`, `attention_other_setting`)."""
    own = fields.section("attention_other_setting") if windowed else None
    q_heads = (own or fields).integer("Q_HEADS")
    if windowed:
        q_heads = fields.optional_integer("num_sliding_attention_heads", least=1) or q_heads
    head_dim = head_dim_of(fields, fields.integer("Q_HEADS"))
    kv_heads = (own.optional_integer("KV_HEADS", least=1) if own else None) or _kv_heads(fields, index, q_heads)
    if not windowed:
        head_dim = fields.optional_integer("global_head_dim", least=1) or head_dim
        kv_heads = fields.optional_integer("num_global_key_value_heads", least=1) or kv_heads
    if (kv_heads > q_heads or q_heads % kv_heads) and (own or fields).stated("Q_HEADS"):
        fields.fault("num_key_value_heads", f"{kv_heads} does not divide the {q_heads} attention heads")
    value_dim = fields.optional_integer("v_head_dim", least=1)
    if (fields.optional_integer("qk_head_dim") or head_dim) != head_dim:
        allowed = "head_dim for keys, v_head_dim for values"
        fields.fault("qk_head_dim", f"contradicts heads of {head_dim} values", allowed)
    over_heads, bias = fields.text("qk_norm_type") == "per_layer", fields.flag("BIAS")
    if bias is None:
        bias = fields.flag("no_bias") is False or bool(fields.flag("bias"))
    return GqaAttention(
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        bias=bias,
        output_gate=_output_gate(fields),
        shared_kv=bool(fields.flag("attention_k_eq_v")) and not windowed,
        reuses_cache=reuses_cache,
        norm_heads=bool(fields.flag("use_qk_norm")) and not over_heads,
        norm_over_heads=over_heads,
        value_dim=None if value_dim == head_dim else value_dim,
        index_dim=_index_dim(fields, index),
    )


def _index_dim(fields: Fields, index: int) -> int:
    """The width of the key that selects cache blocks; 0 in layers that attend to the whole cache."""
    types, sparse = fields.sequence("layer_types") or (), fields.section("sparse_attention_config")
    if index < len(types) and types[index] == "indexed_attention":
        return fields.integer("index_head_dim")
    if types:
        fields.passed("index_head_dim", "index_n_heads")
    used = (sparse.sequence("sparse_attention_freq") or ()) if sparse is not None else ()
    if sparse is None or not sparse.flag("use_sparse_attention") or index >= len(used) or not used[index]:
        return 0
    return sparse.integer("sparse_index_dim")


def head_dim_of(fields: Fields, q_heads: int) -> int:
    """The stated head width, otherwise the hidden size divided by the number of heads."""
    stated = fields.stated("HEAD_DIM")
    if stated is not None:
        return fields.integer(stated)
    hidden_size = fields.integer("HIDDEN")
    if hidden_size % q_heads and not fields.faults:
        fields.fault("head_dim", f"missing, and {hidden_size} does not divide into {q_heads} heads")
    head_dim = max(1, hidden_size // q_heads)
    fields.note(f"head_dim absent: the hidden size over the attention heads, {hidden_size} / {q_heads} = {head_dim}")
    return head_dim


def _kv_heads(fields: Fields, index: int, q_heads: int) -> int:
    """The KV heads of a layer: listed by layer, one for all query heads (multi-query), stated, otherwise one per query head.

    Falcon states a number of heads that only its newer decoder uses. If that decoder is off, `multi_query` decides.
    """
    by_layer = fields.sequence(KV_HEADS_BY_LAYER)
    if by_layer is not None:
        place = f"{KV_HEADS_BY_LAYER}[{index}]"
        heads = by_layer[index] if index < len(by_layer) else None
        return fields.inner(place, heads).integer(place)
    if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):
        return 1
    stated = fields.stated("KV_HEADS")
    if stated is not None:
        return fields.integer(stated)
    fields.note(f"num_key_value_heads absent: one KV head for each of the {q_heads} attention heads (multi-head)")
    return q_heads


def _output_gate(fields: Fields) -> bool:
    """Whether a gate as wide as the queries follows attention. In models with linear layers it does unless denied."""
    stated = fields.flag("OUTPUT_GATE")
    if stated is not None:
        return stated
    gated = fields.stated("linear_num_value_heads") is not None
    if gated:
        fields.note("attn_output_gate absent: gated, as in families that write linear_num_value_heads")
    return gated


def _cross(fields: Fields, index: int) -> SlidingWindowAttention:
    """Cross attention to an image. Keys and values come from the tokens of one image, whatever the prompt's length."""
    vision = fields.section("vision_config")
    if vision is None:
        fields.fault("vision_config", "missing, and cross_attention_layers attend to images")
        return SlidingWindowAttention(1, 1, 1)
    side = vision.integer("image_size") // max(1, vision.integer("patch_size"))
    tokens = (side * side + 1) * vision.integer("max_num_tiles")
    fields.note(f"layers with cross attention keep the {tokens:,} tokens of one image")
    grouped = _grouped(fields, index, windowed=False, reuses_cache=False)
    return _windowed(grouped, tokens)


def _compressed(fields: Fields, index: int, layers: int) -> CompressedAttention:
    """Attention over a compressed cache. Its ratio is listed by layer, or follows from the layer's type."""
    listed = _ratio(fields, index)
    indexed_ratio, dense_ratio = fields.integer("indexed_ratio"), fields.integer("dense_ratio")
    all_of_them = [_ratio(fields, layer) for layer in range(layers)]
    if isinstance(listed, bool) or listed not in (0, indexed_ratio, dense_ratio):
        key = fields.stated("compress_ratios", "compress_rates") or "compress_ratios"
        fields.fault(key, f"{shown(listed)} is no ratio", f"0, {indexed_ratio}, {dense_ratio}")
        listed = 0
    indexed = listed == indexed_ratio
    return CompressedAttention(
        **fields.integers("q_heads", "head_dim"),
        rope_dim=fields.integer("qk_rope_head_dim"),
        **fields.integers("q_lora_rank", "o_groups", "o_lora_rank", "window"),
        ratio=listed,
        index_heads=fields.integer("index_n_heads") if indexed else 0,
        index_head_dim=fields.integer("index_head_dim"),
        index_topk=fields.integer("index_topk") if indexed else 0,
        page_share=-(-layers // 2) / layers,
        few_share=all_of_them.count(indexed_ratio) / layers,
        many_share=all_of_them.count(dense_ratio) / layers,
    )


def _ratio(fields: Fields, index: int) -> object:
    """The compression ratio that a config states for a layer."""
    ratios = fields.sequence("compress_ratios")
    if ratios is not None:
        return ratios[index] if index < len(ratios) else 0
    types, rates = fields.sequence("layer_types") or (), fields.section("compress_rates")
    kind = str(types[index]) if index < len(types) else ""
    return rates.value(kind) if rates is not None else None


def _latent(fields: Fields, index: int, layers: int) -> MlaAttention:
    """Latent attention. A layer with a `shared` indexer reuses the tokens that the previous layer chose."""
    if not fields.has("q_lora_rank"):
        fields.fault("q_lora_rank", "missing", "a whole number above zero, or null for full-rank queries")
    topk = fields.optional_integer("index_topk") or 0
    kinds = fields.sequence("indexer_types") or ()
    if kinds and len(kinds) != layers:
        fields.fault("indexer_types", f"{len(kinds)} does not agree with {layers} layers")
    indexes = topk > 0 and (index >= len(kinds) or kinds[index] != "shared")
    return MlaAttention(
        q_heads=fields.integer("Q_HEADS"),
        q_lora_rank=fields.optional_integer("q_lora_rank", least=1),
        **fields.integers("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        index_heads=fields.integer("index_n_heads") if indexes else 0,
        index_head_dim=fields.integer("index_head_dim") if indexes else 0,
        index_topk=topk,
        output_gate=bool(fields.flag("mla_use_output_gate")),
    )


def _linear(fields: Fields) -> LinearAttention | SsmAttention:
    """Linear attention: a delta rule with its own fields or section, or MiniMax's plain form. May also be a state space.

    Transformers 5 also calls Mamba layers linear attention.
    """
    if fields.stated("SSM_HEADS"):
        return _ssm(fields)
    section = fields.section("linear_attn_config")
    if section is not None:
        heads, head_dim = section.integer("num_heads"), section.integer("head_dim")
        kernel, rank = section.integer("short_conv_kernel_size"), 0 if section.flag("use_full_rank_gate") else head_dim
        return LinearAttention(heads, heads, head_dim, head_dim, kernel, gate_rank=rank)
    if fields.stated("linear_num_heads"):
        heads, head_dim = fields.integer("linear_num_heads"), fields.integer("linear_head_dim")
        kernel = fields.integer("linear_conv_kernel_dim")
        return LinearAttention(heads, heads, head_dim, head_dim, kernel, gate_rank=head_dim)
    if fields.stated("attn_type_list", "full_attn_alpha_factor"):
        heads = fields.integer("Q_HEADS")
        head_dim = head_dim_of(fields, heads)
        return LinearAttention(heads, heads, head_dim, head_dim, conv_kernel=1, state_bytes=_state_bytes(fields))
    keys = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    key_heads, value_heads, key_dim, value_dim, kernel = (fields.integer(f"linear_{key}") for key in keys)
    return LinearAttention(key_heads, value_heads, key_dim, value_dim, kernel, state_bytes=_state_bytes(fields))


def _ssm(fields: Fields) -> SsmAttention:
    heads, head_dim = fields.integer("SSM_HEADS"), fields.integer("SSM_HEAD_DIM")
    inner = fields.optional_integer("mamba_d_ssm", least=1)
    if inner is not None and inner != heads * head_dim:
        fields.fault("mamba_d_ssm", f"{inner} is not the {heads} heads of {head_dim}")
    groups, state_size, kernel = (fields.integer(key) for key in ("SSM_GROUPS", "SSM_STATE", "SSM_CONV"))
    return SsmAttention(heads, head_dim, groups, state_size, kernel, _state_bytes(fields))


def _state_bytes(fields: Fields) -> int:
    """Bytes of one state value: 32 bit, as in the reference code, unless a type is stated."""
    stated = fields.text("STATE_DTYPE")
    if stated is None:
        fields.note("mamba_ssm_dtype absent: the state of linear and state-space layers is kept in 32 bit")
        return STATE_BYTES["float32"]
    if stated not in STATE_BYTES:
        fields.fault("mamba_ssm_dtype", f"unknown type {shown(stated)}", ", ".join(STATE_BYTES))
    return STATE_BYTES.get(stated, STATE_BYTES["float32"])


GATED_ACTIVATIONS = frozenset({"silu", "swish", "situ"})
GLU = "glu"
PLAIN_MLP = "default"  # what StarCoder2 calls its MLP, which has no gate
UNSTATED_GATE = "missing, and it is not known whether the MLPs of this model_type are gated"
GATE_BESIDE = "ffn_type: glu, or ffn_type: plain, beside it"
IMPLIED_FACTOR = 4
DOUBLE_WIDTH = 2


def read_mlp(fields: Fields, name: MlpName, *, reuses_cache: bool = False) -> Mlp:
    """One MLP. In layers with `reuses_cache` it is twice as wide if `use_double_wide_mlp` is set."""
    if name == "moe":
        return _moe(fields)
    width = _dense_width(fields)
    doubled = reuses_cache and bool(fields.flag("use_double_wide_mlp"))
    return DenseMlp(width * (DOUBLE_WIDTH if doubled else 1), is_gated(fields), bool(fields.flag("MLP_BIAS")))


def is_gated(fields: Fields) -> bool:
    """Whether the MLPs are gated, by the rule in the module's docstring."""
    kind, form = fields.text("ffn_type"), fields.text("mlp_type")
    if form not in (None, PLAIN_MLP):
        fields.fault("mlp_type", f"{shown(form)} is not modelled", PLAIN_MLP)
    if kind is not None:
        fields.passed("ACTIVATION")
        return GLU in kind
    if fields.stated("hidden_activation"):
        return True
    activation = fields.value("ACTIVATION")
    if isinstance(activation, Mapping):
        activation = activation.get("name")
    if activation is None and not is_known(fields):
        fields.fault("hidden_act", UNSTATED_GATE, GATE_BESIDE)
        return True
    if activation is None:
        gated = fields.stated("intermediate_size", "moe_intermediate_size") is not None
        fields.note(f"hidden_act absent: MLPs {'with' if gated else 'without'} a gate, by the name of their width")
        return gated
    gated = str(activation) in GATED_ACTIVATIONS or GLU in str(activation)
    if not gated and not is_known(fields):
        fields.fault(fields.stated("ACTIVATION") or "hidden_act", UNKNOWN_GATE, GATE_BESIDE)
    return gated


def _dense_width(fields: Fields) -> int:
    stated = fields.stated("DENSE_WIDTH")
    if stated is not None:
        return _adjusted(fields, fields.integer(stated))
    factor = fields.optional_integer("expansion_ratio", least=1)
    if factor is None and (fields.has("n_inner") or fields.stated("IMPLIED_WIDTH")):
        factor = IMPLIED_FACTOR
    if factor is None:
        return fields.integer("intermediate_size", "DENSE_WIDTH")
    if not fields.stated("expansion_ratio"):
        fields.note(f"intermediate_size absent: {IMPLIED_FACTOR} times the hidden size, the default of such families")
    return factor * fields.integer("HIDDEN")


def _adjusted(fields: Fields, width: int) -> int:
    """The MLP width from the stated one.

    It is half of a width that counts both halves. For LFM2 it is two thirds, rounded up to a multiple.
    """
    if fields.flag("counts_both_halves"):  # a fact of a family: the first Qwen
        return width // 2
    if not fields.flag("block_auto_adjust_ff_dim"):
        return width
    factor = fields.value("block_ffn_dim_multiplier")
    scaled = int((factor if isinstance(factor, int | float) else 1) * int(2 * width / 3))
    multiple = fields.integer("block_multiple_of")
    return -(-scaled // multiple) * multiple


def _moe(fields: Fields) -> MoeMlp:
    experts, per_token = fields.integer("EXPERTS"), fields.integer("EXPERTS_PER_TOKEN")
    if per_token > experts and not fields.faults:
        fields.fault("num_experts_per_tok", f"{per_token} is more than the {experts} experts")
    width = _expert_width(fields)
    return MoeMlp(
        experts=experts,
        experts_per_token=per_token,
        intermediate=width,
        gated=is_gated(fields),
        shared_intermediate=_shared_width(fields, width),
        shared_gate=bool(fields.optional_integer("shared_expert_intermediate_size")),
        latent=fields.optional_integer("EXPERT_LATENT", least=1),
        bias=bool(fields.flag("mlp_bias")),
    )


def _expert_width(fields: Fields) -> int:
    """The width of an expert. Some families state it with the key of the MLP width."""
    key = fields.stated("EXPERT_WIDTH")
    named = fields.stated("EXPERTS")
    if key in spelled("DENSE_WIDTH") and named == NAMED_BY_DEEPSEEK:
        fields.fault("moe_intermediate_size", "missing, and experts are not as wide as MLPs", "the width of an expert")
    elif key in spelled("DENSE_WIDTH") and named != "num_local_experts":
        fields.note(f"moe_intermediate_size absent: experts are as wide as {key} says")
    return fields.integer("EXPERT_WIDTH")


def _shared_width(fields: Fields, expert_width: int) -> int:
    """The total width of the shared experts: stated, from their number, or of one expert in interleaved layouts (Llama 4)."""
    stated = fields.optional_integer("SHARED_WIDTH")
    if stated:
        fields.passed("SHARED_EXPERTS")
        return stated
    if fields.flag("use_mixed_mlp_moe") is False:
        return 0
    count = fields.optional_integer("SHARED_EXPERTS")
    if count is None:
        count = 1 if fields.stated("interleave_moe_layer_step") and fields.stated("intermediate_size_mlp") else 0
        if count:
            fields.note("n_shared_experts absent: one, as in families that write interleave_moe_layer_step")
        elif fields.stated("EXPERTS") == NAMED_BY_DEEPSEEK:
            fields.note("n_shared_experts absent: no expert is shared")
    return count * expert_width


SWITCH, DEPTH = "use_mtp", "mtp_transformer_layers"
PATTERN, BLOCKS = "mtp_hybrid_override_pattern", "mtp_layers_block_type"


def read_mtp(
    fields: Fields, layers: Sequence[LayerKind], layer_of: Callable[[Slot], LayerKind], excluded: Sequence[str]
) -> Mtp | None:
    """The modules for multi-token prediction that a config states (possibly 0); None if it does not mention them.

    `layer_of` reads a layer of a pattern. `excluded` lists the modules that a quantised checkpoint leaves in 16 bit.
    """
    key = fields.stated("MTP_MODULES")
    count = fields.optional_integer("MTP_MODULES")
    switch, depth = fields.flag(SWITCH), fields.optional_integer(DEPTH, least=1) or 1
    slots = block_slots(fields, PATTERN, BLOCKS)
    if key is None or count is None or not layers:
        return None
    if switch is False:
        key, count = SWITCH, 0
    kinds = tuple(map(layer_of, slots)) if slots else (layers[-1],) * depth
    return Mtp(count, kinds, key, left_alone(excluded, len(layers)))


def left_alone(excluded: Sequence[str], layers: int) -> bool:
    """Whether a quantised checkpoint leaves all prediction modules in 16 bit: it lists `mtp*` or the layer after the last."""
    whole = re.compile(rf"(?:model\.)?(?:mtp(?:\.layers)?(?:\.\d+)?|layers\.{layers})[.*]*")
    return any(whole.fullmatch(pattern.removeprefix("re:")) for pattern in excluded)
