"""The requests of a run in columns: arrival, lengths, and what happened to each.

Also the load that makes them: all at once, a fixed number in flight, a rate, or a trace; and the distributions of their
lengths.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, MutableSequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.specs.frozen import Frozen

NEVER = math.nan


class Planned(NamedTuple):
    """The requests of a trace or a draw in columns: arrival in s in ascending order, prompt tokens, output tokens."""

    arrival: array[float]
    isl: array[int]
    osl: array[int]

    @classmethod
    def of_rows(cls, rows: NDArray[np.float64]) -> Planned:
        """The plan of rows with an arrival, prompt tokens and output tokens each."""
        isl, osl = (array("i", np.maximum(1, rows[:, column]).astype(np.int32).tobytes()) for column in (1, 2))
        return cls(array("d", rows[:, 0].tobytes()), isl, osl)

    @property
    def length(self) -> NDArray[np.int32]:
        """The prompt and output tokens of each request together."""
        return np.add(self.isl, self.osl, dtype=np.int32)

    def only(self, kept: NDArray[np.bool_]) -> Planned:
        """The requests that are `kept`; this plan itself where all are."""
        if kept.all():
            return self
        arrival, isl, osl = (np.asarray(column)[kept].tobytes() for column in self)
        return Planned(array("d", arrival), array("i", isl), array("i", osl))


@dataclass(slots=True)
class Requests:
    """Requests by number. Times are in the clock's unit, NaN until the event has happened.

    Arrival, first token and end are as the client sees them, including the time that a request spends outside the steps.
    """

    arrival: MutableSequence[float] = field(default_factory=list)
    isl: MutableSequence[int] = field(default_factory=list)
    osl: MutableSequence[int] = field(default_factory=list)
    admitted: MutableSequence[float] = field(default_factory=list)
    first_token: MutableSequence[float] = field(default_factory=list)
    finished: MutableSequence[float] = field(default_factory=list)
    generated: MutableSequence[int] = field(default_factory=list)
    preemptions: MutableSequence[int] = field(default_factory=list)

    @classmethod
    def of_plan(cls, plan: Planned) -> Requests:
        """All requests of a plan, whose columns are shared. Columns are arrays: millions of requests need little memory."""
        admitted, first_token, finished = (array("d", [NEVER]) * len(plan.arrival) for _ in range(3))
        generated, preemptions = array("i", [0]) * len(plan.arrival), array("H", [0]) * len(plan.arrival)
        return cls(*plan, admitted, first_token, finished, generated, preemptions)

    def add(self, arrival: float, isl: int, osl: int) -> int:
        """Add a request and return its number."""
        self.arrival.append(arrival)
        self.isl.append(isl)
        self.osl.append(osl)
        for times in (self.admitted, self.first_token, self.finished):
            times.append(NEVER)
        for counts in (self.generated, self.preemptions):
            counts.append(0)
        return len(self.arrival) - 1

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.arrival)


@dataclass(slots=True)
class Watch:
    """Integrals over time of queue, batch, cache and busy, and their maxima, from `since` to `until` (NaN while it runs)."""

    since: float = 0.0
    until: float = math.nan

    queue: float = 0.0
    batch: float = 0.0
    cache: float = 0.0
    busy: float = 0.0
    queue_max: int = 0
    batch_max: int = 0
    cache_max: float = 0.0


Arrivals = Literal["even", "poisson", "gamma"]
SURE_SIGMAS = 6.0  # exceeded by chance once in a billion runs


class Lengths(Frozen):
    """A distribution of whole lengths, at least 1: fixed, normal, lognormal (mean and standard deviation), uniform range.

    A uniform range goes from `low_share` * `mean` to `mean` (0.8: 80 to 100 %). A `spread` range is uniform too, but its
    lengths are evenly spaced points in random order, so even a few have the mean of the range; those of an `exponential`
    distribution likewise. `turns` draws the lengths in `among` with equal probability.
    """

    mean: float
    std: float = 0.0
    shape: Literal["fixed", "normal", "lognormal", "uniform", "spread", "exponential", "turns"] = "fixed"
    low_share: float = 1.0
    longest: int | None = None
    among: tuple[int, ...] = ()

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw `count` lengths."""
        if self.shape == "normal" and self.std > 0:
            drawn = rng.normal(self.mean, self.std, count)
        elif self.shape == "lognormal" and self.std > 0:
            sigma = math.sqrt(math.log1p((self.std / self.mean) ** 2))
            drawn = rng.lognormal(math.log(self.mean) - sigma**2 / 2, sigma, count)
        elif self.shape == "uniform":
            return _apart(rng).integers(max(1, int(self.low_share * self.mean)), int(self.mean) + 1, count)
        elif self.shape == "spread":
            low = self.low_share * self.mean
            drawn = low + (self.mean - low) * (_apart(rng).permutation(count) + 0.5) / count
        elif self.shape == "exponential":
            drawn = -self.mean * np.log1p(-(_apart(rng).permutation(count) + 0.5) / count)
        elif self.shape == "turns":
            drawn = _apart(rng).choice(self.among, count).astype(float)
        else:
            drawn = np.full(count, float(self.mean))
        lengths = np.maximum(1, np.rint(drawn))
        return (lengths if self.longest is None else np.minimum(lengths, self.longest)).astype(np.int64)


def _apart(rng: np.random.Generator) -> np.random.Generator:
    """A separate random stream. A router with the same seed would tie the replica of a request to its length."""
    return rng.spawn(1)[0]


def course_lengths(mean: float, std: float, seed: int) -> Iterator[int]:
    """Draw lengths one by one as the teaching simulator does: int(max(Normal(mean, std), 1)), numpy's legacy generator."""
    state = np.random.RandomState(seed)
    while True:
        yield int(max(state.normal(mean, std), 1)) if std > 0 else int(mean)


def arrival_times(
    count: int, rate: float, kind: Arrivals, rng: np.random.Generator, *, burstiness: float = 1.0
) -> NDArray[np.float64]:
    """`count` ascending arrival times in s at mean `rate`: evenly spaced, Poisson, or gamma inter-arrivals.

    `burstiness` is the gamma shape as vLLM's benchmark names it: 1 is Poisson, below 1 clumps, above 1 evens out.
    """
    if kind == "even":
        return np.arange(1, count + 1) / rate
    shape = burstiness if kind == "gamma" else 1.0
    return np.cumsum(rng.gamma(shape, 1 / (rate * shape), count))


def enough_within(span: float, rate: float, kind: Arrivals, *, burstiness: float = 1.0) -> float:
    """Number of requests to draw so that the last one practically always arrives after `span` seconds.

    With gamma inter-arrivals the count within a span has the variance of a Poisson count, divided by the shape.
    """
    expected = rate * span
    clumps = 0.0 if kind == "even" else 1 / (burstiness if kind == "gamma" else 1.0)
    return math.ceil(expected + SURE_SIGMAS * (math.sqrt(expected * clumps) + SURE_SIGMAS * clumps)) + 1
