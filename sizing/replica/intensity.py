"""Arithmetic intensity: FLOPs per byte of device memory, the roof above it, and where decoding reaches the ridge.

The roof is min(peak, bandwidth * intensity), both from the datasheet. Its ridge, peak / bandwidth, is the intensity above
which FLOPs take longer than bytes (Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009). A product of b rows with
16-bit weights has about b FLOPs per byte. The intensity of decode attention does not depend on the number of sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sizing.model.architecture import Shard
from sizing.model.operations import Operation
from sizing.replica import step as steps
from sizing.replica.kernels import Kernels
from sizing.replica.step import Batch
from sizing.specs.bisection import smallest
from sizing.specs.frozen import Frozen

MOST_SEQUENCES = 2**20  # in a step; work that is not compute-bound here never is
EQUAL = 1.01  # ratio of two intensities that count as one
PRODUCTS = ("gemm", "moe")  # rules of operations whose weights all sequences of a step share


def ridge_flops_per_byte(peak_flops_per_s: float, bandwidth_bytes_per_s: float) -> float:
    """Intensity at which bytes and FLOPs take equally long."""
    return peak_flops_per_s / bandwidth_bytes_per_s


def roof_flops_per_s(intensity_flops_per_byte: float, peak_flops_per_s: float, bandwidth_bytes_per_s: float) -> float:
    """The most FLOP/s that an operation of this intensity can reach."""
    return min(peak_flops_per_s, bandwidth_bytes_per_s * intensity_flops_per_byte)


class StepWork(Frozen):
    """Total FLOPs, bytes and message bytes of operations, and the least seconds at the peaks of compute and of memory."""

    flops: float
    bytes: float
    message_bytes: float
    compute_s: float
    memory_s: float

    @property
    def intensity_flops_per_byte(self) -> float | None:
        """FLOPs per byte of device memory; None where no memory is read or written."""
        return self.flops / self.bytes if self.bytes > 0 else None

    @property
    def least_s(self) -> float:
        """Seconds at the roof."""
        return max(self.compute_s, self.memory_s)

    @property
    def roof_flops_per_s(self) -> float | None:
        """FLOP/s at the roof; None for work that neither peak bounds, such as a message."""
        return self.flops / self.least_s if self.least_s > 0 else None

    @property
    def compute_bound(self) -> bool:
        """Whether FLOPs take at least as long as bytes."""
        return self.flops > 0 and self.compute_s >= self.memory_s


def work(operations: Iterable[Operation], kernels: Kernels) -> StepWork:
    """The work of all executions of `operations` on one GPU."""
    flops = bytes_ = message = compute_s = 0.0
    for operation in operations:
        flops += float(operation.flops) * operation.count
        bytes_ += float(operation.bytes) * operation.count
        message += float(operation.message_bytes) * operation.count
        compute_s += float(operation.flops) * operation.count / kernels.peak(kernels.compute_precision(operation))
    return StepWork(flops, bytes_, message, compute_s, bytes_ / kernels.bandwidth_bytes_per_s)


def by_name(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    """Operations grouped by name, in order. Layers of several kinds share some names."""
    found: dict[str, list[Operation]] = {}
    for operation in operations:
        found.setdefault(operation.name, []).append(operation)
    return found


def precisions(operations: Iterable[Operation], kernels: Kernels) -> tuple[str, ...]:
    """The precisions that `operations` multiply in, without duplicates."""
    return tuple(
        dict.fromkeys(kernels.compute_precision(operation) for operation in operations if float(operation.flops) > 0)
    )


class OperationCrossing(NamedTuple):
    """The smallest compute-bound `batch` of an operation on a replica, and its intensities.

    `batch` is null where there is none. `least_flops_per_byte` is the intensity of one sequence alone.
    """

    batch: int | None
    ridge_flops_per_byte: float
    least_flops_per_byte: float
    most_flops_per_byte: float
    grows: bool


class ComputeBound(NamedTuple):
    """The smallest decode batch of a replica at which FLOPs take longer than bytes; null where there is none.

    `decode_batch` counts only products with weights; `whole_step_batch` counts the whole step, with attention.
    """

    decode_batch: int | None
    whole_step_batch: int | None
    by_operation: dict[str, OperationCrossing]


def decode_operations(shard: Shard, sequences: float, context_tokens: float) -> tuple[Operation, ...]:
    """The operations of a step in which every sequence decodes."""
    batch = Batch(decode_sequences=sequences, decode_context_tokens=context_tokens)
    return steps.batch_operations(shard, batch)


def smallest_batch(holds: Callable[[int], bool], most: int = MOST_SEQUENCES) -> int | None:
    """The smallest batch for which `holds` is true, by doubling and bisection; None if it is false up to `most`.

    `holds` must stay true for all larger batches.
    """
    high = 1
    while not holds(high):
        if high >= most:
            return None
        high = min(most, 2 * high)
    return smallest(holds, high // 2, high)


def crossings(kernels: Kernels, context_tokens: float) -> ComputeBound:
    """The exact batch sizes at which decoding at `context_tokens` becomes compute-bound; nothing where the model decodes nothing."""
    if kernels.shard.model.pooled:
        return ComputeBound(None, None, {})

    def of(sequences: int) -> tuple[Operation, ...]:
        return decode_operations(kernels.shard, float(sequences), context_tokens)

    def from_on(picked: Callable[[Operation], bool]) -> int | None:
        return smallest_batch(lambda count: work(filter(picked, of(count)), kernels).compute_bound)

    named = {
        name: group for name, group in by_name(of(1)).items() if any(float(operation.flops) > 0 for operation in group)
    }
    many = by_name(of(MOST_SEQUENCES))
    return ComputeBound(
        decode_batch=from_on(lambda operation: operation.rule in PRODUCTS),
        whole_step_batch=from_on(lambda operation: True),
        by_operation={
            name: _crossing(group, many[name], kernels, from_on(lambda entry, name=name: entry.name == name))  # type: ignore[misc]
            for name, group in named.items()
        },
    )


def _crossing(
    alone: Sequence[Operation], many: Sequence[Operation], kernels: Kernels, sequences: int | None
) -> OperationCrossing:
    first, last = work(alone, kernels), work(many, kernels)
    peak_flops_per_s = last.flops / last.compute_s
    ridge = ridge_flops_per_byte(peak_flops_per_s, kernels.bandwidth_bytes_per_s)
    least, most = first.intensity_flops_per_byte or 0.0, last.intensity_flops_per_byte or 0.0
    return OperationCrossing(sequences, ridge, least, most, grows=most > EQUAL * least)
