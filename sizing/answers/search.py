"""Every layout on every GPU type, evaluated; the fewest GPUs that meet demand and limits; why each other one did not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from sizing.answers import answer, counts
from sizing.answers.counts import Reply, Trial
from sizing.question.question import Question
from sizing.replica.batching import Point
from sizing.replica.capacity import Capacity, edge_of, most_of, point_at_rate, points_of, solo_over
from sizing.replica.replica import Refusal, Replica, candidates
from sizing.replica.timing import Timed, Timing
from sizing.specs import demand
from sizing.specs.bands import AS_PREDICTED, Edge, region
from sizing.specs.data import Data
from sizing.specs.errors import UntimedError
from sizing.specs.gpu import GpuType
from sizing.specs.workload import Objective

if TYPE_CHECKING:
    from sizing.engine.simulation import Served


# Evaluates a layout anew at a number of replicas, where what its caches find depends on it.
Again = Callable[[int, Question], "Evaluated | None"]
CAUTIOUS_ROUNDS = 3  # the bands of one load ask for another size, whose load may have other bands


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A candidate that meets demand and limits, at the load that each of its replicas gets.

    `point` is that operating point. `most_per_replica` is the highest rate (or
    concurrency, where demand is one) that a replica serves within all limits, and `binding` what stops it there. `served`
    is what a simulation of this size measured, where there was one. Where what its caches find depends on the number of
    replicas, `again` evaluates the layout at another one. By its `edge` it may turn out worse than predicted.
    """

    replica: Replica
    replicas: int
    point: Point
    most_per_replica: float
    most_requests_per_s: float
    most_decoding: float
    binding: str
    load: Timed
    served: Served | None = None
    again: Again | None = field(default=None, repr=False, compare=False)
    edge: Edge = AS_PREDICTED

    def with_replicas(self, count: int, question: Question) -> Evaluated:
        """Return the same layout with another number of replicas, at the load that each then gets."""
        anew = self.again(count, question) if self.again is not None else None
        return self.at(count, question) if anew is None else anew

    def at(self, count: int, question: Question) -> Evaluated:
        """Return the same layout with another number of replicas, whatever their caches find."""
        most = Capacity(self.most_per_replica, self.most_requests_per_s, self.most_decoding, self.binding)
        return replace(self, replicas=count, point=points_of([self.load], question.target, [most], [count])[0])

    def sized(self, most: Capacity, question: Question) -> Evaluated:
        """Return the same layout with the replicas that a request takes when each serves `most`."""
        count = replicas(question, self.replica, most)
        if self.again is not None:
            return self.with_replicas(count, question)
        return replace(
            self,
            replicas=count,
            point=points_of([self.load], question.target, [most], [count])[0],
            most_per_replica=most.amount,
            most_requests_per_s=most.requests_per_s,
            most_decoding=most.decoding,
            binding=most.binding,
            served=None,
        )

    def asked(self, question: Question) -> Question:
        """Return a request with what its optimisations are on this layout, at this number of replicas."""
        return question.with_(extras=self.replica.service.extras)

    def at_share(self, share: float) -> Evaluated:
        """Return the same replicas at a share of the load."""
        most = Capacity(
            self.most_per_replica * share, self.most_requests_per_s * share, self.most_decoding, self.binding
        )
        rate = self.point.requests_per_s * share
        return replace(
            self,
            point=point_at_rate(self.load, rate, most),
            most_per_replica=most.amount,
            most_requests_per_s=most.requests_per_s,
        )

    def latency_s(self, name: str) -> dict[str, float]:
        """Return the statistics of `ttft`, `itl` or `e2e` in seconds: as simulated, else of the closed form."""
        if self.served is not None and self.served.latencies_s[name]:
            return self.served.latencies_s[name]
        seconds: dict[str, float] = getattr(self.point, f"{name}_s")
        return seconds

    @property
    def parts(self) -> dict[str, Evaluated]:
        """The replicas, which do all of a request."""
        return {"": self}

    @property
    def most_per_gpu(self) -> float:
        """The most requests/s of a GPU within the limits."""
        return self.most_requests_per_s / self.replica.layout.gpus

    @property
    def gpus(self) -> int:
        """All GPUs of the deployment."""
        return self.replicas * self.replica.layout.gpus

    @property
    def requests_per_s(self) -> float:
        """Requests/s over all replicas at this operating point."""
        return self.point.requests_per_s * self.replicas

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all GPUs an hour, or None without a price."""
        price = self.replica.gpu_type.usd_per_gpu_hour
        return None if price is None else price * self.gpus

    @property
    def power_w(self) -> float:
        """Thermal design power of all GPUs."""
        return self.replica.gpu_type.gpu.datasheet.tdp_w * self.gpus


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a search found, best first, and all that it turned down."""

    question: Question
    ranked: tuple[Evaluated, ...]
    rejected: tuple[Refusal, ...]

    @property
    def best(self) -> Evaluated | None:
        """The answer, or None when nothing meets the demand."""
        return self.ranked[0] if self.ranked else None


def within_budget(outcome: Outcome) -> bool:
    """Return whether there is an answer that keeps the budget of GPUs, where a demand and a budget are both given."""
    budget = outcome.question.rules.gpu_budget
    return outcome.best is not None and (budget is None or outcome.best.gpus <= budget)


class Bounded(NamedTuple):
    """A candidate with the most that one replica serves within the limits; None where no load meets them all."""

    load: Timed
    most: Capacity | None


class Sized(NamedTuple):
    """A candidate with the most that one replica serves, and the replicas that the demand takes."""

    load: Timed
    most: Capacity
    replicas: int


def timed(replica: Replica, loads: Timing) -> Timed | Refusal:
    """Tabulate a candidate's step times.

    What the data hold nothing to time by is turned down like any other, so that it ends no comparison.
    """
    try:
        return loads.of(replica)
    except UntimedError as error:
        return _reject(replica, "efficiency", "; ".join(fault.message for fault in error.faults), math.inf)


def alone(found: Timed, question: Question) -> Timed | Refusal:
    """Turn a candidate down whose lone request breaks a limit."""
    edge = edge_of(found.replica, question.target)
    over = solo_over(found, edge.limits(question.target.limits))
    if over is None:
        return found
    name, value_s, limit_s = over
    factor = getattr(edge, name)
    worse = f" ({value_s * factor * 1e3:,.1f} ms at its band's worse edge)" if factor > 1 else ""
    return _reject(
        found.replica,
        name,
        f"{name.upper()} of a request that is alone is {value_s * 1e3:,.1f} ms{worse}, the limit "
        f"{limit_s * factor * 1e3:,.1f} ms",
        value_s / limit_s - 1,
    )


def sized(load: Timed, most: Capacity | None, question: Question) -> Sized | Refusal:
    """Return how many replicas the demand takes when each serves `most` within the limits."""
    replica = load.replica
    if most is None:
        return _reject(replica, "capacity", "no load meets all limits at a stable utilisation", 1.0)
    count = replicas(question, replica, most)
    if count > 0:
        return Sized(load, most, count)
    return _reject(
        replica,
        "gpu_budget",
        f"one replica takes {replica.layout.gpus} GPUs, the budget is {question.rules.gpu_budget}",
        replica.layout.gpus / (question.rules.gpu_budget or 1) - 1,
    )


def evaluate(found: Sequence[Timed], question: Question) -> list[Evaluated | Refusal]:
    """Return what each candidate serves within the limits; all of them are asked at once."""
    return _evaluate(_bounded(found, question), question)


def _bounded(found: Sequence[Timed], question: Question) -> list[Bounded]:
    mosts = most_of(found, question.target)
    return [Bounded(one, most) for one, most in zip(found, mosts, strict=True)]


def _evaluate(found: Sequence[Bounded], question: Question) -> list[Evaluated | Refusal]:
    entries = [sized(*one, question) for one in found]
    good = [entry for entry in entries if isinstance(entry, Sized)]
    points = iter(
        points_of([e.load for e in good], question.target, [e.most for e in good], [e.replicas for e in good])
    )
    return [_evaluated(entry, next(points), question) if isinstance(entry, Sized) else entry for entry in entries]


def _evaluated(entry: Sized, point: Point, question: Question) -> Evaluated:
    load, most, count = entry
    return Evaluated(
        replica=load.replica,
        replicas=count,
        point=point,
        most_per_replica=most.amount,
        most_requests_per_s=most.requests_per_s,
        most_decoding=most.decoding,
        binding=most.binding,
        load=load,
        edge=edge_of(load.replica, question.target),
    )


def _reject(replica: Replica, reason: str, detail: str, shortfall: float) -> Refusal:
    return Refusal(replica.gpu_type, replica.plan.weight_format, replica.layout, reason, detail, shortfall)


def replicas(question: Question, replica: Replica, most: Capacity) -> int:
    """Replicas that the demand takes, or that the GPU budget allows where there is no demand."""
    if question.target.concurrency is not None:
        return demand.replicas_for(question.target.concurrency * (1 + question.rules.headroom), most.amount)
    if question.target.requests_per_s is not None:
        return demand.replicas_for(question.target.requests_per_s * (1 + question.rules.headroom), most.amount)
    return (question.rules.gpu_budget or replica.layout.gpus) // replica.layout.gpus


def objective_key(found: Evaluated, objective: Objective) -> tuple[float, ...]:
    """Order of the objective: what is asked first, then GPUs, cost and latency as tie breakers."""
    latency = found.point.e2e_s["mean"]
    # Among equals the plainer layout: fewer pipeline stages, no expert parallelism.
    plain = (found.replica.layout.pp, found.replica.layout.ep)
    return (answer.spent(found, objective), found.gpus, answer.cost(found), latency, *plain)


def preference(found: Evaluated, question: Question) -> tuple[float, ...]:
    """Order of what is asked: the objective; where only a GPU budget is given the most throughput; offline that per GPU."""
    return (*answer.throughput_first(found, question), *objective_key(found, question.rules.objective))


def rank(found: Sequence[Evaluated], question: Question) -> tuple[Evaluated, ...]:
    """Return what was found in the order of preference, best first."""
    return tuple(sorted(found, key=lambda e: preference(e, question)))


def search(question: Question, options: Sequence[GpuType], precisions: Sequence[str | None], data: Data) -> Outcome:
    """Evaluate every layout of every GPU type and precision; best first, each rejected one with its reason."""

    def once(asked: Question) -> Outcome:
        if asked.service.extras.cached.varies:
            return _spread(asked, options, precisions, data)
        return chosen(bounded(tabulated(asked, options, precisions, data), asked), asked)

    return settled(question, once)


def _spread(question: Question, options: Sequence[GpuType], precisions: Sequence[str | None], data: Data) -> Outcome:
    """Evaluate every layout at the fewest replicas that suffice with what so many find in their caches."""
    entries = [entry for o in options for name in precisions for entry in candidates(question.service, o, name, data)]
    layouts = [entry if isinstance(entry, Replica) else entry.sized for entry in entries]
    results: list[Evaluated | Refusal] = [e for e in entries if isinstance(e, Refusal) and e.sized is None]
    results += _fewest([layout for layout in layouts if layout is not None], question, data)
    found = [result for result in results if isinstance(result, Evaluated)]
    rejected = tuple(result for result in results if isinstance(result, Refusal))
    return found_with(Outcome(question, rank(found, question), rejected))


def _fewest(layouts: Sequence[Replica], question: Question, data: Data) -> list[Evaluated | Refusal]:
    """Try numbers of replicas for each layout, those of all layouts at once, until each has its fewest."""

    def tried(trials: Mapping[int, Trial]) -> list[tuple[Evaluated | Refusal, Reply]]:
        results = _tried([(layouts[number], trial) for number, trial in trials.items()], question, data)
        return [(result, _reply(result, question, of)) for result, of in zip(results, trials.values(), strict=True)]

    return [
        _placed(result, trial.replicas, question, data) if trial and isinstance(result, Evaluated) else result
        for result, trial in counts.fewest_of(len(layouts), question.service.extras.cached, tried)
    ]


def _tried(layouts: Sequence[tuple[Replica, Trial]], question: Question, data: Data) -> list[Evaluated | Refusal]:
    """Evaluate layouts, each as one of the replicas that are tried."""
    loads = Timing(data)
    results: list[Timed | Refusal] = []
    for candidate, trial in layouts:
        layout = counts.placed(candidate, trial)
        entry = timed(layout, loads) if isinstance(layout, Replica) else layout
        results.append(alone(entry, question) if isinstance(entry, Timed) else entry)
    found = iter(evaluate([entry for entry in results if isinstance(entry, Timed)], question))
    return [next(found) if isinstance(entry, Timed) else entry for entry in results]


def _reply(result: Evaluated | Refusal, question: Question, trial: Trial) -> Reply:
    """Return what a trial says: how many replicas suffice then, and how much of the histories those tried keep."""
    if isinstance(result, Refusal):
        return Reply(None, memory=result.reason == "memory")
    if result.replicas > trial.replicas:
        return Reply(result.replicas)
    there = result.at(trial.replicas, question)
    alive = counts.alive(there.replica, question.target, there.point, trial.replicas)
    return Reply(result.replicas, 1.0 if alive is None else alive.kept)


def _placed(found: Evaluated, count: int, question: Question, data: Data) -> Evaluated:
    """Return an answer at the replicas whose caches it was evaluated with, and how to evaluate it at another number."""

    def again(other: int, asked: Question) -> Evaluated | None:
        def tried(trial: Trial) -> tuple[Evaluated | Refusal, Reply]:
            (result,) = _tried([(found.replica, trial)], asked, data)
            return result, _reply(result, asked, trial)

        anew = counts.at_once(other, asked.service.extras.cached, tried)
        return _placed(anew, other, asked, data) if isinstance(anew, Evaluated) else None

    return replace(found.at(count, question), again=again)


def found_with(outcome: Outcome) -> Outcome:
    """Return an outcome whose request says what the replicas of its answer find in their caches."""
    best, request = outcome.best, outcome.question
    if best is None or best.replica.service.extras == request.service.extras:
        return outcome
    return replace(outcome, question=best.asked(request))


def settled(question: Question, once: Callable[[Question], Outcome]) -> Outcome:
    """Return what a search finds; with caution at the error bands of the load that its own answer puts on a replica."""
    found = once(question)
    for _ in range(CAUTIOUS_ROUNDS if question.target.pessimistic else 0):
        if found.best is None:
            break
        load = region(found.best.point.running)
        if load == found.question.target.pessimistic_load:
            break
        found = once(question.with_(pessimistic_load=load))
    return found


def tabulated(
    question: Question, options: Sequence[GpuType], precisions: Sequence[str | None], data: Data
) -> list[Timed | Refusal]:
    """Tabulate the step times of every layout of every GPU type and precision, whatever the demand and the limits."""
    loads = Timing(data)
    return [
        timed(entry, loads) if isinstance(entry, Replica) else entry
        for option in options
        for name in precisions
        for entry in candidates(question.service, option, name, data)
    ]


def bounded(layouts: Sequence[Timed | Refusal], question: Question) -> list[Bounded | Refusal]:
    """Find the most that a replica of each layout serves within the limits, whatever the demand of its kind."""
    entries = [alone(entry, question) if isinstance(entry, Timed) else entry for entry in layouts]
    found = iter(_bounded([entry for entry in entries if isinstance(entry, Timed)], question))
    return [next(found) if isinstance(entry, Timed) else entry for entry in entries]


def chosen(layouts: Sequence[Bounded | Refusal], question: Question) -> Outcome:
    """Size every layout for the demand; best first, each rejected one with its reason."""
    evaluated = iter(_evaluate([entry for entry in layouts if isinstance(entry, Bounded)], question))
    results = [next(evaluated) if isinstance(entry, Bounded) else entry for entry in layouts]
    found = [result for result in results if isinstance(result, Evaluated)]
    rejected = tuple(result for result in results if isinstance(result, Refusal))
    return found_with(Outcome(question, rank(found, question), rejected))
