"""Size for a trace: its busiest minute is the demand, and the answer grows until a replay of the minute keeps the limits.

The closed form and its check assume Poisson arrivals at the mean rate of the minute. The replay uses the recorded arrivals
and lengths. It starts some minutes earlier, so that queues and caches are realistic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sizing.answers.answer import Answer, Outcome
from sizing.answers.confidence import Said, sizes_said
from sizing.answers.search import with_count
from sizing.answers.verify import worst_ratio
from sizing.engine.deployment import deployment_of
from sizing.engine.requests import Lengths, Planned
from sizing.engine.simulation import Traffic, simulate
from sizing.question.question import Question
from sizing.specs.data import Data
from sizing.specs.errors import InputError

MINUTE_S = 60.0
BEFORE_S, AFTER_S = (
    180.0,
    60.0,
)  # replayed before and after the minute: longer than most answers take, so that the load is steady
MOST_REPLAYS = 12  # the most sizes to replay, each at least one replica larger than the last
MOST_AT_ONCE = (
    2.0  # the largest growth factor after a replay: waits under overload say little about the missing capacity
)
SEED = 0


@dataclass(frozen=True, slots=True)
class BusiestMinute:
    """The busiest minute of a trace, or the whole of a shorter trace.

    `rows` are those of the trace; the minute has the rows from `start` to `end`, excluding `end`. Rates are in requests/s;
    `mean_per_s` is for the whole trace.
    """

    name: str
    rows: NDArray[np.float64]
    start: int
    end: int
    seconds: float

    @property
    def start_s(self) -> float:
        """Seconds from the first request of the trace to this minute."""
        return float(self.rows[self.start, 0])

    @property
    def per_s(self) -> float:
        """Requests/s in the minute."""
        return (self.end - self.start) / self.seconds

    @property
    def mean_per_s(self) -> float:
        """Requests/s over the whole trace."""
        return len(self.rows) / max(float(self.rows[-1, 0]), self.seconds)

    def lengths(self) -> dict[str, int]:
        """Mean prompt and output lengths of the minute, and the longest sequence of the whole trace, in tokens."""
        isl, osl = (max(1, round(float(column.mean()))) for column in self.rows[self.start : self.end, 1:3].T)
        return {"isl": isl, "osl": osl, "max_model_len": max(isl + osl, int((self.rows[:, 1] + self.rows[:, 2]).max()))}

    def traffic(self) -> Traffic:
        """The traffic to replay: the minute, with unmeasured requests before and after it."""
        arrival = self.rows[:, 0]
        end_s = self.start_s + self.seconds
        first, last = np.searchsorted(arrival, (self.start_s - BEFORE_S, end_s + AFTER_S))
        rows = self.rows[first:last].copy()
        rows[:, 0] -= rows[0, 0]
        lengths = Lengths(1.0), Lengths(1.0)
        return Traffic(
            *lengths,
            len(rows),
            trace=Planned.of_rows(rows),
            warm_up=int(self.start - first),
            cool_down=int(last - self.end),
            seed=SEED,
        )


def busiest_minute(name: str, rows: NDArray[np.float64]) -> BusiestMinute:
    """The minute with the most requests. Raises InputError for a trace whose requests all arrive at once."""
    arrival = rows[:, 0]
    seconds = min(MINUTE_S, float(arrival[-1]))
    if seconds <= 0:
        raise InputError(
            "has all its requests at one moment", file=name, field="--trace", allowed="requests over some time"
        )
    if float(arrival[-1]) < MINUTE_S:
        return BusiestMinute(name, rows, 0, len(rows), seconds)
    ends = np.searchsorted(arrival, arrival + MINUTE_S)
    start = int(np.argmax(ends - np.arange(len(rows))))
    return BusiestMinute(name, rows, start, int(ends[start]), seconds)


def replayed(outcome: Outcome, minute: BusiestMinute, data: Data) -> Outcome:
    """The outcome with the first size that keeps the limits in the replay, and its replay as the run.

    Where no size tried keeps them, the last one is returned with `passed` False. Of separate pools, which are not replayed,
    the outcome from one pool is.
    """
    outcome = outcome.one_pool or outcome
    best, question = outcome.answer, outcome.question
    if best is None:
        return outcome
    traffic, size = minute.traffic(), best
    for _ in range(MOST_REPLAYS):
        run = simulate(
            deployment_of(size.pool.load, size.pool.count), replace(traffic, longest=question.service.max_model_len)
        )
        size = replace(size, run=run)
        over = worst_ratio(run, question.target.limits, steady=False)
        if over <= 1:
            return _with(outcome, size, question, data, passed=True)
        count = size.pool.count
        more = max(count + 1, math.ceil(count * min(over, MOST_AT_ONCE)))
        size = Answer((with_count(size.pool, more, question, data),))
    return _with(outcome, replace(size, run=run), question, data, passed=False)


def _with(outcome: Outcome, size: Answer, question: Question, data: Data, *, passed: bool) -> Outcome:
    found = replace(outcome, answers=(size, *outcome.answers[1:]), relaxation=None, passed=passed)
    if found.answer is None or outcome.sure is None:
        return found
    surely = outcome.surely
    if surely is not None and surely.gpus < size.gpus:  # the minute takes more than random arrivals at its mean rate
        surely = size
    return replace(found, surely=surely, sure=sizes_said([Said(size, question, surely)], data.runs)[0])
