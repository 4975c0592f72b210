"""The decoding batch, in sums that a step's time depends on: how many sequences, how much context, by window.

A sequence that joins at decode step D with a context of c tokens has c + (s - D) at step s. All sums advance by
arithmetic, so moving k steps costs the same as moving one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple


class Piece(NamedTuple):
    """Part of a prompt that a step prefills: request, new units, units done before."""

    request: int
    units: float
    prior: float


@dataclass(slots=True)
class Window:
    """Context within a window: `attended` = sum of min(context, tokens), growing by `growing` a step."""

    tokens: float
    attended: float = 0.0
    growing: int = 0
    leaves: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Batch:
    """The decoding sequences. `step` counts decode steps; `ends` is a heap of (step at which it ends, request)."""

    window_tokens: tuple[float, ...] = ()
    size: int = 0
    step: int = 0
    context: float = 0.0
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
        self.context += context
        for window in self.windows:
            window.attended += min(context, window.tokens)
            if context < window.tokens:
                window.growing += 1
                heapq.heappush(window.leaves, (self.step + int(window.tokens - context), request))

    def leave(self, request: int) -> float:
        """Remove a sequence and return its context. Its heap entries are skipped when they surface."""
        start, context, _ = self.joined.pop(request)
        now = context + (self.step - start)
        self.size -= 1
        self.context -= now
        for window in self.windows:
            window.attended -= min(now, window.tokens)
            if now < window.tokens:
                window.growing -= 1
        return now

    def next_end(self) -> tuple[int, int]:
        """Return (steps until the next sequence ends, request); the batch must not be empty."""
        while True:
            end, request = self.ends[0]
            entry = self.joined.get(request)
            if entry is not None and entry[2] == end:
                return end - self.step, request
            heapq.heappop(self.ends)

    def generated(self, request: int) -> int:
        """Return the decode steps that a sequence has made since it joined."""
        return self.step - self.joined[request][0]

    def steps_until_window_fills(self) -> int | None:
        """Return the steps until a sequence fills a window, after which sums grow more slowly; None if none will."""
        nearest: int | None = None
        for window in self.windows:
            leaves = window.leaves
            while leaves and leaves[0][1] not in self.joined:
                heapq.heappop(leaves)
            if leaves:
                left = leaves[0][0] - self.step
                nearest = left if nearest is None else min(nearest, left)
        return nearest

    def advance(self, steps: int) -> None:
        """Move on by so many decode steps, none beyond a window's filling or a sequence's end."""
        self.step += steps
        self.context += steps * self.size
        for window in self.windows:
            window.attended += steps * window.growing
            leaves = window.leaves
            while leaves and leaves[0][0] <= self.step:
                _, request = heapq.heappop(leaves)
                if request in self.joined:
                    window.growing -= 1
