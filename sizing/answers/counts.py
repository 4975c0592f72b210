"""The number of replicas where it changes the cache hit rate, and the number for a confidence.

With random routing, the hit rate falls as replicas are added, so more replicas are needed than one replica alone suggests.
With affinity routing, each of many replicas has fewer prefixes to hold. The idle conversations that a cache must keep depend
on the load of its replica. The answer is the fewest replicas that suffice with the hit rate at their number. The search
evaluates each trial; this module chooses the trials.

The confident size is the one at which a given share of similar published runs would keep the limits. Each run gives the
error of a prediction: of TTFT, ITL and E2E against the limits, and of throughput against the rate. For each run, the closed
form gives the capacity of a replica with these errors; the loads of a layout are evaluated once for all runs. The margin of a
run is the predicted capacity divided by this capacity. The margin of a confidence covers that share of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from sizing.answers.answer import Answer
from sizing.formats.words import percent
from sizing.model.extras import NOTHING, Cached, Extras
from sizing.question.question import Question
from sizing.replica.capacity import Capacity, bounded, loads_of, points_of
from sizing.replica.points import Array, Point, Points
from sizing.replica.replica import Refusal, Replica, fitting, with_extras
from sizing.replica.timing import Timed, timed
from sizing.specs.bands import USUAL, Alike, PublishedRuns, Sure
from sizing.specs.data import Data
from sizing.specs.demand import ROUNDING_SLACK, replicas_for
from sizing.specs.workload import Target

MOST_REPLICAS = 4096  # the largest number tried for a layout
KEPT_ROUNDS, KEPT_CLOSE = 24, 1e-3  # rounds and precision in the search for the share kept


class Trial(NamedTuple):
    """What to evaluate: a number of replicas, and the share of conversation histories that their caches keep."""

    replicas: int
    kept: float


class Reply(NamedTuple):
    """The result of a trial: the replicas that the demand then needs, and the share of histories that the tried ones keep.

    A rejected layout has no `needed`; `memory` says that it might fit if its cache had less to hold.
    """

    needed: int | None
    kept: float = 0.0
    memory: bool = False


class Alive(NamedTuple):
    """The idle conversations that a replica's cache should keep, and those that fit in addition to live requests."""

    needed: float
    room: float

    @property
    def kept(self) -> float:
        """The share of turns that find their history.

        Exact for exponential think times, where the cache drops ended conversations first.
        """
        return min(1.0, self.room / self.needed) if self.needed > 0 else 1.0


Result = TypeVar("Result")
Trials = Generator[Trial, Reply, Trial | None]


def at(replicas: int, cached: Cached, kept: float = 1.0) -> Generator[Trial, Reply, tuple[Trial, Reply]]:
    """Try `replicas` replicas; find the share of histories that they keep, starting from `kept`."""
    before: float | None = None
    for _ in range(KEPT_ROUNDS if cached.think_time_s is not None else 0):
        trial = Trial(replicas, kept)
        reply = yield trial
        if reply.needed is None or reply.needed > replicas or reply.kept >= kept - KEPT_CLOSE:
            return trial, reply
        limit = _limit(before, kept, reply.kept)
        before, kept = (kept, reply.kept) if limit is None else (None, limit)
    trial = Trial(replicas, 0.0 if cached.think_time_s is not None else 1.0)
    return trial, (yield trial)


def _limit(before: float | None, kept: float, after: float) -> float | None:
    """The limit of a falling share from three values (Aitken's delta-squared); None where they do not converge."""
    if before is None or (kept - after) >= (before - kept):
        return None
    first, second = kept - before, after - kept
    return max(0.0, before - first * first / (second - first))


def fewest(cached: Cached) -> Trials:
    """Find the fewest replicas that suffice. Returns their trial; None where no number suffices.

    The search starts at one replica, and then tries the number that the last trial needed. Where more replicas have a lower
    hit rate, no number in between suffices. Where more replicas have less to keep (`cached.eases`), a bisection between the
    last number that failed and the first that sufficed follows.
    """
    low, count = 0, 1
    while True:
        trial, reply = yield from at(count, cached)
        if reply.needed is not None and reply.needed <= count:
            break
        low = count
        if reply.needed is not None:
            count = reply.needed
        elif cached.eases and count < MOST_REPLICAS and (reply.memory or trial.kept < 1):
            count = min(2 * count, MOST_REPLICAS)
        else:
            return None
    while cached.eases and count - low > 1:
        middle = (low + count) // 2
        other, reply = yield from at(middle, cached, trial.kept)  # more replicas keep at least as much
        if reply.needed is not None and reply.needed <= middle:
            count, trial = middle, other
        else:
            low = middle
    return trial


def fewest_of(
    layouts: int, cached: Cached, tried: Callable[[Mapping[int, Trial]], Sequence[tuple[Result, Reply]]]
) -> list[tuple[Result, Trial | None]]:
    """Find the fewest replicas for each of `layouts` layouts. `tried` evaluates the next trials of all layouts together.

    For each layout, returns the result and trial that sufficed; where none did, the last result and None.
    """
    searches = [fewest(cached) for _ in range(layouts)]
    trials = {number: next(each) for number, each in enumerate(searches)}
    seen: dict[tuple[int, Trial], Result] = {}
    done: dict[int, tuple[Result, Trial | None]] = {}
    while trials:
        for (number, trial), (result, reply) in zip(list(trials.items()), tried(trials), strict=True):
            seen[number, trial] = result
            try:
                trials[number] = searches[number].send(reply)
            except StopIteration as stop:
                del trials[number]
                done[number] = (result, None) if stop.value is None else (seen[number, stop.value], stop.value)
    return [done[number] for number in range(layouts)]


def at_once(replicas: int, cached: Cached, tried: Callable[[Trial], tuple[Result, Reply]]) -> Result:
    """The result for `replicas` replicas at the share of histories that they keep."""
    trials = at(replicas, cached)
    trial = next(trials)
    while True:
        result, reply = tried(trial)
        try:
            trial = trials.send(reply)
        except StopIteration:
            return result


def placed(replica: Replica, trial: Trial) -> Replica | Refusal:
    """A layout as one of the trial's replicas, with the hit rate of each attention-data rank.

    Its cache memory excludes the shared prefixes.
    """
    return fitting(with_extras(replica, with_found(replica, trial)))


def with_found(replica: Replica, trial: Trial) -> Extras:
    """The extras of `replica` under `trial`."""
    return replica.service.extras.over(trial.replicas * replica.layout.dp, trial.kept)


def alive(replica: Replica, target: Target, point: Point, replicas: int) -> Alive | None:
    """The idle conversations that each of `replicas` replicas should keep; None without a think time.

    Their number is the number of turns within a think time: at this replica, or at all replicas where any replica may get
    the next turn. The room is counted in whole conversations of mean length, in the memory that live requests leave.
    """
    cached = replica.service.extras.cached
    if cached.think_time_s is None or cached.conversation is None:
        return None
    per_s = point.requests_per_s if target.requests_per_s is None else target.requests_per_s / replicas
    needed = per_s * cached.think_time_s * (1 if cached.affinity else replicas * replica.layout.dp)
    fits = replica.memory_at(math.ceil(cached.conversation.mean_isl + cached.conversation.osl)).max_concurrency
    return Alive(needed, max(0.0, fits - point.running))


def keeping(replica: Replica, target: Target, replicas: int, data: Data) -> Extras:
    """The extras of `replica` with the hit rate of `replicas` replicas under a demand.

    Raises UntimedError where the data cannot time the layout.
    """

    def tried(trial: Trial) -> tuple[Extras, Reply]:
        layout = placed(replica, trial)
        if isinstance(layout, Refusal):
            return with_found(replica, trial), Reply(None)
        load = timed(layout, data)
        most = Capacity(0.0, 0.0, load.most_decoding, "")
        (point,) = points_of([load], [target], [most], [replicas])
        idle = alive(layout, target, point, replicas)
        return layout.service.extras, Reply(replicas, 1.0 if idle is None else idle.kept)

    return at_once(replicas, replica.service.extras.cached, tried)


NONE_ALIKE = "no published runs like this"
OWN_RUNS = "too few own runs; their error band says how far off a prediction may be"
MOST_MARGIN = 10.0  # beyond it, the limit is so near to a lone request's latency that more GPUs do not help


class Margins(NamedTuple):
    """The margins of published runs in ascending order, the share of runs up to each, and the number of groups."""

    groups: int
    of_runs: Array
    share: Array
    own: bool = False

    def of(self, confidence: float) -> float:
        """The margin, at least 1, with which the share `confidence` of runs keeps the limits; infinite above `MOST_MARGIN`."""
        place = min(int(np.searchsorted(self.share, confidence - ROUNDING_SLACK)), self.of_runs.size - 1)
        margin = max(1.0, float(self.of_runs[place]))
        return margin if margin <= MOST_MARGIN else math.inf


def sure(answers: Sequence[tuple[Answer, Question]], runs: PublishedRuns | None) -> list[Sure]:
    """The confident sizes of the layouts of answers, and the confidence of each answer's own number of GPUs (`chance`)."""
    known = {
        number: (answer.pool.load, question)
        for number, (answer, question) in enumerate(answers)
        if question.target.amount is not None and not answer.separate
    }
    found = dict(zip(known, margins(list(known.values()), runs), strict=True))
    return [_sure(*each, found.get(number)) for number, each in enumerate(answers)]


def _sure(answer: Answer, question: Question, found: Margins | str | None) -> Sure:
    asked, demand = question.target.confidence, question.target.amount
    confidence = USUAL if asked is None else asked.share
    if demand is None:
        return Sure(None, confidence, 0, None, "no demand to size for")
    if found is None:
        return Sure(None, confidence, 0, None, "no published runs of separate pools")
    if isinstance(found, str):
        return Sure(None, confidence, 0, None, found)
    pool = answer.pool
    demand *= 1 + question.rules.headroom
    most = pool.capacity.amount
    kept = demand * found.of_runs <= most * pool.count * (1 + ROUNDING_SLACK)
    chance, margin = float(found.share[kept].max(initial=0.0)), found.of(confidence)
    if math.isinf(margin):
        missing = f"over {percent(1 - confidence)} of them miss {asked_of(question)}"
        why = f"{missing} even with {MOST_MARGIN:g} times as many"
        return Sure(None, confidence, found.groups, chance, why, found.own)
    count = max(pool.count, replicas_for(demand * margin, most))
    return Sure(count * pool.replica.layout.gpus, confidence, found.groups, chance, own=found.own)


def asked_of(question: Question) -> str:
    """Write what the runs must keep: the limits, or the demand where there are no limits."""
    return "the limits" if bounded(question.target.limits) else "the demand"


def margins(asked: Sequence[tuple[Timed, Question]], runs: PublishedRuns | None) -> list[Margins | str]:
    """For each layout and its question the margins of published runs, or why they are unknown.

    Layouts whose questions differ only in the amount of the demand are evaluated in one batch.
    """
    found: list[Margins | str] = []
    alike: dict[Target, list[tuple[int, Alike]]] = {}
    for number, (load, question) in enumerate(asked):
        of_class = _alike(load, question, runs)
        found.append(of_class if isinstance(of_class, str) else "")
        if not isinstance(of_class, str):
            alike.setdefault(question.target.unsized, []).append((number, of_class))
    for target, entries in alike.items():
        loads = loads_of([asked[number][0] for number, _ in entries], target)
        for (number, of_class), (served, points) in zip(entries, loads, strict=True):
            found[number] = _margins(of_class, target, served, points)
    return found


def _margins(found: Alike, target: Target, served: Array, points: Points) -> Margins:
    by_runs, predicted = np.full(len(found.weights), served[-1]), float(served[-1])
    for name, limit in bounded(target.limits).items() if not target.offline else ():
        seconds = np.maximum.accumulate(getattr(points, f"{name}_s")[limit.statistic])
        of_limit, as_predicted = (
            np.interp(limit.seconds / times, seconds, served, left=0.0) for times in (found.of(name), 1.0)
        )
        by_runs, predicted = np.minimum(by_runs, of_limit), min(predicted, float(as_predicted))
    predicted = max(predicted, float(served[0]))
    if target.population is not None:
        in_flight = np.maximum.accumulate(points.running)  # at each load, whatever the E2E of a run
        thinking = by_runs * target.think_time_s / found.of("throughput")
        by_runs = np.interp(by_runs, served, in_flight, left=0.0) + thinking
        predicted = float(np.interp(predicted, served, in_flight)) + predicted * target.think_time_s
    elif target.concurrency is None:
        by_runs = by_runs / found.of("throughput")
    with np.errstate(divide="ignore"):
        asked = np.where(by_runs > 0, predicted / by_runs, np.inf)
    order = np.argsort(asked)
    share = np.cumsum(found.weights[order]) / found.weights.sum()
    return Margins(found.groups, asked[order], share, found.own)


def _alike(load: Timed, question: Question, runs: PublishedRuns | None) -> Alike | str:
    """The published runs similar to a layout, or why there are none."""
    if question.service.model.pooled:
        return "no published runs of models that do not generate"
    if question.service.extras != NOTHING:
        return "no published runs with these optimisations"
    situation = question.service.situation(load.replica.gpu_type.gpu)
    found = None if runs is None else runs.like(situation, question.target.decisive)
    return found or (OWN_RUNS if situation.own else NONE_ALIKE)
