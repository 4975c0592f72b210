"""Seconds of one step: operations timed by the GPU's kernels, then the host's share.

`step` evaluates one batch exactly, operation by operation. `curves` tabulates the same over tokens and rows once a
layout, so that closed form and simulator can look a step up; both read the same operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sizing.model import architecture, exchange, memory, operations
from sizing.model.architecture import Layout
from sizing.model.attention.terms import Numeric
from sizing.model.extras import work
from sizing.model.operation import Operation, unevenly
from sizing.replica.kernels import Kernels
from sizing.specs.engine import EngineSettings, FrontEnd, HostTime
from sizing.specs.model import Model
from sizing.specs.units import GIGA, MICRO, MILLI

GRID_POINTS_PER_OCTAVE = 8
GRID_OCTAVES = 17  # 1 .. 131,072 tokens in a step


def of_rank(sequences: Numeric, dp: Numeric) -> Numeric:
    """Sequences on the fullest of `dp` ranks that they are spread over: the mean, or the one that a rank has at least."""
    fullest: Numeric = np.maximum(sequences / dp, np.minimum(sequences, 1.0))
    return fullest


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step works on, over one replica: decoding sequences at a mean context, prompts with new and cached tokens.

    `prefill_tokens` are new tokens in each of `prefill_sequences`; `finishing` of them end their prompt in this step
    and so get logits. All may be arrays of one shape. Attention-data ranks step together: a step takes as long as the
    fullest of them, and each prompt is on one.
    """

    decode_sequences: Numeric = 0.0
    decode_context_tokens: Numeric = 0.0
    prefill_sequences: Numeric = 0.0
    prefill_tokens: Numeric = 0.0
    prefill_prior_tokens: Numeric = 0.0
    finishing: Numeric = 0.0

    def tokens(self, verified: int = 1) -> Numeric:
        """Tokens in the step; a sequence that decodes has one, or all that are verified."""
        return self.decode_sequences * verified + self.prefill_sequences * self.prefill_tokens

    def rows(self, verified: int = 1) -> Numeric:
        """Rows that get logits."""
        return self.decode_sequences * verified + self.finishing

    def fullest(self, dp: int) -> Batch:
        """Return what the fullest of `dp` attention-data ranks works on."""
        return replace(
            self,
            decode_sequences=of_rank(self.decode_sequences, dp),
            prefill_sequences=of_rank(self.prefill_sequences, dp),
            finishing=of_rank(self.finishing, dp),
        )


@dataclass(frozen=True, slots=True)
class TimedOperation:
    """An operation with the seconds of all its executions in the step, and which peak binds it."""

    operation: Operation
    seconds: float
    bound: str


@dataclass(frozen=True, slots=True)
class Step:
    """A timed step: operations in order; seconds of the GPU, of launches that no graph holds, of the host; total; shares of peaks."""

    operations: tuple[TimedOperation, ...]
    gpu_s: float
    launch_s: float
    host_s: float
    total_s: float
    mbu: float
    mfu: float


def host_s(host: HostTime, sequences: Numeric) -> Numeric:
    """Host time of a step in seconds: a constant and a share a running sequence."""
    return MICRO * (host.per_step_us + host.sequence_us * sequences)


def pipelined_s(
    layers_s: Numeric, head_s: Numeric, microbatches: Numeric, largest_stage: Numeric, last_stage: Numeric
) -> Numeric:
    """Seconds of the GPU between two tokens of each of a pipeline's microbatches: one pass, or as long as its slowest stage takes
    for all of them: the one with the most layers, or the last, which has the head too. Without a pipeline the sum of both.
    """
    slowest_s = np.maximum(
        largest_stage * layers_s, np.where(np.asarray(last_stage) > 0, last_stage * layers_s + head_s, 0.0)
    )
    return np.maximum(layers_s + head_s * microbatches, slowest_s * microbatches)


def with_host_s(gpu_s: Numeric, host: HostTime, sequences: Numeric, microbatches: Numeric = 1.0) -> Numeric:
    """Seconds of a step: the host's time added, or hidden under the GPU's where the engine overlaps them.

    A pipeline's pass takes the host's time once for each of its microbatches.
    """
    taken = host_s(host, sequences) * microbatches
    return np.maximum(gpu_s, taken) if host.overlapped else gpu_s + taken


def launch_s(model: Model, settings: EngineSettings) -> float:
    """Seconds that launching all layers of a step takes that no CUDA graph holds."""
    return MICRO * settings.host.eager_layer_us * len(model.layers)


def launched_s(gpu_s: Numeric, launching_s: float, captured_tokens: int, tokens: Numeric) -> Numeric:
    """Seconds of the GPU's part of a step with prefill: beyond the captured sizes at least the time to launch it."""
    eager = np.asarray(tokens) > captured_tokens
    return np.where(eager, np.maximum(gpu_s, launching_s), gpu_s) if launching_s > 0 else gpu_s


def front_end_s(front_end: FrontEnd, prompt_tokens: Numeric) -> Numeric:
    """Seconds that a request takes outside the steps."""
    return MILLI * front_end.per_request_ms + MICRO * front_end.per_prompt_token_us * prompt_tokens


def batch_operations(model: Model, layout: Layout, kernels: Kernels, batch: Batch) -> tuple[Operation, ...]:
    """Return every operation of the model in a step over one replica, in the order of the four builders, then adapters."""
    plan, settings, extras, dp = kernels.plan, kernels.settings, kernels.extras, layout.dp
    rank, tokens = batch.fullest(dp), batch.tokens(extras.verified)
    on_rank = rank.tokens(extras.verified)
    found = unevenly(lambda n: operations.body(model, layout, settings, plan, n), tokens, on_rank, dp)
    found += operations.head(model, layout, settings, plan, rank.rows(extras.verified) * dp)
    decoding, prompts = rank.decode_sequences * dp, rank.prefill_sequences * dp
    if np.any(np.asarray(batch.decode_sequences) > 0):
        found += operations.decode_attention(
            model, layout, plan, decoding, batch.decode_context_tokens, extras.verified
        )
        found += exchange.parts_joined(model, layout, decoding, extras.verified)
    if np.any(np.asarray(batch.prefill_sequences) > 0):
        found += operations.prefill_attention(
            model, layout, plan, prompts, batch.prefill_tokens, batch.prefill_prior_tokens
        )
    if extras.adapters is not None:
        adapters = extras.adapters
        found += unevenly(lambda n: work.adapter_operations(model, layout, adapters, n), tokens, on_rank, dp)
    if extras.encoder is not None and np.any(np.asarray(batch.prefill_sequences) > 0):
        found += work.encoder_operations(extras.encoder, plan, rank.prefill_sequences)
    return found


def draft_operations(layout: Layout, kernels: Kernels, batch: Batch) -> tuple[Operation, ...]:
    """Return every operation of what drafts in a step, to be timed by the draft's own kernels; none without one."""
    draft, plan, settings, dp = kernels.extras.draft, kernels.plan.draft, kernels.settings, layout.dp
    if draft is None or plan is None:
        return ()
    rank, verified = batch.fullest(dp), kernels.extras.verified
    found = unevenly(
        lambda n: work.draft_body(draft, layout, settings, plan, n), batch.tokens(verified), rank.tokens(verified), dp
    )
    decoding, prompts = rank.decode_sequences * dp, rank.prefill_sequences * dp
    if np.any(np.asarray(batch.decode_sequences) > 0):
        found += work.draft_again(draft, layout, settings, plan, decoding)
        found += work.draft_attention(draft, layout, settings, plan, decoding, batch.decode_context_tokens)
    if np.any(np.asarray(batch.prefill_sequences) > 0):
        found += work.draft_prefill(
            draft, layout, settings, plan, prompts, batch.prefill_tokens, batch.prefill_prior_tokens
        )
    return found


def step(model: Model, layout: Layout, kernels: Kernels, batch: Batch) -> Step:
    """Time one step of one batch exactly. With a pipeline this is one pass of one microbatch through all stages."""
    parts = [(batch_operations(model, layout, kernels, batch), kernels)]
    if kernels.plan.draft is not None:
        parts.append((draft_operations(layout, kernels, batch), kernels.draft))
    timed = tuple(_timed(operation, by) for found, by in parts for operation in found)
    gpu_s = sum(operation.seconds for operation in timed)
    prefills = bool(np.any(np.asarray(batch.prefill_sequences) > 0))
    rank, captured = batch.fullest(layout.dp), kernels.settings.captured_prefill_tokens
    on_rank = rank.tokens(kernels.extras.verified)
    launching_s = launch_s(model, kernels.settings) if prefills and on_rank > captured else 0.0
    busy_s = launched_s(gpu_s, launching_s, captured, on_rank)
    sequences = rank.decode_sequences + rank.prefill_sequences
    host = kernels.settings.host
    total_s = float(with_host_s(busy_s, host, sequences))
    # A pass runs on one stage after another, so the peaks of pp stages are not all offered at once.
    flops_s = sum(float(o.flops) * o.count / by.peak(by.compute_precision(o)) for found, by in parts for o in found)
    bytes_s = sum(float(o.bytes) * o.count for found, _ in parts for o in found) / kernels.bandwidth_bytes_per_s
    return Step(
        operations=timed,
        gpu_s=gpu_s,
        launch_s=launching_s,
        host_s=float(host_s(host, sequences)),
        total_s=total_s,
        mbu=bytes_s / total_s,
        mfu=flops_s / total_s,
    )


def _timed(operation: Operation, kernels: Kernels) -> TimedOperation:
    seconds = operation.count * float(kernels.seconds(operation))
    compute_s = operation.count * float(operation.flops) / kernels.peak(kernels.compute_precision(operation))
    memory_s = operation.count * float(operation.bytes) / kernels.bandwidth_bytes_per_s
    sends = operation.message_bytes is not None and float(operation.message_bytes) > 0
    return TimedOperation(operation, seconds, "link" if sends else bound(compute_s, memory_s, seconds))


def bound(compute_s: float, memory_s: float, seconds: float) -> str:
    """Return which peak binds work that takes `seconds`: `compute` or `memory`, or `latency` where neither explains a third.

    Launch and tail of the kernels do then.
    """
    if max(compute_s, memory_s) < seconds / 3:
        return "latency"
    return "compute" if compute_s > memory_s else "memory"


def gpu_seconds(found: tuple[Operation, ...], kernels: Kernels) -> Numeric:
    """Seconds of operations on the GPU, summed; arrays where the operations carry arrays."""
    total: Numeric = 0.0
    for operation in found:
        total = total + operation.count * kernels.seconds(operation)
    return total


@dataclass(frozen=True, slots=True)
class Curves:
    """Step time of one layout, tabulated: `body_s` over tokens and `head_s` over rows on `grid`, attention in parts.

    All are of the fullest attention-data rank but for `shared_s`, over the tokens of all ranks: what they do together
    (None where a replica is one rank, whose `body_s` is of everything).
    Decode attention is a floor and a slope a sequence at the stated context (it is linear in sequences); prefill
    attention is that of one whole prompt of the stated length, and `front_end_s` its time outside the steps. A sequence that
    decodes has `verified` tokens in a step, all of them rows; what drafts adds `again_s` over sequences on the same grid, and GPUs
    with parts of one cache `joined_s`, as if all ranks had as many. Between grid
    points (spacing 9 %) seconds are interpolated linearly, within 0.1 % of the exact step. `largest_stage` and `last_stage`
    are the shares of the layers that these stages of a pipeline hold, 0 without one. Of stacked layouts the tables have a row
    each, and attention is a column.
    """

    grid: NDArray[np.float64]
    body_s: NDArray[np.float64]
    head_s: NDArray[np.float64]
    decode_floor_s: Numeric
    decode_slope_s: Numeric
    prompt_attention_s: Numeric
    host: HostTime
    front_end_s: float = 0.0
    launch_s: float = 0.0
    captured_tokens: int = 0
    verified: int = 1
    again_s: NDArray[np.float64] | None = None
    joined_s: NDArray[np.float64] | None = None
    shared_s: NDArray[np.float64] | None = None
    largest_stage: Numeric = 0.0
    last_stage: Numeric = 0.0


def token_grid() -> NDArray[np.float64]:
    """Grid of tokens in a step: eight points an octave from 1 to 131,072."""
    return np.exp2(np.arange(GRID_OCTAVES * GRID_POINTS_PER_OCTAVE + 1) / GRID_POINTS_PER_OCTAVE)


def curves(
    model: Model,
    layout: Layout,
    kernels: Kernels,
    *,
    context_tokens: float,
    prompt_tokens: float,
    chunk_tokens: float,
    cached_tokens: float = 0.0,
) -> Curves:
    """Tabulate a layout's step time for sequences at a mean context and prompts prefilled `chunk_tokens` at a time.

    `cached_tokens` of a prompt are there already. A layout of one stage; `at_depth` adds what the stages of a pipeline send
    each other.
    """
    plan, settings = kernels.plan, kernels.settings
    grid = token_grid()
    body_s, shared_s = body_tables(
        model, layout, kernels, grid, lambda n: operations.split_body(model, layout, settings, plan, n)
    )
    head_s = np.asarray(gpu_seconds(operations.head(model, layout, settings, plan, grid * layout.dp), kernels))
    decode_floor_s, decode_slope_s = _decode_s(model, layout, kernels, context_tokens)
    return Curves(
        grid=grid,
        body_s=body_s,
        head_s=head_s,
        decode_floor_s=decode_floor_s,
        decode_slope_s=decode_slope_s,
        prompt_attention_s=_prompt_s(model, layout, kernels, prompt_tokens, chunk_tokens, cached_tokens)
        + encoder_s(layout, kernels),
        host=settings.host,
        front_end_s=float(front_end_s(front_end(model, layout, kernels), prompt_tokens)),
        launch_s=launch_s(model, settings),
        captured_tokens=settings.captured_prefill_tokens,
        verified=kernels.extras.verified,
        again_s=again_s(layout, kernels, grid * layout.dp),
        joined_s=joined_s(model, layout, kernels, grid * layout.dp),
        shared_s=shared_s,
    )


def body_tables(
    model: Model,
    layout: Layout,
    kernels: Kernels,
    tokens: NDArray[np.float64],
    build: Callable[[NDArray[np.float64]], tuple[Operation, ...]],
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Return the seconds of a body that `build` makes, and of what runs beside it: a rank's own, over its tokens, and those that all
    ranks share, over the tokens of all. One rank has everything in the first; there is no second.
    """
    if layout.dp == 1:
        return np.asarray(gpu_seconds(build(tokens), kernels)) + beside_s(model, layout, kernels, tokens), None
    own = tuple(o for o in build(tokens * layout.dp) if not o.of_all)
    shared = tuple(o for o in build(tokens) if o.of_all)
    own_s = np.asarray(gpu_seconds(own, kernels)) + beside_s(model, layout, kernels, tokens * layout.dp, of_all=False)
    return own_s, beside_s(model, layout, kernels, tokens, of_all=True) + gpu_seconds(shared, kernels)


def beside_s(
    model: Model, layout: Layout, kernels: Kernels, tokens: NDArray[np.float64], of_all: bool | None = None
) -> NDArray[np.float64]:
    """Seconds that adapters and the first pass of what drafts add to a step of so many tokens; or of it what is `of_all` or not."""
    extras, total = kernels.extras, np.zeros_like(tokens)
    if extras.adapters is not None:
        found = work.adapter_operations(model, layout, extras.adapters, tokens)
        total = total + gpu_seconds(tuple(o for o in found if of_all in (None, o.of_all)), kernels)
    if extras.draft is not None:
        by = kernels.draft
        found = work.draft_body(extras.draft, layout, by.settings, by.plan, tokens)
        total = total + gpu_seconds(tuple(o for o in found if of_all in (None, o.of_all)), by)
    return total


def again_s(layout: Layout, kernels: Kernels, sequences: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Seconds that what drafts takes for so many decoding sequences beyond its first pass; None where nothing drafts."""
    if kernels.extras.draft is None:
        return None
    by = kernels.draft
    found = work.draft_again(kernels.extras.draft, layout, by.settings, by.plan, sequences)
    return np.zeros_like(sequences) + gpu_seconds(found, by)


def joined_s(
    model: Model, layout: Layout, kernels: Kernels, sequences: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    """Seconds in which GPUs with parts of one cache exchange what they found of so many sequences; None where caches are whole."""
    if layout.cache_parts == 1:
        return None
    found = exchange.parts_joined(model, layout, sequences, kernels.extras.verified)
    return np.zeros_like(sequences) + gpu_seconds(found, kernels)


def encoder_s(layout: Layout, kernels: Kernels) -> float:
    """Seconds that the images of one prompt take in the encoder."""
    encoder = kernels.extras.encoder
    if encoder is None:
        return 0.0
    return float(np.asarray(gpu_seconds(work.encoder_operations(encoder, kernels.plan, 1.0), kernels)))


def front_end(model: Model, layout: Layout, kernels: Kernels) -> FrontEnd:
    """Return what a request takes outside the steps, with the way back of the cache that is restored from host memory.

    Each GPU restores its own share over its own PCIe link, while others' steps go on.
    """
    settings, cached = kernels.settings, kernels.extras.cached
    if not cached.restored:
        return settings.front_end
    pcie = kernels.assumptions.link_efficiency * kernels.gpu.datasheet.node.pcie_gb_per_s_per_direction * GIGA
    per_token, _ = max(
        memory.rate_bytes(model, stage, layout, kernels.plan)
        for stage in architecture.stages(model, layout.pp, settings.pp_remainder)
    )
    restore_us = cached.brought * per_token / (cached.restore_bytes_per_s or pcie) / MICRO
    more = settings.front_end.per_prompt_token_us + restore_us
    return settings.front_end.model_copy(update={"per_prompt_token_us": more})


def at_depth(split: Curves, model: Model, layout: Layout, kernels: Kernels) -> Curves:
    """Return the curves of a layout from those of its split at one stage: a pipeline adds its sends and uneven stages."""
    sends_s = gpu_seconds(exchange.pipeline_sends(model, layout, split.grid * layout.dp), kernels)
    largest, last = architecture.stage_shares(model, layout.pp, kernels.settings.pp_remainder)
    return replace(split, body_s=split.body_s + sends_s, largest_stage=largest, last_stage=last)


def _decode_s(model: Model, layout: Layout, kernels: Kernels, context_tokens: float) -> tuple[float, float]:
    """Return decode attention's floor and its slope a sequence of a rank."""
    sequences = np.array([1e-9, 1.0])
    taken_s = decode_attention_s(model, layout, kernels, sequences * layout.dp, context_tokens)
    floor_s, one_s = np.broadcast_to(np.asarray(taken_s), sequences.shape)
    return float(floor_s), float(one_s - floor_s)


def decode_attention_s(
    model: Model, layout: Layout, kernels: Kernels, sequences: Numeric, context_tokens: Numeric
) -> Numeric:
    """Seconds of a step's decode attention, that of all passes of what drafts too."""
    extras = kernels.extras
    found = operations.decode_attention(model, layout, kernels.plan, sequences, context_tokens, extras.verified)
    taken_s = gpu_seconds(found, kernels)
    if extras.draft is None:
        return taken_s
    by = kernels.draft
    drafted = work.draft_attention(extras.draft, layout, by.settings, by.plan, sequences, context_tokens)
    return taken_s + gpu_seconds(drafted, by)


def prefill_attention_s(
    model: Model, layout: Layout, kernels: Kernels, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric
) -> Numeric:
    """Seconds of prefill attention, that of what drafts too."""
    found = operations.prefill_attention(model, layout, kernels.plan, sequences, tokens, prior_tokens)
    taken_s = gpu_seconds(found, kernels)
    if kernels.extras.draft is None:
        return taken_s
    by = kernels.draft
    drafted = work.draft_prefill(kernels.extras.draft, layout, by.settings, by.plan, sequences, tokens, prior_tokens)
    return taken_s + gpu_seconds(drafted, by)


def _prompt_s(
    model: Model,
    layout: Layout,
    kernels: Kernels,
    prompt_tokens: float,
    chunk_tokens: float,
    cached_tokens: float,
) -> float:
    """Attention seconds of what is to be prefilled of one prompt, summed over its chunks, on the rank that it is on."""
    starts = np.arange(cached_tokens, prompt_tokens, chunk_tokens)
    sizes = np.minimum(chunk_tokens, prompt_tokens - starts)
    return float(np.sum(prefill_attention_s(model, layout, kernels, 1.0 * layout.dp, sizes, starts)))


def lookup(grid: NDArray[np.float64], seconds: NDArray[np.float64], at: Numeric) -> Numeric:
    """Seconds at any number of tokens: linear between grid points, the first below, extended linearly above.

    Of stacked layouts `seconds` and `at` have a row each.
    """
    if seconds.ndim == 1:
        inside = np.interp(at, grid, seconds)
        growth = seconds[-1] - seconds[-2]
    else:
        inside = np.array([np.interp(each, grid, row) for each, row in zip(np.asarray(at), seconds, strict=True)])
        growth = (seconds[:, -1] - seconds[:, -2])[:, np.newaxis]
    slope = growth / (grid[-1] - grid[-2])
    extended: Numeric = inside + slope * np.maximum(0.0, np.asarray(at) - grid[-1])
    return extended
