"""How an image becomes tokens of a prompt, and the patches that an encoder works on: one function a rule.

A rule is what a family's image processor does; which one a model has, its config says (`specs.model.Vision`).
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Cut(NamedTuple):
    """An image as an encoder takes it: tokens in the prompt, and `pieces` of so many patches that attend to each other."""

    tokens: int
    pieces: int
    patches: int


def merged(height: int, width: int, patch_pixels: int, merge: int, most_tokens: int) -> Cut:
    """Cut an image at its own size: a token for merge x merge patches, ceil(H/s) * ceil(W/s) with s = patch * merge pixels.

    Larger images are scaled down to `most_tokens` (Qwen2-VL, arXiv:2409.12191).
    """
    side = patch_pixels * merge
    tokens = min(math.ceil(height / side) * math.ceil(width / side), most_tokens)
    return Cut(tokens, 1, tokens * merge**2)


def in_rows(height: int, width: int, patch_pixels: int, merge: int, longest_pixels: int) -> Cut:
    """Cut an image as above with a token more at the end of each row; the longer side is scaled down to `longest_pixels`."""
    scale = max(1.0, height / longest_pixels, width / longest_pixels)
    side = patch_pixels * merge
    rows, columns = math.ceil(height / scale / side), math.ceil(width / scale / side)
    return Cut(rows * (columns + 1), 1, rows * columns * merge**2)


def fixed(tokens: int, patches: int) -> Cut:
    """Cut an image that is scaled to one size: as many tokens whatever its pixels."""
    return Cut(tokens, 1, patches)


def tiled(height: int, width: int, patch_pixels: int, merge: int, tile_pixels: int, most_tiles: int) -> Cut:
    """Cut an image into square tiles, and beside several of them the whole image as one more (Llama 4)."""
    rows, columns = canvas(height, width, tile_pixels, most_tiles)
    tiles = rows * columns
    pieces = tiles + 1 if tiles > 1 else tiles
    patches = (tile_pixels // patch_pixels) ** 2
    return Cut(pieces * patches // merge**2, pieces, patches)


def canvas(height: int, width: int, tile_pixels: int, most_tiles: int) -> tuple[int, int]:
    """Return (rows, columns) of the tiles that hold an image: enlarged as little as possible, else shrunk as little.

    Of equal ones the fewest tiles (transformers, image_processing_llama4_fast.py, get_best_fit).
    """
    grids = [(r, c) for r in range(1, most_tiles + 1) for c in range(1, most_tiles // r + 1)]

    def order(grid: tuple[int, int]) -> tuple[bool, float, int]:
        rows, columns = grid
        scale = min(rows * tile_pixels / height, columns * tile_pixels / width)
        return scale < 1, abs(math.log(scale)), rows * columns

    return min(grids, key=order)
