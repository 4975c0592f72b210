"""One demand on several GPU types and weight precisions: each at its best, as a search of its own finds it, in order."""

from __future__ import annotations

from sizing.answers.answer import Answer, objective_key
from sizing.specs.workload import Objective


def place(answer: Answer | None, sort: Objective) -> tuple[float, ...]:
    """The place of a candidate in the order: by GPUs, $ an hour or watts, then by the others; what is infeasible last.

    Where cost decides, those without a price come after all that have one.
    """
    return (1.0,) if answer is None else (0.0, *objective_key(answer, sort))
