"""One demand on several GPU types and weight precisions: each at its best, as a search of its own finds it, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sizing.answers.answer import Answer, objective_key
from sizing.answers.search import Evaluated, Outcome, within_budget
from sizing.question.question import SeparatePools
from sizing.specs.gpu import GpuType
from sizing.specs.workload import Objective

if TYPE_CHECKING:
    from sizing.answers.pools import Checked, Found, Pooled
    from sizing.answers.verify import Verified


class Compared(NamedTuple):
    """What a search of one GPU type and one weight precision found, and what a simulation made of it, where there was one."""

    gpu_type: GpuType
    precision: str | None
    outcome: Outcome
    checked: Verified | None

    @property
    def best(self) -> Evaluated | None:
        """The answer; None where nothing serves the demand within limits and budget, or no simulation confirmed it."""
        passed = self.checked is None or self.checked.passed
        return self.outcome.best if passed and within_budget(self.outcome) else None


class ComparedPools(NamedTuple):
    """The same of separate pools, of which each has one GPU type."""

    pools: SeparatePools
    precision: str | None
    found: Found
    checked: Checked | None

    @property
    def best(self) -> Pooled | None:
        """The answer; None as of `Compared`."""
        best, budget = self.found.confirmed(self.checked), self.found.question.rules.gpu_budget
        return best if best is not None and (budget is None or best.gpus <= budget) else None


def place(best: Answer | None, sort: Objective) -> tuple[float, ...]:
    """Return the place of a candidate in the order: by GPUs, $ an hour or watts, then by the others; what is infeasible last.

    Where cost decides, those without a price come after all that have one.
    """
    return (1.0,) if best is None else (0.0, *objective_key(best, sort))
