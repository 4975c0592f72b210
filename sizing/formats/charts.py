"""A plot as text: a letter a line of points over a logarithmic axis, a column of bars for a limit. No wider than a terminal.

The upright axis begins at zero, or is logarithmic too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sizing.formats.words import number

WIDTH, HEIGHT = 51, 15  # of the points; with the axis's numbers no more than the narrowest terminal
LABEL = 7
MARKS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
SPECIAL, LIMIT, ROOF, EMPTY = "*", ":", "=", " "
ROUND = (1.0, 2.0, 5.0)  # of the numbers under a logarithmic axis


class Dots(NamedTuple):
    """The points of one line, x above 0."""

    x: tuple[float, ...]
    y: tuple[float, ...]


def rows(
    lines: Sequence[Dots],
    special: tuple[float, float] | None,
    limit: float | None,
    *,
    marks: Sequence[str] = MARKS,
    logarithmic: bool = False,
) -> Iterator[str]:
    """Yield the rows of a plot with its axes; nothing where there is no point. Later lines give way to earlier ones."""
    xs = [x for line in lines for x in line.x]
    if not xs:
        return
    low, high = _span([*xs, *((limit,) if limit is not None else ())])
    ys = [y for line in lines for y in line.y]
    bottom, top = _span(ys) if logarithmic else (0.0, max(ys) or 1.0)
    cells = [[EMPTY] * WIDTH for _ in range(HEIGHT)]

    def put(x: float, y: float, mark: str) -> None:
        share = math.log(y / bottom) / math.log(top / bottom) if logarithmic else y / top
        cells[HEIGHT - 1 - round(share * (HEIGHT - 1))][_column(x, low, high)] = mark

    if limit is not None:
        for row in cells:
            row[_column(limit, low, high)] = LIMIT
    for mark, line in reversed(list(zip(marks, lines, strict=False))):
        for x, y in zip(line.x, line.y, strict=True):
            put(x, y, mark)
    if special is not None:
        put(*special, SPECIAL)
    for index, row in enumerate(cells):
        share = (HEIGHT - 1 - index) / (HEIGHT - 1)
        at = bottom * (top / bottom) ** share if logarithmic else top * share
        label = number(at) if index in (0, HEIGHT // 2, HEIGHT - 1) else ""
        yield f"{label:>{LABEL}} |{''.join(row)}".rstrip()
    yield from _axis(low, high)


def _span(xs: Sequence[float]) -> tuple[float, float]:
    low, high = min(xs), max(xs)
    return (low, high) if high > low * (1 + 1e-9) else (low / 2, high * 2)


def _column(x: float, low: float, high: float) -> int:
    return round(math.log(x / low) / math.log(high / low) * (WIDTH - 1))


def _axis(low: float, high: float) -> Iterator[str]:
    """Yield the axis with ticks at round numbers, as many as have room for theirs."""
    ticks = [EMPTY] * WIDTH
    labels = ""
    for value in _round_numbers(low, high):
        column, text = _column(value, low, high), number(value, 1)
        ticks[column] = "+"
        start = min(max(column - len(text) // 2, 0), WIDTH - len(text))
        if not labels or start > len(labels):
            labels = labels.ljust(start) + text
    yield f"{'':>{LABEL}} +{''.join(ticks).replace(EMPTY, '-')}"
    yield f"{'':>{LABEL}}  {labels}".rstrip()


def _round_numbers(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for decade in decades for digit in ROUND if low <= (value := digit * 10.0**decade) <= high]
