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
        blocks = int(free_bytes / self.block_bytes + 1e-9)
        periods, left = divmod(blocks, sequences)
        steps = periods * self.block_tokens
        for offset in range(self.block_tokens):
            left -= self.phases[(step + offset) % self.block_tokens]
            if left < 0:
                return steps + offset
        return steps + self.block_tokens

    def grow(self, sequences: int, step: int, steps: int) -> None:
        """Hold the blocks that decoding sequences ask for in `steps` steps from `step` on."""
        if sequences == 0 or self.block_bytes == 0:
            return
        periods, rest = divmod(steps, self.block_tokens)
        blocks = periods * sequences
        for offset in range(rest):
            blocks += self.phases[(step + offset) % self.block_tokens]
        self.held_bytes += blocks * self.block_bytes


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
class Window:
    """Context within a window: `attended` = sum of min(context, tokens), growing by one a step and unfilled sequence.

    `fills` says at which decode step each unfilled sequence fills the window; `ordered` is a heap of the same, whose
    entries are skipped where `fills` no longer agrees (the sequence has left, or left and come back).
    """

    tokens: float
    attended: float = 0.0
    fills: dict[int, int] = field(default_factory=dict)
    ordered: list[tuple[int, int]] = field(default_factory=list)

    @property
    def growing(self) -> int:
        """Sequences that have not filled the window."""
        return len(self.fills)

    def next_fill(self) -> int | None:
        """The decode step at which the next sequence fills the window, or None."""
        while self.ordered:
            at, request = self.ordered[0]
            if self.fills.get(request) == at:
                return at
            heapq.heappop(self.ordered)
        return None


@dataclass(slots=True)
class DecodeBatch:
    """The decoding sequences. `step` counts decode steps; `ends` is a heap of (step at which it ends, request)."""

    window_tokens: tuple[float, ...] = ()
    size: int = 0
    step: int = 0
    context: float = 0.0
    end_sum: int = 0
    ends: list[tuple[int, int]] = field(default_factory=list)
    joined: dict[int, tuple[int, float, int]] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open one sum a window."""
        self.windows = [Window(tokens) for tokens in self.window_tokens]

    def join(self, request: int, context: float, steps: int) -> None:
        """Add a sequence with `context` tokens that ends after `steps` decode steps."""
        end = self.step + steps
        self.joined[request] = (self.step, context, end)
        heapq.heappush(self.ends, (end, request))
        self.size += 1
        self.end_sum += end
        self.context += context
        for window in self.windows:
            window.attended += min(context, window.tokens)
            if context < window.tokens:
                window.fills[request] = self.step + int(window.tokens - context)
                heapq.heappush(window.ordered, (window.fills[request], request))

    def leave(self, request: int) -> float:
        """Remove a sequence and return its context. Its heap entries are skipped when they surface."""
        start, context, end = self.joined.pop(request)
        self.end_sum -= end
        now = context + (self.step - start)
        self.size -= 1
        self.context -= now
        for window in self.windows:
            window.attended -= min(now, window.tokens)
            window.fills.pop(request, None)
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
        nearest: int | None = None
        for window in self.windows:
            at = window.next_fill()
            if at is not None:
                nearest = at - self.step if nearest is None else min(nearest, at - self.step)
        return nearest

    def advance(self, steps: int) -> None:
        """Move on by so many tokens of every sequence.

        Where a step gives several tokens the last one may go beyond a window's filling, and beyond a sequence's end.
        """
        self.step += steps
        self.context += steps * self.size
        for window in self.windows:
            window.attended += steps * window.growing
            while (at := window.next_fill()) is not None and at <= self.step:
                window.attended -= self.step - at
                del window.fills[heapq.heappop(window.ordered)[1]]


class Clock(Protocol):
    """How long steps take, whatever the unit of time."""

    @property
    def serial(self) -> float:
        """Time that a server's one thread takes for a request before the scheduler sees it."""

    def outside(self, prompt_tokens: int) -> float:
        """Time that a request takes outside the steps, on its way in and out."""

    def step(self, pieces: Sequence[Piece], batch: DecodeBatch, decodes: bool) -> tuple[float, float]:
        """(time of a step that prefills `pieces`, extra time until its first tokens are out)."""

    def stretch(self, batch: DecodeBatch, steps: int) -> float:
        """Time of `steps` steps that decode only."""

    def steps_within(self, batch: DecodeBatch, time: float) -> int:
        """The fewest decode-only steps that take at least `time`."""
