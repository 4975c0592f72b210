"""How an image becomes tokens of a prompt, and the work of an image encoder: weights, operations.

A rule describes the image processor of a model family. The model's config says which rule applies (`specs.model.Vision`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sizing.model.attention import ACTIVATION_BYTES, FLOPS_PER_MAC, Matrix, Numeric
from sizing.model.extras import Encoder
from sizing.model.operations import Operation, gemm
from sizing.model.precision import PrecisionPlan
from sizing.specs.model import Model, Vision
from sizing.specs.optimisations import MOST_PIXELS, Images

if TYPE_CHECKING:
    from sizing.specs.facts import EncoderFacts, ImageRule
    from sizing.specs.workload import ImageLimit


class Cut(NamedTuple):
    """An image as an encoder takes it: tokens in the prompt, and `pieces` of `patches` that attend to each other."""

    tokens: int
    pieces: int
    patches: int


ROUNDING = 1e-9  # of a row: what floating point adds is no row


def merged(
    height: int,
    width: int,
    patch_pixels: int,
    merge: int,
    most_tokens: int,
    *,
    least_tokens: int = 1,
    pads: bool = False,
) -> Cut:
    """Cut an image at its own size, with one token for merge x merge patches.

    With s = patch * merge pixels, the sides are scaled to the nearest multiple of s, as Qwen's processors do (transformers,
    image_processing_qwen2_vl.py, smart_resize). An image that is padded (`pads`) takes ceil(H/s) * ceil(W/s) tokens. Larger
    images are scaled down to `most_tokens`, and smaller ones up to `least_tokens`.
    """
    side, whole = patch_pixels * merge, math.ceil if pads else round
    tokens = min(max(1, whole(height / side)) * max(1, whole(width / side)), most_tokens)
    if tokens < least_tokens:
        times = math.sqrt(least_tokens / (height * width))
        tokens = math.ceil(height * times - ROUNDING) * math.ceil(width * times - ROUNDING)
    return Cut(tokens, 1, tokens * merge**2)


def in_rows(height: int, width: int, patch_pixels: int, merge: int, longest_pixels: int) -> Cut:
    """Cut an image as `merged` does, with one more token at the end of each row.

    The longer side is scaled down to `longest_pixels`.
    """
    scale = max(1.0, height / longest_pixels, width / longest_pixels)
    side = patch_pixels * merge
    rows, columns = math.ceil(height / scale / side), math.ceil(width / scale / side)
    return Cut(rows * (columns + 1), 1, rows * columns * merge**2)


def fixed(tokens: int, patches: int) -> Cut:
    """Cut an image that is scaled to one size, so the number of tokens does not depend on its pixels."""
    return Cut(tokens, 1, patches)


def tiled(height: int, width: int, patch_pixels: int, merge: int, tile_pixels: int, most_tiles: int) -> Cut:
    """Cut an image into square tiles; if there are several, the whole image is added as one more tile (Llama 4)."""
    rows, columns = canvas(height, width, tile_pixels, most_tiles)
    tiles = rows * columns
    pieces = tiles + 1 if tiles > 1 else tiles
    patches = (tile_pixels // patch_pixels) ** 2
    return Cut(pieces * patches // merge**2, pieces, patches)


def canvas(height: int, width: int, tile_pixels: int, most_tiles: int) -> tuple[int, int]:
    """(rows, columns) of the tiles for an image: the one that enlarges it least, or else the one that shrinks it least.

    Among equals the fewest tiles win (transformers, image_processing_llama4_fast.py, get_best_fit).
    """
    grids = [(r, c) for r in range(1, most_tiles + 1) for c in range(1, most_tiles // r + 1)]

    def order(grid: tuple[int, int]) -> tuple[bool, float, int]:
        rows, columns = grid
        scale = min(rows * tile_pixels / height, columns * tile_pixels / width)
        return scale < 1, abs(math.log(scale)), rows * columns

    return min(grids, key=order)


def encoder(images: Images, model: Model, assumed: EncoderFacts, rules: Mapping[str, ImageRule]) -> Encoder:
    """The image encoder: the model's own if its config says how images become tokens, else one from `assumed`."""
    vision = model.vision
    rule = None if vision is None or vision.field is None else rules[vision.field]
    cut = None if vision is None or rule is None else _cut(images, vision, rule)
    if vision is None or rule is None or cut is None:
        of = assumed
        cut = merged(images.height, images.width, of.patch_pixels, of.merge, of.most_tokens)
        known = (of.hidden_size, of.layers, of.parameters, of.title, of.source, "assumed", False)
    else:
        sizes = (vision.hidden_size, vision.layers, model.vision_parameters)
        known = (*sizes, rule.title, rule.source, rule.evidence, True)
    return Encoder(images.count * cut.tokens, images.count * cut.pieces, cut.patches, *known)


def with_largest(
    model: Model, limit: ImageLimit, positions: int, assumed: EncoderFacts, rules: Mapping[str, ImageRule]
) -> Model:
    """The model with the sizes of the largest image or video that its encoder takes, or that is allowed.

    A video counts as several images in time: as many as a prompt of `positions` tokens holds, at most the number that an
    engine profiles. Each of its patches covers several frames (vLLM 0.24.0, qwen2_vl.py).
    """
    if model.vision is None or not (limit.count or limit.videos):
        return model

    def largest(height: int | None, width: int | None) -> Encoder:
        one = Images(count=1, height=height or MOST_PIXELS, width=width or MOST_PIXELS)
        return encoder(one, model, assumed, rules)

    found, times = largest(limit.height, limit.width), 1
    if limit.videos and model.vision.video_patches > 1:
        whole = largest(None, None)
        in_time = max(1, min(model.vision.video_patches, positions // whole.tokens))
        if not limit.count or whole.tokens * in_time > found.tokens:
            found, times = whole, in_time
    elif not limit.count:
        return model
    patches = times * found.pieces * found.patches
    return replace(model, vision=model.vision._replace(largest_tokens=times * found.tokens, largest_patches=patches))


def without_encoder(model: Model) -> Model:
    """The model without its image encoder, which does not run for text."""
    rest = model.extra_parameters - model.vision_parameters
    return replace(model, vision=None, vision_parameters=0, extra_parameters=rest)


def _cut(images: Images, vision: Vision, rule: ImageRule) -> Cut | None:
    """The tiles and tokens of an image by `rule`; None where the config lacks a size that `rule` needs."""
    size, side = (images.height, images.width, vision.patch_pixels, vision.merge), vision.image_pixels
    if rule.most_tokens is not None:
        least = next((of.tokens for of in rule.least if of.side_pixels == vision.patch_pixels * vision.merge), 1)
        return merged(*size, rule.most_tokens, least_tokens=least, pads=rule.rule == "padded")
    if vision.tokens is not None:
        cut = vision.tokens * vision.merge**2 if side is None else (side // vision.patch_pixels) ** 2
        return fixed(vision.tokens, cut)
    if side is None:
        return None
    return tiled(*size, side, rule.most_tiles) if rule.most_tiles is not None else in_rows(*size, side)


SIXTEEN_BIT_BYTES = 2


def weight_bytes(encoder: Encoder, model: Model) -> float:
    """Bytes of an image encoder, whole on each GPU; 0 if the model's own weights include one (`vision_parameters`)."""
    return 0.0 if model.vision_parameters else encoder.parameters * SIXTEEN_BIT_BYTES


def operations(encoder: Encoder, plan: PrecisionPlan, requests: Numeric) -> tuple[Operation, ...]:
    """An image encoder's work for the images of `requests` prompts: its matrices, and attention over each piece."""
    hidden, layers = encoder.hidden_size, encoder.layers
    patches = requests * encoder.pieces * encoder.patches
    products = Matrix("image_encoder", "embedding", hidden, encoder.parameters / layers / hidden)
    flops, moved = 2 * FLOPS_PER_MAC * patches * encoder.patches * hidden, 4 * patches * hidden * ACTIVATION_BYTES
    attention = Operation("image_attention", "state", layers, flops, moved)
    return gemm(products, patches, layers, plan), attention
