"""A figure as text for a terminal, and as geometry for the SVG that a page template draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sizing.formats.view import Figure, Mark, Series, Tick
from sizing.formats.words import number

ROUND = (1, 2, 5)  # the numbers of an axis are these times powers of ten
COLUMNS, ROWS = 51, 7  # size of a plot as text; with the numbers of the axis it fits the narrowest terminal
LABEL = 7
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
CHOSEN, LIMIT, GUIDE, EMPTY = "*", ":", "=", " "
WIDTH, HEIGHT = 480.0, 330.0  # size of an SVG
LEFT, RIGHT, TOP, BOTTOM = 56.0, 14.0, 20.0, 52.0  # margins for the texts of the axes
ROOM = 1.08  # an axis extends to this multiple of the largest value
MOST_TICKS, MOST_LOG_TICKS = 6, 8
STYLES = 6  # number of colours, markers and dashes on a page; further lines repeat them


class Scale(NamedTuple):
    """The values at both ends of an axis."""

    low: float
    high: float
    logarithmic: bool = True

    def share(self, value: float) -> float:
        """The position of `value`: 0 at the low end, 1 at the high end."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, share: float) -> float:
        """The value at the position `share`."""
        if self.logarithmic:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + (self.high - self.low) * share


def log_ticks(low: float, high: float, most: float = MOST_LOG_TICKS) -> list[float]:
    """1, 2 and 5 times powers of ten between `low` and `high`; only powers of ten if there would be more than `most`."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    inside = [value for power in powers for step in ROUND if low <= (value := step * 10.0**power) <= high]
    return inside if len(inside) <= most else [10.0**power for power in powers if low <= 10.0**power <= high]


def linear_ticks(high: float) -> list[float]:
    """The multiples of a step from 0 up to `high`. The step is the smallest 1, 2 or 5 times a power of ten with few ticks."""
    least = high / (MOST_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (*ROUND, 10) if factor * power >= least)
    return [step * index for index in range(math.floor(high / step) + 1)]


def _marks(figure: Figure) -> list[Mark]:
    return [mark for series in (*figure.series, *figure.guides) for mark in series.marks]


# --- as text -------------------------------------------------------------------------------------------------------------


def plotted(figure: Figure) -> Iterator[str]:
    """Yield the rows of a figure as text with its axes; nothing without points.

    Each series has a letter, a limit is a column of colons, and the chosen point is a star. Earlier series cover later ones.
    """
    marks = _marks(figure)
    if not marks:
        return
    x = _span([*(mark.x for mark in marks), *((figure.limit.at,) if figure.limit is not None else ())])
    ys = [mark.y for mark in marks]
    y = _span(ys) if "y" in figure.logarithmic else Scale(0.0, max(ys) or 1.0, False)
    cells = [[EMPTY] * COLUMNS for _ in range(ROWS)]
    if figure.limit is not None:
        for row in cells:
            row[_column(figure.limit.at, x)] = LIMIT
    for letter, series in reversed(_lettered(figure)):
        for mark in series.marks:
            cells[ROWS - 1 - round(y.share(mark.y) * (ROWS - 1))][_column(mark.x, x)] = letter
    for mark in marks:
        if mark.chosen:
            cells[ROWS - 1 - round(y.share(mark.y) * (ROWS - 1))][_column(mark.x, x)] = CHOSEN
    for index, row in enumerate(cells):
        at = y.value((ROWS - 1 - index) / (ROWS - 1))
        label = number(at) if index in (0, ROWS // 2, ROWS - 1) else ""
        yield f"{label:>{LABEL}} |{''.join(row)}".rstrip()
    yield _axis(x)


def legend(figure: Figure) -> str:
    """Explain the letters of `plotted`."""
    entries = list(dict.fromkeys(f"{letter} {series.name}" for letter, series in _lettered(figure)))
    entries += [f"{CHOSEN} chosen"] * any(mark.chosen for mark in _marks(figure))
    return "; ".join(entries + [f"{LIMIT} limit"] * (figure.limit is not None))


def _lettered(figure: Figure) -> list[tuple[str, Series]]:
    """The series with their letters, then the guides. Equal names share a letter."""
    letters = dict(zip(dict.fromkeys(series.name for series in figure.series), LETTERS, strict=False))
    named = [(letters[series.name], series) for series in figure.series if series.name in letters]
    return named + [(GUIDE, guide) for guide in figure.guides]


def _span(values: Sequence[float]) -> Scale:
    low, high = min(values), max(values)
    return Scale(low, high) if high > low * (1 + 1e-9) else Scale(low / 2, high * 2)


def _column(value: float, x: Scale) -> int:
    return round(x.share(value) * (COLUMNS - 1))


def _axis(x: Scale) -> str:
    """The axis with its numbers in it: each stands right of the `+` at its place."""
    axis = ""
    for value in log_ticks(x.low, x.high, math.inf):
        tick = f"+{number(value, 1)}"
        if len(axis) <= _column(value, x) <= COLUMNS - len(tick):
            axis = axis.ljust(_column(value, x), "-") + tick
    return f"{'':>{LABEL}} +{axis.ljust(COLUMNS, '-')}"


# --- for an SVG ----------------------------------------------------------------------------------------------------------


class Chart(NamedTuple):
    """A figure with ticks in the units of an SVG view box; a template draws its series and limit."""

    id: str
    figure: Figure
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


def chart(figure: Figure, ident: str) -> Chart | None:
    """The geometry of a figure; None for a figure without points."""
    marks, limit = _marks(figure), figure.limit
    if not marks:
        return None
    xs = [*(mark.x for mark in marks), *((limit.at,) if limit is not None else ())]
    top = max(mark.y for mark in marks)
    x, y = Scale(min(xs) / ROOM, max(xs) * ROOM), Scale(0.0, top * ROOM if top > 0 else 1.0, False)

    def across(value: float) -> float:
        return round(LEFT + x.share(value) * (WIDTH - RIGHT - LEFT), 1)

    def up(value: float) -> float:
        return round(HEIGHT - BOTTOM - y.share(value) * (HEIGHT - BOTTOM - TOP), 1)

    def drawn(series: Series, number: int) -> Series:
        places = tuple(mark._replace(x=across(mark.x), y=up(mark.y)) for mark in series.marks)
        return series._replace(marks=places, style=number % STYLES)

    lines = [series for series in figure.series if series.marks]
    limit = None if limit is None else Tick(across(limit.at), limit.text)
    return Chart(
        ident,
        figure._replace(series=tuple(map(drawn, lines, range(len(lines)))), limit=limit),
        tuple(Tick(across(value), number(value)) for value in log_ticks(x.low, x.high)),
        tuple(Tick(up(value), f"{value:,.10g}") for value in linear_ticks(y.high)),
    )
