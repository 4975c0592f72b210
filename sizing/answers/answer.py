"""The answers to a question, each with one or two pools of replicas, and the outcome that orders them.

Everything here is data that can be pickled and compared. `search` and `pools` find and size answers; `verify` simulates
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sizing.model.architecture import Layout
from sizing.model.settings import Phase
from sizing.question.question import Question
from sizing.replica.batching import Point
from sizing.replica.capacity import Capacity
from sizing.replica.replica import Refusal, Replica
from sizing.replica.timing import Timed
from sizing.specs.bands import ConfidentSize
from sizing.specs.frozen import Frozen
from sizing.specs.units import HOURS_PER_MONTH
from sizing.specs.workload import Aim

if TYPE_CHECKING:  # the simulator is loaded only where needed
    from sizing.engine.simulation import Run
    from sizing.engine.transfer import Transfer

PRICE_DIGITS = 6  # prices are rounded to this, so that the order of summation does not matter
Order = Callable[["Answer", Question], "Rank"]
Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]  # a map in order, possibly in other processes
Progress = Callable[[int, int], None]  # called with the number of steps done and the total


def unwatched(*_: object) -> AbstractContextManager[None]:
    """No progress, in place of a function that shows that of a long-running part."""
    return nullcontext()


class Pool(Frozen):
    """Equal replicas of one layout that do one phase of a request, with the load of each."""

    timed: Timed = field(repr=False, compare=False)
    count: int
    capacity: Capacity  # the highest load of one replica within all limits
    point: Point  # its operating point
    margin: float = 1.0  # which multiplies the demand where a confidence is asked for
    undelayed: Timed | None = None  # of a prefill pool, without the time of the KV cache transfer
    run: Run | None = None  # of this pool alone, where it is one of two

    @property
    def replica(self) -> Replica:
        """The layout on its GPU type."""
        return self.timed.replica

    @property
    def phase(self) -> Phase:
        """The phase of a request that the replicas run."""
        return self.replica.service.phase

    @property
    def name(self) -> str:
        """The phase; empty for replicas that do the whole request."""
        return "" if self.phase == "whole" else self.phase

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.count * self.replica.layout.gpus

    @property
    def ended_by(self) -> str:
        """The name of the limit on the load: `capacity.binding`, but `itl` for a decode pool under a limit on E2E."""
        return "itl" if self.phase == "decode" and self.capacity.binding == "e2e" else self.capacity.binding

    @property
    def requests_per_s(self) -> float:
        """Requests/s over all replicas at this operating point."""
        return self.point.requests_per_s * self.count

    @property
    def most_requests_per_s(self) -> float:
        """The highest requests/s within the limits, over all replicas."""
        return self.capacity.requests_per_s * self.count

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all GPUs per hour; None without a price."""
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
        """The question with the effect of its optimisations on this layout and number of replicas."""
        return question.with_(extras=self.replica.service.extras)


class Answer(Frozen):
    """A deployment that meets a demand within its limits: one pool, or a prefill and a decode pool with a transfer.

    `run` holds the simulated figures of requests as the client sees them.
    """

    pools: tuple[Pool, ...]
    transfer: Transfer | None = None
    run: Run | None = None

    def __repr__(self) -> str:
        """Return the size and layout of each pool: a notebook shows answers by the dozen."""
        shapes = (
            f"{each.gpus} x {each.replica.gpu_type.name} = {each.count} x {each.replica.layout}" for each in self.pools
        )
        return f"<Answer {' + '.join(shapes)}>"

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
        """Whether prefill and decode run on separate pools."""
        return len(self.pools) > 1

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def requests_per_s(self) -> float:
        """Requests/s served."""
        return self.pools[0].requests_per_s

    @property
    def in_flight(self) -> float:
        """Mean requests in flight over all pools, by Little's law."""
        return self.requests_per_s * self.latency_s("e2e")["mean"]

    @property
    def most_requests_per_s(self) -> float:
        """The highest requests/s within the limits; the pool that serves less decides."""
        return min(pool.most_requests_per_s for pool in self.pools)

    @property
    def most_per_gpu(self) -> float:
        """The highest requests/s per GPU within the limits."""
        if not self.separate:  # from one replica, so that the figure does not depend on the number of replicas
            return self.pool.capacity.requests_per_s / self.pool.replica.layout.gpus
        return self.most_requests_per_s / self.gpus

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all GPUs per hour; None where a pool has no price."""
        prices = [pool.usd_per_hour for pool in self.pools]
        return None if None in prices else sum(price for price in prices if price is not None)

    @property
    def usd_per_month(self) -> float | None:
        """Price of all GPUs for a month around the clock; None where a pool has no price."""
        return None if self.usd_per_hour is None else self.usd_per_hour * HOURS_PER_MONTH

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """The price of a GPU per hour; the mean of GPUs of several prices."""
        prices = {pool.replica.gpu_type.usd_per_gpu_hour for pool in self.pools}
        usd = self.usd_per_hour
        return prices.pop() if len(prices) == 1 or usd is None else usd / self.gpus

    @property
    def power_w(self) -> float:
        """Thermal design power of all GPUs."""
        return sum(pool.power_w for pool in self.pools)

    @property
    def transfer_s(self) -> float:
        """Seconds by which the KV cache transfer delays a prompt of mean length; 0 without a transfer."""
        undelayed = self.prefill.undelayed
        return 0.0 if undelayed is None else float(self.prefill.timed.curves.front_end_s - undelayed.curves.front_end_s)

    @property
    def last_s(self) -> float:
        """Seconds that a request takes in separate pools where it waits for no other, at their load of decode."""
        decode = self.decode
        decode_s = decode.closed_s("itl")["mean"] * float(decode.timed.batching.osl - 1)
        return self.prefill.timed.solo_ttft_s + decode_s

    @property
    def tightest(self) -> Pool:
        """The pool that is nearest to its capacity."""
        return max(self.pools, key=lambda pool: pool.requests_per_s / pool.most_requests_per_s)

    def latency_s(self, name: str) -> dict[str, float]:
        """Statistics of `ttft`, `itl` or `e2e` in seconds: simulated, else by the closed form."""
        if self.run is not None and self.run.latencies_s[name]:
            return self.run.latencies_s[name]
        return self.closed_s(name)

    def closed_s(self, name: str) -> dict[str, float]:
        """Statistics of `ttft`, `itl` or `e2e` in seconds, by the closed form.

        With separate pools, ITL is the time from the arrival of the cache to the last token, divided by the number of tokens
        after the first. E2E percentiles are the sums of both pools' percentiles, which is an upper bound.
        """
        if not self.separate:
            return self.pool.closed_s(name)
        first, rest = self.prefill.closed_s("ttft"), self.decode.closed_s("e2e")
        if name == "ttft":
            return first
        after_first = float(self.decode.timed.batching.osl - 1)
        if name == "itl":
            return {statistic: seconds / after_first for statistic, seconds in rest.items()}
        return {statistic: first[statistic] + rest[statistic] for statistic in first}


class Pairing(NamedTuple):
    """Why layouts of two pools were rejected."""

    refusals: Mapping[Phase, tuple[Refusal, ...]]  # of the layouts of each pool
    lacking: tuple[Phase, ...] = ()  # pools without any usable layout, whatever the other pool is
    short: tuple[Answer, ...] = ()  # pairs, with the replicas they need, that exceed the given replicas or the budget
    unpaired: tuple[Refusal, ...] = ()  # prefill layouts that fail only because of the transfer


class Relaxation(NamedTuple):
    """A relaxed limit, and the smaller number and the type of GPUs that it needs; no much tighter limit saves GPUs."""

    limit: str
    seconds: float
    gpus: int
    gpu: str


class NextLimit(NamedTuple):
    """What limits the answer's layout at the loosest limit tried: `gpus` GPUs at `requests_per_s` a replica, by the closed form."""

    binding: str
    requests_per_s: float
    gpus: int


class NearlyIdle(NamedTuple):
    """A replica keeps its limit only up to `share` of its highest stable rate.

    `looser` is the answer by the closed form at `times` the limit; None where it costs no less.
    """

    share: float
    times: float
    looser: Answer | None


class OtherAnswer(NamedTuple):
    """The answer with further options than a question has, by the closed form; None where there is none."""

    options: str
    answer: Answer | None


class Suggestion(NamedTuple):
    """A change that makes an infeasible question feasible, and the GPUs and layout that it then needs.

    With `looser`, a tighter value of the same limit is suggested too; it takes more GPUs.
    """

    change: str
    gpus: int
    gpu: str
    layout: str
    looser: bool = False

    @classmethod
    def of(cls, change: str, answer: Answer) -> Suggestion:
        """A change, with the answer that it leads to."""
        replica = answer.pool.replica
        return cls(change, answer.gpus, replica.gpu_type.name, str(replica.layout))


class ConfidentAnswer(NamedTuple):
    """Another answer whose sure size (`sure_answer`) is cheaper than the first one's, or the only one known; both by the closed form."""

    answer: Answer
    sure_answer: Answer


class SimulatedSizes(NamedTuple):
    """How many sizes were simulated, 0 without simulation, and whether the last one kept the limits."""

    tries: int = 0
    passed: bool = True


class ByRuns(NamedTuple):
    """What published runs say of an answer, and how they changed it."""

    odds: ConfidentSize | None = None
    sure_answer: Answer | None = (
        None  # on the same GPU type: it keeps the limits in the stated share (90 %) of similar runs
    )
    cheaper_when_sure: ConfidentAnswer | None = None
    even: bool = False  # the search asked for even odds (50 % confidence)
    predicted: Answer | None = None  # by prediction alone, where a confidence or even odds changed the answer


class Hints(NamedTuple):
    """The changes to a question that `estimate` found."""

    relaxation: Relaxation | None = None  # a looser limit that saves GPUs
    next_limit: NextLimit | None = None  # what limits the answer next, where no looser limit saves GPUs
    idle: NearlyIdle | None = None
    usual: OtherAnswer | None = None  # at usual limits, where none is set
    in_fp8: OtherAnswer | None = None  # with fewer GPUs
    suggestions: tuple[Suggestion, ...] = ()  # what helps where there is no answer


class Outcome(Frozen):
    """All answers to a question, best first, and all rejected layouts.

    `best` is the first of the answers, whatever speaks against it. `answer` is `best` if it is within the GPU budget and no
    simulation contradicts it; else None. `pairing` has the rejected layouts of separate pools. Where the answers have separate
    pools, `one_pool` is the outcome without them, for comparison; the rest is of separate pools.
    """

    question: Question
    answers: tuple[Answer, ...]
    refusals: tuple[Refusal, ...] = ()
    pairing: Pairing | None = None
    simulation: SimulatedSizes = SimulatedSizes()
    by_runs: ByRuns = ByRuns()
    hints: Hints = Hints()
    one_pool: Outcome | None = None

    def __repr__(self) -> str:
        """Return the first answer and how many others there are; `sizing.shown` has the figures."""
        return f"<Outcome {self.best!r}, {max(0, len(self.answers) - 1)} others, {len(self.refusals)} refused>"

    @property
    def best(self) -> Answer | None:
        """The first answer, also over the budget or where a simulation contradicts it; None without any answer."""
        return self.answers[0] if self.answers else None

    @property
    def answer(self) -> Answer | None:
        """The first answer where it is within the budget and no simulation contradicts it."""
        return self.best if self.simulation.passed and self.within_budget else None

    @property
    def within_budget(self) -> bool:
        """Whether there is an answer within the GPU budget, if a budget is given."""
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
    def verified(self) -> bool | None:
        """Whether a simulation confirmed the first answer; None without simulation."""
        return self.simulation.passed if self.simulation.tries else None

    @property
    def as_predicted(self) -> Answer | None:
        """The answer by prediction alone: what separate pools, of which no runs are published, compare with."""
        return self.by_runs.predicted or self.answer


Shape = Literal["one GPU", "tensor parallel", "expert parallel", "attention data parallel", "pipeline"]


def shape_of(layout: Layout) -> Shape:
    """The kind of a layout: the last of tensor, expert, attention-data and pipeline parallelism that it uses."""
    if layout.pp > 1:
        return "pipeline"
    if layout.dp > 1:
        return "attention data parallel"
    if layout.ep > 1:
        return "expert parallel"
    return "tensor parallel" if layout.gpus > 1 else "one GPU"


def cost(answer: Answer) -> float:
    """$ per hour, rounded for comparison; infinite without a price, so that answers with a price come first."""
    usd = answer.usd_per_hour
    return math.inf if usd is None else round(usd, PRICE_DIGITS)


def objective_value(answer: Answer, objective: Aim) -> float:
    """The quantity that the objective minimises: GPUs, $ per hour, $ per hour and request/s, or watts."""
    if objective == "gpus":
        return float(answer.gpus)
    if objective == "request-cost":
        return round(cost(answer) / answer.requests_per_s, PRICE_DIGITS)
    return cost(answer) if objective == "cost" else answer.power_w


def objective_key(answer: Answer, objective: Aim) -> tuple[float, ...]:
    """Sort key: the objective, then GPUs, cost and latency to break ties."""
    return (objective_value(answer, objective), answer.gpus, cost(answer), answer.latency_s("e2e")["mean"])


def throughput_first(answer: Answer, question: Question) -> tuple[float, ...]:
    """The sort key before the objective without a demand: requests/s with a GPU budget, else requests/s per GPU."""
    if question.target.amount is not None:
        return ()
    return (-answer.requests_per_s if question.rules.gpu_budget is not None else -answer.requests_per_s / answer.gpus,)


class LayoutKey(NamedTuple):
    """The identity of a layout: GPU type, weight format, parallel sizes."""

    gpu_type: str
    weight_format: str
    layout: Layout


def layout_key(replica: Replica | Refusal) -> LayoutKey:
    """The identity of a replica's layout."""
    precision = replica.plan.weight_format if isinstance(replica, Replica) else replica.precision
    return LayoutKey(replica.gpu_type.id, precision, replica.layout)


def is_alike(one: Answer, other: Answer) -> bool:
    """Whether two answers from one pool have the same layout."""
    return layout_key(one.pool.replica) == layout_key(other.pool.replica)


class Rank(NamedTuple):
    """A sort key of answers: `ties` order those of equal `size` and cost."""

    size: tuple[float, ...]
    ties: tuple[float, ...]


def preference(answer: Answer, question: Question) -> Rank:
    """Sort key: the objective; without a demand, throughput within the GPU budget, or per GPU, comes first.

    Among equals, more replicas come first, because the failure of one then costs less. Then come fewer pipeline stages,
    lower latency, and less expert parallelism. A layout with a smaller sure size comes before all these (`preferring`).
    """
    objective = question.rules.objective
    replicas = sum(pool.count for pool in answer.pools)
    stages, experts = (0, 0) if answer.separate else (answer.pool.replica.layout.pp, answer.pool.replica.layout.ep)
    size = (*throughput_first(answer, question), objective_value(answer, objective), answer.gpus, cost(answer))
    return Rank(size, (-replicas, stages, answer.closed_s("e2e")["mean"], experts))


def preferring(first: Answer, order: Order = preference) -> Order:
    """An order in which the layout of `first` comes before all others of equal size and cost."""

    def key(answer: Answer, question: Question) -> Rank:
        rank = order(answer, question)
        return rank._replace(ties=(not is_alike(answer, first), *rank.ties))

    return key
