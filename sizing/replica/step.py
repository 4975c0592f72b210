"""Seconds of one step: operations timed by the GPU's kernels, then the host's share.

`step` evaluates one batch exactly, operation by operation. `sizing.replica.curves` tabulates the same over tokens and rows
once a layout, so that closed form and simulator can look a step up; both read the same operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sizing.model import operations
from sizing.model.architecture import Shard
from sizing.model.attention.terms import Numeric
from sizing.model.extras import adapters, drafts, images
from sizing.model.operations import Operation, unevenly
from sizing.replica.kernels import Kernels
from sizing.specs.bands import UNCORRECTED, Correction
from sizing.specs.engine import FrontEnd, HostTime
from sizing.specs.units import MICRO, MILLI

MOST_TAKEN = 0.5  # of a step by own runs: what takes away more was found for steps of another kind
NEXT_TO_NONE = 1e-6  # of a token


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

    @property
    def decodes(self) -> bool:
        """Whether any sequence decodes."""
        return bool(np.any(np.asarray(self.decode_sequences) > 0))

    @property
    def prefills(self) -> bool:
        """Whether any prompt is prefilled."""
        return bool(np.any(np.asarray(self.prefill_sequences) > 0))

    def tokens(self, verified: int = 1) -> Numeric:
        """Tokens in the step; a sequence that decodes has one, or all that are verified."""
        return self.decode_sequences * verified + self.prefill_sequences * self.prefill_tokens

    def rows(self, verified: int = 1) -> Numeric:
        """Rows that get logits."""
        return self.decode_sequences * verified + self.finishing

    def fullest(self, dp: int) -> Batch:
        """The batch of the fullest of `dp` attention-data ranks."""
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
    step_s = np.maximum(gpu_s, taken) if host.overlapped else gpu_s + taken
    return step_s + own_s(host, sequences, microbatches, step_s)


def own_s(host: HostTime, sequences: Numeric, microbatches: Numeric, step_s: Numeric) -> Numeric:
    """Seconds that own runs add to a step, or take away: of what `step_s` they leave a part at least."""
    if not host.own_step_us and not host.own_sequence_us:
        return 0.0
    added_s = MICRO * (host.own_step_us + host.own_sequence_us * sequences) * microbatches
    return np.maximum(added_s, -MOST_TAKEN * np.asarray(step_s))


def corrected_s(correction: Correction, step_s: Numeric, decoding_s: Numeric = 0.0) -> Numeric:
    """Seconds of a step as published runs centre them; `decoding_s` of it would be left without its prefill."""
    if correction.decode == correction.prefill:
        return step_s * correction.decode
    return correction.prefill * step_s + (correction.decode - correction.prefill) * decoding_s


def launch_s(kernels: Kernels) -> float:
    """Seconds that launching every kernel of a step with prefill takes that no CUDA graph holds; 0 where the engine states none.

    An operation is one launch, but those that the general assumptions state more for; where no other kernel quantises the inputs
    of a product, it has one more.
    """
    each_s = MICRO * kernels.settings.host.eager_launch_us
    if not each_s:
        return 0.0
    shard, stated = kernels.shard, kernels.assumptions.launches
    ranks = float(shard.layout.dp)
    found = (
        *operations.split_body(shard, ranks),
        *operations.head(shard, ranks),
        *operations.prefill_attention(shard, ranks, 1.0, 0.0),
    )
    launches = sum(operation.count * stated.of(operation.name) for operation in found)
    quantised = sum(operation.count for operation in found if kernels.quantises(operation))
    return each_s * (launches + quantised)


def launched_s(gpu_s: Numeric, launching_s: Numeric, captured_tokens: int, tokens: Numeric) -> Numeric:
    """Seconds of the GPU's part of a step with prefill: beyond the captured sizes at least the time to launch it."""
    eager = np.asarray(tokens) > captured_tokens
    return np.where(eager, np.maximum(gpu_s, launching_s), gpu_s)


def front_end_s(front_end: FrontEnd, prompt_tokens: Numeric) -> Numeric:
    """Seconds that a request takes outside the steps where no other comes with it."""
    return (
        MILLI * (front_end.per_request_ms + front_end.serial_ms) + MICRO * front_end.per_prompt_token_us * prompt_tokens
    )


def batch_operations(shard: Shard, batch: Batch) -> tuple[Operation, ...]:
    """Every operation of the model in a step over one replica, in the order of the four builders, then adapters and images."""
    extras, dp = shard.extras, shard.layout.dp
    rank, tokens = batch.fullest(dp), batch.tokens(extras.verified)
    on_rank = rank.tokens(extras.verified)
    found = unevenly(partial(operations.body, shard), tokens, on_rank, dp)
    found += operations.head(shard, rank.rows(extras.verified) * dp)
    decoding, prompts = rank.decode_sequences * dp, rank.prefill_sequences * dp
    if batch.decodes:
        found += operations.decode_attention(shard, decoding, batch.decode_context_tokens)
        found += operations.parts_joined(shard, decoding)
    if batch.prefills:
        found += operations.prefill_attention(shard, prompts, batch.prefill_tokens, batch.prefill_prior_tokens)
    if extras.adapters is not None:
        found += unevenly(partial(adapters.operations, shard, extras.adapters), tokens, on_rank, dp)
    if extras.encoder is not None and batch.prefills:
        found += images.operations(extras.encoder, shard.plan, rank.prefill_sequences)
    return found


def every_operation(shard: Shard) -> tuple[Operation, ...]:
    """One operation of every kind that a step of a shard may have, in the order of `curves`; what drafts left out."""
    ranks = float(shard.layout.dp)
    found = list(operations.split_body(shard, ranks))
    if shard.extras.adapters is not None:
        found += adapters.operations(shard, shard.extras.adapters, ranks)
    if shard.layout.dp > 1:
        found.sort(key=lambda operation: operation.of_all)
    found += operations.head(shard, ranks)
    found += operations.decode_attention(shard, ranks, 1.0)
    found += operations.prefill_attention(shard, ranks, 1.0, 0.0)
    if shard.extras.encoder is not None:
        found += images.operations(shard.extras.encoder, shard.plan, 1.0)
    return (*found, *operations.parts_joined(shard, ranks), *operations.pipeline_sends(shard, ranks))


def draft_operations(shard: Shard, batch: Batch) -> tuple[Operation, ...]:
    """Every operation of what drafts in a step, to be timed by the draft's own kernels; none without one."""
    draft, dp = shard.extras.draft, shard.layout.dp
    if draft is None:
        return ()
    own, rank, verified = shard.draft, batch.fullest(dp), shard.extras.verified
    found = unevenly(partial(drafts.body, draft, own), batch.tokens(verified), rank.tokens(verified), dp)
    decoding, prompts = rank.decode_sequences * dp, rank.prefill_sequences * dp
    if batch.decodes:
        found += drafts.further(draft, own, decoding)
        found += drafts.decode_attention(draft, own, decoding, batch.decode_context_tokens)
    if batch.prefills:
        found += drafts.prefill_attention(draft, own, prompts, batch.prefill_tokens, batch.prefill_prior_tokens)
    return found


def step(kernels: Kernels, batch: Batch) -> Step:
    """Time one step of one batch exactly. With a pipeline this is one pass of one microbatch through all stages."""
    shard, settings = kernels.shard, kernels.settings
    parts = [(batch_operations(shard, batch), kernels)]
    if shard.extras.draft is not None:
        parts.append((draft_operations(shard, batch), kernels.draft))
    timed = tuple(_timed(operation, by) for found, by in parts for operation in found)
    gpu_s = sum(operation.seconds for operation in timed)
    rank, captured = batch.fullest(shard.layout.dp), settings.captured_prefill_tokens
    on_rank = rank.tokens(shard.extras.verified)
    launching_s = launch_s(kernels) if batch.prefills and on_rank > captured else 0.0
    busy_s = launched_s(gpu_s, launching_s, captured, on_rank)
    sequences = rank.decode_sequences + rank.prefill_sequences
    raw_s = float(with_host_s(busy_s, kernels.host, sequences))
    total_s = raw_s * _factor(kernels, batch, raw_s)
    # A pass runs on one stage after another, so the peaks of pp stages are not all offered at once.
    flops_s = sum(float(o.flops) * o.count / by.peak(by.compute_precision(o)) for found, by in parts for o in found)
    bytes_s = sum(float(o.bytes) * o.count for found, _ in parts for o in found) / kernels.bandwidth_bytes_per_s
    return Step(
        operations=tuple(replace(each, seconds=each.seconds * total_s / raw_s) for each in timed),
        gpu_s=gpu_s * total_s / raw_s,
        launch_s=launching_s * total_s / raw_s,
        host_s=float(host_s(settings.host, sequences)) * total_s / raw_s,
        total_s=total_s,
        mbu=bytes_s / total_s,
        mfu=flops_s / total_s,
    )


def _factor(kernels: Kernels, batch: Batch, raw_s: float) -> float:
    """How much longer a step of `raw_s` takes as published runs centre it: all that it consists of alike."""
    factors, decoding_s = kernels.correction, 0.0
    if factors == UNCORRECTED:
        return 1.0
    if batch.decodes:
        alone = Batch(batch.decode_sequences, batch.decode_context_tokens)
        decoding_s = min(raw_s, step(replace(kernels, correction=UNCORRECTED), alone).total_s)
    return float(corrected_s(factors, raw_s, decoding_s)) / raw_s


def _timed(operation: Operation, kernels: Kernels) -> TimedOperation:
    seconds = operation.count * float(kernels.seconds(operation))
    compute_s = operation.count * float(operation.flops) / kernels.peak(kernels.compute_precision(operation))
    memory_s = operation.count * float(operation.bytes) / kernels.bandwidth_bytes_per_s
    sends = operation.message_bytes is not None and float(operation.message_bytes) > 0
    return TimedOperation(operation, seconds, "link" if sends else bound(compute_s, memory_s, seconds))


def bound(compute_s: float, memory_s: float, seconds: float) -> str:
    """The peak that binds work of `seconds`: `compute` or `memory`, or `latency` where neither explains a third.

    Launch and tail of the kernels bind latency-bound work.
    """
    if max(compute_s, memory_s) < seconds / 3:
        return "latency"
    return "compute" if compute_s > memory_s else "memory"


def gpu_seconds(found: Iterable[Operation], kernels: Kernels) -> Numeric:
    """Seconds of operations on the GPU, summed; arrays where the operations carry arrays."""
    total: Numeric = 0.0
    for operation in found:
        total = total + operation.count * kernels.seconds(operation)
    return total
