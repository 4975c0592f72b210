"""What every answer to a demand has, and what it is chosen by: replicas that do all of a request, or a pool for each phase."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from sizing.question.question import Question
from sizing.replica.replica import Replica
from sizing.replica.timing import Timed
from sizing.specs.workload import Objective


class Replicas(Protocol):
    """Equal replicas of one layout."""

    @property
    def replica(self) -> Replica:
        """The layout on its GPU type."""

    @property
    def replicas(self) -> int:
        """How many there are."""

    @property
    def load(self) -> Timed:
        """Step times and slots of one."""

    def asked(self, question: Question) -> Question:
        """Return a request with what its optimisations are on this layout, at this number of replicas."""


class Answer(Protocol):
    """A deployment that meets a demand within its limits."""

    @property
    def parts(self) -> Mapping[str, Replicas]:
        """The replicas by what they do: the name is empty of those that do all of a request."""

    @property
    def gpus(self) -> int:
        """All GPUs."""

    @property
    def requests_per_s(self) -> float:
        """Requests/s that it serves."""

    @property
    def most_per_gpu(self) -> float:
        """The most requests/s within the limits, over the GPUs that take part in it."""

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all GPUs an hour, None without a price of each."""

    @property
    def power_w(self) -> float:
        """Thermal design power of all GPUs."""

    def latency_s(self, name: str) -> dict[str, float]:
        """Return the statistics of `ttft`, `itl` or `e2e` in seconds."""


def cost(found: Answer) -> float:
    """Dollars an hour; infinity without a price, so that what has one comes first."""
    return math.inf if found.usd_per_hour is None else found.usd_per_hour


def spent(found: Answer, objective: Objective) -> float:
    """What an objective is to have least of: GPUs, dollars an hour, watts."""
    return {"gpus": float(found.gpus), "cost": cost(found), "energy": found.power_w}[objective]


def objective_key(found: Answer, objective: Objective) -> tuple[float, ...]:
    """Order of the objective: what is asked first, then GPUs, cost and latency as tie breakers."""
    return (spent(found, objective), found.gpus, cost(found), found.latency_s("e2e")["mean"])


def throughput_first(found: Answer, question: Question) -> tuple[float, ...]:
    """What comes before the objective without a demand: the most requests/s of a budget, of offline work those of a GPU."""
    if question.target.requests_per_s is not None or question.target.concurrency is not None:
        return ()
    return (-found.requests_per_s if question.rules.gpu_budget is not None else -found.requests_per_s / found.gpus,)
