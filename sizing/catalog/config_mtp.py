"""Multi-token prediction: how many modules of it a config states, and what layers each of them has.

Families name the count differently, and say of the layers nothing (they are as the last one) or a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sizing.catalog.config_fields import Fields
from sizing.catalog.config_layers import Slot, block_slots
from sizing.specs.model import LayerKind, Mtp

# DeepSeek, GLM, MiMo, Nemotron and Step; Qwen; MiniMax.
COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
SWITCH, DEPTH = "use_mtp", "mtp_transformer_layers"
PATTERN, BLOCKS = "mtp_hybrid_override_pattern", "mtp_layers_block_type"


def read_mtp(
    fields: Fields, layers: Sequence[LayerKind], layer_of: Callable[[Slot], LayerKind], excluded: Sequence[str]
) -> Mtp | None:
    """Return the modules that a config states, 0 where it states none of them; None where it is silent.

    `layer_of` reads a layer of a pattern, `excluded` are the modules that a quantised checkpoint leaves alone.
    """
    key = fields.stated(*COUNTS)
    count = fields.optional_integer(*COUNTS)
    switch, depth = fields.flag(SWITCH), fields.optional_integer(DEPTH, least=1) or 1
    slots = block_slots(fields, PATTERN, BLOCKS)
    if key is None or count is None or not layers:
        return None
    if switch is False:
        key, count = SWITCH, 0
    kinds = tuple(map(layer_of, slots)) if slots else (layers[-1],) * depth
    return Mtp(count, kinds, key, left_alone(excluded, len(layers)))


def left_alone(excluded: Sequence[str], layers: int) -> bool:
    """Return whether a quantised checkpoint's lists leave whole modules in 16 bit: `mtp*`, or the layer after the last."""
    whole = re.compile(rf"(?:model\.)?(?:mtp(?:\.layers)?(?:\.\d+)?|layers\.{layers})[.*]*")
    return any(whole.fullmatch(pattern.removeprefix("re:")) for pattern in excluded)
