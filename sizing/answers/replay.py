"""Size for a trace: its busiest minute is the demand, and the answer is the best size that keeps the limits in its replay.

The closed form and its check assume Poisson arrivals at the mean rate of the minute. The replay uses the recorded arrivals
and lengths. It starts some minutes earlier, so that queues and caches are realistic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.answers import advice
from sizing.answers.answer import Answer, Outcome, Pool, Relaxation, Suggestion, objective_value, preference
from sizing.answers.confidence import SizeAtOdds, Unknown, margins, odds_of
from sizing.answers.search import replicas, with_count
from sizing.answers.verify import worst_ratio
from sizing.catalog.files import expanded
from sizing.catalog.traces import load_trace
from sizing.engine.deployment import deployment_of
from sizing.engine.requests import Lengths, Planned
from sizing.engine.simulation import Traffic, simulate
from sizing.question.options import Options
from sizing.question.question import Question
from sizing.replica.capacity import Capacity
from sizing.specs.bisection import smallest
from sizing.specs.demand import Demand, replicas_for
from sizing.specs.errors import InputError
from sizing.specs.frozen import Frozen
from sizing.specs.units import MILLI
from sizing.specs.workload import Metric, Tokens, Workload, limit_name

MINUTE_S = 60.0
# Replayed before and after the minute: longer than most answers take, so that the load is steady.
BEFORE_S, AFTER_S = 180.0, 60.0
MOST_REPLAYS = 12  # the most sizes of a layout to replay until one keeps the limits, each larger than the last
MOST_AT_ONCE = 2.0  # the largest growth after a replay: waits under overload say little about the missing capacity
SEED = 0
QUEUE = "utilisation"  # what binds where a size without a latency beyond its limit does not hold


class BusiestMinute(Frozen):
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

    def as_workload(self, workload: Workload) -> Workload:
        """A workload with the rate and the mean lengths of the minute, and the longest sequence of the trace."""
        isl, osl, longest = self.lengths().values()
        tokens = Tokens(isl=isl, osl=osl, isl_max=longest - osl)
        return workload.model_copy(update={"demand": Demand(requests_per_s=self.per_s), "tokens": tokens})

    def as_demand(self, options: Options, max_model_len: int | None = None) -> Options:
        """Options with the rate and lengths of the minute; the longest sequence is that of the options, else `max_model_len` if stated."""
        tokens = self.lengths()
        longest = options.fields.get("serving.max_model_len") or max_model_len or tokens["max_model_len"]
        del tokens["max_model_len"]
        own = {"demand": {"requests_per_s": self.per_s}, "tokens": tokens, "serving.max_model_len": longest}
        flags = dict.fromkeys(("demand", "tokens", *(f"tokens.{name}" for name in tokens)), "--trace")
        return options._replace(fields={**options.fields, **own}, flags={**options.flags, **flags})

    def traffic(self, longest: int | None = None) -> Traffic:
        """The traffic to replay: the minute, with unmeasured requests before and after it. More tokens than `longest` are refused."""
        arrival = self.rows[:, 0]
        end_s = self.start_s + self.seconds
        first, last = np.searchsorted(arrival, (self.start_s - BEFORE_S, end_s + AFTER_S))
        rows = self.rows[first:last].copy()
        rows[:, 0] -= rows[0, 0]
        plan = Planned.of_rows(rows)
        sent = Traffic(Lengths(1.0), Lengths(1.0), len(rows), trace=plan, seed=SEED, longest=longest)
        return replace(sent, warm_up=int(self.start - first), cool_down=int(last - self.end))


def minute_of(trace: str) -> BusiestMinute:
    """The busiest minute of the trace in a file. Raises InputError for a faulty file."""
    return busiest_minute(trace, load_trace(expanded(trace)))


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


class _Fewest(NamedTuple):
    """The fewest replicas of a layout that keep the limits in the replay, and a smaller size that does not, where one was replayed.

    `kept` is None where no size tried keeps the limits; with headroom or a margin, it is larger by these. Each size has its
    replay as the run.
    """

    kept: Answer | None
    refuted: Answer | None


def replayed(outcome: Outcome, minute: BusiestMinute) -> Outcome:
    """The outcome with the best size that keeps the limits in the replay, and its replay as the run.

    Each layout starts at its size for random arrivals, and grows to the fewest replicas that keep the limits in the replay. The
    best layout of each GPU type and precision is sized, and each other layout that may cost less. Layouts that were not sized
    are no alternatives. Where no size tried keeps the limits, the last one is returned with `passed` False. Of separate pools,
    which are not replayed, the outcome from one pool is.
    """
    outcome = outcome.one_pool or outcome
    first, question = outcome.best, outcome.question
    if first is None or not outcome.simulation.passed:
        return outcome
    traffic = minute.traffic(question.service.max_model_len)
    objective, firsts = question.rules.objective, outcome.best_of_each()
    others = [each for each in outcome.answers if each.pool.replica.layout.pp <= first.pool.replica.layout.pp]
    sized: list[_Fewest] = []
    least = math.inf
    for answer in (*firsts, *(each for each in others if each not in firsts)):
        below = math.inf if answer in firsts else least
        if objective_value(answer, objective) >= below:
            continue
        each = _fewest(answer, question, traffic, below)
        sized.append(each)
        least = least if each.kept is None else min(least, objective_value(each.kept, objective))
    kept = sorted((each for each in sized if each.kept), key=lambda each: preference(each.kept or first, question))
    if not kept:
        return _replaced(outcome, (sized[0].refuted or first,), None, passed=False)
    return _with(outcome, tuple(each.kept for each in kept if each.kept), _relaxation(kept[0], question))


def _fewest(answer: Answer, question: Question, traffic: Traffic, below: float) -> _Fewest:
    """The fewest replicas of a layout that keep the limits and spend less than `below`.

    They are at least those that the layout needs for random arrivals, without headroom and margin.
    """
    objective = question.rules.objective
    start = replicas_for(question.target.amount or 0.0, answer.pool.capacity.amount)
    tried: dict[int, Answer] = {}

    def ratio_at(count: int) -> float:
        tried[count] = replayed_at(answer.pool, count, question, traffic)
        run = tried[count].run
        assert run is not None
        return worst_ratio(run, question.target.limits, steady=False)

    def is_less(count: int) -> bool:
        return objective_value(Answer((replace(answer.pool, count=count),)), objective) < below

    low, high, count = start - 1, None, start
    while high is None and len(tried) < MOST_REPLAYS:
        over = ratio_at(count)
        if over <= 1:
            high = count
            break
        low, more = count, max(count + 1, math.ceil(count * min(over, MOST_AT_ONCE)))
        count = next((size for size in range(more, low, -1) if is_less(size)), low)
        if count == low:
            break
    if high is not None:
        high = smallest(lambda count: ratio_at(count) <= 1, low, high)
    refuted = tried.get(low if high is None else high - 1)
    if high is None:
        return _Fewest(None, refuted)
    most = answer.pool.capacity if refuted is None else _capacity(tried[high].pool, refuted, question)
    pool = replace(answer.pool, capacity=most)
    wanted = max(high, replicas(question, pool.replica, most, pool.margin))
    if wanted not in tried:
        ratio_at(wanted)
    (held,) = tried[wanted].pools
    return _Fewest(replace(tried[wanted], pools=(replace(held, capacity=most),)), refuted)


def replayed_at(pool: Pool, count: int, question: Question, traffic: Traffic) -> Answer:
    """`count` replicas of a pool, with the replay of `traffic` as the run."""
    sized = pool if count == pool.count else with_count(pool, count, question)
    return Answer((sized,), run=simulate(deployment_of(sized.timed, count), traffic))


def _capacity(pool: Pool, refuted: Answer, question: Question) -> Capacity:
    """The capacity of a replica that a replay shows: between the loads of the sizes that keep and that miss the limits."""
    load = (question.target.amount or 0.0) / math.sqrt(pool.count * refuted.pool.count)
    most, missed = pool.capacity, _missed(refuted, question)
    if most.amount <= load:
        return most
    return replace(most.times(load / most.amount), binding=max(missed, key=missed.__getitem__, default=QUEUE))


def _missed(refuted: Answer, question: Question) -> dict[Metric, float]:
    """The latencies beyond their limits in the replay of a size, each divided by its limit."""
    assert refuted.run is not None
    ratios = question.target.limits.used(refuted.run.latencies_s.__getitem__)
    return {name: ratio for name, ratio in ratios.items() if ratio > 1}


def _relaxation(fewest: _Fewest, question: Question) -> Relaxation | None:
    """The limit with which one replica less keeps all limits in its replay; None where it misses two, or one by far."""
    if fewest.kept is None or fewest.refuted is None or fewest.refuted.run is None or fewest.refuted.run.refused:
        return None
    if fewest.kept.pool.count != fewest.refuted.pool.count + 1:  # headroom or a margin has raised the size
        return None
    missed = _missed(fewest.refuted, question)
    if len(missed) != 1 or min(missed.values()) > advice.ADVICE.most_relaxed:
        return None
    ((name, ratio),) = missed.items()
    seconds = advice.rounded_up_readably(question.target.limits.stated[name].seconds * ratio)
    return Relaxation(name, seconds, fewest.refuted.gpus, fewest.refuted.pool.replica.gpu_type.name)


def _within_budget(relaxation: Relaxation | None, size: Answer, question: Question) -> Iterator[Suggestion]:
    """Yield the looser limit with which the layout of `size` keeps the budget, if it does."""
    if relaxation is not None and relaxation.gpus <= (question.rules.gpu_budget or 0):
        name, single = relaxation.limit, question.service.single_result
        called = limit_name(name, getattr(question.target.limits, name).statistic, single=single)
        change = f"{called} {relaxation.seconds / MILLI:,.0f} ms"
        yield Suggestion.of(change, size)._replace(gpus=relaxation.gpus, looser=True)


def _with(outcome: Outcome, answers: tuple[Answer, ...], relaxation: Relaxation | None) -> Outcome:
    """The outcome with answers from the replay, a looser limit or budget, and what published runs say of the first answer."""
    size, question = answers[0], outcome.question
    found = _replaced(outcome, answers, relaxation, passed=True)
    if found.answer is None:
        larger = Suggestion.of(advice.LARGER_BUDGET, size)
        looser = _within_budget(relaxation, size, question)
        return replace(found, hints=found.hints._replace(suggestions=(*looser, larger)))
    if outcome.by_runs.odds is None:
        return found
    sure_answer = surely(size, question)
    (odds,) = odds_of([SizeAtOdds(size, question, sure_answer)])
    return replace(found, by_runs=found.by_runs._replace(sure_answer=sure_answer, odds=odds))


def _replaced(outcome: Outcome, answers: tuple[Answer, ...], relaxation: Relaxation | None, *, passed: bool) -> Outcome:
    """The outcome with answers from the replay, without what was found for random arrivals."""
    return replace(
        outcome,
        answers=answers,
        simulation=outcome.simulation._replace(passed=passed),
        by_runs=outcome.by_runs._replace(predicted=None, sure_answer=None, cheaper_when_sure=None),
        hints=outcome.hints._replace(relaxation=relaxation, next_limit=None, in_fp8=None),
    )


def surely(size: Answer, question: Question) -> Answer | None:
    """The replicas of a layout whose capacity is enough for the margin of published runs; None where the margin is not known."""
    (known,) = margins([(size.pool.timed, question)])
    if isinstance(known, Unknown) or math.isinf(margin := known.of(SizeAtOdds(size, question).confidence)):
        return None
    wanted = (question.target.amount or 0.0) * (1 + question.rules.headroom) * margin
    count = max(size.pool.count, replicas_for(wanted, size.pool.capacity.amount))
    return size if count == size.pool.count else Answer((with_count(size.pool, count, question),))
