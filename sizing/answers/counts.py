"""How many replicas a demand takes: where their number changes what each finds in its cache, and where a size is to be sure.

A router that picks at random finds less the more replicas there are, so more of them are needed than one alone would say; one
that keeps what begins alike together leaves each the less to hold the more there are; and the idle conversations that a cache
must keep are those of a replica's own load. The answer is the fewest replicas that suffice with what so many find. Each trial
is an evaluation by the search; this module says which ones.

A size is sure to do where a share of the published runs like the question would keep its limits. Every run says how far off a
prediction may be: its TTFT, ITL and E2E against the limits, its throughput against the rate. With each of them the closed form
says anew how much a replica serves; the loads of one layout are evaluated once for all runs. What it is predicted to serve,
over what it serves by a run, is the margin that the run asks for; the margin of a confidence is that of so large a share of the
runs.
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
from sizing.replica.points import Array, Point
from sizing.replica.replica import Refusal, Replica, fitting, with_extras
from sizing.replica.timing import Timed, timed
from sizing.specs.bands import USUAL, Alike, PublishedRuns, Sure
from sizing.specs.data import Data
from sizing.specs.demand import ROUNDING_SLACK, replicas_for
from sizing.specs.workload import Target

MOST_REPLICAS = 4096  # tried for a layout that so many did not help
KEPT_ROUNDS, KEPT_CLOSE = 24, 1e-3  # of a share that falls as what is found less slows replicas down


class Trial(NamedTuple):
    """What to evaluate: a number of replicas, and the share of histories that their caches keep."""

    replicas: int
    kept: float


class Reply(NamedTuple):
    """What a trial came to: the replicas that the demand takes then, and the share of histories that those tried keep.

    Of a layout that is turned down both are missing; `memory` says that a cache with less to hold might do.
    """

    needed: int | None
    kept: float = 0.0
    memory: bool = False


class Alive(NamedTuple):
    """Idle conversations that a replica's cache should keep between turns, and those it has room for beside live requests."""

    needed: float
    room: float

    @property
    def kept(self) -> float:
        """The share of turns that find their history: exact for think times without memory, where ended talks go first."""
        return min(1.0, self.room / self.needed) if self.needed > 0 else 1.0


Result = TypeVar("Result")
Trials = Generator[Trial, Reply, Trial | None]


def at(replicas: int, cached: Cached, kept: float = 1.0) -> Generator[Trial, Reply, tuple[Trial, Reply]]:
    """Try `replicas` replicas with the share of the histories that they keep, at most `kept`."""
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
    """The limit of a falling share by three values (Aitken's delta-squared), or None where they do not converge."""
    if before is None or (kept - after) >= (before - kept):
        return None
    first, second = kept - before, after - kept
    return max(0.0, before - first * first / (second - first))


def fewest(cached: Cached) -> Trials:
    """Find the fewest replicas that suffice; returns the trial that did, None where none does.

    From one upwards, each time to as many as the last trial asked for: where more replicas find less, none in between
    suffices. Where they have less to keep, the fewest lie between the last that did not and the first that did.
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
        other, reply = yield from at(middle, cached, trial.kept)  # of more replicas, none of which keeps less
        if reply.needed is not None and reply.needed <= middle:
            count, trial = middle, other
        else:
            low = middle
    return trial


def fewest_of(
    layouts: int, cached: Cached, tried: Callable[[Mapping[int, Trial]], Sequence[tuple[Result, Reply]]]
) -> list[tuple[Result, Trial | None]]:
    """Find the fewest replicas for each of `layouts` layouts. `tried` evaluates their next trials together, by number.

    Returns the result of the trial that sufficed, or the last one and None where none did.
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
    """The result for `replicas` replicas, with the share of histories that they keep."""
    trials = at(replicas, cached)
    trial = next(trials)
    while True:
        result, reply = tried(trial)
        try:
            trial = trials.send(reply)
        except StopIteration:
            return result


def placed(replica: Replica, trial: Trial) -> Replica | Refusal:
    """A layout as one of the trial's replicas, with what is found in the cache of each attention-data rank.

    Its memory is the rest that prefixes leave.
    """
    return fitting(with_extras(replica, with_found(replica, trial)))


def with_found(replica: Replica, trial: Trial) -> Extras:
    """The extras of `replica` under `trial`."""
    return replica.service.extras.over(trial.replicas * replica.layout.dp, trial.kept)


def alive(replica: Replica, target: Target, point: Point, replicas: int) -> Alive | None:
    """Idle conversations that each of `replicas` replicas should keep, or None without a think time.

    The number equals the turns that come within a think time: to this replica, or to all replicas where any of them may
    get the next turn. The room is that of whole conversations of mean length, in the memory that live requests leave.
    """
    cached = replica.service.extras.cached
    if cached.think_time_s is None or cached.conversation is None:
        return None
    per_s = point.requests_per_s if target.requests_per_s is None else target.requests_per_s / replicas
    needed = per_s * cached.think_time_s * (1 if cached.affinity else replicas * replica.layout.dp)
    fits = replica.memory_at(math.ceil(cached.conversation.mean_isl + cached.conversation.osl)).max_concurrency
    return Alive(needed, max(0.0, fits - point.running))


def keeping(replica: Replica, target: Target, replicas: int, data: Data) -> Extras:
    """The extras of `replica` with what `replicas` replicas find under a demand. Raises UntimedError without times."""

    def tried(trial: Trial) -> tuple[Extras, Reply]:
        layout = placed(replica, trial)
        if isinstance(layout, Refusal):
            return with_found(replica, trial), Reply(None)
        load = timed(layout, data)
        most = Capacity(0.0, 0.0, load.most_decoding, "")
        (point,) = points_of([load], target, [most], [replicas])
        idle = alive(layout, target, point, replicas)
        return layout.service.extras, Reply(replicas, 1.0 if idle is None else idle.kept)

    return at_once(replicas, replica.service.extras.cached, tried)


NONE_ALIKE = "no published runs like this"
OWN_RUNS = "too few own runs; their error band says how far off a prediction may be"
MOST_MARGIN = 10.0  # beyond it a limit is so near to what a lone request takes that GPUs do not help


class Margins(NamedTuple):
    """The margins that published runs ask for, ascending, and the share of the runs up to each; of so many groups."""

    groups: int
    of_runs: Array
    share: Array
    own: bool = False

    def of(self, confidence: float) -> float:
        """The margin with which a share of the runs keeps the limits, at least 1; infinite where no sensible one does."""
        place = min(int(np.searchsorted(self.share, confidence - ROUNDING_SLACK)), self.of_runs.size - 1)
        margin = max(1.0, float(self.of_runs[place]))
        return margin if margin <= MOST_MARGIN else math.inf


def sure(answer: Answer, question: Question, runs: PublishedRuns | None) -> Sure:
    """The GPUs of an answer's layout that are sure to do, and the chance that the answer's own do."""
    asked, target = question.target.confidence, question.target
    confidence = USUAL if asked is None else asked.share
    demand = target.amount
    if demand is None:
        return Sure(None, confidence, 0, None, "no demand to size for")
    if answer.separate:
        return Sure(None, confidence, 0, None, "no published runs of separate pools")
    pool = answer.pool
    found = margins(pool.load, question, runs)
    if isinstance(found, str):
        return Sure(None, confidence, 0, None, found)
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
    """Write what runs are to keep: the limits; without any the demand."""
    return "the limits" if bounded(question.target.limits) else "the demand"


def margins(load: Timed, question: Question, runs: PublishedRuns | None) -> Margins | str:
    """The margins that published runs ask of a layout, or why nothing is known of it."""
    found = _alike(load, question, runs)
    if isinstance(found, str):
        return found
    target = question.target
    served, points = loads_of(load, target)
    by_runs, predicted = np.full(len(found.weights), served[-1]), float(served[-1])
    for name, limit in bounded(target.limits).items() if not target.offline else ():
        seconds = np.maximum.accumulate(getattr(points, f"{name}_s")[limit.statistic])
        of_limit, as_predicted = (
            np.interp(limit.seconds / times, seconds, served, left=0.0) for times in (found.of(name), 1.0)
        )
        by_runs, predicted = np.minimum(by_runs, of_limit), min(predicted, float(as_predicted))
    predicted = max(predicted, float(served[0]))
    if target.population is not None:
        in_flight = np.maximum.accumulate(points.running)  # at a load, however long a run takes for it
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
    """The published runs like a layout, or why there are none."""
    if question.service.model.pooled:
        return "no published runs of models that do not generate"
    if question.service.extras != NOTHING:
        return "no published runs with these optimisations"
    situation = question.service.situation(load.replica.gpu_type.gpu)
    found = None if runs is None else runs.like(situation, question.target.decisive)
    return found or (OWN_RUNS if situation.own else NONE_ALIKE)
