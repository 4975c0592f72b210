"""The timeline of the teaching simulator as text: a row a slot, one character a tick."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sizing.engine.ticks import DECODE, EMPTY, PREFILL, TickStep

MARKS = {PREFILL: "p", DECODE: "d", EMPTY: "."}
LEGEND = "p prefill, d decode, . empty; one character a tick"
BAND_TICKS = 50  # a band with its label fits the narrowest terminal
MOST_TICKS = 4 * BAND_TICKS
MOST_SLOTS = 16


def slot_rows(timeline: Sequence[TickStep]) -> tuple[str, ...] | None:
    """Return one text a slot, the mark of each tick that of the step at its start; None where it would be too much."""
    if not timeline:
        return None
    ticks, slots = math.ceil(timeline[-1].end), len(timeline[0].states)
    if ticks > MOST_TICKS or slots > MOST_SLOTS:
        return None
    marks = [[MARKS[EMPTY]] * ticks for _ in range(slots)]
    for step in timeline:
        for tick in range(math.ceil(step.start), math.ceil(step.end)):
            for slot, state in enumerate(step.states):
                marks[slot][tick] = MARKS[state]
    return tuple("".join(row) for row in marks)


def bands(rows: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a timeline, folded into bands of so many ticks, each under the tick at which it starts."""
    label = len(f"slot {len(rows)}")
    for start in range(0, len(rows[0]), BAND_TICKS):
        yield f"{'tick':<{label}} {_scale(start, min(len(rows[0]) - start, BAND_TICKS))}".rstrip()
        for number, row in enumerate(rows, start=1):
            yield f"{f'slot {number}':<{label}} {row[start : start + BAND_TICKS]}"


def _scale(start: int, ticks: int) -> str:
    return "".join(f"{tick:<10}" for tick in range(start, start + ticks, 10))
