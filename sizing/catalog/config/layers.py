"""The mixer and the MLP of each layer, and the tables of rotary embeddings.

A config states the order of layers in one of a dozen ways, for example a pattern string, a list of layer types, an interval, or a
number of leading dense layers. If it states none of them, all layers are equal. Engines hold rotary tables in addition to the
weights: a cosine and a sine for every position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from sizing.catalog.config.fields import ConfigKeys, Fields, Mixer, shown
from sizing.catalog.shelf import only
from sizing.specs.errors import nearest
from sizing.specs.model import CompressedAttention, LayerKind, MlaAttention

MlpName = Literal["dense", "moe"]

PATTERN_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
# Facts of a family (workloads/models/_families.csv), for which its configs have no key.
SIDE_BY_SIDE, ENCODER, SWITCH_OF_EXPERTS = "side_by_side", "encoder", "use_moe"
FULL_FIRST = "full_layer_first"  # the first layer of each period is full, in place of the last
PATTERN, BLOCKS = "hybrid_override_pattern", "layers_block_type"
BLOCK_MLPS: dict[str, MlpName] = {"mlp": "dense", "moe": "moe"}

ROUTED = ("sparse", "moe", "hash_moe")  # values of mlp_layer_types for layers with routed experts
LISTED_MIXERS = (BLOCKS, "layer_types", "attn_type_list", "no_rope_layers", "hybrid_layer_pattern")

# Llama4TextConfig (Transformers 4.51): by default every fourth layer sees the whole context.
CHUNKED_INTERVAL = 4
# Gemma2Config (Transformers 4.42): without a stated pattern a hybrid cache alternates, window first.
HYBRID_CACHE_PERIOD = 2


# The families that write it state dense layers, shared experts and a width of experts.
NAMED_BY_DEEPSEEK = "n_routed_experts"

# Sizes of experts, which change nothing where there are none, and are no misspelt number of them.
OF_EXPERTS = ("EXPERTS", "EXPERT_WIDTH", "EXPERT_LATENT", "EXPERTS_PER_TOKEN", "SHARED_WIDTH", "SHARED_EXPERTS")

# Deeper than any model. A larger number is a typing error.
MOST_LAYERS = 4096


class Slot(NamedTuple):
    """One layer: its mixer, or None, and the MLPs after it."""

    mixer: Mixer | None
    mlps: tuple[MlpName, ...]


def read_layout(fields: Fields) -> tuple[Slot, ...]:
    """One slot for each layer, first to last."""
    blocks = _blocks(fields, PATTERN, BLOCKS)
    if blocks is not None and any(block in BLOCK_MLPS for block in blocks):
        count = fields.optional_integer("LAYERS", least=1) or len(blocks)
        _check_length(fields, "num_hidden_layers", count, len(blocks))
        return tuple(_block_slot(fields, BLOCKS, block) for block in blocks)
    count = layer_count(fields)
    mixers = _mixers(fields, count) if blocks is None else _named(fields, BLOCKS, blocks)
    _check_length(fields, fields.stated(*LISTED_MIXERS) or "layer_types", len(mixers), count)
    has_experts = _has_experts(fields)
    moe = _routed(fields, count) if has_experts else (False,) * count
    _check_length(fields, "mlp_layer_types", len(moe), count)
    mlps: tuple[MlpName, ...] = ("dense", "moe") if fields.flag("enable_moe_block") else ("moe",)
    found = (Slot(mixer, mlps if routed else ("dense",)) for mixer, routed in zip(mixers, moe, strict=False))
    if not fields.flag(SIDE_BY_SIDE):
        return tuple(found)
    fields.note("attention and state space stand side by side in a layer; they are counted as two layers")
    return tuple(part for slot in found for part in (Slot(slot.mixer, ()), Slot("ssm", slot.mlps)))


def _has_experts(fields: Fields) -> bool:
    """Whether some layers route to experts. A key that only experts have is a fault if their number is missing."""
    count, stated = fields.optional_integer("EXPERTS"), fields.stated("EXPERTS") is not None
    off = fields.flag("enable_moe_block") is False or fields.flag(SWITCH_OF_EXPERTS) is False or (stated and not count)
    if not off and not stated and fields.optional_integer("EXPERTS_PER_TOKEN"):
        fields.integer("EXPERTS")
        off = True
    if off:
        fields.passed(*OF_EXPERTS)
    return bool(count) and not off


def layer_count(fields: Fields) -> int:
    """The stated number of layers."""
    count = fields.integer("LAYERS")
    if count > MOST_LAYERS:
        fields.fault(fields.stated("LAYERS") or "num_hidden_layers", f"{count} layers", f"at most {MOST_LAYERS}")
        return 1
    return count


def _check_length(fields: Fields, key: str, found: int, expected: int) -> None:
    if found != expected and not fields.faults:
        fields.fault(key, f"{found} does not agree with the {expected} layers stated elsewhere")


def block_slots(fields: Fields, pattern: str, listed: str) -> tuple[Slot, ...]:
    """The layers from a pattern string or a list of blocks at the given keys; empty if neither is stated."""
    return tuple(_block_slot(fields, listed, block) for block in _blocks(fields, pattern, listed) or ())


def _blocks(fields: Fields, pattern_key: str, list_key: str) -> tuple[str, ...] | None:
    pattern = fields.text(pattern_key)
    if pattern is None:
        listed = fields.sequence(list_key)
        return None if listed is None else tuple(map(str, listed))
    unknown = sorted(set(pattern) - set(PATTERN_LETTERS))
    if unknown:
        fields.fault(pattern_key, f"unknown letters {''.join(unknown)}", " ".join(PATTERN_LETTERS))
    return tuple(PATTERN_LETTERS[letter] for letter in pattern if letter in PATTERN_LETTERS)


def _block_slot(fields: Fields, key: str, block: str) -> Slot:
    if block in BLOCK_MLPS:
        return Slot(None, (BLOCK_MLPS[block],))
    return Slot(_named(fields, key, (block,))[0], ())


def _named(fields: Fields, key: str, names: tuple[Any, ...]) -> tuple[Mixer, ...]:
    known = only(ConfigKeys).layer_types
    for name in map(str, names):
        if name not in known:
            fields.fault(key, f"unknown layer type {shown(name)}", ", ".join(known), nearest(name, list(known)))
    return tuple(known.get(str(name), "full") for name in names)


def _mixers(fields: Fields, count: int) -> tuple[Mixer, ...]:
    if fields.stated(ENCODER):
        return _alike("bidirectional", count)
    if fields.sequence("compress_ratios") is not None:
        return _alike("compressed", count)
    if (crossed := fields.sequence("cross_attention_layers")) is not None:
        return tuple(_or(index not in crossed, "cross") for index in range(count))
    if (types := fields.sequence("layer_types")) is not None:
        return _named(fields, "layer_types", types)
    if (listed := fields.sequence("full_attn_idxs")) is not None:  # LFM2's list of layers with attention
        return tuple(_or(index in listed, "conv") for index in range(count))
    section = fields.section("linear_attn_config")
    if section and (listed := section.sequence("full_attn_layers")) is not None:  # Kimi Linear numbers them from one
        return tuple(_or(index + 1 in listed, "linear") for index in range(count))
    if (kinds := fields.sequence("attn_type_list")) is not None:  # MiniMax: 1 is full attention, 0 linear
        return tuple(_or(kind == 1, "linear") for kind in kinds)
    for read in (_by_ssm_indices, _by_linear_interval, _by_chunks):
        if (found := read(fields, count)) is not None:
            return found
    return _by_window(fields, count)


def _alike(mixer: Mixer, count: int) -> tuple[Mixer, ...]:
    return (mixer,) * count


def _or(full: bool, other: Mixer) -> Mixer:
    """Full attention, or the `other` mixer of a layout with two mixers."""
    return "full" if full else other


def _by_ssm_indices(fields: Fields, count: int) -> tuple[Mixer, ...] | None:
    if fields.stated("mamba_n_heads", "mamba_num_heads", "mamba_d_state") is None or fields.flag(SIDE_BY_SIDE):
        return None
    listed = fields.sequence("attn_layer_indices")
    if listed is None:
        allowed = "hybrid_override_pattern, layers_block_type, layer_types or attn_layer_indices"
        fields.fault("layer_types", "state-space fields without a layout of their layers", allowed)
        listed = ()
    return tuple(_or(index in listed, "ssm") for index in range(count))


def _by_linear_interval(fields: Fields, count: int) -> tuple[Mixer, ...] | None:
    if fields.stated("linear_num_value_heads") is None:
        return None
    interval = fields.integer("full_attention_interval")
    return tuple(_or((index + 1) % interval == 0, "linear") for index in range(count))


def _by_chunks(fields: Fields, count: int) -> tuple[Mixer, ...] | None:
    if fields.stated("attention_chunk_size") is None or fields.stated("hybrid_layer_pattern"):
        return None
    rotary = fields.sequence("no_rope_layers")
    if rotary:
        return tuple(_or(not has_rotary, "chunk") for has_rotary in rotary)
    interval = fields.optional_integer("no_rope_layer_interval", least=1)
    if interval is None:
        interval = CHUNKED_INTERVAL
        fields.note(f"no_rope_layers absent: every layer chunked but each {interval}th")
    return tuple(_or((index + 1) % interval == 0, "chunk") for index in range(count))


def _by_window(fields: Fields, count: int) -> tuple[Mixer, ...]:
    """Read the layers with a sliding window: none, by list, by period, from a layer on, or all. It may be switched off.

    What a config leaves out is a fact of its family: the layouts that Transformers 5.24 gives by default (its config classes).
    """
    switch = fields.flag("use_sliding_window")
    if fields.stated("WINDOW") is None or switch is False:
        return _alike("full", count)
    listed = fields.sequence("hybrid_layer_pattern")
    if listed is not None:
        return tuple(_or(kind != 1, "window") for kind in listed)
    period = fields.optional_integer("WINDOW_PERIOD", least=1)
    if period is None and fields.text("cache_implementation") == "hybrid":
        period = HYBRID_CACHE_PERIOD
        fields.note("sliding_window_pattern absent: windowed and full layers alternate, as with a hybrid cache")
    if period is not None:
        full = 0 if fields.flag(FULL_FIRST) else period - 1
        return tuple(_or(index % period == full, "window") for index in range(count))
    first = fields.optional_integer("max_window_layers")
    if first is None:
        fields.note("layer_types absent, and no other layout: the sliding window holds in every layer")
    return tuple(_or(index < (first or 0), "window") for index in range(count))


def _routed(fields: Fields, count: int) -> tuple[bool, ...]:
    listed = fields.sequence("mlp_layer_types")
    if listed is not None:
        return tuple(kind in ROUTED for kind in listed)
    numbered = fields.value("MOE_LISTED")
    if numbered is not None:
        return _numbered(fields, numbered, count)
    tests = (_after_dense(fields), _by_frequency(fields), _by_step(fields), _by_range(fields, count))
    return tuple(all(test(index) for test in tests) for index in range(count))


def _numbered(fields: Fields, numbered: Any, count: int) -> tuple[bool, ...]:
    items = numbered.split(",") if isinstance(numbered, str) else numbered
    try:
        chosen = {int(item) for item in items}
    except (TypeError, ValueError, OverflowError):
        fields.fault("moe_layers", f"{shown(numbered)} is not a list of layer numbers")
        return (False,) * count
    return tuple(index in chosen for index in range(count))


def _after_dense(fields: Fields) -> Callable[[int], bool]:
    first = fields.optional_integer("FIRST_DENSE")
    if first is None and fields.stated("EXPERTS") == NAMED_BY_DEEPSEEK and not fields.stated("moe_layer_freq"):
        fields.note("first_k_dense_replace absent: every layer routes to experts")
    first = first or 0
    return lambda index: index >= first


def _by_frequency(fields: Fields) -> Callable[[int], bool]:
    """Read `moe_layer_freq`: a list of 0 and 1, or a period counted from layer 0."""
    if isinstance(fields.value("moe_layer_freq"), list | tuple):
        listed = fields.sequence("moe_layer_freq") or ()
        return lambda index: index < len(listed) and bool(listed[index])
    period = fields.optional_integer("moe_layer_freq", least=1) or 1
    return lambda index: index % period == 0


def _by_step(fields: Fields) -> Callable[[int], bool]:
    """Read a period counted from layer 1, and the layers excepted from it."""
    step = fields.optional_integer("MOE_STEP", least=1) or 1
    dense = fields.sequence("mlp_only_layers") or ()
    return lambda index: (index + 1) % step == 0 and index not in dense


def _by_range(fields: Fields, count: int) -> Callable[[int], bool]:
    first = fields.optional_integer("moe_layer_start_index") or 0
    last = fields.optional_integer("moe_layer_end_index")
    interval = fields.optional_integer("moe_layer_interval", least=1) or 1
    end = count - 1 if last is None else last
    return lambda index: first <= index <= end and (index + 1) % interval == 0


SCALING = ("rope_scaling", "rope_parameters")
# Scalings that extend the table beyond the stated positions by their factor. With others the stated positions are scaled already.
STRETCHED = ("linear", "dynamic")
LONG_ROPE = ("longrope", "su")


def rotary_values(fields: Fields, kinds: tuple[LayerKind, ...]) -> int:
    """The number of values in the tables: positions times rotary width. Windowed layers with another base have a second table.

    Models with learned positions or ALiBi have no tables. State-space models have none if they state no rotary base.
    Source: vLLM, model_executor/layers/rotary_embedding.
    """
    others = any(fields.flag(key) for key in ("mla_use_nope", "alibi", "learned_pos_emb"))
    if others or fields.stated("word_embed_proj_dim", "n_positions"):
        return 0
    states = any(kind.mixer is not None and kind.mixer.kind == "ssm" for kind in kinds)
    if states and not fields.stated("rope_theta", *SCALING):
        return 0
    width = max((_width(kind) for kind in kinds), default=0)
    share = fields.value("partial_rotary_factor")
    if isinstance(share, int | float) and not isinstance(share, bool) and 0 < share <= 1:
        width = round(width * share)
    positions = fields.integer("MAX_POSITION")
    local = positions if fields.stated("rope_local_base_freq") else 0
    return round((positions * _factor(fields) + local) * width)


def unstretched(fields: Fields) -> int | None:
    """The positions that a model has before LongRoPE stretches them; None for other scalings."""
    sections = (fields.section(key) for key in SCALING)
    stretched = any(section.text("rope_type", "type") in LONG_ROPE for section in sections if section is not None)
    return fields.optional_integer("original_max_position_embeddings", least=1) if stretched else None


def _width(kind: LayerKind) -> int:
    if isinstance(kind.mixer, MlaAttention):
        return kind.mixer.qk_rope_head_dim
    if isinstance(kind.mixer, CompressedAttention):
        return kind.mixer.rope_dim
    return int(getattr(kind.mixer, "head_dim", 0)) if kind.mixer is not None and kind.mixer.kind != "ssm" else 0


def _factor(fields: Fields) -> float:
    """The factor of a linear or dynamic scaling, by which the table is longer; 1 without one."""
    for key in SCALING:
        section = fields.section(key)
        if section is not None and section.text("rope_type", "type") in STRETCHED:
            factor = section.value("factor")
            if isinstance(factor, int | float) and not isinstance(factor, bool) and factor > 0:
                return float(factor)
    return 1.0
