"""The cache pool of one replica: blocks held by running sequences, and when the next step would find none free.

A sequence of c tokens holds ceil(c/block) blocks and a fixed part (states, filled windows). While sequences decode, each
asks for a block every `block` steps; when, depends on c modulo block alone. Counting sequences by that phase tells how
many steps fit without looking at any of them.

The decoding batch, in sums that a step's time depends on: how many sequences, how much context, by window.

A sequence that joins at decode step D with a context of c tokens has c + (s - D) at step s. All sums advance by
arithmetic, so moving k steps costs the same as moving one. Steps are those of one token for each sequence: where a step of
the engine gives several (speculative decoding), it is as many of them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

SLACK_SHARE = 1e-9
TINY, ENDLESS_STEPS = 1e-300, 2**62


@dataclass(slots=True)
class KvCache:
    """Bytes of a replica's cache: its size, what a block and a sequence's fixed part take, and what is held now.

    `shared_blocks` of every sequence's first are held once for all, outside of the pool. `phases[j]` counts decoding sequences whose next block is due at a decode step s with s % block = j.
    """

    size_bytes: float
    block_bytes: float
    block_tokens: int
    fixed_bytes: float = 0.0
    held_bytes: float = 0.0
    phases: list[int] = field(default_factory=list)
    shared_blocks: int = 0

    def __post_init__(self) -> None:
        """Open one counter a phase."""
        self.phases = [0] * self.block_tokens

    @property
    def slack_bytes(self) -> float:
        """What sums of floats may be off by, far below a block."""
        return SLACK_SHARE * self.size_bytes

    @property
    def free_bytes(self) -> float:
        """Bytes not held."""
        return self.size_bytes - self.held_bytes

    def need(self, tokens: float, prompt: int = 0) -> float:
        """Bytes of a sequence of `tokens` tokens, those blocks of its prompt left out that others hold already."""
        shared = min(self.shared_blocks, prompt // self.block_tokens)
        return self.fixed_bytes + max(0, math.ceil(tokens / self.block_tokens) - shared) * self.block_bytes

    def _due(self, tokens: float, step: int) -> int:
        """Phase at which a sequence with `tokens` tokens before decode step `step` asks for its next block."""
        return (step - int(tokens)) % self.block_tokens

    def join(self, tokens: float, step: int) -> None:
        """Count a sequence, whose blocks are held already, among the decoding ones."""
        self.phases[self._due(tokens, step)] += 1

    def leave(self, tokens: float, step: int) -> None:
        """Take a decoding sequence out of the count."""
        self.phases[self._due(tokens, step)] -= 1

    def due_bytes(self, step: int) -> float:
        """Bytes that decoding sequences ask for at decode step `step`."""
        return self.phases[step % self.block_tokens] * self.block_bytes

    def steps_that_fit(self, sequences: int, step: int, free_bytes: float) -> float:
        """Decode steps from `step` on with blocks that fit into `free_bytes`; infinite where no block is needed."""
        if sequences == 0 or self.block_bytes == 0:
            return math.inf
        periods, left = divmod(int(free_bytes / self.block_bytes + 1e-9), sequences)
        steps, start = periods * self.block_tokens, step % self.block_tokens
        for due in (self.phases * 2)[start : start + self.block_tokens]:
            left -= due
            if left < 0:
                break
            steps += 1
        return steps

    def grow(self, sequences: int, step: int, steps: int) -> None:
        """Hold the blocks that decoding sequences ask for in `steps` steps from `step` on."""
        periods, rest = divmod(steps, self.block_tokens)
        start = step % self.block_tokens
        due = (self.phases * 2)[start : start + rest]
        self.held_bytes += (periods * sequences + sum(due)) * self.block_bytes


class Piece(NamedTuple):
    """Part of a prompt that a step prefills: request, new units, units done before; whether it is the prompt's `first`, and the
    attention-data `rank` that it is on.
    """

    request: int
    units: float
    prior: float
    first: bool = False
    rank: int = 0


@dataclass(slots=True)
class DecodeBatch:
    """The decoding sequences. `step` counts decode steps; `ends` is a heap of (step at which it ends, request).

    At decode step s all together attend to `attended` + `growing` * s tokens within a window: its growing sequences have not
    filled it yet. `fills` is a heap of (step, window, request, its entry of `joined`) for the next window that each sequence fills
    before it ends. Entries of both heaps are skipped where `joined` no longer agrees (the sequence has left, or left and come back).
    """

    windows: tuple[float, ...] = ()
    size: int = 0
    step: int = 0
    context: float = 0.0
    end_sum: int = 0
    ends: list[tuple[int, int]] = field(default_factory=list)
    joined: dict[int, tuple[int, float, int]] = field(default_factory=dict)
    attended: list[float] = field(default_factory=list)
    growing: list[int] = field(default_factory=list)
    fills: list[tuple[int, int, int, tuple[int, float, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open the sums of each window."""
        self.attended = [0.0 for _ in self.windows]
        self.growing = [0 for _ in self.windows]

    def join(self, request: int, context: float, steps: int) -> None:
        """Add a sequence with `context` tokens that ends after `steps` decode steps."""
        start, end = self.step, self.step + steps
        entry = self.joined[request] = (start, context, end)
        heapq.heappush(self.ends, (end, request))
        self.size += 1
        self.end_sum += end
        self.context += context
        filled = 0
        for window, tokens in enumerate(self.windows):
            if context >= tokens:
                self.attended[window] += tokens
                filled += 1
            else:
                self.attended[window] += context - start
                self.growing[window] += 1
        self._fills_next(filled, request, entry)

    def _fills_next(self, window: int, request: int, entry: tuple[int, float, int]) -> None:
        """Note when a sequence fills a window, the first that it has not filled, unless it ends before."""
        if window < len(self.windows):
            start, context, end = entry
            at = start + int(self.windows[window] - context)
            if at <= end:
                heapq.heappush(self.fills, (at, window, request, entry))

    def leave(self, request: int) -> float:
        """Remove a sequence and return its context. Its heap entries are skipped when they surface."""
        start, context, end = self.joined.pop(request)
        self.end_sum -= end
        now = context + (self.step - start)
        self.size -= 1
        self.context -= now
        reached = min(now, context + (end - start))  # what its last step gives beyond its end fills no window
        for window, tokens in enumerate(self.windows):
            if reached >= tokens:
                self.attended[window] -= tokens
            else:
                self.attended[window] -= context - start
                self.growing[window] -= 1
        return now

    @property
    def to_come(self) -> int:
        """Decode steps that all sequences together still have to make."""
        return self.end_sum - self.size * self.step

    def next_end(self) -> tuple[int, int]:
        """(steps until the next sequence ends, request). The batch must not be empty."""
        while True:
            end, request = self.ends[0]
            entry = self.joined.get(request)
            if entry is not None and entry[2] == end:
                return end - self.step, request
            heapq.heappop(self.ends)

    def generated(self, request: int) -> int:
        """Decode steps of `request` since it joined."""
        return self.step - self.joined[request][0]

    def steps_until_window_fills(self) -> int | None:
        """Steps until a sequence fills a window, or None. Sums grow more slowly after that step."""
        while self.fills:
            at, _, request, entry = self.fills[0]
            if self.joined.get(request) is entry:
                return at - self.step
            heapq.heappop(self.fills)
        return None

    def advance(self, steps: int) -> None:
        """Move on by so many tokens of every sequence.

        Where a step gives several tokens the last one may go beyond a window's filling, and beyond a sequence's end.
        """
        self.step += steps
        self.context += steps * self.size
        while self.fills and self.fills[0][0] <= self.step:
            _, window, request, entry = heapq.heappop(self.fills)
            if self.joined.get(request) is entry:
                start, context, _ = entry
                self.attended[window] += self.windows[window] - (context - start)
                self.growing[window] -= 1
                self._fills_next(window + 1, request, entry)


class StepSeries(NamedTuple):
    """Decode steps that grow evenly, none shorter than a floor: the host's time, which hides the first ones."""

    first: float
    growth: float = 0.0
    floor: float = 0.0

    def time(self, steps: int) -> float:
        """Time of the first `steps` steps."""
        covered = min(steps, self._covered()) if self.first < self.floor else 0
        rest = steps - covered
        start = self.first + covered * self.growth
        return covered * self.floor + rest * start + self.growth * rest * (rest - 1) / 2

    def steps_within(self, time: float) -> int:
        """The fewest steps that take at least `time`; at least one."""
        steps = self._about(time)
        while self.time(steps) < time:
            steps += 1
        while steps > 1 and self.time(steps - 1) >= time:
            steps -= 1
        return steps

    def _about(self, time: float) -> int:
        """Number of steps that take `time`, to within rounding; at least one."""
        covered = self._covered()
        if covered and covered * self.floor >= time:
            return max(1, math.ceil(time / self.floor))
        rest = time - covered * self.floor
        half = self.growth / 2
        start = self.first + covered * self.growth - half
        return max(1, covered + math.ceil(2 * rest / (start + math.sqrt(start**2 + 4 * half * rest))))

    def _covered(self) -> int:
        """Steps that the floor covers; practically all where they do not grow."""
        if self.first >= self.floor:
            return 0
        return math.ceil(min((self.floor - self.first) / max(self.growth, TINY), ENDLESS_STEPS))


class Clock(Protocol):
    """How long steps take, whatever the unit of time."""

    @property
    def serial(self) -> float:
        """Time that a server's one thread takes for a request before the scheduler sees it."""

    def outside(self, prompt_tokens: int) -> float:
        """Time that a request takes outside the steps, on its way in and out."""

    def step(self, pieces: Sequence[Piece], batch: DecodeBatch, decodes: bool) -> tuple[float, float]:
        """(time of a step that prefills `pieces`, extra time until its first tokens are out)."""

    def series(self, batch: DecodeBatch) -> StepSeries:
        """The decode-only steps from now on, while nothing changes but lengths."""
