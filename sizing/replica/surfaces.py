"""Time of dense products, attention and recurrent states: formulas of the kernels' physics with measured constants.

Products and attention have a small grid of measured corrections besides.

Where no kernel was measured in this way, an operation takes t = t0 + ((flops/(P*ec))^p + (bytes/(W*em))^p)^(1/p). This is a
roofline whose corner is rounded by p; for large p it becomes max(compute, memory). t0 is the time at zero work.

All other formulas are in microseconds, FLOP and bytes. The tables come from repeated runs, whose weights and caches stay in the
GPU's cache. In a model they do not, so this part of the fit is left out. If a table measures a whole block of a layer, the fit
leaves out its products, which are timed separately.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.catalog.shelf import only
from sizing.model.attention import FLOPS_PER_MAC, Numeric, Work, causal_pairs
from sizing.specs.kernels import Forms, MeasuredKernels, Surface

Array = NDArray[np.float64]

TILE = 128  # rows and columns that a multiprocessor computes at a time
FEWEST_ROWS = 16  # least rows that the tensor cores compute
SHORT_US, LONG_US = 30.0, 300.0  # up to SHORT_US a product keeps its full clock; from LONG_US on it has the lowest
QUANTISE_BYTES = 3  # a quantise kernel reads 16 bits and writes 8 for each value
SIXTEEN_BIT_BYTES = 2
READ = {2: "...i,...j,ij->...", 3: "...i,...j,...k,ijk->..."}  # how to read a table, by its number of axes
LEAST = 1e-3  # least argument of a logarithm


class Chip(NamedTuple):
    """GPU constants: FLOP and bytes per microsecond at the peaks, multiprocessors, relative rate of long products.

    `clock` is the clock that its power limit allows over that of the measured GPU, at least 1: products then lose less of it.
    """

    flops_per_us: float
    bytes_per_us: float
    multiprocessors: int
    sustained: float
    clock: float = 1.0


class Product(NamedTuple):
    """One dense product: rows, outputs, inputs, and the bytes that it moves."""

    rows: Numeric
    outputs: float
    inputs: float
    bytes: Numeric


def knot_weights(knots: tuple[float, ...], value: Numeric) -> Array:
    """Weights of the knots around log2 of `value`, in a new last axis. Values beyond the knots are clamped."""
    starts, spans = _spans(knots)
    at = np.log2(np.maximum(np.asarray(value, dtype=float), LEAST))[..., np.newaxis]
    weights = np.ones((*at.shape[:-1], len(knots)))
    # How far the value has moved from each knot to the next; a knot's weight rises before it and falls after it.
    rising = np.minimum(np.maximum((np.minimum(np.maximum(at, knots[0]), knots[-1]) - starts) / spans, 0.0), 1.0)
    weights[..., 1:] = rising
    weights[..., :-1] -= rising
    return weights


@cache
def _spans(knots: tuple[float, ...]) -> tuple[Array, Array]:
    """All knots but the last, and the distance of each to the next."""
    along = np.asarray(knots)
    return along[:-1], np.diff(along)


def softly_largest(p: float, *terms: Numeric) -> Numeric:
    """The p-norm of the terms: close to the largest term, and more where several are large."""
    most = np.maximum.reduce([np.asarray(term, dtype=float) for term in np.broadcast_arrays(*terms)])
    most = np.maximum(most, LEAST * LEAST)
    found: Array = most * sum((np.asarray(term) / most) ** p for term in terms) ** (1 / p)
    return found


def _fading(forms: Forms, value: Numeric, most: float) -> Numeric:
    """1 within the measured range, falling to 0 beyond it."""
    beyond = np.log2(np.maximum(np.asarray(value, dtype=float) / most, 1.0))
    left: Array = np.clip(1 - beyond / forms.fading_octaves, 0, 1)
    return left


def _last_wave(waves: Numeric, counted: float) -> Numeric:
    """Slowdown factor because the last wave is on average half empty; 1 if one wave holds everything."""
    some = np.maximum(np.asarray(waves, dtype=float), LEAST)
    more: Array = 1 + counted * np.clip(4 * (some - 1), 0, 1) / 2 / np.maximum(some, 1.0)
    return more


def _kept_clock(surface: Surface, flops: Numeric, chip: Chip) -> Numeric:
    """Share of the clock that a product keeps; long products keep less."""
    long = np.log10(np.maximum(np.asarray(flops) / chip.flops_per_us / SHORT_US, 1.0))
    return 1 / (1 + surface.constants["thr"] * long)


def sustained_us(compute_us: Numeric, rate: float) -> Numeric:
    """Time of a product at the clock in service.

    Long products draw more power than the short runs of the tables, so their clock falls, at most to `rate` of the tables'
    clock.
    """
    long = np.clip(np.log10(np.maximum(compute_us, LEAST) / SHORT_US) / np.log10(LONG_US / SHORT_US), 0, 1)
    taken: Array = compute_us * (1 + (1 / rate - 1) * long)
    return taken


def product_us(surface: Surface, chip: Chip, product: Product, *, bare: Surface | None = None) -> Numeric:
    """Microseconds of a dense product, including the kernel that quantises its inputs.

    If another kernel quantises them on its way, launch and time per input are taken from `bare`, the 16-bit product.
    """
    c, forms = surface.constants, only(MeasuredKernels).forms
    rows, outputs, inputs, moved = product
    m = np.maximum(np.asarray(rows, dtype=float), LEAST)
    padded = np.maximum(m, FEWEST_ROWS) + c["a"] * TILE / 2 * np.clip(m / TILE - 1, 0, 1)  # half a tile on average
    flops = 2 * padded * outputs * inputs
    waves = np.maximum(m / TILE, 1.0) * np.maximum(outputs / TILE, 1.0) / chip.multiprocessors
    clock = np.minimum(_kept_clock(surface, flops, chip) * chip.clock, 1.0)
    compute_us = flops / (chip.flops_per_us * c["ec"] * clock) * _last_wave(waves, c["a"])
    sustained = min(chip.sustained * chip.clock, 1.0)
    compute_us = sustained_us(compute_us * (1 + c["r"] / np.maximum(waves, 0.05)), sustained)
    filling = -np.expm1(-2 * waves / c["q"])  # few tiles do not fill the memory's bus
    memory_us = moved / (chip.bytes_per_us * c["em"] * filling)
    us = softly_largest(c["p"], compute_us, memory_us)
    if bare is None:
        us = us + c["t0"] + c["lat"] * inputs + c["cq"] * QUANTISE_BYTES * m * inputs / chip.bytes_per_us
    else:
        us = us + min(c["t0"], bare.constants["t0"]) + min(c["lat"], bare.constants["lat"]) * inputs
    at = forms.products
    fading = _fading(forms, m, at.most_rows) * _fading(forms, max(outputs, inputs), at.most_width)
    along = [knot_weights(at.widths, width) for width in (outputs, inputs)]
    grid = surface.corrections.reshape(len(at.rows), len(at.widths), len(at.widths)) @ along[1] @ along[0]
    corrected: Array = us * np.exp(fading * (knot_weights(at.rows, m) @ grid))
    return corrected


def decode_us(surface: Surface, chip: Chip, work: Work, cached_bytes: float) -> Numeric:
    """Microseconds of one layer's decode attention with a cold GPU cache; linear between stated contexts."""
    return between_contexts(
        work.context_tokens, work.window, lambda context: _decode_us(surface, chip, work, cached_bytes, context)
    )


def between_contexts(context: Numeric, window: int, at: Callable[[Numeric], Numeric]) -> Numeric:
    """Time at a context, linear between the stated contexts, up to the window if there is one.

    Of a column of contexts, `at` gets each stated context once.
    """
    context = np.asarray(context, dtype=float)
    stated = (tokens for tokens in only(MeasuredKernels).forms.contexts if not window or tokens < window)
    knots = np.array([1.0, *stated, *([window] if window else [])])
    number = np.clip(np.searchsorted(knots, context, side="right") - 1, 0, len(knots) - 2)
    near, far = knots[number], knots[number + 1]
    if context.ndim > 1 and context.shape[-1] == 1:
        ends, places = np.unique((number, number + 1), return_inverse=True)
        first_us, last_us = np.asarray(at(knots[ends, np.newaxis]))[places.reshape(2, -1)]
    else:
        first_us, last_us = np.asarray(at(near)), np.asarray(at(far))
    between: Array = first_us + (last_us - first_us) * (context - near) / (far - near)
    return between


def _decode_us(surface: Surface, chip: Chip, work: Work, cached_bytes: float, context: Numeric) -> Numeric:
    c, size = surface.constants, work.head_dim / TILE
    heads, kv_heads = float(work.q_heads * work.queries), float(max(work.kv_heads, 1))
    group = heads / kv_heads
    batch = np.maximum(np.asarray(work.sequences, dtype=float), LEAST)
    unsplit = "fa2" in surface.kernel and (work.window > 0 or group <= 1)  # neither packs a group nor splits a context
    blocks = batch * (heads if unsplit else kv_heads)
    fewest = np.maximum(np.minimum(c["smax"], context / 64), 1.0)
    split = np.ones_like(blocks * context) if unsplit else np.clip(chip.multiprocessors / blocks, 1.0, fewest)
    filled = blocks * split / chip.multiprocessors
    waves = np.maximum(1.0, filled * _last_wave(filled, c["a"]))
    start_us = waves * c["tau"] * np.sqrt(size)
    walk_us = waves * c["lam"] * (context / split) * size ** c["hx"] * (1 + c["kap"] * group)
    partial = np.where(split > 1, 8 * split, 0.0)
    moved = 2 * batch * kv_heads * work.head_dim * context * cached_bytes
    moved = moved + c["qb"] * batch * heads * work.head_dim * (4 + partial)
    memory_us = moved / (chip.bytes_per_us * c["e"] * (1 + (c["eh"] - 1) * np.log2(size)))
    us = c["t0"] + softly_largest(c["p"], start_us, walk_us, memory_us) + c["red"] * np.log2(split)
    us = us + c["r1"] * (context > TILE + 2) + c["wx"] * (work.window > 0)
    corrected: Array = us * np.exp(_decode_correction(surface, work.head_dim, work.window > 0, blocks, context, group))
    return corrected


def _decode_correction(
    surface: Surface, head_size: int, windowed: bool, blocks: Numeric, context: Numeric, group: float
) -> Numeric:
    at, sizes = only(MeasuredKernels).forms.decode, _of_size(surface, head_size)
    few_tokens, few_heads = knot_weights(at.few_tokens, context), knot_weights(at.few_heads, blocks)
    groups, kinds = knot_weights(at.group, group), np.array([float(windowed), float(not windowed)])
    return _sum_of_tables(
        surface.corrections,
        (knot_weights(at.heads, blocks), knot_weights(at.tokens, context)),
        (groups, few_tokens),
        (sizes, few_tokens),
        (groups, few_heads),
        (kinds, few_heads),
    )


def prefill_us(surface: Surface, chip: Chip, work: Work, cached_bytes: float) -> Numeric:
    """Microseconds of one layer's attention to prompts: causal within the new tokens, full over the tokens before them."""
    c, size, windowed = surface.constants, work.head_dim / TILE, work.window > 0
    heads, kv_heads = float(work.q_heads), float(max(work.kv_heads, 1))
    batch = np.maximum(np.asarray(work.sequences, dtype=float), LEAST)
    new = np.maximum(np.asarray(work.new_tokens, dtype=float), LEAST)
    prior = np.asarray(work.prompt_tokens, dtype=float) - new
    packed = surface.variant == "pack"
    each = kv_heads * np.maximum(new * heads / kv_heads / TILE, 1.0) if packed else heads * np.maximum(new / TILE, 1.0)
    tiles = batch * each
    keys = _keys(work, new, prior, c["ws"])
    in_tile = 4 * work.head_dim * TILE * keys
    flops = in_tile * tiles
    share = c["ec"] * size ** (c["xh"] if work.head_dim <= TILE else -c["xh"] / 2) * _kept_clock(surface, flops, chip)
    compute_us = flops / (chip.flops_per_us * share)
    longest = in_tile if windowed else 4 * work.head_dim * TILE * (prior + new + TILE)  # the last tile sees all keys
    longest_us = c["al"] * longest / (chip.flops_per_us / chip.multiprocessors * share)
    compute_us = sustained_us(softly_largest(c["p2"], compute_us, longest_us), chip.sustained)
    memory_us = batch * new * work.head_dim * (4 * heads + 2 * kv_heads * cached_bytes) / (chip.bytes_per_us * c["em"])
    waves_us = np.maximum(1.0, tiles / chip.multiprocessors) * c["tau"] * size ** c["th"]
    us = c["t0"] + softly_largest(c["p"], compute_us, memory_us, waves_us) + c["lat"] * np.minimum(new, 1024.0)
    written = 2 * batch * new * work.head_dim * kv_heads * (SIXTEEN_BIT_BYTES + cached_bytes)
    us = us + c["wx"] * windowed + written / (chip.bytes_per_us * c["ekv"])
    corrected: Array = us * np.exp(_prefill_correction(surface, work, batch, new))
    return corrected


def _keys(work: Work, new: Numeric, prior: Numeric, unmasked: float) -> Numeric:
    """Mean number of keys per query. Under a window, a share `unmasked` of the keys beyond it costs time too."""
    keys = np.maximum(prior + (new + TILE) / 2 if work.causal else prior + new, TILE / 2)
    if not work.window:
        return keys
    reach = work.window + TILE
    growing = np.clip(reach - prior, 0.0, new)
    inside = (growing * (prior + growing / 2) + (new - growing) * reach) / new + TILE / 4
    inside = np.maximum(np.minimum(inside, keys), TILE / 2)
    found: Array = inside + unmasked * (keys - inside)
    return found


def _prefill_correction(surface: Surface, work: Work, batch: Numeric, new: Numeric) -> Numeric:
    at, sizes = only(MeasuredKernels).forms.prefill, _of_size(surface, work.head_dim)
    rows, few_tokens = batch * work.q_heads, knot_weights(at.few_tokens, new)
    kinds = np.array([float(work.window > 0), float(work.window == 0)])
    group = work.q_heads / max(work.kv_heads, 1)
    return _sum_of_tables(
        surface.corrections,
        (knot_weights(at.heads, rows), knot_weights(at.tokens, new)),
        (knot_weights(at.group, group), few_tokens),
        (sizes, few_tokens),
        (knot_weights(at.few_heads, batch * max(work.kv_heads, 1)), few_tokens),
        (kinds, few_tokens),
        (sizes, kinds, knot_weights(only(MeasuredKernels).forms.pair_heads, rows)),
    )


def _of_size(surface: Surface, head_size: int) -> Array:
    """One-hot vector of the measured head size nearest to `head_size`."""
    nearest = np.argmin(np.abs(np.log2(np.asarray(surface.head_sizes) / head_size)))
    found: Array = np.eye(len(surface.head_sizes))[nearest]
    return found


def _sum_of_tables(grid: Array, *axes: tuple[Array, ...]) -> Numeric:
    """Sum of the tables stored one after another in `grid`, each interpolated along two or three axes of knot weights."""
    start = 0
    found: Numeric = 0.0
    for along in axes:
        shape = tuple(weights.shape[-1] for weights in along)
        table = grid[start : start + int(np.prod(shape))].reshape(shape)
        found = found + np.einsum(READ[len(along)], *along, table)
        start += table.size
    return found


def combined_s(
    flops: Numeric,
    bytes_: Numeric,
    *,
    peak_flops: float,
    compute: Numeric,
    bandwidth_bytes_per_s: float,
    memory: Numeric,
    p: float,
    t0_s: float,
) -> Numeric:
    """Seconds of a product with `flops` and memory traffic `bytes_`.

    `compute` and `memory` are the measured shares of the two peaks that long products reach. The formula is computed
    as max * (1 + (min/max)^p)^(1/p), which neither overflows nor loses precision for large p.
    """
    compute_s = np.asarray(flops / (peak_flops * compute), dtype=float)
    memory_s = np.asarray(bytes_ / (bandwidth_bytes_per_s * memory), dtype=float)
    longer = np.maximum(compute_s, memory_s)
    shorter = np.minimum(compute_s, memory_s)
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    seconds: Numeric = t0_s + longer * np.power(1 + np.power(ratio, p), 1 / p)
    return seconds


def streamed_s(bytes_: Numeric, *, bandwidth_bytes_per_s: float, memory: float, t0_s: float) -> Numeric:
    """Seconds of a kernel that only moves `bytes_`: launch time plus traffic at a share of the bandwidth."""
    return t0_s + bytes_ / (bandwidth_bytes_per_s * memory)


def curve_share(prompt_tokens: Numeric, tokens: tuple[int, ...], shares: tuple[float, ...]) -> Numeric:
    """Share of the peak at a prompt length, interpolated log-log between measured points.

    Linear interpolation over the logarithm of length would let the share rise faster than the work, so longer prompts
    would be faster. Below the first point the share is proportional to length, so time stays about constant. Above
    the last point the share is constant.
    """
    length = np.maximum(np.asarray(prompt_tokens, dtype=float), 1.0)
    inside = np.exp(np.interp(np.log(length), np.log(np.asarray(tokens)), np.log(np.asarray(shares))))
    share: Numeric = inside * np.minimum(1.0, length / tokens[0])
    return share


KILO, NANO = 1e3, 1e-3  # tokens per thousand; microseconds per nanosecond
SPLIT_TOKENS = 256.0  # tokens over which the start-up of a split cache grows
CHUNK_TOKENS = 64.0  # tokens of a scan's chunk
INDEX_BYTES = 132  # bytes of an index key with its scale
INDEX_VALUES = 128
TILES = ((16, ""), (32, "g32"), (64, "g64"))  # query heads of a tile


def latent_decode_us(surface: Surface, chip: Chip, work: Work) -> Numeric:
    """Microseconds of one layer's decode attention over latents, linear between stated contexts."""
    c, batch, heads = surface.constants, work.sequences, work.q_heads * work.queries
    tiled: float = next((c[name] if name else 1.0 for most, name in TILES if work.q_heads <= most), c["g128"])
    base = softly_largest(3, c["t0_us"], 0.4 * c["t0_us"] + batch * (c["cB_us"] + c["cBH_ns"] * NANO * heads))

    def at(context: Numeric) -> Numeric:
        read_us = batch * context * work.token_bytes * tiled / (chip.bytes_per_us * c["eKV"])
        flops = FLOPS_PER_MAC * batch * context * heads * work.pair_values
        busy_us = softly_largest(4, read_us, flops / (chip.flops_per_us * c["eC"]))
        walked_us = c["c1_us_ktok"] * context / KILO
        return c["t1_us"] * context / (context + SPLIT_TOKENS) + softly_largest(2, busy_us, walked_us)

    return base + between_contexts(work.context_tokens, 0, at)


def latent_prefill_us(surface: Surface, chip: Chip, work: Work) -> Numeric:
    """Microseconds of attention to prompts over latents that are expanded into heads."""
    c, batch, heads = surface.constants, work.sequences, work.q_heads
    new = np.maximum(work.new_tokens, LEAST)
    each = batch * heads * NANO
    base = softly_largest(
        3, c["t0_us"], 0.5 * c["t0_us"] + batch * c["cB_us"] + each * (c["cBH_ns"] + c["cTH_ns"] * new)
    )
    compute_us = work.flops / (chip.flops_per_us * c["eA"]) * (1 + c["L0"] / new)
    return base + softly_largest(3, compute_us, c["lat_us_ktok"] * work.prompt_tokens / KILO)


def sparse_decode_us(surface: Surface, chip: Chip, work: Work) -> Numeric:
    """Microseconds of decode attention to each sequence's best latents, including the scores that select them."""
    c, batch, heads = surface.constants, work.sequences, work.q_heads * work.queries
    padded = np.maximum(heads, c["pad"])

    def at(context: Numeric) -> Numeric:
        chosen: Numeric = float(work.chosen) if c["all"] else np.minimum(context, work.chosen)
        read_us = batch * chosen * work.token_bytes / (chip.bytes_per_us * c["eKV"])
        flops = FLOPS_PER_MAC * batch * chosen * padded * work.pair_values
        scored_us = batch * context * INDEX_BYTES / (chip.bytes_per_us * c["eI"]) + c["cI_us_ktok"] * context / KILO
        choosing_us = c["tI_us"] * np.asarray(np.asarray(context) > work.chosen, dtype=float)
        read: Numeric = softly_largest(4, read_us, flops / (chip.flops_per_us * c["eC"])) + scored_us + choosing_us
        return read

    base = c["t0_us"] + batch * (c["cB_us"] + c["cBH_ns"] * NANO * heads)
    return base + between_contexts(work.context_tokens, 0, at)


def sparse_prefill_us(surface: Surface, chip: Chip, work: Work, index_flops_per_us: float) -> Numeric:
    """Microseconds of prefill attention to each token's best latents: scores, selection, absorbed attention, copies."""
    c, batch, new = surface.constants, work.sequences, np.maximum(work.new_tokens, LEAST)
    prior = work.prompt_tokens - new
    late = np.clip(prior + new - work.chosen, 0.0, new)  # tokens with more before them than are chosen
    late_pairs = late * (prior + new - late / 2)
    early = new - late
    few_pairs = causal_pairs(early, prior) + late * work.chosen
    whole = c["kap"] / (1 + c["kap"])  # share of the work that walks all slots, chosen or not
    walked = whole * work.chosen * new + (1 - whole) * few_pairs
    heads = max(work.q_heads, c["pad"])
    attended_us = FLOPS_PER_MAC * heads * work.pair_values * walked / (chip.flops_per_us * c["eA"])
    pairs = causal_pairs(new, prior)
    scored_us = FLOPS_PER_MAC * work.index_heads * INDEX_VALUES * pairs / (index_flops_per_us * c["eI"])
    chosen_us = (late * c["topk_ns_row"] + late_pairs * c["topk_ns_row_ktok"] / KILO) * NANO
    copied_us = (c["cT_ns"] * new + c["cC_ns"] * (prior + new)) * NANO
    found: Array = 0.3 * c["t1_us"] + batch * (attended_us + scored_us + chosen_us + copied_us)
    return found


def scan_us(surface: Surface, chip: Chip, work: Work) -> Numeric:
    """Microseconds of a recurrent layer's scan over prompts: chunks of a sequence run in turn, its heads in parallel.

    Prompts of a step are counted one after another, because all callers add up the times of prompts. The real kernel runs
    some prompts in parallel while heads leave multiprocessors free.
    """
    least_us = _scanned_us(surface, chip, work, 0.0)
    found: Numeric = least_us + work.sequences * (_scanned_us(surface, chip, work, work.new_tokens) - least_us)
    return found


def _scanned_us(surface: Surface, chip: Chip, work: Work, tokens: Numeric) -> Numeric:
    """Microseconds of the scan of one prompt."""
    c, heads = surface.constants, work.q_heads
    chunks = np.maximum(np.asarray(tokens) / CHUNK_TOKENS, 1.0)
    if surface.variant.endswith("flash"):
        waves = np.maximum(heads / chip.multiprocessors, 1.0)
        found: Array = (
            c["t0"] + waves * (c["c0"] + c["c1"] * chunks) + heads * (c["c2"] * CHUNK_TOKENS * chunks + c["cB"])
        )
        return found
    started = c["t0_us"] * (1 + c["a64"] * np.minimum(tokens, CHUNK_TOKENS) / CHUNK_TOKENS)
    each_us = chunks * (heads * c["cv_us"] * (1 + c["rL2"]) + work.kv_heads * c["ck_us"]) + heads * c["cB_us"]
    return softly_largest(c["k2"], softly_largest(c["k1"], started, each_us), chunks * c["cs_us"] + started / 2)


def state_us(surface: Surface, chip: Chip, moved: Numeric) -> Numeric:
    """Microseconds of a recurrent layer's decode step, which reads and writes the state of each sequence."""
    c = surface.constants
    return softly_largest(3, c["t0"], 0.5 * c["t0"] + moved / (chip.bytes_per_us * c["e"]))
