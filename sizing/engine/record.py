"""What a run leaves beside its requests: a replica's state over time, slots left empty, and how far the run has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sizing.engine.batch import Piece
from sizing.engine.replica import Replica

MOST_SAMPLES = 1024  # kept of a run, half of them after each thinning: more than a picture's columns
STEPS_BETWEEN_NEWS = 256


class Sample(NamedTuple):
    """The state of a replica at the end of a step: requests running and queued, share of the cache held."""

    time: float
    running: int
    queued: int
    cache: float


@dataclass(slots=True)
class Meter:
    """Tells how many requests have ended: those sent less those in flight."""

    replicas: Sequence[Replica]
    progress: Callable[[int], None]
    sent: int = 0
    told: int = 0

    def sending(self, number: int) -> None:
        """Note that so many have been sent."""
        self.sent = max(self.sent, number)
        self.tell()

    def tell(self) -> None:
        """Report how many have ended, never fewer than before: sendings are noted in jumps."""
        ended = self.sent - sum(replica.in_flight for replica in self.replicas)
        self.told = max(self.told, ended)
        self.progress(self.told)


@dataclass(slots=True)
class Record:
    """Observes one replica: the time in which requests waited, the requests running then, and samples."""

    replica: Replica
    meter: Meter | None = None
    waited: float = 0.0
    run_while_waiting: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    steps: int = 0
    stride: int = 1

    def __call__(self, start: float, end: float, pieces: Sequence[Piece], decoding: int) -> None:
        """Take note of a step, or of a stretch of them."""
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
        """Return the share of slot time left empty while requests waited; slots are the most that were used at once."""
        slots = self.replica.watch.batch_max
        if not slots or ended <= 0:
            return 0.0
        return (
            max(0.0, 1 - self.run_while_waiting / (slots * self.waited)) * self.waited / ended if self.waited else 0.0
        )
