"""How many replicas a demand takes where what each of them finds in its cache depends on how many there are.

A router that picks at random finds less the more replicas there are, so more of them are needed than one alone would say; one
that keeps what begins alike together leaves each the less to hold the more there are; and the idle conversations that a cache
must keep are those of a replica's own load. The answer is the fewest replicas that suffice with what so many find. Each trial
is an evaluation by the search; this module says which ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from sizing.model import memory
from sizing.model.extras import Cached, Extras
from sizing.question.question import Data, Question
from sizing.replica.batching import Point, decoding_limit
from sizing.replica.capacity import Capacity, Timing
from sizing.replica.replica import Refusal, Replica, held

MOST_REPLICAS = 4096  # tried for a layout that so many did not help
KEPT_ROUNDS, KEPT_CLOSE = 24, 1e-3  # of a share that falls as what is found less slows replicas down


class Trial(NamedTuple):
    """What to evaluate: so many replicas, whose caches keep a share of the histories that turns come back to."""

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
    """Try so many replicas, with as much of the histories as they then keep, at most `kept`."""
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
    """Return where a falling share heads for by three of its values (Aitken's delta-squared); None where they do not tell."""
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
    """Find the fewest replicas for each of so many layouts, whose next trials are `tried` together, by number.

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
    """Return the result of so many replicas, with as much of the histories as they then keep."""
    trials = at(replicas, cached)
    trial = next(trials)
    while True:
        result, reply = tried(trial)
        try:
            trial = trials.send(reply)
        except StopIteration:
            return result


def placed(replica: Replica, question: Question, trial: Trial) -> tuple[Question, Replica | Refusal]:
    """Return a layout as one of so many replicas, with the memory left there; and the request with what is found there."""
    there = question.with_(extras=extras_at(replica, question, trial))
    return there, held(replace(replica, memory=_use(replica, there, question.service.max_model_len)), there)


def extras_at(replica: Replica, question: Question, trial: Trial) -> Extras:
    """Return what runs beside the model where caches are those of so many replicas, one of each attention-data rank."""
    found = question.service.extras.over(trial.replicas * replica.layout.dp, trial.kept)
    return found.on(replica.layout.dp, replica.settings.block_tokens)


def alive(replica: Replica, question: Question, point: Point, replicas: int) -> Alive | None:
    """Return the idle conversations that each of so many replicas should keep, None where no think time is stated.

    So many as turns come in a think time: to this replica, or where any may get the next turn, to all of them. The room is
    that of whole conversations of a mean length, in what live requests leave; `request` says what is found.
    """
    cached = question.service.extras.cached
    if cached.think_time_s is None or cached.talk is None:
        return None
    per_s = float(point.requests_per_s[0])
    if question.target.requests_per_s is not None:
        per_s = question.target.requests_per_s / replicas
    needed = per_s * cached.think_time_s * (1 if cached.affinity else replicas * replica.layout.dp)
    fits = _use(replica, question, math.ceil(cached.talk.mean_isl + cached.talk.osl)).max_concurrency
    return Alive(needed, max(0.0, fits - float(point.running[0])))


def keeping(replica: Replica, question: Question, replicas: int, data: Data) -> Question:
    """Return a request with what so many replicas find under its demand. Raises UntimedError without times to go by."""

    def tried(trial: Trial) -> tuple[Question, Reply]:
        there, layout = placed(replica, question, trial)
        if isinstance(layout, Refusal):
            return there, Reply(None)
        load = Timing(there, data).of(layout)
        most = Capacity(0.0, 0.0, decoding_limit(load.service, load.slots), "")
        idle = alive(layout, there, load.at(there, most, replicas), replicas)
        return there, Reply(replicas, 1.0 if idle is None else idle.kept)

    return at_once(replicas, question.service.extras.cached, tried)


def _use(replica: Replica, question: Question, tokens: int) -> memory.MemoryUse:
    return memory.use(
        question.service.model,
        replica.gpu_type.gpu,
        replica.layout,
        replica.plan,
        replica.settings,
        max_model_len=tokens,
        cuda_graphs_gib=question.service.serving.cuda_graphs_gib,
        extras=question.service.extras,
    )
