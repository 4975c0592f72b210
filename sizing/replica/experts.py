"""Time of one layer's fused experts on the busiest rank, from a measured kernel.

The formula counts the work of the kernel: rows of each expert in whole tiles, weights of the experts hit, copies of tokens
and pairs. A grid of measured corrections multiplies it. The tables come from repeated runs, whose weights stay in the GPU's
cache. In a model they do not, so this part of the fit is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.catalog.shelf import only
from sizing.model.attention import FLOPS_PER_MAC, Numeric
from sizing.model.operations import Routed, expected_experts
from sizing.replica.surfaces import knot_weights, sustained_us
from sizing.specs.kernels import ExpertKernel, MeasuredKernels
from sizing.specs.units import MEGA, MICRO

Array = NDArray[np.float64]

TILES = (8, 16, 32, 64, 128, 256)  # rows of a tile
WIDE = 64  # columns of a tile
START_TOKENS = 6.0  # tokens over which start-up grows: other kernels sort the first ones
WIDTH_MULTIPLE = 128  # multiple to which some kernels pad widths
CLASSES = 12  # classes of experts by popularity
SMALLEST = 0.3  # least number of experts hit, for logarithms
LEAST = 1e-3  # least value of any count


class ExpertLoad(NamedTuple):
    """Work of the busiest rank: experts `hit`, and pairs of the `busiest` expert.

    `experts_hit` and `pairs_each` are the experts hit and the pairs of each by class of popularity, which is the first
    axis.
    """

    hit: Array
    busiest: Array
    experts_hit: Array
    pairs_each: Array


def load(routed: Routed) -> ExpertLoad:
    """The load of the rank when experts differ in popularity, which is log-uniform over a stated range."""
    classes = np.power(only(MeasuredKernels).experts.popularity, (np.arange(CLASSES) + 1 / 2) / CLASSES)
    own = routed.experts / routed.ranks
    tokens = np.maximum(routed.pairs * routed.ranks / routed.experts_per_token, LEAST)
    pairs = np.multiply.outer(classes / classes.mean(), np.asarray(routed.pairs / own))
    hit = (1 - np.power(1 - np.minimum(pairs / tokens, 1.0), tokens)) * own / CLASSES
    return ExpertLoad(
        np.maximum(hit.sum(axis=0), LEAST), pairs[-1], hit, pairs * own / CLASSES / np.maximum(hit, LEAST)
    )


def spared_bytes(routed: Routed) -> Numeric:
    """Bytes of the weights that a layer does not read on a rank because experts differ in popularity."""
    tokens = routed.pairs * routed.ranks / routed.experts_per_token
    even = expected_experts(routed.experts, routed.experts_per_token, tokens) / routed.ranks
    weights = routed.inputs * routed.width * (3 if routed.gated else 2) * routed.weight_bytes
    return np.maximum(even - load(routed).hit, 0.0) * weights


def most_liked(routed: Routed) -> Routed:
    """The same experts with the load of the rank whose experts are the most popular, where all tokens are gathered.

    Loads of ranks vary by random routing and by the popularity of their experts; the busiest has the median of the largest. Where
    tokens are sent to the ranks of their experts alone, copies of the most popular experts are taken to even that out.
    """
    if routed.ranks == 1 or routed.dispatch is not None:
        return routed
    mean = np.maximum(routed.arriving * routed.experts_per_token / routed.ranks, LEAST)
    spread = only(MeasuredKernels).experts.spread * routed.ranks / routed.experts
    largest = NormalDist().inv_cdf(0.5 ** (1 / routed.ranks))
    busiest = mean + largest * np.sqrt(mean + spread * np.square(mean))
    return replace(routed, pairs=np.minimum(busiest, mean * routed.ranks))


def _tiles(load: ExpertLoad, rows: int) -> Array:
    """Tiles of `rows` rows for the pairs of the rank.

    Each expert hit takes at least one tile, and on average half a tile more than its pairs fill.
    """
    filled = load.pairs_each / rows + 1 / 2
    # Smooths the bend between an expert that fills less than a tile and one that fills many.
    eighth = np.square(np.square(np.square(filled)))
    found: Array = np.sum(load.experts_hit * np.sqrt(np.sqrt(np.sqrt(1 + eighth))), axis=0)
    return found


def seconds(
    kernel: ExpertKernel, routed: Routed, *, peak_flops: float, bytes_per_s: float, sustained: float
) -> Numeric:
    """Seconds of a layer's experts on the busiest rank. `sustained` is the rate of long products over that of the kernel's table."""
    of, tokens = load(routed), np.maximum(routed.arriving, LEAST)
    p, peak, bandwidth = kernel.p, peak_flops * MICRO * kernel.compute, bytes_per_s * MICRO * kernel.memory
    rule, _, padded = kernel.rule.removesuffix("~").partition(":")
    width = -(-routed.width // WIDTH_MULTIPLE) * WIDTH_MULTIPLE if padded else routed.width
    up, inputs = width * (2 if routed.gated else 1), routed.inputs
    rows = _rows(rule, kernel.tile_rows, routed, of, tokens)
    # The rest of a tile is zeros, which draw hardly any power.
    filled = np.minimum(routed.pairs / np.maximum(_rows(rule, 0.0, routed, of, tokens), LEAST), 1.0)
    busy_us: Numeric = 0.0
    for columns, depth in ((up, inputs), (inputs, width)):
        wide = -(-columns // WIDE) * WIDE
        compute_us = FLOPS_PER_MAC * rows * wide * (depth + kernel.tile_depth) / peak
        memory_us = of.hit * columns * depth * routed.weight_bytes / bandwidth
        # A product that waits for its weights draws less power than one that is bound by its arithmetic.
        busy = filled * compute_us / (compute_us + memory_us)
        compute_us = compute_us + busy * (sustained_us(compute_us, sustained) - compute_us)
        most, least = np.maximum(compute_us, memory_us), np.minimum(compute_us, memory_us)
        busy_us = busy_us + most * np.power(1 + np.power(least / most, p), 1 / p)
    copies = routed.experts_per_token * (kernel.copy_us_per_input * inputs + kernel.copy_us_per_width * routed.width)
    us = (
        kernel.t0_us
        + kernel.t1_us * -np.expm1(-np.asarray(tokens) / START_TOKENS)
        + kernel.local_us * routed.experts / routed.ranks
        + kernel.loop_us_per_value * (inputs + routed.width)
        + routed.pairs * (kernel.pair_us_per_input * inputs + kernel.pair_us_per_width * routed.width)
        + tokens * (kernel.token_us_per_input * inputs + copies)
        + busy_us
    )
    corrected: Numeric = MICRO * us * np.exp(_correction(kernel, routed, of, tokens))
    return corrected


def _rows(rule: str, more: float, routed: Routed, load: ExpertLoad, tokens: Numeric) -> Numeric:
    """Rows computed: whole tiles, each with `more` rows of extra work, cut by the kernel's rule."""

    def computed(sizes: Sequence[int]) -> list[Array]:
        return [_tiles(load, rows) * (rows + more) for rows in sizes]

    if rule == "best":
        least: Array = np.min(computed(TILES), axis=0)
        return least
    if rule in ("t64", "t128"):
        return computed([int(rule[1:])])[0]
    if rule == "trit":  # 16 rows up to one token per expert, then 64; blended over an octave like all steps here
        return _between(computed([16, 64]), np.log2(np.asarray(tokens) / routed.experts) + 1 / 2)
    mean = np.asarray(tokens) * routed.experts_per_token / routed.experts  # the next power of two, 8 to 128
    return _between(computed(TILES[:5]), np.log2(np.maximum(mean, LEAST) / TILES[0]) + 1 / 2)


def _between(tables: list[Array], at: Numeric) -> Numeric:
    """The table of number `at`, blended with the next one; clamped to the first and last."""
    at = np.clip(at, 0, len(tables) - 1)
    shares = (np.maximum(1 - np.abs(at - number), 0.0) for number in range(len(tables)))
    blended: Array = np.sum([share * table for share, table in zip(shares, tables, strict=True)], axis=0)
    return blended


def _correction(kernel: ExpertKernel, routed: Routed, load: ExpertLoad, tokens: Numeric) -> Numeric:
    """Logarithm of measured time over the formula's time."""
    if not kernel.corrections.size:
        return 0.0
    knots = only(MeasuredKernels).experts
    weights = routed.inputs * routed.width * (3 if routed.gated else 2) * routed.weight_bytes / MEGA
    along_tokens = knot_weights(knots.tokens, tokens)
    along_bytes = knot_weights(knots.megabytes, np.maximum(load.hit, SMALLEST) * weights)
    along_skew = knot_weights(knots.unevenness, np.maximum(load.busiest * load.hit / routed.pairs, 1.0))
    along_fan = knot_weights(knots.fan_out, np.full(np.shape(load.hit), float(routed.experts_per_token)))
    along_pairs = knot_weights(knots.pairs, routed.pairs / load.hit)
    found: Numeric = 0.0
    grid, start = kernel.corrections, 0
    axes = (
        (along_tokens, along_bytes),
        (along_skew, along_bytes),
        (along_fan, along_bytes),
        (along_tokens, along_pairs),
    )
    for first, second in axes:
        shape = first.shape[-1], second.shape[-1]
        table = grid[start : start + shape[0] * shape[1]].reshape(shape)
        found = found + np.einsum("...i,ij,...j->...", first, table, second)
        start += table.size
    return found
