"""Geometry of the page's charts: data to places in an SVG, ticks, a limit; the template draws it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sizing.formats.words import number

WIDTH, HEIGHT = 480.0, 330.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 14.0, 20.0, 52.0  # room for the axes' words
ROOM = 1.08  # times the largest value, that an axis extends
MOST_TICKS, MOST_LOG_TICKS = 6, 8
STEPS = (1, 2, 5)
STYLES = 6  # colours, markers and dashes; lines beyond repeat them


class Datum(NamedTuple):
    """One point of a series: its values, what is said of it, and whether it is the one that was chosen."""

    x: float
    y: float
    text: str
    chosen: bool = False


class Series(NamedTuple):
    """A line of the chart."""

    name: str
    data: tuple[Datum, ...]


class Tick(NamedTuple):
    """A place on an axis and what is written there."""

    at: float
    text: str


class Dot(NamedTuple):
    """A point in the SVG and what is said of it."""

    x: float
    y: float
    text: str
    chosen: bool


class Drawn(NamedTuple):
    """A series in the SVG: its style's number, the corners of its line, and its points."""

    name: str
    style: int
    corners: str
    dots: tuple[Dot, ...]


class Limit(NamedTuple):
    """A vertical line at the largest value that is allowed."""

    at: float
    text: str


class Chart(NamedTuple):
    """Everything of a chart that the template draws, in its own units."""

    id: str
    title: str
    x_name: str
    y_name: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[Drawn, ...]
    limit: Limit | None
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


class _Scale(NamedTuple):
    low: float
    high: float
    start: float
    end: float
    logarithmic: bool

    def at(self, value: float) -> float:
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def chart(
    ident: str, title: str, x_name: str, y_name: str, series: Sequence[Series], limit: tuple[float, str] | None = None
) -> Chart | None:
    """Return the geometry of a chart with a logarithmic x and a linear y; None where nothing is to be drawn.

    `limit` is the largest x that is allowed and what is written beside it.
    """
    shown = [one for one in series if one.data]
    xs = [point.x for one in shown for point in one.data if point.x > 0]
    if not xs:
        return None
    xs += [limit[0]] if limit is not None else []
    top = max(point.y for one in shown for point in one.data)
    x = _Scale(min(xs) / ROOM, max(xs) * ROOM, LEFT, WIDTH - RIGHT, True)
    y = _Scale(0.0, top * ROOM if top > 0 else 1.0, HEIGHT - BOTTOM, TOP, False)
    drawn = tuple(_drawn(one, index % STYLES, x, y) for index, one in enumerate(shown))
    return Chart(
        ident,
        title,
        x_name,
        y_name,
        tuple(Tick(x.at(value), number(value)) for value in log_ticks(x.low, x.high)),
        tuple(Tick(y.at(value), _plain(value)) for value in linear_ticks(y.high)),
        drawn,
        None if limit is None else Limit(x.at(limit[0]), limit[1]),
    )


def _drawn(series: Series, style: int, x: _Scale, y: _Scale) -> Drawn:
    dots = tuple(Dot(x.at(d.x), y.at(d.y), d.text, d.chosen) for d in series.data if d.x > 0)
    return Drawn(series.name, style, " ".join(f"{dot.x:g},{dot.y:g}" for dot in dots), dots)


def _plain(value: float) -> str:
    return f"{value:,.10g}"


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten between two values, of powers alone where those are too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [step * 10.0**power for power in powers for step in STEPS]
    inside = [value for value in every if low <= value <= high]
    if len(inside) <= MOST_LOG_TICKS:
        return inside
    return [10.0**power for power in powers if low <= 10.0**power <= high]


def linear_ticks(high: float) -> list[float]:
    """Return 0 and the multiples, up to a value, of the smallest 1, 2 or 5 times a power of ten that makes few of them."""
    least = high / (MOST_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (*STEPS, 10) if factor * power >= least)
    return [step * index for index in range(math.floor(high / step) + 1)]
