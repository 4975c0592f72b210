"""Tables of rotary embeddings, which engines hold beside the weights: a cosine and a sine for every position."""

from __future__ import annotations

from sizing.catalog.config.fields import MAX_POSITION, Fields
from sizing.specs.model import CompressedAttention, LayerKind, MlaAttention

SCALING = ("rope_scaling", "rope_parameters")
# Scalings whose table reaches beyond the stated positions, by their factor; others state the scaled positions.
STRETCHED = ("linear", "dynamic")


def rotary_values(fields: Fields, kinds: tuple[LayerKind, ...]) -> int:
    """Values of the tables: positions by rotary width, of windowed layers once more where their base is another.

    Source: vLLM, model_executor/layers/rotary_embedding. Learned positions and ALiBi have none, nor
    has attention among state-space layers where no base of it is stated.
    """
    if (
        fields.flag("mla_use_nope")
        or fields.flag("alibi")
        or fields.flag("learned_pos_emb")
        or fields.stated("word_embed_proj_dim", "n_positions")
    ):
        return 0
    if any(kind.mixer is not None and kind.mixer.kind == "ssm" for kind in kinds) and not fields.stated(
        "rope_theta", *SCALING
    ):
        return 0
    width = max((_width(kind) for kind in kinds), default=0)
    share = fields.value("partial_rotary_factor")
    if isinstance(share, int | float) and not isinstance(share, bool) and 0 < share <= 1:
        width = round(width * share)
    positions = fields.integer(*MAX_POSITION)
    local = positions if fields.stated("rope_local_base_freq") else 0
    return round((positions * _factor(fields) + local) * width)


def _width(kind: LayerKind) -> int:
    if isinstance(kind.mixer, MlaAttention):
        return kind.mixer.qk_rope_head_dim
    if isinstance(kind.mixer, CompressedAttention):
        return kind.mixer.rope_dim
    return int(getattr(kind.mixer, "head_dim", 0)) if kind.mixer is not None and kind.mixer.kind != "ssm" else 0


def _factor(fields: Fields) -> float:
    """How far the table is stretched: the factor of a linear or dynamic scaling."""
    for key in SCALING:
        section = fields.section(key)
        if section is not None and section.text("rope_type", "type") in STRETCHED:
            factor = section.value("factor")
            if isinstance(factor, int | float) and not isinstance(factor, bool) and factor > 0:
                return float(factor)
    return 1.0
