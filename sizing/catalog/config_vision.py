"""Vision towers: their sizes and parameters, and the field that says how an image becomes tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

from sizing.catalog.config_fields import Fields, shown
from sizing.catalog.config_mlp import is_gated
from sizing.specs.model import Vision

VISION_HIDDEN = ("hidden_size", "vt_hidden_size", "embed_dim")
VISION_LAYERS = ("num_hidden_layers", "depth", "vt_num_hidden_layers")
VISION_WIDTH = ("intermediate_size", "vt_intermediate_size")
VISION_OUTPUT = ("out_hidden_size", "text_hidden_size", "projection_dim")
VISION_ACTIVATION = ("hidden_act", "hidden_activation")
SECTION = "vision_config"
COLOURS = 3
PLAIN_MATRICES, GATED_MATRICES = 2, 3
ATTENTION_MATRICES = 4  # query, key, value and output, each hidden x hidden


class Tower(NamedTuple):
    """A vision tower with its estimated parameters."""

    vision: Vision | None = None
    parameters: int = 0


def read_vision(fields: Fields) -> Tower:
    """Return the vision transformer that a config states; nothing where it has none or lacks its sizes.

    Parameters are those of patches, blocks, and the merger's two matrices where stated.
    """
    vision = fields.section(SECTION)
    if vision is None:
        return Tower()
    hidden = vision.optional_integer(*VISION_HIDDEN, least=1)
    depth = vision.optional_integer(*VISION_LAYERS, least=1)
    width = vision.optional_integer(*VISION_WIDTH, least=1)
    patch = vision.optional_integer("patch_size", least=1)
    if hidden is None or depth is None or width is None or patch is None:
        fields.note("vision tower not counted: vision_config lacks its hidden size, layers, MLP width or patch size")
        return Tower()
    frames = vision.optional_integer("temporal_patch_size", least=1) or 1
    gated = vision.stated(*VISION_ACTIVATION) is not None and is_gated(vision)
    mlp_matrices = GATED_MATRICES if gated else PLAIN_MATRICES
    blocks = depth * (ATTENTION_MATRICES * hidden * hidden + mlp_matrices * hidden * width)
    positions = vision.optional_integer("num_position_embeddings") or 0
    embeddings = patch * patch * COLOURS * frames * hidden + positions * hidden
    fields.note("vision tower's parameters estimated from vision_config; it has no work in a step of text alone")
    rule = _rule(fields, vision)
    image = vision.optional_integer("image_size", least=1)
    return Tower(Vision(hidden, depth, patch, *rule, image_pixels=image), blocks + embeddings + _merger(vision, hidden))


def _rule(fields: Fields, vision: Fields) -> tuple[str | None, int, int | None]:
    """Return the field that tells how an image becomes tokens, patches a side to a token, and the tokens that are fixed."""
    for key in ("mm_tokens_per_image", "vision_soft_tokens_per_image"):
        tokens = fields.optional_integer(key, least=1)
        if tokens is not None:
            return key, vision.optional_integer("pooling_kernel_size", least=1) or 1, tokens
    if vision.stated("pixel_shuffle_ratio"):
        return f"{SECTION}.pixel_shuffle_ratio", _of_ratio(vision, vision.value("pixel_shuffle_ratio")), None
    kernel = vision.sequence("merge_kernel_size")
    if kernel:
        side = Fields({"merge_kernel_size": kernel[0]}, fields.where, fields.faults).integer("merge_kernel_size")
        return f"{SECTION}.merge_kernel_size", side, None
    for holder, prefix in ((vision, f"{SECTION}."), (fields, "")):
        merge = holder.optional_integer("spatial_merge_size", least=1)
        if merge is not None:
            return f"{prefix}spatial_merge_size", merge, None
    return None, 1, None


def _of_ratio(vision: Fields, ratio: Any) -> int:
    """Return how many patches a side a ratio makes one token."""
    side = 1 / ratio if isinstance(ratio, int | float) and not isinstance(ratio, bool) and 0 < ratio <= 1 else 0.0
    if side != round(side) or not side:
        vision.fault("pixel_shuffle_ratio", f"{shown(ratio)} is no ratio", "1 over a whole number, as 0.5")
        return 1
    return round(side)


def _merger(vision: Fields, hidden: int) -> int:
    """Return the two matrices that join patches, once for the output and once for each layer also tapped."""
    merge = vision.optional_integer("spatial_merge_size", least=1)
    output = vision.optional_integer(*VISION_OUTPUT, least=1)
    if merge is None or output is None:
        return 0
    mergers = 1 + len(vision.sequence("deepstack_visual_indexes") or ())
    merged = merge * merge * hidden
    return mergers * (merged * merged + merged * output)
