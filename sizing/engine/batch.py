"""The KV cache pool and the decoding batch of one replica.

The pool counts the blocks held by running sequences and finds the step at which no block would be free. A sequence of c
tokens holds ceil(c/block) blocks and a fixed part (states, filled windows). While it decodes it needs a new block every
`block` steps, at a phase that depends only on c modulo block. The pool counts sequences by phase, so it knows how many
steps fit without a look at each sequence.

The batch keeps sums that determine the time of a step: number of sequences, context, context within each window. A sequence
that joins at decode step D with c tokens has c + (s - D) tokens at step s. So the sums advance by arithmetic, and k steps
cost the same as one. Each step here gives every sequence one token; an engine step that gives several (speculative
decoding) counts as several steps.
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
    """A replica's cache in bytes: its size, a block, the fixed part of a sequence, and what is held now.

    The first `shared_blocks` of every sequence are held once for all, outside the pool. `phases[j]` counts the decoding
    sequences that need their next block at decode steps s with s % block = j.
    """

    size_bytes: float
    block_bytes: float
    block_tokens: int
    fixed_bytes: float = 0.0
    held_bytes: float = 0.0
    phases: list[int] = field(default_factory=list)
    shared_blocks: int = 0

    def __post_init__(self) -> None:
        """Create one counter per phase."""
        self.phases = [0] * self.block_tokens

    @property
    def slack_bytes(self) -> float:
        """Tolerance for rounding in sums of floats, far below a block."""
        return SLACK_SHARE * self.size_bytes

    @property
    def free_bytes(self) -> float:
        """Bytes not held."""
        return self.size_bytes - self.held_bytes

    def need(self, tokens: float, prompt: int = 0) -> float:
        """Bytes of a sequence of `tokens` tokens, without the blocks of its prompt that are shared."""
        shared = min(self.shared_blocks, prompt // self.block_tokens)
        return self.fixed_bytes + max(0, math.ceil(tokens / self.block_tokens) - shared) * self.block_bytes

    def _due(self, tokens: float, step: int) -> int:
        """Phase at which a sequence with `tokens` tokens before decode step `step` needs its next block."""
        return (step - int(tokens)) % self.block_tokens

    def join(self, tokens: float, step: int) -> None:
        """Count a sequence, which already holds its blocks, as decoding."""
        self.phases[self._due(tokens, step)] += 1

    def leave(self, tokens: float, step: int) -> None:
        """Remove a sequence from the count of decoding ones."""
        self.phases[self._due(tokens, step)] -= 1

    def due_bytes(self, step: int) -> float:
        """Bytes that decoding sequences need at decode step `step`."""
        return self.phases[step % self.block_tokens] * self.block_bytes

    def steps_that_fit(self, sequences: int, step: int, free_bytes: float) -> float:
        """Number of decode steps from `step` on whose blocks fit in `free_bytes`; infinite if no block is needed."""
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
        """Allocate the blocks that decoding sequences need in `steps` steps from `step` on."""
        periods, rest = divmod(steps, self.block_tokens)
        start = step % self.block_tokens
        due = (self.phases * 2)[start : start + rest]
        self.held_bytes += (periods * sequences + sum(due)) * self.block_bytes


class Piece(NamedTuple):
    """Part of a prompt that a step prefills: request, new units, units done before (`prior`).

    `first` says whether it is the first part of the prompt, `rank` is its attention-data rank.
    """

    request: int
    units: float
    prior: float
    first: bool = False
    rank: int = 0


@dataclass(slots=True)
class DecodeBatch:
    """The decoding sequences. `step` counts decode steps; `ends` is a heap of (step at which it ends, request).

    At decode step s, all sequences together attend to `attended` + `growing` * s tokens within a window; `growing` counts
    those that have not filled it yet. `fills` is a heap of (step, window, request, its entry in `joined`) with the next
    window that each sequence fills before it ends. Heap entries that no longer match `joined` are skipped: the sequence has
    left, or has left and come back.
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
        """Create the sums of each window."""
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
        """Record the step at which a sequence fills `window`, its first unfilled one, unless it ends before."""
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
        reached = min(now, context + (end - start))  # tokens of its last step beyond its end fill no window
        for window, tokens in enumerate(self.windows):
            if reached >= tokens:
                self.attended[window] -= tokens
            else:
                self.attended[window] -= context - start
                self.growing[window] -= 1
        return now

    @property
    def to_come(self) -> int:
        """Decode steps left, summed over all sequences."""
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
        """Steps until a sequence fills a window, or None. The sums grow more slowly after this step."""
        while self.fills:
            at, _, request, entry = self.fills[0]
            if self.joined.get(request) is entry:
                return at - self.step
            heapq.heappop(self.fills)
        return None

    def advance(self, steps: int) -> None:
        """Advance every sequence by `steps` tokens.

        If an engine step gives several tokens, the last ones may go beyond the filling of a window or the end of a
        sequence.
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
    """Decode steps whose time grows linearly. No step is shorter than `floor`, the host's time, which hides the first ones."""

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
        """The fewest steps that take at least `time`, at least one."""
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
        """Steps that the floor covers; practically all if they do not grow."""
        if self.first >= self.floor:
            return 0
        return math.ceil(min((self.floor - self.first) / max(self.growth, TINY), ENDLESS_STEPS))


class Clock(Protocol):
    """Durations of steps, in any unit of time."""

    @property
    def serial(self) -> float:
        """Time that the server's single thread takes for a request before the scheduler sees it."""

    def launching(self, units: float) -> float:
        """Time in which the host launches a step with so many units of prefill on a rank."""

    def outside(self, prompt_tokens: int) -> float:
        """Time that a request spends outside the steps, before and after them."""

    def step(self, pieces: Sequence[Piece], batch: DecodeBatch, decodes: bool) -> tuple[float, float]:
        """(time of a step that prefills `pieces`, extra time until its first tokens are out)."""

    def series(self, batch: DecodeBatch) -> StepSeries:
        """The following decode-only steps, while only lengths change."""
