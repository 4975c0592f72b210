"""Memory of one GPU: weights, activation, what the framework takes, and the remaining cache pool.

The budget rule is that of the engine version. Everything is computed for every pipeline stage. A replica holds as many
tokens as its tightest rank (vLLM and SGLang take the minimum over ranks).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from sizing.model import architecture
from sizing.model.architecture import Shard, Stage
from sizing.model.extras import drafts
from sizing.model.footprint import (
    Room,
    activation_bytes,
    blocks_by_window,
    caches,
    exchange_bytes,
    extras_bytes,
    filled,
    pages,
    room_of,
    rotary_bytes,
    scaled,
    state_bytes,
    weight_bytes,
    workspace_bytes,
)
from sizing.model.operations import dispatches
from sizing.specs.engine import EngineSettings, MemoryReserve
from sizing.specs.gpu import Gpu
from sizing.specs.units import GIB, MIB
from sizing.specs.workload import Serving

FRACTION_DIGITS = 3  # SGLang rounds its memory fraction to three digits
ROUNDING = 1e-9  # in blocks: a pool of exactly n blocks holds n
MANY_MORE = 1.5  # factor on the memory per captured sequence when many are captured


class MemoryUse(NamedTuple):
    """The memory of one GPU of the tightest rank, and the capacity of the replica's KV cache.

    `kv_cache_gib` is the pool, 0 when the rest does not fit. `kv_bytes_per_token` is its growth per token on this GPU, with all
    layers of the stage and windows not yet full, `kv_bytes_per_token_beyond` once they are full. `sequence_gib` is the need of one sequence of `max_model_len` tokens, of which
    it holds `resident_gib` while it decodes; `deficit_gib` is what is missing to hold one. `kv_cache_tokens` is max_concurrency *
    max_model_len, as engines report it. The weights include `beside_gib` for a draft, adapters and an image encoder, the pool
    `shared_prefix_gib` for prefixes that sequences share. `state_cache_gib` is a separate pool of recurrent states, which limit
    the engine to `most_num_seqs` sequences (null: no limit); it does not start with more if `starts` is False. `warm_up_gib` is
    missing outside the fraction for CUDA graphs and the sampler, `beyond_card_gib` beyond the card for a stated cache, `start_gib`
    as the engine starts, where it wants its fraction of the card free beside its own context.
    Three fields take a search and are 0 or null until then: `max_model_len_that_fits`, which `sizing.memory` finds, and for a
    record only `least_memory_fraction`, which one sequence needs (null if none suffices), and the `least_fraction_num_seqs`
    with which the engine then starts.
    """

    visible_gib: float
    budget_gib: float
    weights_gib: float
    activation_gib: float
    non_torch_gib: float
    cuda_graphs_gib: float
    cuda_graphs_in_budget: bool
    kv_cache_gib: float
    kv_bytes_per_token: float
    state_bytes_per_sequence: float
    kv_cache_tokens: int
    max_concurrency: float
    sequence_gib: float
    max_model_len: int
    max_model_len_that_fits: int
    fits: bool
    deficit_gib: float
    kv_bytes_per_token_beyond: float = 0.0
    beside_gib: float = 0.0
    shared_prefix_gib: float = 0.0
    resident_gib: float = 0.0
    state_cache_gib: float = 0.0
    block_tokens: int = 1
    most_num_seqs: int | None = None
    starts: bool = True
    warm_up_gib: float = 0.0
    least_memory_fraction: float | None = None
    least_fraction_num_seqs: int | None = None
    beyond_card_gib: float = 0.0
    start_gib: float = 0.0


def used_gib(m: MemoryUse) -> float:
    """The sum of all parts of one GPU's memory, whether or not the engine counts them in its share."""
    work, cache = m.activation_gib + m.non_torch_gib + m.cuda_graphs_gib, m.kv_cache_gib + m.state_cache_gib
    return m.weights_gib + work + cache + m.beyond_card_gib


def over_gib(m: MemoryUse) -> float:
    """What the parts take beyond the card's memory; 0 for a card that is full up to rounding."""
    used = used_gib(m)
    return 0.0 if math.isclose(used, m.visible_gib) else max(0.0, used - m.visible_gib)


def static_fraction(
    reserve: MemoryReserve, memory_mib: float, chunk_tokens: int, graph_batch: int, gpus: int, mla: bool
) -> float:
    """SGLang's share of memory for weights and pool: (memory - reserve)/memory, rounded to three digits.

    Source: sglang python/sglang/srt/server_args.py, as `MemoryReserve` states its terms.
    """
    reserve_mib = (
        reserve.base_mib
        + reserve.per_chunk_token_mib * max(chunk_tokens, reserve.min_chunk_tokens)
        + reserve.per_graph_sequence_mib * graph_batch
        + reserve.per_gpu_mib * gpus
        + (reserve.prefill_graphs_mla_mib if mla else reserve.prefill_graphs_mib)
    )
    if reserve.floor_mib and memory_mib > reserve.floor_above_gib * 1024:
        reserve_mib = max(reserve_mib, reserve.floor_mib)
    return round((memory_mib - reserve_mib - reserve.beyond_floor_mib) / memory_mib, FRACTION_DIGITS)


def _with_more(shard: Shard, reserve: MemoryReserve, graph_batch: int) -> MemoryReserve:
    """The reserve plus the amounts for a draft, for attention-data ranks and for the exchange of tokens with experts."""
    more, layout, extras = shard.settings.reserve_more, shard.layout, shard.extras
    if more is None:
        return reserve
    base = reserve.base_mib
    if layout.dp > 1:
        many = MANY_MORE if graph_batch > more.many_sequences else 1.0
        ranks = min(layout.dp, more.most_ranks)
        base += more.ranks_mib + more.per_rank_sequence_mib * many * graph_batch * ranks
    own = extras.draft is not None and extras.draft.model is not None and extras.draft.each is None
    beyond = more.draft_model_mib if own else more.speculation_mib if extras.draft is not None else 0.0
    if dispatches(layout, shard.settings):
        beyond += more.exchange_mib
    return reserve.model_copy(update={"base_mib": base, "beyond_floor_mib": beyond})


def _vision_factor(shard: Shard) -> float:
    """Factor on the memory fraction for a model with an image encoder."""
    more, image = shard.settings.reserve_more, shard.model.vision
    if more is None or image is None:
        return 1.0
    rule, size = more.vision, image.layers * image.hidden_size**2
    return rule.share * min(rule.high, max(rule.low, 1 - rule.slope * (size / rule.reference - 1)))


def sequence_bytes(shard: Shard, stage: Stage, tokens: float, in_flight_tokens: int | None = None) -> float:
    """Cache bytes of one sequence of `tokens` tokens on one GPU of a stage, in whole blocks.

    A windowed layer keeps window - 1 tokens and the chunk in flight, in blocks, plus one block (vLLM's sliding-window
    manager). A group of layers is padded to the size of the others. A state layer keeps a fixed state, unless states have
    their own memory. A draft keeps its own cache, and slots are kept for drafted tokens. A prefix that sequences share does
    not count here (`shared_bytes`). Prompts have `in_flight_tokens` tokens in flight, by default the engine's budget.
    """
    settings, extras, paged = shard.settings, shard.extras, pages(shard, stage)
    block = settings.block_tokens if paged is None else paged.block_tokens
    in_flight = settings.in_flight_tokens if in_flight_tokens is None else in_flight_tokens
    slots = tokens + extras.verified - 1
    all_blocks = math.ceil(slots / block)
    own_blocks = all_blocks - int(min(extras.cached.shared_tokens, tokens) // block)
    if paged is not None:
        return paged.blocks(own_blocks) * paged.block_bytes
    total = own_blocks * block * draft_cache_bytes(shard, stage)
    apart, held_blocks = settings.states.rule != "pages", blocks_by_window(shard, stage, slots, own_blocks, in_flight)
    for held, count in caches(shard, stage):
        fixed = 0.0 if apart else held.fixed_bytes_per_sequence
        windows = sum(one.bytes_of(slots, in_flight) for one in held.windows)
        total += count * (held_blocks[held.window_tokens] * block * held.bytes_per_token + fixed + windows)
    return total


def block_tokens(shard: Shard, stage: Stage) -> int:
    """Tokens per block of the pool: the engine's, or the number of tokens that take as much as a recurrent state."""
    paged = pages(shard, stage)
    return shard.settings.block_tokens if paged is None else paged.block_tokens


def lost_bytes(shard: Shard, stage: Stage) -> float:
    """Bytes of the blocks that the engine leaves unused."""
    paged, lost = pages(shard, stage), shard.settings.blocks_lost
    if paged is not None:
        return lost * paged.block_bytes
    per_token = rate_bytes(shard, stage)[0] + draft_cache_bytes(shard, stage)
    return lost * shard.settings.block_tokens * per_token


def shared_bytes(shard: Shard, stage: Stage) -> float:
    """Cache bytes of the prefixes that sequences share, each held once: whole blocks of layers that keep all tokens."""
    block, cached = block_tokens(shard, stage), shard.extras.cached
    blocks = cached.distinct * (cached.shared_tokens // block)
    return blocks * block * growing_bytes(shard, stage) if blocks else 0.0


def growing_bytes(shard: Shard, stage: Stage) -> float:
    """Cache bytes that one more token takes for the life of its sequence: in layers that keep all tokens, and in a draft."""
    paged = pages(shard, stage)
    if paged is not None:
        return paged.growing * paged.block_bytes / paged.block_tokens
    held, share = caches(shard, stage), shard.settings.window_share or 0.0
    kept = sum(count * one.bytes_per_token for one, count in held if one.window_tokens is None)
    windowed = sum(count * one.bytes_per_token for one, count in held if one.window_tokens is not None)
    return (
        draft_cache_bytes(shard, stage)
        + kept * filled(shard, stage).get(None, 1.0)
        + (share * windowed if kept else 0.0)
    )


def rate_bytes(shard: Shard, stage: Stage) -> tuple[float, float]:
    """(bytes per token before any window is full, fixed bytes per sequence) on one GPU of a stage, without extras."""
    return sum(count * held.bytes_per_token for held, count in caches(shard, stage)), state_bytes(shard, stage)


def draft_cache_bytes(shard: Shard, stage: Stage) -> float:
    """Cache bytes per token of a draft on one GPU of a stage; 0 except on the last stage."""
    draft = shard.extras.draft
    return drafts.cache_bytes(draft, shard.draft) if draft is not None and stage.last else 0.0


class Beside(NamedTuple):
    """Bytes of one GPU beside its pool."""

    weights: float
    activation: float
    non_torch: float
    graphs: float


class CachePool(NamedTuple):
    """Bytes of the engine's budget, of its pool, negative if memory is too small, and of a stated pool beyond the card."""

    budget: float
    size: float
    beyond: float = 0.0


def pool_bytes(shard: Shard, gpu: Gpu, beside: Beside, stated: float | None) -> CachePool:
    """The pool by the engine's rule, which never exceeds the card; or as `stated`, where no profile run checks it.

    utilisation: the budget is visible * fraction. The pool is the budget less weights, activation, non-torch and, where the
    version counts them, graphs. free_before_load: the budget is the fraction of the memory free before loading, and the
    pool is the budget less weights; activation and graphs use the rest, and the engine does not know whether they exceed
    it. free_after_load: the pool is the fraction of what remains after all of them.
    """
    settings, visible = shard.settings, gpu.datasheet.memory.cuda_visible_gib * GIB
    weights, activation, non_torch, graphs = beside
    counted = graphs if settings.graphs_in_budget or settings.pool_rule == "free_after_load" else 0.0
    if stated is not None:
        beyond = min(stated, max(0.0, sum(beside) + stated - visible))
        return CachePool(sum(beside) - graphs + counted + stated, stated - beyond, beyond)
    if settings.pool_rule == "free_before_load":
        free = visible - non_torch
        budget = free * (settings.memory_fraction or _reserve_fraction(shard, gpu))
        return CachePool(budget, min(budget, free) - weights)
    if settings.pool_rule == "utilisation":
        budget = visible * _fraction(settings)
        least_graphs = min(graphs, settings.cuda_graphs.low_gib * GIB)
        return CachePool(budget, min(budget - counted, visible - least_graphs) - weights - activation - non_torch)
    left = visible - sum(beside)
    pool = left * _fraction(settings) if left > 0 else left
    return CachePool(pool + sum(beside), pool)


def _fraction(settings: EngineSettings) -> float:
    if settings.memory_fraction is None:
        raise ValueError("the engine version states no memory fraction")
    return settings.memory_fraction


def _reserve_fraction(shard: Shard, gpu: Gpu) -> float:
    settings, mla = shard.settings, architecture.attention_class(shard.model) == "mla"
    if settings.reserve is None:
        raise ValueError("the engine version states neither a memory fraction nor a reserve")
    memory = gpu.datasheet.memory
    memory_mib = memory.nvidia_smi_mib or memory.cuda_visible_gib * GIB / MIB
    graph_batch = settings.graph_sizes.most if settings.graph_sizes else 0
    reserve = _with_more(shard, settings.reserve, graph_batch)
    chunk, gpus = settings.max_num_batched_tokens // shard.layout.dp, shard.layout.gpus
    return static_fraction(reserve, memory_mib, chunk, graph_batch, gpus, mla) * _vision_factor(shard)


AS_DEFAULT = Serving()  # skips validation


@lru_cache(maxsize=4096)
def use(shard: Shard, gpu: Gpu, tokens: int, serving: Serving = AS_DEFAULT) -> MemoryUse:
    """Memory of the tightest stage for sequences of up to `tokens` tokens, with the memory options of `serving`."""
    stated = serving.kv_cache_bytes is not None
    found = [_stage_use(shard, pool, tokens, stated=stated) for pool in _pools(shard, gpu, serving)]
    return min(found, key=lambda stage: (stage.starts, stage.max_concurrency, -stage.deficit_gib))


@lru_cache(maxsize=4096)
def concurrency(shard: Shard, gpu: Gpu, tokens: int, serving: Serving = AS_DEFAULT) -> float:
    """The `max_concurrency` of `use`, for the price of nothing else."""
    pools = _pools(shard, gpu, serving)
    return min((_starts(shard.settings, of), _held(shard, of, tokens).concurrency) for of in pools)[1]


def graph_bytes(shard: Shard) -> float:
    """Bytes of CUDA graphs on one GPU: the engine's usual amount, in proportion to the batch sizes that it captures.

    Includes the workspace that attention kernels allocate during capture.
    """
    settings, sizes = shard.settings, shard.settings.graph_sizes
    usual, beside = settings.cuda_graphs.gib * GIB, workspace_bytes(shard)
    if sizes is None or sizes.per_sequence is None:
        return usual + beside
    most = sizes.per_sequence * settings.max_num_seqs * shard.extras.verified
    share = sizes.count(min(most, sizes.most, settings.max_num_batched_tokens)) / sizes.count(sizes.most)
    return usual * share + beside


class Needs(NamedTuple):
    """Memory needs of one GPU of a stage, in bytes: weights of model and extras, activation, cache, shared prefixes.

    `lost` are the blocks that the engine leaves unused. `windowed` layers hold more while a chunk of a prompt is in flight.
    """

    weights: float
    extras: float
    activation: float
    per_token: float
    fixed_per_sequence: float
    shared: float
    lost: float
    windowed: bool


@lru_cache(maxsize=4096)
def _needs(shard: Shard) -> tuple[tuple[Stage, Needs], ...]:
    """Each distinct stage with its needs. The result is shared by all GPU types and sequence lengths."""
    return tuple((stage, _needs_of(shard, stage)) for stage in dict.fromkeys(shard.stages))


def _needs_of(shard: Shard, stage: Stage) -> Needs:
    per_token, fixed = rate_bytes(shard, stage)
    return Needs(
        weights=scaled(shard, weight_bytes(shard, stage)) + rotary_bytes(shard.model),
        extras=extras_bytes(shard, stage),
        activation=activation_bytes(shard, stage, shard.settings.max_num_batched_tokens),
        per_token=per_token + draft_cache_bytes(shard, stage),
        fixed_per_sequence=fixed,
        shared=shared_bytes(shard, stage),
        lost=lost_bytes(shard, stage),
        windowed=any(held.windows or held.window_tokens for held, _ in caches(shard, stage)),
    )


def most_offloaded_gib(shard: Shard) -> float:
    """The most GiB of weights that a GPU can leave in host memory: those of the decoder layers of the stage with the most.

    Embedding, head and encoders stay on the card.
    """
    return max(scaled(shard, weight_bytes(shard, of._replace(first=False, last=False))) for of in shard.stages) / GIB


class _StagePool(NamedTuple):
    """What one GPU of a stage has for sequences, whatever their length, in bytes."""

    stage: Stage
    needs: Needs
    visible: float
    beside: Beside
    pool: CachePool
    room: Room


@lru_cache(maxsize=4096)
def _pools(shard: Shard, gpu: Gpu, serving: Serving) -> tuple[_StagePool, ...]:
    """The pool of each distinct stage. The result is shared by all sequence lengths."""
    return tuple(_pool(shard, gpu, stage, needs, serving) for stage, needs in _needs(shard))


def _pool(shard: Shard, gpu: Gpu, stage: Stage, needs: Needs, serving: Serving) -> _StagePool:
    graphs = graph_bytes(shard) if serving.cuda_graphs_gib is None else serving.cuda_graphs_gib * GIB
    weights = max(0.0, needs.weights + needs.extras - (serving.cpu_offload_gb or 0.0) * GIB)
    non_torch = shard.settings.non_torch_gib * GIB + exchange_bytes(shard)
    beside = Beside(weights, needs.activation, non_torch, graphs)
    pool = pool_bytes(shard, gpu, beside, serving.kv_cache_bytes)
    room = room_of(shard, stage, pool.size, serving.max_mamba_cache_size)
    if serving.max_total_tokens is not None:
        most = serving.max_total_tokens / shard.layout.dp * growing_bytes(shard, stage)
        room = room._replace(tokens=min(room.tokens, most + needs.lost))
    return _StagePool(stage, needs, gpu.datasheet.memory.cuda_visible_gib * GIB, beside, pool, room)


class _Held(NamedTuple):
    """What the cache of a stage holds of sequences of one length: bytes of one, bytes for all, and how many in a replica."""

    needed: float
    usable: float
    fits: bool
    concurrency: float


def _clamped(settings: EngineSettings, room: Room) -> bool:
    """Whether an engine whose states are too large runs fewer sequences, and starts."""
    return room.sequences is not None and settings.states.rule == "split"


def _starts(settings: EngineSettings, pool: _StagePool) -> bool:
    room, most = pool.room, settings.max_num_seqs
    return not pool.pool.beyond and (_clamped(settings, room) or room.sequences is None or most <= room.sequences)


def _held(shard: Shard, of: _StagePool, tokens: int) -> _Held:
    settings, (stage, needs, _, _, pool, room) = shard.settings, of
    needed = sequence_bytes(shard, stage, tokens)
    free = room.tokens - needs.lost - needs.shared
    if pool.beyond > 0:  # a stated cache that the card cannot hold: the engine does not start
        free = -pool.beyond
    usable = max(0.0, free)
    clamped = _clamped(settings, room)
    fits = free >= needed and not (clamped and room.sequences == 0)
    # Attention-data ranks each hold their own sequences, so a replica holds dp times one rank's.
    # A stage without a cache (few layers of a hybrid, or of a model whose layers share one) limits only slots.
    slots = float(settings.max_num_seqs) if fits else 0.0
    by_tokens = usable / needed if needed else slots
    of_a_rank = min(by_tokens, float(room.sequences or 0)) if clamped else by_tokens
    return _Held(needed, usable, fits, shard.layout.dp * of_a_rank)


def _stage_use(shard: Shard, of: _StagePool, tokens: int, *, stated: bool) -> MemoryUse:
    settings, (stage, needs, visible, beside, pool, room) = shard.settings, of
    in_budget = settings.graphs_in_budget or settings.pool_rule == "free_after_load"
    needed, usable, fits, concurrency = _held(shard, of, tokens)
    block, by_bytes = settings.block_tokens, _clamped(settings, room) and needs.per_token
    held = usable / needs.per_token if by_bytes else concurrency * tokens
    return MemoryUse(
        visible_gib=visible / GIB,
        budget_gib=pool.budget / GIB,
        weights_gib=beside.weights / GIB,
        activation_gib=beside.activation / GIB,
        non_torch_gib=beside.non_torch / GIB,
        cuda_graphs_gib=beside.graphs / GIB,
        cuda_graphs_in_budget=in_budget,
        kv_cache_gib=0.0 if shard.model.encoder else max(0.0, room.tokens) / GIB,  # an encoder keeps nothing
        kv_bytes_per_token=needs.per_token,
        state_bytes_per_sequence=needs.fixed_per_sequence,
        kv_cache_tokens=0 if shard.model.encoder else int(held / block + ROUNDING) * block,
        max_concurrency=concurrency,
        sequence_gib=needed / GIB,
        max_model_len=tokens,
        max_model_len_that_fits=0,
        fits=fits,
        deficit_gib=0.0 if fits else max(0.0, pool.beyond, needed + needs.shared - room.tokens) / GIB,
        kv_bytes_per_token_beyond=growing_bytes(shard, stage),
        beside_gib=needs.extras / GIB,
        shared_prefix_gib=needs.shared / GIB,
        resident_gib=(sequence_bytes(shard, stage, tokens, 1) if needs.windowed else needed) / GIB,
        state_cache_gib=room.states / GIB,
        block_tokens=block_tokens(shard, stage),
        most_num_seqs=room.sequences,
        starts=_starts(settings, of),
        warm_up_gib=0.0 if stated else _warm_up_bytes(shard, stage, visible - pool.budget, beside.graphs) / GIB,
        beyond_card_gib=pool.beyond / GIB,
        start_gib=_start_bytes(settings, visible) / GIB,
    )


def _start_bytes(settings: EngineSettings, visible: float) -> float:
    """Bytes missing at the start of an engine that stops where less than its fraction of the card is free.

    What it holds outside PyTorch stands for its context, which is there before it looks.
    """
    if settings.pool_rule != "utilisation":
        return 0.0
    return max(0.0, visible * _fraction(settings) + settings.non_torch_gib * GIB - visible)


def _warm_up_bytes(shard: Shard, stage: Stage, left: float, graphs: float) -> float:
    """Bytes missing outside the fraction for graphs and the sampler, if the engine allocates them there last."""
    settings = shard.settings
    if settings.pool_rule != "utilisation" or settings.graphs_in_budget or not stage.last or shard.model.pooled:
        return 0.0
    rows = min(settings.max_num_seqs, settings.max_num_batched_tokens)
    return max(0.0, graphs + rows * shard.model.vocab_size * settings.sampler_bytes_per_logit - left)
