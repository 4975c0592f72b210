"""Drives a load through one replica, or through several behind a router, until all requests end or a limit is reached.

Also records what a run leaves besides its requests: a replica's state over time, slots left empty, and progress.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from sizing.engine.batch import Piece
from sizing.engine.requests import Requests, Watch
from sizing.engine.scheduler import Scheduler
from sizing.specs.frozen import Frozen

MOST_SAMPLES = 1024  # number at which every second sample is dropped; more than a picture's columns
STEPS_BETWEEN_NEWS = 256


class Sample(NamedTuple):
    """The state of a replica at the end of a step: requests running and queued, share of the cache held."""

    time: float
    running: int
    queued: int
    cache: float


@dataclass(slots=True)
class Meter:
    """Counts ended requests: the number sent less the number in flight."""

    replicas: Sequence[Scheduler]
    progress: Callable[[int], None]
    sent: int = 0
    ended: int = 0

    def sending(self, number: int) -> None:
        """Note that `number` requests have been sent."""
        self.sent = max(self.sent, number)
        self.tell()

    def tell(self) -> None:
        """Report the number of ended requests. It never falls, although `sent` grows in jumps."""
        ended = self.sent - sum(replica.in_flight for replica in self.replicas)
        self.ended = max(self.ended, ended)
        self.progress(self.ended)


@dataclass(slots=True)
class Record:
    """Observes one replica: the time in which requests waited, the requests running during it, and samples."""

    replica: Scheduler
    meter: Meter | None = None
    waited: float = 0.0
    run_while_waiting: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    steps: int = 0
    stride: int = 1

    def __call__(self, start: float, end: float, pieces: Sequence[Piece], decoding: int) -> None:
        """Record a step, or a stretch of steps."""
        replica = self.replica
        if replica.queue:
            self.waited += end - start
            self.run_while_waiting += (end - start) * replica.running
        if not self.steps % self.stride:
            self._sample(end)
        self.steps += 1
        if self.meter is not None and not self.steps % STEPS_BETWEEN_NEWS:
            self.meter.tell()

    def _sample(self, now: float) -> None:
        replica = self.replica
        size = replica.pool.size_bytes
        held = replica.pool.held_bytes / size if size > 0 else 0.0
        self.samples.append(Sample(now, replica.running, len(replica.queue), held))
        if len(self.samples) == MOST_SAMPLES:
            del self.samples[1::2]
            self.stride *= 2

    def wasted(self, ended: float) -> float:
        """Share of slot time that was empty while requests waited.

        The number of slots is the most that were in use at once.
        """
        slots = self.replica.watch.batch_max
        if not slots or ended <= 0:
            return 0.0
        return max(0.0, slots * self.waited - self.run_while_waiting) / (slots * ended)


Routing = Literal["random", "round-robin", "least-requests", "power-of-two"]
ROUTINGS: tuple[Routing, ...] = ("random", "round-robin", "least-requests", "power-of-two")
Progress = Callable[[int], None]


class History(Frozen):
    """A finished run: the requests, the replicas, and the time when it ended.

    `watches` are the integrals of each replica, over the whole run or over its watched part. If a router chose replicas,
    `placed` has the replica number of each request.
    """

    requests: Requests
    replicas: tuple[Scheduler, ...]
    ended: float
    watches: tuple[Watch, ...]
    placed: Sequence[int] = ()

    @property
    def refused(self) -> list[int]:
        """The numbers of the requests that replicas refused."""
        return [number for replica in self.replicas for number in replica.refused]


def open_loop(
    requests: Requests,
    replicas: Sequence[Scheduler],
    *,
    routing: Routing = "random",
    seed: int = 0,
    limit: float = math.inf,
    watched: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> History:
    """Drive requests with known, ascending arrival times until all have ended or a limit is reached.

    `watched` restricts the integrals to the time between the arrivals of two requests.
    """
    rng = np.random.default_rng(seed)
    placed = array("H")  # 16 bits are enough for replica numbers
    watches: tuple[Watch, ...] = ()
    for number, arrival in enumerate(requests.arrival):
        if arrival >= limit:
            break
        if watched is not None and number in watched:
            seen = _watch_anew(replicas, arrival)
            watches = seen if number == watched[1] else ()  # the first reset drops the warm-up
        if routing in ("least-requests", "power-of-two"):
            for replica in replicas:
                _advance(replica, arrival)
        placed.append(_route(replicas, routing, number, rng))
        chosen = replicas[placed[-1]]
        _advance(chosen, arrival)
        chosen.submit(number)
        if progress is not None and number % 1024 == 0:
            progress(number)
    for replica in replicas:
        _advance(replica, limit)
    ended, watches = max(replica.now for replica in replicas), watches or tuple(replica.watch for replica in replicas)
    return History(requests, tuple(replicas), ended, watches, placed)


def _watch_anew(replicas: Sequence[Scheduler], now: float) -> tuple[Watch, ...]:
    """Advance the replicas to `now`, reset their integrals, and return the old ones."""
    for replica in replicas:
        _advance(replica, now)
    watches = tuple(replica.watch for replica in replicas)
    for replica in replicas:
        replica.watch.until = replica.now
        replica.watch = Watch(since=replica.now, queue_max=len(replica.queue), batch_max=replica.running)
    return watches


def _route(replicas: Sequence[Scheduler], routing: Routing, number: int, rng: np.random.Generator) -> int:
    """Choose a replica: at random, in turn, the one with the fewest requests, or the better of two drawn at random."""
    if len(replicas) == 1:
        return 0
    if routing == "random":
        return int(rng.integers(len(replicas)))
    if routing == "round-robin":
        return number % len(replicas)
    among = list(range(len(replicas)))
    if routing == "power-of-two":
        among = [int(index) for index in rng.choice(len(replicas), 2, replace=False)]
    return min(among, key=lambda index: replicas[index].in_flight)


def _advance(replica: Scheduler, until: float) -> None:
    """Run a replica until its next step would begin at `until` or later; an idle replica waits."""
    while replica.now < until:
        if replica.step(until):
            continue
        wakes = replica.wakes_at
        if min(wakes, until) == math.inf or (replica.queue and wakes <= replica.now):
            break  # no event is left: nothing arrives, or the queue's head can never be admitted
        replica.now = min(wakes, until)
    replica.completed.clear()


def closed_loop(
    requests: Requests,
    replica: Scheduler,
    *,
    in_flight: int,
    count: int,
    lengths: Iterator[tuple[int, int]],
    limit: float = math.inf,
    progress: Progress | None = None,
) -> History:
    """Keep `in_flight` requests queued or running until `count` have been sent and all have ended, or to a limit.

    A client sends its next request when it has its answer. This is later than the end on the replica, by the time that a
    request spends outside the steps.
    """
    sent = 0
    answers: list[float] = []  # heap of the times at which clients receive the end of their answer

    def top_up(at: float) -> None:
        nonlocal sent
        while sent < count and replica.in_flight + len(answers) < in_flight:
            isl, osl = next(lengths)
            replica.submit(requests.add(at, isl, osl))
            sent += 1
            if len(replica.refused) >= in_flight:
                return

    top_up(replica.now)
    while replica.now < limit and (replica.in_flight or (answers and sent < count)):
        before = replica.now, replica.running, sent
        until = min(limit, answers[0]) if answers else limit
        replica.run(until)
        for number in replica.completed:
            heapq.heappush(answers, requests.finished[number])
        replica.completed.clear()
        while answers and answers[0] <= replica.now:
            top_up(heapq.heappop(answers))
        top_up(replica.now)
        if before == (replica.now, replica.running, sent):
            wakes = min(replica.wakes_at, answers[0] if answers else math.inf)
            if wakes <= replica.now or wakes == math.inf:
                break
            replica.now = min(wakes, limit)
        if progress is not None:
            progress(sent)
    return History(requests, (replica,), replica.now, (replica.watch,))
