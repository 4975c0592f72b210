"""What is found for a question: answers of one pool of replicas or of two, and the outcome that puts them in order.

Everything here is data: it can be pickled, compared and asked again. What finds, sizes and simulates answers stands in
`search`, `pools` and `verify`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sizing.model.architecture import Layout
from sizing.model.settings import Phase
from sizing.question.question import Question
from sizing.replica.capacity import Capacity
from sizing.replica.points import Point
from sizing.replica.replica import Refusal, Replica
from sizing.replica.timing import Timed
from sizing.specs.bands import UNCORRECTED, Correction, Sure
from sizing.specs.workload import Objective

if TYPE_CHECKING:  # the simulator is loaded where something is simulated
    from sizing.engine.simulation import Run
    from sizing.engine.transfer import Transfer

PRICE_DIGITS = 6  # beyond which prices of the same GPUs, summed in another way, differ
Order = Callable[["Answer", Question], tuple[float, ...]]
Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]  # maps, in other processes if it likes; in order
Progress = Callable[[int, int], None]  # called with what is done, and all there is to do


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal replicas of one layout that do one phase of a request, at the load that each of them gets.

    `capacity` is the most that one replica serves within all limits, `point` its operating point. For a confidence that is
    asked the demand is multiplied by the `margin`. `undelayed` is a prefill pool as if its caches took no time to hand over; None of other
    pools. `run` is what a simulation measured of this pool by itself, where it is one of two.
    """

    load: Timed = field(repr=False, compare=False)
    count: int
    capacity: Capacity
    point: Point
    margin: float = 1.0
    undelayed: Timed | None = None
    run: Run | None = None

    @property
    def replica(self) -> Replica:
        """The layout on its GPU type."""
        return self.load.replica

    @property
    def phase(self) -> Phase:
        """What of a request its replicas do."""
        return self.replica.service.phase

    @property
    def name(self) -> str:
        """The phase, empty of replicas that do all of a request."""
        return "" if self.phase == "whole" else self.phase

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.count * self.replica.layout.gpus

    @property
    def requests_per_s(self) -> float:
        """Requests/s over all replicas at this operating point."""
        return self.point.requests_per_s * self.count

    @property
    def most_requests_per_s(self) -> float:
        """The most requests/s within the limits, over all replicas."""
        return self.capacity.requests_per_s * self.count

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all GPUs an hour, None without a price."""
        price = self.replica.gpu_type.usd_per_gpu_hour
        return None if price is None else price * self.gpus

    @property
    def power_w(self) -> float:
        """Thermal design power of all GPUs."""
        return self.replica.gpu_type.gpu.datasheet.tdp_w * self.gpus

    def closed_s(self, name: str) -> dict[str, float]:
        """Statistics of `ttft`, `itl` or `e2e` of this phase in seconds, by the closed form."""
        seconds: dict[str, float] = getattr(self.point, f"{name}_s")
        return seconds

    def question(self, question: Question) -> Question:
        """The question with its optimisations as they are on this layout, at this number of replicas."""
        return question.with_(extras=self.replica.service.extras)


@dataclass(frozen=True, slots=True)
class Answer:
    """A deployment that meets a demand within its limits: one pool, or a prefill and a decode pool with a transfer.

    `run` is what a simulation measured of requests as the client sees them.
    """

    pools: tuple[Pool, ...]
    transfer: Transfer | None = None
    run: Run | None = None

    @property
    def pool(self) -> Pool:
        """The only pool. Raises ValueError where there are two."""
        (only,) = self.pools
        return only

    @property
    def prefill(self) -> Pool:
        """The pool that does prefill."""
        return self.pools[0]

    @property
    def decode(self) -> Pool:
        """The pool that decodes."""
        return self.pools[-1]

    @property
    def separate(self) -> bool:
        """Whether prefill and decode have pools of their own."""
        return len(self.pools) > 1

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def requests_per_s(self) -> float:
        """Requests/s that are served."""
        return self.pools[0].requests_per_s

    @property
    def most_requests_per_s(self) -> float:
        """The most requests/s within the limits: of the pool that serves less."""
        return min(pool.most_requests_per_s for pool in self.pools)

    @property
    def most_per_gpu(self) -> float:
        """The most requests/s of a GPU within the limits."""
        if not self.separate:  # by one replica: so the figure is the same at every number of them
            return self.pool.capacity.requests_per_s / self.pool.replica.layout.gpus
        return self.most_requests_per_s / self.gpus

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all GPUs an hour, None without a price of each."""
        prices = [pool.usd_per_hour for pool in self.pools]
        return None if None in prices else sum(price for price in prices if price is not None)

    @property
    def power_w(self) -> float:
        """Thermal design power of all GPUs."""
        return sum(pool.power_w for pool in self.pools)

    @property
    def transfer_s(self) -> float:
        """Seconds by which the transfer of its cache delays a prompt of the mean length; 0 without a transfer."""
        undelayed = self.prefill.undelayed
        return 0.0 if undelayed is None else self.prefill.load.curves.front_end_s - undelayed.curves.front_end_s

    @property
    def tightest(self) -> Pool:
        """The pool that is nearest to the most that it serves."""
        return max(self.pools, key=lambda pool: pool.requests_per_s / pool.most_requests_per_s)

    def latency_s(self, name: str) -> dict[str, float]:
        """Statistics of `ttft`, `itl` or `e2e` in seconds: as simulated, else of the closed form."""
        if self.run is not None and self.run.latencies_s[name]:
            return self.run.latencies_s[name]
        return self.closed_s(name)

    def closed_s(self, name: str) -> dict[str, float]:
        """Statistics of `ttft`, `itl` or `e2e` in seconds, by the closed form.

        ITL of separate pools is the time from the arrival of the cache to the last token, over the tokens after the first.
        Percentiles of their E2E are sums of both pools', which is more than they can be together.
        """
        if not self.separate:
            return self.pool.closed_s(name)
        first, rest = self.prefill.closed_s("ttft"), self.decode.closed_s("e2e")
        if name == "ttft":
            return first
        after_first = self.decode.load.batching.osl - 1
        if name == "itl":
            return {statistic: seconds / after_first for statistic, seconds in rest.items()}
        return {statistic: first[statistic] + rest[statistic] for statistic in first}


@dataclass(frozen=True, slots=True)
class Pairing:
    """Why layouts of two pools found no partner.

    `refusals` are the layouts of each pool that won't do, and `lacking` the pools for which none does, whatever the other
    pool is. `short` are pairs, at the replicas that each pool needs, of which too few are given or none fits the budget;
    `unpaired` prefill layouts that would do, were it not for the transfer to a decode pool.
    """

    refusals: Mapping[Phase, tuple[Refusal, ...]]
    lacking: tuple[Phase, ...] = ()
    short: tuple[Answer, ...] = ()
    unpaired: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A relaxed limit and the fewer GPUs that it needs, of which type; no limit much tighter does."""

    limit: str
    seconds: float
    gpus: int
    gpu: str


class Suggestion(NamedTuple):
    """A change that turns an infeasible question feasible, and what it then takes."""

    change: str
    gpus: int
    gpu: str
    layout: str


@dataclass(frozen=True, slots=True)
class Surer:
    """Another answer, as the closed form has it, that is sure at less than the first one, or whose sure count alone is known."""

    answer: Answer
    sure: Sure


@dataclass(frozen=True, slots=True)
class Outcome:
    """All answers to a question, best first, and all layouts that were turned down.

    `tries` counts the sizes that were simulated, 0 without a simulation; `passed` is False where none of them was
    confirmed: the first answer is then the last that was tried. `pairing` says of separate pools what was turned down.

    An estimate adds what would help: `relaxation` of a limit, or `suggestions` where there is no answer; `predicted`, the
    answer as predicted where a confidence was asked, or even odds took another; what separate pools take for the same, where
    they are asked for; how many GPUs of the first are sure to do, and what is `surer` at less. `even` says that it was
    searched for with even odds.
    """

    question: Question = field(repr=False)
    answers: tuple[Answer, ...]
    refusals: tuple[Refusal, ...] = field(default=(), repr=False)
    pairing: Pairing | None = field(default=None, repr=False)
    tries: int = 0
    passed: bool = True
    relaxation: Relaxation | None = None
    suggestions: tuple[Suggestion, ...] = ()
    predicted: Answer | None = None
    separate_pools: Outcome | None = field(default=None, repr=False)
    sure: Sure | None = None
    surer: Surer | None = field(default=None, repr=False)
    even: bool = False

    @property
    def best(self) -> Answer | None:
        """The first in order, whether it holds or not; None where nothing meets demand and limits."""
        return self.answers[0] if self.answers else None

    @property
    def confirmed(self) -> Answer | None:
        """The first in order where no simulation contradicts it; it may exceed the budget."""
        return self.best if self.passed else None

    @property
    def within_budget(self) -> bool:
        """Whether there is an answer that keeps the budget of GPUs, where there is one."""
        budget = self.question.rules.gpu_budget
        return self.best is not None and (budget is None or self.best.gpus <= budget)

    def best_of_each(self) -> list[Answer]:
        """The best layout of each GPU type and precision, best first."""
        firsts: dict[tuple[str, str], Answer] = {}
        for answer in self.answers:
            replica = answer.pool.replica
            firsts.setdefault((replica.gpu_type.id, replica.plan.weight_format), answer)
        return list(firsts.values())

    @property
    def correction(self) -> Correction:
        """What the step times of the first in order were multiplied by, as published runs say."""
        return UNCORRECTED if self.best is None else self.best.pool.load.kernels.correction

    @property
    def verified(self) -> bool | None:
        """Whether a simulation confirmed the first in order; None where none was simulated."""
        return self.passed if self.tries else None

    @property
    def answer(self) -> Answer | None:
        """The first in order where it holds: within the budget, and not contradicted by a simulation."""
        return self.confirmed if self.within_budget else None


Shape = Literal["one GPU", "tensor parallel", "expert parallel", "attention data parallel", "pipeline"]


def shape_of(layout: Layout) -> Shape:
    """The kind of a layout, by what it adds to the one before: tensor, expert, attention-data parallelism, a pipeline."""
    if layout.pp > 1:
        return "pipeline"
    if layout.dp > 1:
        return "attention data parallel"
    if layout.ep > 1:
        return "expert parallel"
    return "tensor parallel" if layout.gpus > 1 else "one GPU"


def cost(answer: Answer) -> float:
    """Dollars an hour to compare by, sums alike; infinity without a price, so that what has one comes first."""
    return math.inf if answer.usd_per_hour is None else round(answer.usd_per_hour, PRICE_DIGITS)


def spent(answer: Answer, objective: Objective) -> float:
    """What an objective is to have least of: GPUs, dollars an hour, watts."""
    return {"gpus": float(answer.gpus), "cost": cost(answer), "energy": answer.power_w}[objective]


def objective_key(answer: Answer, objective: Objective) -> tuple[float, ...]:
    """Order of the objective: what is asked first, then GPUs, cost and latency as tie breakers."""
    return (spent(answer, objective), answer.gpus, cost(answer), answer.latency_s("e2e")["mean"])


def throughput_first(answer: Answer, question: Question) -> tuple[float, ...]:
    """What comes before the objective without a demand: the most requests/s of a budget, of offline work those of a GPU."""
    if question.target.amount is not None:
        return ()
    return (-answer.requests_per_s if question.rules.gpu_budget is not None else -answer.requests_per_s / answer.gpus,)


def preference(answer: Answer, question: Question) -> tuple[float, ...]:
    """Order of what is asked: the objective; where only a GPU budget is given the most throughput; offline that per GPU.

    Among equals more replicas come first, since one of them fails with less; then fewer pipeline stages; then the faster, then no
    expert parallelism.
    """
    objective = question.rules.objective
    replicas = sum(pool.count for pool in answer.pools)
    stages, experts = (0, 0) if answer.separate else (answer.pool.replica.layout.pp, answer.pool.replica.layout.ep)
    return (
        *throughput_first(answer, question),
        *(spent(answer, objective), answer.gpus, cost(answer), -replicas),
        *(stages, answer.closed_s("e2e")["mean"], experts),
    )
