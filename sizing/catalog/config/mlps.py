"""The MLPs of one layer, read by field: dense or routed, gated or not, and how wide.

Whether an MLP is gated (three projections) or not (two) is decided by the first of these that a config has:
`ffn_type` (gated where it names a GLU); `hidden_activation`, a key that only gated families write; the
activation itself (SiLU, SwiGLU and their kin gate, ReLU, squared ReLU and GELU don't); else a stated
`intermediate_size`, which families without gates leave to a multiple of the hidden size.

Modules of multi-token prediction: a config states their number, and of their layers nothing (they are as the last
layer) or a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from sizing.catalog.config.fields import (
    ACTIVATION,
    DENSE_WIDTH,
    EXPERT_LATENT,
    EXPERT_WIDTH,
    EXPERTS,
    EXPERTS_PER_TOKEN,
    HIDDEN,
    IMPLIED_WIDTH,
    MLP_BIAS,
    MTP_MODULES,
    SHARED_EXPERTS,
    SHARED_WIDTH,
    Fields,
)
from sizing.catalog.config.layers import MlpName, Slot, block_slots
from sizing.specs.model import DenseMlp, LayerKind, Mlp, MoeMlp, Mtp

GATED_ACTIVATIONS = frozenset({"silu", "swish", "situ"})
GLU = "glu"
IMPLIED_FACTOR = 4
DOUBLE_WIDTH = 2


def read_mlp(fields: Fields, name: MlpName, *, reuses_cache: bool = False) -> Mlp:
    """One MLP; `reuses_cache` layers are twice as wide where `use_double_wide_mlp` says so."""
    if name == "moe":
        return _moe(fields)
    width = _dense_width(fields)
    doubled = reuses_cache and bool(fields.flag("use_double_wide_mlp"))
    return DenseMlp(
        intermediate=width * (DOUBLE_WIDTH if doubled else 1),
        gated=is_gated(fields),
        bias=bool(fields.flag(*MLP_BIAS)),
    )


def is_gated(fields: Fields) -> bool:
    """Whether the MLPs are gated, by the rule in the module's docstring."""
    kind = fields.text("ffn_type")
    if kind is not None:
        return GLU in kind
    if fields.stated("hidden_activation"):
        return True
    activation = fields.value(*ACTIVATION)
    if isinstance(activation, Mapping):
        activation = activation.get("name")
    if activation is None:
        gated = fields.stated("intermediate_size", "moe_intermediate_size") is not None
        fields.note(f"hidden_act absent: MLPs {'with' if gated else 'without'} a gate, by the name of their width")
        return gated
    return str(activation) in GATED_ACTIVATIONS or GLU in str(activation)


def _dense_width(fields: Fields) -> int:
    stated = fields.stated(*DENSE_WIDTH)
    if stated is not None:
        return fields.integer(stated)
    factor = fields.optional_integer("expansion_ratio", least=1)
    if factor is None and (fields.has("n_inner") or fields.stated(*IMPLIED_WIDTH)):
        factor = IMPLIED_FACTOR
    if factor is None:
        return fields.integer("intermediate_size", *DENSE_WIDTH[3:])
    if not fields.stated("expansion_ratio"):
        fields.note(f"intermediate_size absent: {IMPLIED_FACTOR} times the hidden size, the default of such families")
    return factor * fields.integer(*HIDDEN)


def _moe(fields: Fields) -> MoeMlp:
    experts, per_token = fields.integer(*EXPERTS), fields.integer(*EXPERTS_PER_TOKEN)
    if per_token > experts and not fields.faults:
        fields.fault(EXPERTS_PER_TOKEN[0], f"{per_token} is more than the {experts} experts")
    width = fields.integer(*EXPERT_WIDTH)
    return MoeMlp(
        experts=experts,
        experts_per_token=per_token,
        intermediate=width,
        gated=is_gated(fields),
        shared_intermediate=_shared_width(fields, width),
        shared_gate=bool(fields.optional_integer("shared_expert_intermediate_size")),
        latent=fields.optional_integer(*EXPERT_LATENT, least=1),
        bias=bool(fields.flag("mlp_bias")),
    )


def _shared_width(fields: Fields, expert_width: int) -> int:
    """The shared experts' total width: stated, by their number, or of one expert where Llama 4's MLPs interleave."""
    stated = fields.optional_integer(*SHARED_WIDTH)
    if stated:
        return stated
    count = fields.optional_integer(*SHARED_EXPERTS)
    if count is None:
        count = 1 if fields.stated("interleave_moe_layer_step") and fields.stated("intermediate_size_mlp") else 0
        if count:
            fields.note("n_shared_experts absent: one, as in families that write interleave_moe_layer_step")
    return count * expert_width


SWITCH, DEPTH = "use_mtp", "mtp_transformer_layers"
PATTERN, BLOCKS = "mtp_hybrid_override_pattern", "mtp_layers_block_type"


def read_mtp(
    fields: Fields, layers: Sequence[LayerKind], layer_of: Callable[[Slot], LayerKind], excluded: Sequence[str]
) -> Mtp | None:
    """The modules stated by a config, 0 where it states none of them; None where it is silent.

    `layer_of` reads a layer of a pattern, `excluded` are the modules that a quantised checkpoint leaves alone.
    """
    key = fields.stated(*MTP_MODULES)
    count = fields.optional_integer(*MTP_MODULES)
    switch, depth = fields.flag(SWITCH), fields.optional_integer(DEPTH, least=1) or 1
    slots = block_slots(fields, PATTERN, BLOCKS)
    if key is None or count is None or not layers:
        return None
    if switch is False:
        key, count = SWITCH, 0
    kinds = tuple(map(layer_of, slots)) if slots else (layers[-1],) * depth
    return Mtp(count, kinds, key, left_alone(excluded, len(layers)))


def left_alone(excluded: Sequence[str], layers: int) -> bool:
    """Whether a quantised checkpoint's lists leave whole modules in 16 bit: `mtp*`, or the layer after the last."""
    whole = re.compile(rf"(?:model\.)?(?:mtp(?:\.layers)?(?:\.\d+)?|layers\.{layers})[.*]*")
    return any(whole.fullmatch(pattern.removeprefix("re:")) for pattern in excluded)
