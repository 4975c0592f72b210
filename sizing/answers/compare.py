"""One demand on several GPU types and weight precisions: each at its best, as a search of its own finds it, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sizing.answers.answer import Answer, Outcome, objective_key
from sizing.question.question import GpuType
from sizing.specs.workload import Objective

if TYPE_CHECKING:
    from sizing.answers.pools import Asked


class Compared(NamedTuple):
    """What was found of one GPU type and one weight precision, or of separate pools, of which each has one GPU type."""

    gpu_type: GpuType
    precision: str | None
    outcome: Outcome
    pools: Asked | None = None


def place(answer: Answer | None, sort: Objective) -> tuple[float, ...]:
    """The place of a candidate in the order: by GPUs, $ an hour or watts, then by the others; what is infeasible last.

    Where cost decides, those without a price come after all that have one.
    """
    return (1.0,) if answer is None else (0.0, *objective_key(answer, sort))
