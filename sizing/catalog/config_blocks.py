"""Layers found by architecture search.

Each stated on its own in `block_configs` (attention and MLP vary or vanish).
"""

from __future__ import annotations

from sizing.catalog.config_attention import HIDDEN, Q_HEADS, head_dim_of
from sizing.catalog.config_fields import Fields, shown
from sizing.catalog.config_layers import layer_count
from sizing.catalog.config_mlp import is_gated
from sizing.specs.model import Attention, DenseMlp, GqaAttention, LayerKind

# The published model code rounds two thirds of mult x hidden up to a multiple of 256 (modeling_decilm.py).
GATED_SHARE_NUMERATOR, GATED_SHARE_DENOMINATOR = 2, 3
WIDTH_MULTIPLE = 256
MOST_MULTIPLE = 1_000  # of the hidden size: MLPs are a few times as wide, published ones at most 5.25 times
LINEAR_KEY = "replace_with_linear"


def read_blocks(fields: Fields) -> tuple[LayerKind, ...]:
    """Return every layer of `block_configs`, first to last."""
    listed = fields.sequence("block_configs") or ()
    count = layer_count(fields)
    if len(listed) != count:
        fields.fault("block_configs", f"{len(listed)} blocks do not agree with {count} layers")
    return tuple(_block(fields, block, index) for index, block in enumerate(listed))


def _block(fields: Fields, block: object, index: int) -> LayerKind:
    place = f"block_configs[{index}]"
    wrapped = Fields({place: block}, fields.where, fields.faults, fields.notes).section(place)
    attention = wrapped.section("attention") if wrapped else None
    ffn = wrapped.section("ffn") if wrapped else None
    if attention is None or ffn is None:
        fields.fault(place, "missing its sections", "attention and ffn")
        return LayerKind(None, ())
    for section in (attention, ffn):
        if section.flag(LINEAR_KEY):
            section.fault(LINEAR_KEY, "a linear layer in place of a block can't be expressed", "false")
    return LayerKind(_attention(fields, attention), _mlps(fields, ffn))


def _attention(fields: Fields, block: Fields) -> Attention | None:
    if block.flag("no_op"):
        return None
    q_heads = fields.integer(*Q_HEADS)
    group = block.integer("n_heads_in_group")
    if q_heads % group:
        block.fault("n_heads_in_group", f"{group} does not divide the {q_heads} attention heads")
    head_dim = head_dim_of(fields, q_heads)
    return GqaAttention(q_heads=q_heads, kv_heads=max(1, q_heads // group), head_dim=head_dim)


def _mlps(fields: Fields, block: Fields) -> tuple[DenseMlp, ...]:
    if block.flag("no_op"):
        return ()
    multiple = block.value("ffn_mult")
    if isinstance(multiple, bool) or not isinstance(multiple, int | float) or not 0 < multiple <= MOST_MULTIPLE:
        block.fault("ffn_mult", f"{shown(multiple)} is not a factor", f"a number above zero, at most {MOST_MULTIPLE:,}")
        return ()
    width = int(GATED_SHARE_NUMERATOR * multiple * fields.integer(*HIDDEN) / GATED_SHARE_DENOMINATOR)
    return (DenseMlp(intermediate=-(-width // WIDTH_MULTIPLE) * WIDTH_MULTIPLE, gated=is_gated(fields)),)
