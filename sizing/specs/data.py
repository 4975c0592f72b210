"""The data files that every evaluation reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sizing.specs.bands import Correction, PublishedRuns, Situation, uncorrected
from sizing.specs.gpu import AssumedEfficiency, Assumptions
from sizing.specs.workload import Defaults, Formats


@dataclass(frozen=True, slots=True)
class Data:
    """The data files that every evaluation reads, and how to look up the efficiencies that a GPU borrows."""

    assumptions: Assumptions
    borrowed: Callable[[str], AssumedEfficiency | None]
    formats: Formats
    defaults: Defaults
    correction: Callable[[Situation], Correction] = uncorrected
    runs: PublishedRuns | None = None
