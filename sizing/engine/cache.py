"""The cache pool of one replica: blocks held by running sequences, and when the next step would find none free.

A sequence of c tokens holds ceil(c/block) blocks and a fixed part (states, filled windows). While sequences decode, each
asks for a block every `block` steps; when, depends on c modulo block alone. Counting sequences by that phase tells how
many steps fit without looking at any of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

SLACK_SHARE = 1e-9


@dataclass(slots=True)
class Pool:
    """Bytes of a pool: its size, what a block and a sequence's fixed part take, and what is held now.

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
        """Return the decode steps from `step` on whose blocks fit into `free_bytes`; infinite where none are needed."""
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
