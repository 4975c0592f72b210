"""The requests of a run, column by column: when they arrive, their lengths, and what happened to each."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

NEVER = math.nan


@dataclass(slots=True)
class Requests:
    """Requests by number. Times are in the clock's unit, NaN until the event has happened.

    Arrival, first token and end are as the client sees them: tokens reach it later by what a request takes outside steps.
    """

    arrival: list[float] = field(default_factory=list)
    isl: list[int] = field(default_factory=list)
    osl: list[int] = field(default_factory=list)
    admitted: list[float] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)
    finished: list[float] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    preemptions: list[int] = field(default_factory=list)

    def add(self, arrival: float, isl: int, osl: int) -> int:
        """Add a request and return its number."""
        self.arrival.append(arrival)
        self.isl.append(isl)
        self.osl.append(osl)
        self.admitted.append(NEVER)
        self.first_token.append(NEVER)
        self.finished.append(NEVER)
        self.generated.append(0)
        self.preemptions.append(0)
        return len(self.arrival) - 1

    def __len__(self) -> int:
        """Return how many requests there are."""
        return len(self.arrival)
