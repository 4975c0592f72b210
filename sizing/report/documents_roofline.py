"""The documents of `llmsize roofline`."""

from __future__ import annotations

from typing import Any, NamedTuple

from sizing.formats.view import Assumption


class Roof(NamedTuple):
    """The roof of one precision: its dense peak, the memory bandwidth, and the intensity at which they meet."""

    precision: str
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    ridge_flops_per_byte: float


class RooflinePoint(NamedTuple):
    """One operation of a step, all its executions on one GPU, under the roof.

    `phase` is decode (with `batch` sequences of the replica) or prefill (of one prompt of `prompt_tokens`). What sends
    messages has no intensity and no roof; of what only moves bytes the share is that of the bandwidth.
    """

    phase: str
    batch: int | None
    prompt_tokens: int | None
    name: str
    precision: str | None
    flops: float
    bytes: float
    message_bytes: float
    intensity_flops_per_byte: float | None
    seconds: float
    attained_flops_per_s: float
    roof_flops_per_s: float | None
    share_of_roof: float | None
    bound: str


class RooflineStep(NamedTuple):
    """A whole step: the work of its operations on one GPU, and its seconds with those of the host."""

    phase: str
    batch: int | None
    prompt_tokens: int | None
    flops: float
    bytes: float
    intensity_flops_per_byte: float
    seconds: float
    attained_flops_per_s: float
    roof_flops_per_s: float
    share_of_roof: float
    mfu: float
    mbu: float
    bound: str


class OperationCrossing(NamedTuple):
    """From which batch of a replica on an operation is compute-bound, null where at none; its intensity alone and at most."""

    batch: int | None
    ridge_flops_per_byte: float
    least_flops_per_byte: float
    most_flops_per_byte: float
    grows: bool


class ComputeBound(NamedTuple):
    """From which decode batch of a replica on FLOPs take longer than bytes, null where at none.

    `decode_batch` is of the products with weights together, `whole_step_batch` with attention and all the rest.
    """

    decode_batch: int | None
    whole_step_batch: int | None
    by_operation: dict[str, OperationCrossing]


class RooflineReport(NamedTuple):
    """The document of `llmsize roofline`."""

    inputs: dict[str, Any]
    roofs: tuple[Roof, ...]
    compute_bound_from: ComputeBound
    steps: tuple[RooflineStep, ...]
    operations: tuple[RooflinePoint, ...]
    assumptions: tuple[Assumption, ...]
    schema: str = "llmsize.roofline/1"
