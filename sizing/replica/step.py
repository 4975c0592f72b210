"""Time of one step in seconds: operations timed by the GPU's kernels, plus the host's share.

`step` evaluates one batch exactly, operation by operation. `sizing.replica.curves` tabulates the same operations over
tokens and rows, once for each layout. The closed form and the simulator look steps up in these tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from sizing.catalog.shelf import only
from sizing.model import operations
from sizing.model.architecture import Shard
from sizing.model.attention import Numeric
from sizing.model.extras import adapters, drafts, images
from sizing.model.operations import Operation, unevenly
from sizing.replica.kernels import Kernels
from sizing.specs.bands import UNCORRECTED, Correction
from sizing.specs.engine_time import FrontEnd, HostTime
from sizing.specs.frozen import Frozen
from sizing.specs.gpu import Assumptions
from sizing.specs.units import MICRO, MILLI

MOST_TAKEN = 0.5  # largest share of a step that own runs remove; a larger one was fitted to other kinds of steps
NEXT_TO_NONE = 1e-6  # tokens, almost none


def of_rank(sequences: Numeric, dp: Numeric) -> Numeric:
    """Sequences on the fullest of `dp` ranks: the mean, but at least one where there is a sequence at all."""
    fullest: Numeric = np.maximum(sequences / dp, np.minimum(sequences, 1.0))
    return fullest


class Batch(Frozen):
    """The work of one step of a replica: decoding sequences at a mean context, prompts with new and cached tokens.

    `prefill_tokens` are the new tokens of each of `prefill_sequences`. `finishing` prompts end in this step and so get
    logits. All fields may be arrays of one shape. Attention-data ranks step together, so the fullest rank sets the time of
    a step; each prompt is on one rank.
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
        """Tokens in the step. A decoding sequence has `verified` of them."""
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


class TimedOperation(NamedTuple):
    """An operation, the seconds of all its executions in the step, and the peak that bounds it."""

    operation: Operation
    seconds: float
    bound: str


class Step(NamedTuple):
    """A timed step.

    `operations` are in execution order. `gpu_s` is the GPU's time, `launch_s` the time of kernel launches outside
    CUDA graphs, `host_s` the host's time. `mbu` and `mfu` are shares of the peaks of memory and compute.
    """

    operations: tuple[TimedOperation, ...]
    gpu_s: float
    launch_s: float
    host_s: float
    total_s: float
    mbu: float
    mfu: float


def host_s(host: HostTime, sequences: Numeric) -> Numeric:
    """Host time of a step in seconds: a constant plus a term for each running sequence."""
    return MICRO * (host.per_step_us + host.sequence_us * sequences)


def pipelined_s(
    layers_s: Numeric, head_s: Numeric, microbatches: Numeric, largest_stage: Numeric, last_stage: Numeric
) -> Numeric:
    """GPU seconds between two tokens of each microbatch of a pipeline.

    It is the longer of one full pass and the time that the slowest stage needs for all microbatches. The slowest
    stage is the one with the most layers, or the last, which also runs the head. Without a pipeline it is the sum of
    layers and head.
    """
    slowest_s = np.maximum(
        largest_stage * layers_s, np.where(np.asarray(last_stage) > 0, last_stage * layers_s + head_s, 0.0)
    )
    return np.maximum(layers_s + head_s * microbatches, slowest_s * microbatches)


def with_host_s(gpu_s: Numeric, host: HostTime, sequences: Numeric, microbatches: Numeric = 1.0) -> Numeric:
    """Seconds of a step: the host's time is added, or hidden behind the GPU's where the engine overlaps them.

    With a pipeline, each microbatch of a pass takes the host's time once.
    """
    taken = host_s(host, sequences) * microbatches
    step_s = np.maximum(gpu_s, taken) if host.overlapped else gpu_s + taken
    return step_s + own_s(host, sequences, microbatches, step_s)


def own_s(host: HostTime, sequences: Numeric, microbatches: Numeric, step_s: Numeric) -> Numeric:
    """Correction in seconds from the user's own runs, which may be negative: it removes at most half of `step_s`."""
    if not host.own_step_us and not host.own_sequence_us:
        return 0.0
    added_s = MICRO * (host.own_step_us + host.own_sequence_us * sequences) * microbatches
    return np.maximum(added_s, -MOST_TAKEN * np.asarray(step_s))


def corrected_s(correction: Correction, step_s: Numeric, decoding_s: Numeric = 0.0) -> Numeric:
    """Seconds of a step after correction by published runs. `decoding_s` is the part that remains without prefill."""
    if correction.decode == correction.prefill:
        return step_s * correction.decode
    return correction.prefill * step_s + (correction.decode - correction.prefill) * decoding_s


def launch_s(kernels: Kernels) -> float:
    """Seconds to launch all kernels of a prefill step outside CUDA graphs; 0 if the engine states no launch time.

    An operation is one launch, unless the general assumptions state more. A product whose inputs are quantised by a
    separate kernel has one more launch.
    """
    each_s = MICRO * kernels.settings.host.eager_launch_us
    if not each_s:
        return 0.0
    shard, stated = kernels.shard, only(Assumptions).launches
    ranks = float(shard.layout.dp)
    found = (
        *operations.split_body(shard, ranks),
        *operations.head(shard, ranks),
        *operations.prefill_attention(shard, ranks, 1.0, 0.0),
    )
    of_norms = {"qk_norm": kernels.settings.qk_norm_kernels.launch}
    launches = sum(operation.count * of_norms.get(operation.name, stated.of(operation.name)) for operation in found)
    quantised = sum(operation.count for operation in found if kernels.quantises(operation))
    return each_s * (launches + quantised)


def launched_s(gpu_s: Numeric, launching_s: Numeric, captured_tokens: int, tokens: Numeric) -> Numeric:
    """GPU seconds of a step with prefill: beyond the captured sizes, at least the time to launch its kernels."""
    eager = np.asarray(tokens) > captured_tokens
    return np.where(eager, np.maximum(gpu_s, launching_s), gpu_s)


def front_end_s(front_end: FrontEnd, prompt_tokens: Numeric) -> Numeric:
    """Seconds that a request spends outside the steps when no other request arrives with it."""
    return (
        MILLI * (front_end.per_request_ms + front_end.serial_ms) + MICRO * front_end.per_prompt_token_us * prompt_tokens
    )


def batch_operations(shard: Shard, batch: Batch) -> tuple[Operation, ...]:
    """Every operation of the model in a step of a replica: those of the four builders, then those of extras."""
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
    found += unevenly(partial(extras_of_tokens, shard), tokens, on_rank, dp)
    return (*found, *extras_of_prompts(shard, rank.prefill_sequences)) if batch.prefills else found


def extras_of_tokens(shard: Shard, tokens: Numeric) -> tuple[Operation, ...]:
    """Operations of extras over the `tokens` of a step, timed by the model's own kernels."""
    extras = shard.extras
    return () if extras.adapters is None else adapters.operations(shard, extras.adapters, tokens)


def extras_of_prompts(shard: Shard, prompts: Numeric) -> tuple[Operation, ...]:
    """Operations of extras for each of `prompts` new prompts."""
    encoder = shard.extras.encoder
    return () if encoder is None else images.operations(encoder, shard.plan, prompts)


def every_operation(shard: Shard) -> tuple[Operation, ...]:
    """One operation of every kind that a step of a shard may have, in the order of `curves`, without a draft's."""
    ranks = float(shard.layout.dp)
    found = [*operations.split_body(shard, ranks), *extras_of_tokens(shard, ranks)]
    if shard.layout.dp > 1:
        found.sort(key=lambda operation: operation.of_all)
    found += operations.head(shard, ranks)
    found += operations.decode_attention(shard, ranks, 1.0)
    found += operations.prefill_attention(shard, ranks, 1.0, 0.0)
    found += extras_of_prompts(shard, 1.0)
    return (*found, *operations.parts_joined(shard, ranks), *operations.pipeline_sends(shard, ranks))


def draft_operations(shard: Shard, batch: Batch) -> tuple[Operation, ...]:
    """Every operation of the draft in a step; empty without a draft. The draft's own kernels time them."""
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
    # A pass runs on one stage after another, so only one stage's peaks are available at a time.
    flops_s = sum(float(o.flops) * o.count / by.peak(by.compute_precision(o)) for found, by in parts for o in found)
    bytes_s = sum(float(o.bytes) * o.count for found, _ in parts for o in found) / kernels.bandwidth_bytes_per_s
    return Step(
        operations=tuple(each._replace(seconds=each.seconds * total_s / raw_s) for each in timed),
        gpu_s=gpu_s * total_s / raw_s,
        launch_s=launching_s * total_s / raw_s,
        host_s=float(host_s(settings.host, sequences)) * total_s / raw_s,
        total_s=total_s,
        mbu=bytes_s / total_s,
        mfu=flops_s / total_s,
    )


def _factor(kernels: Kernels, batch: Batch, raw_s: float) -> float:
    """Ratio of the corrected to the raw time of a step. All parts of the step are scaled by it."""
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
    """The peak that bounds work of `seconds`: `compute`, `memory`, or `latency` where neither explains a third of it.

    Latency-bound work is dominated by the launch and tail of its kernels.
    """
    if max(compute_s, memory_s) < seconds / 3:
        return "latency"
    return "compute" if compute_s > memory_s else "memory"


def gpu_seconds(operations: Iterable[Operation], kernels: Kernels) -> Numeric:
    """Total GPU seconds of operations; an array where the operations carry arrays."""
    total: Numeric = 0.0
    for operation in operations:
        total = total + operation.count * kernels.seconds(operation)
    return total
