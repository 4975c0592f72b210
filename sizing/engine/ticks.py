"""The artificial clock of teaching: prefill ticks add up, decode ticks are shared, both overlap within a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sizing.engine.batch import Batch, Piece

SHORTEST_STEP = 1.0


@dataclass(frozen=True, slots=True)
class TickClock:
    """Ticks of a step: max(chunks in prefill x prefill/chunks, itl if anything decodes, 1)."""

    prefill: float = 2.0
    itl: float = 1.0
    chunks: int = 1

    def outside(self, prompt_tokens: int) -> float:
        """Return the ticks that a request takes outside the steps: none."""
        return 0.0

    def step(self, pieces: Sequence[Piece], batch: Batch, decodes: bool) -> tuple[float, float]:
        """Return (ticks of a step, extra ticks until its first tokens are out: none)."""
        working = sum(piece.units for piece in pieces) * self.prefill / self.chunks
        return max(working, self.itl if decodes and batch.size else 0.0, SHORTEST_STEP), 0.0

    def stretch(self, batch: Batch, steps: int) -> float:
        """Return the ticks of so many steps that decode only."""
        return steps * max(self.itl, SHORTEST_STEP)

    def steps_within(self, batch: Batch, ticks: float) -> int:
        """Return the fewest steps that take at least so many ticks."""
        each = max(self.itl, SHORTEST_STEP)
        return max(1, -int(-ticks // each))
