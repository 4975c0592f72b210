"""Time of latent, sparse and recurrent attention: formulas of the kernels' physics with measured constants.

All formulas are in microseconds, FLOP and bytes. In a model every layer finds the GPU's cache cold, so the fit leaves out
what a table gained from this cache. If a table measures a whole block of a layer, the fit leaves out its products, which
are timed separately.
"""

from __future__ import annotations

import numpy as np

from sizing.model.attention import FLOPS_PER_MAC, Numeric, Work, causal_pairs
from sizing.replica.surfaces import LEAST, Array, Chip, between_contexts, softly_largest
from sizing.specs.kernels import Surface

KILO, NANO = 1e3, 1e-3  # tokens per thousand; microseconds per nanosecond
SPLIT_TOKENS = 256.0  # tokens over which the start-up of a split cache grows
CHUNK_TOKENS = 64.0  # tokens of a scan's chunk
INDEX_BYTES = 132  # bytes of an index key with its scale
INDEX_VALUES = 128
TILES = ((16, ""), (32, "g32"), (64, "g64"))  # query heads of a tile


def latent_decode_us(of: Surface, chip: Chip, work: Work) -> Numeric:
    """Microseconds of one layer's decode attention over latents, linear between stated contexts."""
    c, batch, heads = of.constants, work.sequences, work.q_heads * work.queries
    tiled: float = next((c[name] if name else 1.0 for most, name in TILES if work.q_heads <= most), c["g128"])
    base = softly_largest(3, c["t0_us"], 0.4 * c["t0_us"] + batch * (c["cB_us"] + c["cBH_ns"] * NANO * heads))

    def at(context: Numeric) -> Numeric:
        read_us = batch * context * work.token_bytes * tiled / (chip.bytes_per_us * c["eKV"])
        flops = FLOPS_PER_MAC * batch * context * heads * work.pair_values
        busy_us = softly_largest(4, read_us, flops / (chip.flops_per_us * c["eC"]))
        walked_us = c["c1_us_ktok"] * context / KILO
        return c["t1_us"] * context / (context + SPLIT_TOKENS) + softly_largest(2, busy_us, walked_us)

    return base + between_contexts(work.context_tokens, 0, at)


def latent_prefill_us(of: Surface, chip: Chip, work: Work) -> Numeric:
    """Microseconds of attention to prompts over latents that are expanded into heads."""
    c, batch, heads = of.constants, work.sequences, work.q_heads
    new = np.maximum(work.new_tokens, LEAST)
    each = batch * heads * NANO
    base = softly_largest(
        3, c["t0_us"], 0.5 * c["t0_us"] + batch * c["cB_us"] + each * (c["cBH_ns"] + c["cTH_ns"] * new)
    )
    compute_us = work.flops / (chip.flops_per_us * c["eA"]) * (1 + c["L0"] / new)
    return base + softly_largest(3, compute_us, c["lat_us_ktok"] * work.prompt_tokens / KILO)


def sparse_decode_us(of: Surface, chip: Chip, work: Work) -> Numeric:
    """Microseconds of decode attention to each sequence's best latents, including the scores that select them."""
    c, batch, heads = of.constants, work.sequences, work.q_heads * work.queries
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


def sparse_prefill_us(of: Surface, chip: Chip, work: Work, index_flops_per_us: float) -> Numeric:
    """Microseconds of prefill attention to each token's best latents: scores, selection, absorbed attention, copies."""
    c, batch, new = of.constants, work.sequences, np.maximum(work.new_tokens, LEAST)
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


def scan_us(of: Surface, chip: Chip, work: Work) -> Numeric:
    """Microseconds of a recurrent layer's scan over prompts: chunks of a sequence run in turn, its heads in parallel.

    Prompts of a step are counted one after another, because all callers add up the times of prompts. The real kernel runs
    some prompts in parallel while heads leave multiprocessors free.
    """
    least_us = _scanned_us(of, chip, work, 0.0)
    found: Numeric = least_us + work.sequences * (_scanned_us(of, chip, work, work.new_tokens) - least_us)
    return found


def _scanned_us(of: Surface, chip: Chip, work: Work, tokens: Numeric) -> Numeric:
    """Microseconds of the scan of one prompt."""
    c, heads = of.constants, work.q_heads
    chunks = np.maximum(np.asarray(tokens) / CHUNK_TOKENS, 1.0)
    if of.variant.endswith("flash"):
        waves = np.maximum(heads / chip.multiprocessors, 1.0)
        found: Array = (
            c["t0"] + waves * (c["c0"] + c["c1"] * chunks) + heads * (c["c2"] * CHUNK_TOKENS * chunks + c["cB"])
        )
        return found
    started = c["t0_us"] * (1 + c["a64"] * np.minimum(tokens, CHUNK_TOKENS) / CHUNK_TOKENS)
    each_us = chunks * (heads * c["cv_us"] * (1 + c["rL2"]) + work.kv_heads * c["ck_us"]) + heads * c["cB_us"]
    return softly_largest(c["k2"], softly_largest(c["k1"], started, each_us), chunks * c["cs_us"] + started / 2)


def state_us(of: Surface, chip: Chip, moved: Numeric) -> Numeric:
    """Microseconds of a recurrent layer's decode step, which reads and writes the state of each sequence."""
    c = of.constants
    return softly_largest(3, c["t0"], 0.5 * c["t0"] + moved / (chip.bytes_per_us * c["e"]))
