"""What `llmsize step` prints: one step, operation by operation."""

from __future__ import annotations

from typing import Any, NamedTuple

from sizing.formats.view import Assumption


class StepOperation(NamedTuple):
    """One operation of a step: executions, work of all of them, seconds of all of them."""

    name: str
    count: float  # type: ignore[assignment]  # the tuple's own `count` gives way
    flops: float
    bytes: float
    message_bytes: float
    seconds: float
    share: float
    bound: str


class StepReport(NamedTuple):
    """The document of `llmsize step`."""

    inputs: dict[str, Any]
    total_s: float
    gpu_s: float
    launch_s: float
    host_s: float
    mbu: float
    mfu: float
    operations: tuple[StepOperation, ...]
    assumptions: tuple[Assumption, ...]
    schema: str = "llmsize.step/1"
