"""The teaching simulator: time in ticks and visible slots, as the sizing course uses it to compare batching policies.

Its artificial clock adds up prefill ticks, shares decode ticks, and overlaps both within a step.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from sizing.engine.batch import DecodeBatch, KvCache, Piece, StepSeries
from sizing.engine.requests import Requests, course_lengths
from sizing.engine.rules import SchedulerRules
from sizing.engine.scheduler import Scheduler
from sizing.specs.frozen import Frozen

SHORTEST_STEP = 1.0


class TickClock(Frozen):
    """Ticks of a step: max(chunks in prefill x prefill/chunks, itl if anything decodes, 1)."""

    prefill: float = 2.0
    itl: float = 1.0
    chunks: int = 1

    @property
    def serial(self) -> float:
        """Ticks of the server's thread per request: none."""
        return 0.0

    def launching(self, units: float) -> float:
        """Ticks of the host's launches: none."""
        return 0.0

    def outside(self, prompt_tokens: int) -> float:
        """Ticks of a request outside the steps: none."""
        return 0.0

    def step(self, pieces: Sequence[Piece], batch: DecodeBatch, decodes: bool) -> tuple[float, float]:
        """(ticks of a step, extra ticks until its first tokens are out: none)."""
        working = sum(piece.units for piece in pieces) * self.prefill / self.chunks
        return max(working, self.itl if decodes and batch.size else 0.0, SHORTEST_STEP), 0.0

    def series(self, batch: DecodeBatch) -> StepSeries:
        """Decode-only steps, in ticks."""
        return StepSeries(max(self.itl, SHORTEST_STEP))


PREFILL, DECODE, EMPTY = "p", "d", "e"


class TickStep(Frozen):
    """One step of the timeline: start and end, the state of every slot (p, d or e), its request, and the queue afterwards."""

    start: float
    end: float
    states: tuple[str, ...]
    occupants: tuple[int | None, ...]
    queue: int


class TickFigures(NamedTuple):
    """Figures that the course reports, in ticks; means are None where nothing was measured.

    `mean_ttft` is over requests that had their first token, `mean_e2e` over those that ended, `mean_itl` over decode steps.
    At a limit these are different requests, so mean TTFT may exceed mean E2E. `gpu_utilisation` is the share of ticks in
    which a step ran. `wasted_slot_share` is the share of slot time that was empty while requests waited.
    """

    arrived: int
    completed: int
    end_tick: float
    mean_ttft: float | None
    mean_e2e: float | None
    mean_itl: float | None
    requests_per_1k_ticks: float
    tokens_per_1k_ticks: float
    queue_end: int
    queue_max: int
    gpu_utilisation: float
    wasted_slot_share: float


class TickResult(NamedTuple):
    """A run: its figures, its requests, and its steps."""

    figures: TickFigures
    requests: Requests
    timeline: tuple[TickStep, ...]


@dataclass(slots=True)
class _Slots:
    """The request in each slot, and the timeline. `free` is a heap of empty slots, `seats` maps a request to its slot."""

    occupants: list[int | None]
    free: list[int]
    keep_timeline: bool
    seats: dict[int, int] = field(default_factory=dict)
    timeline: list[TickStep] = field(default_factory=list)
    itl_sum: float = 0.0
    itl_count: int = 0
    tokens: int = 0
    last_tokens: int = 0
    busy_ticks: float = 0.0
    wasted_ticks: float = 0.0

    def seat(self, request: int) -> None:
        """Give a request the first empty slot."""
        if request not in self.seats:
            self.seats[request] = heapq.heappop(self.free)
            self.occupants[self.seats[request]] = request

    def leave(self, request: int) -> None:
        """Empty the slot of a request."""
        slot = self.seats.pop(request)
        self.occupants[slot] = None
        heapq.heappush(self.free, slot)

    def observe(self, replica: Scheduler, start: float, end: float, pieces: Sequence[Piece], decoding: int) -> None:
        """Record a step: the phase and request of each slot, decode tokens and their time."""
        for request in (*replica.prefilling, *replica.batch.joined):
            self.seat(request)
        self.busy_ticks += end - start
        prefilling = set(replica.prefilling)
        states = (EMPTY if r is None else PREFILL if r in prefilling else DECODE for r in self.occupants)
        self.spend(start, end, states, len(replica.queue))
        first_tokens = sum(p.units >= replica.prefilling[p.request].left for p in pieces)
        # The course counts a request's step lengths from its second decode step on, including its last step.
        later = sum(replica.batch.generated(request) > 1 for request in replica.batch.joined) if decoding else 0
        self.itl_sum += (end - start) * later
        self.itl_count += later
        self.last_tokens = decoding + first_tokens
        self.tokens += self.last_tokens

    def spend(self, start: float, end: float, states: Iterable[str], waiting: int) -> None:
        """Add a step, or an idle tick, to the timeline. Empty slots count as wasted if requests wait."""
        if waiting:
            self.wasted_ticks += (end - start) * len(self.free)
        if self.keep_timeline:
            self.timeline.append(TickStep(start, end, tuple(states), tuple(self.occupants), waiting))


def simulate(
    rules: SchedulerRules,
    clock: TickClock,
    *,
    osl_mean: float,
    osl_std: float = 0.0,
    seed: int = 42,
    limit: float = math.inf,
    requests: int | None = None,
    concurrency: int | None = None,
    rate: float | None = None,
    keep_timeline: bool = True,
) -> TickResult:
    """Run the course's simulator to a limit of ticks under one load: a batch of `requests`, a concurrency, or a rate.

    The rate is per tick. At the end of each step, finished requests leave, the load arrives, and the batcher admits
    requests, all at the same instant. The run ends with the first step that ends at or after the limit; the results of this
    step are not counted.
    """
    store = Requests()
    lengths = course_lengths(osl_mean, osl_std, seed)
    slots = _Slots([None] * rules.slots, list(range(rules.slots)), keep_timeline)
    whole, units = KvCache(math.inf, 0.0, 1), float(clock.chunks)
    replica = Scheduler(store, clock, rules, whole, DecodeBatch(), one_by_one=True, units=lambda _: units)
    replica.observer = partial(slots.observe, replica)
    while replica.now < limit:
        due = _due(replica, len(store), requests, concurrency, rate)
        while len(store) < due:
            replica.submit(store.add(replica.now, 1, next(lengths)))
        before = replica.now
        if not replica.in_flight and math.isinf(limit) and len(store) >= (requests or 0):
            break
        replica.step(math.inf)
        if replica.now == before:
            replica.now += 1.0  # an idle tick
            slots.spend(before, replica.now, (EMPTY for _ in slots.occupants), len(replica.queue))
            slots.last_tokens = 0
        if replica.now < limit:
            for request in replica.completed:
                slots.leave(request)
            replica.completed.clear()
    return _result(replica, store, slots, limit)


def _due(replica: Scheduler, sent: int, requests: int | None, concurrency: int | None, rate: float | None) -> int:
    """The requests sent by now: a batch at the start, a top-up to the concurrency, or floor(t*rate) by tick t."""
    if concurrency is not None:
        due = sent + max(0, concurrency - replica.in_flight)
    elif rate is not None:
        due = math.floor(replica.now * rate + 1e-9)
    else:
        return requests or 0
    return min(due, requests) if requests else due


def _result(replica: Scheduler, store: Requests, slots: _Slots, limit: float) -> TickResult:
    ended = [i for i in range(len(store)) if store.finished[i] < limit]  # NaN compares as not ended
    started = [i for i in range(len(store)) if store.first_token[i] < limit]
    ticks = replica.now
    if ticks >= limit:
        slots.tokens -= slots.last_tokens
    figures = TickFigures(
        arrived=len(store),
        completed=len(ended),
        end_tick=ticks,
        mean_ttft=_mean([store.first_token[i] - store.arrival[i] for i in started]),
        mean_e2e=_mean([store.finished[i] - store.arrival[i] for i in ended]),
        mean_itl=slots.itl_sum / slots.itl_count if slots.itl_count else None,
        requests_per_1k_ticks=1000 * len(ended) / ticks if ticks else 0.0,
        tokens_per_1k_ticks=1000 * slots.tokens / ticks if ticks else 0.0,
        queue_end=len(replica.queue),
        queue_max=replica.watch.queue_max,
        gpu_utilisation=slots.busy_ticks / ticks if ticks else 0.0,
        wasted_slot_share=slots.wasted_ticks / (ticks * len(slots.occupants)) if ticks else 0.0,
    )
    return TickResult(figures, store, tuple(slots.timeline))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
