"""The heaviest load of one replica within the limits, as a point of its line: what `estimate` gives for the replica's GPUs."""

from __future__ import annotations

import math
from typing import NamedTuple

from sizing.answers.answer import Answer, Outcome, Pool
from sizing.answers.lines import CurveLine, Grid
from sizing.answers.points import LoadSample, sample_of
from sizing.answers.search import evaluate
from sizing.answers.verify import verify
from sizing.question.question import Question, load_data
from sizing.specs.workload import LATENCIES


class HeaviestJob(NamedTuple):
    """A replica under the closed form's heaviest load within the limits, to simulate."""

    size: Answer
    question: Question
    seed: int

    @property
    def requests(self) -> float:
        """Infinite, so that these simulations, the longest ones, start first."""
        return math.inf

    def run(self) -> LoadSample | None:
        """Simulate the load, and lighter ones until one keeps the limits; None where none does."""
        found = verify(Outcome(self.question, (self.size,), ()), load_data(), seed=self.seed).confirmed
        if found is None or found.run is None:
            return None
        return sample_of(found.run, _in_flight(found))._replace(heaviest=True)

    def closed_form(self, cache_holds: float) -> LoadSample:
        """The load by the closed form, where a KV cache holds so many requests of mean length."""
        names: list[str] = [name for name in LATENCIES if self.question.service.osl > 1 or name != "itl"]
        latencies_s = {name: self.size.latency_s(name) for name in names}
        in_flight, point = _in_flight(self.size), self.size.pool.point
        used = min(1.0, in_flight / cache_holds)
        return LoadSample(
            in_flight, latencies_s, point.requests_per_s, point.decoding, used, waiting=0.0, heaviest=True
        )


def _in_flight(size: Answer) -> float:
    """Mean requests in flight, by Little's law."""
    return size.requests_per_s * size.latency_s("e2e")["mean"]


def heaviest(line: CurveLine, question: Question, grid: Grid) -> HeaviestJob | None:
    """The heaviest load within the limits; None where there is none, or where the grid does not ask for it."""
    if not grid.heaviest or grid.arrivals == "closed" or question.target.offline:
        return None
    (load,) = line.parts
    alone = question.with_(gpu_budget=line.gpus)
    (pool,) = evaluate([load], alone)
    return HeaviestJob(Answer((pool,)), alone, grid.seed) if isinstance(pool, Pool) else None
