"""A curve as a picture: throughput per 8 GPUs over latency, a style a line, points labelled by concurrency. Needs matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from sizing.answers.points import CurvePoint
from sizing.formats.words import milliseconds, number
from sizing.report.curve import CurveRecord as Curve
from sizing.report.curve import LineRecord, shape
from sizing.report.plots import BLACK, GREY, Style, figure, limit_line, log_ticks, rendered, style, title, words
from sizing.report.table_curve import PER_8, axis_label, told_apart
from sizing.report.table_curve import drawn as has_place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Drawn = tuple[LineRecord, Sequence[CurvePoint], Style]

WIDTH_INCHES, HEIGHT_INCHES = 10.0, 5.8
TITLE_CHARACTERS = 100
ROOM_X, ROOM_Y = 1.18, 1.09  # times the outermost points, that the axes extend
# A label and a point take up so much of the axes' width and height; where another has the room, a label is left out.
LABEL_WIDTH, CHARACTER_WIDTH, LABEL_HEIGHT, POINT = 0.004, 0.0082, 0.026, 0.011
PIECE, THIN = 0.008, 0.002  # of a line's segments
LIMIT_WIDTH, LIMIT_HEIGHT = 0.022, 0.2  # of the words beside the limit
OFFSETS = (
    (0.009, -0.030),
    (-0.009, 0.030),
    (0.009, 0.030),
    (-0.009, -0.030),
)  # of a label from its point, first choice first


class _Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )


class _Text(NamedTuple):
    """A label with its place in shares of the axes' width and height."""

    text: str
    left: float
    middle: float
    colour: str


class _Frame(NamedTuple):
    """The span of the axes: x logarithmic, y from 0."""

    low: float
    high: float
    top: float

    def across(self, x_ms: float) -> float:
        """Return where a latency is, in shares of the axes' width."""
        return math.log(x_ms / self.low) / math.log(self.high / self.low)

    def place(self, point: CurvePoint) -> tuple[float, float]:
        """Return where a point is, in shares of the axes' width and height."""
        x, y = _coordinates(point)
        return self.across(x), y / self.top


def drawable(document: Curve) -> bool:
    """Tell whether any point has a place."""
    return any(has_place(point) for line in document.lines for point in line.points)


def draw(document: Curve, form: str) -> bytes:
    """Draw a curve with at least one point that has a place, as svg, png or pdf. Raises InputError without matplotlib."""
    drawn, (axis,) = figure(WIDTH_INCHES, [HEIGHT_INCHES])
    shown = [(line, [p for p in line.points if has_place(p)]) for line in document.lines]
    styled = [(line, points, kind) for (line, points), kind in zip(shown, _styles(document), strict=True) if points]
    frame = _frame([p for _, points, _ in styled for p in points], document.x.limit_ms)
    for number_, (line, points, kind) in enumerate(styled):
        _line(axis, line, points, kind, document, number_)
    _marks(axis, [p for _, points, _ in styled for p in points])
    for text in _labels(styled, frame, document.x.limit_ms):
        _write(axis, text)
    if document.x.limit_ms is not None:
        limit_line(axis, document.x.limit_ms, f"limit {milliseconds(document.x.limit_ms)}")
    log_ticks(axis)
    axis.set(xlim=(frame.low, frame.high), ylim=(0, frame.top))
    axis.set_xlabel(axis_label(document))
    axis.set_ylabel(PER_8)
    title(axis, *_title(document))
    axis.grid(True, which="major", color="0.9", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small")
    return rendered(drawn, form)


def _styles(document: Curve) -> Iterator[Style]:
    """Yield a style for each line: one that was measured has the colour and marker of the prediction of the same layout."""
    numbers: dict[tuple[Any, ...], int] = {}
    for line in document.lines:
        same = (line.gpu, line.weight_precision, line.tp, line.pp, line.ep, line.dp, line.cp, line.dcp)
        key = next((same, n) for n in range(len(document.lines)) if (line.origin, same, n) not in numbers)
        numbers[line.origin, *key] = -1
        index = numbers.setdefault(key, sum(isinstance(k[0], tuple) for k in numbers))
        yield style(index, measured=line.origin == "measured")


def _frame(points: Sequence[CurvePoint], limit_ms: float | None) -> _Frame:
    xs = [_coordinates(point)[0] for point in points] + ([limit_ms] if limit_ms is not None else [])
    return _Frame(min(xs) / ROOM_X, max(xs) * ROOM_X, max(_coordinates(point)[1] for point in points) * ROOM_Y)


def _coordinates(point: CurvePoint) -> tuple[float, float]:
    return point.x_ms or 0.0, point.requests_per_s_per_8_gpus or 0.0


def _line(
    axis: Axes, line: LineRecord, points: Sequence[CurvePoint], kind: Style, document: Curve, number_: int
) -> None:
    several = len({other.gpu for other in document.lines}) > 1
    text = told_apart(document.lines, several=several)[document.lines.index(line)]
    label = words(text).replace(" on ", "\non ", 1) if several else words(text)
    x, y = zip(*map(_coordinates, points), strict=True)
    axis.plot(x, y, **kind.drawn(), markersize=5.0, linewidth=1.3, label=label, gid=f"line-{number_}", zorder=2)


def _marks(axis: Axes, points: Sequence[CurvePoint]) -> None:
    """Ring the Pareto set, and put a star behind the chosen point."""
    front, chosen = [p for p in points if p.pareto], [p for p in points if p.chosen]
    if front:
        x, y = zip(*map(_coordinates, front), strict=True)
        axis.plot(
            x, y, linestyle="none", marker="o", markersize=11, markerfacecolor="none", markeredgecolor=GREY,
            markeredgewidth=0.8, label="Pareto set", gid="pareto", zorder=2.5,
        )  # fmt: skip
    if chosen:
        x, y = zip(*map(_coordinates, chosen), strict=True)
        told = f"chosen: {number(chosen[0].requests_per_s_per_8_gpus)}\nat {chosen[0].concurrency:,} in flight"
        axis.plot(
            x, y, linestyle="none", marker="*", markersize=19, markerfacecolor="#FFFFFF", markeredgecolor=BLACK,
            markeredgewidth=1.2, label=told, gid="chosen", zorder=1.8,
        )  # fmt: skip


def _labels(styled: Sequence[_Drawn], frame: _Frame, limit_ms: float | None) -> Iterator[_Text]:
    """Yield the points' concurrencies where they have room: the chosen first, then the ends of lines, then the others."""
    taken = [box for _, points, _ in styled for box in _obstacles([frame.place(point) for point in points])]
    if limit_ms is not None:
        at = frame.across(limit_ms)
        taken += [_Box(at - THIN, 0.0, at + THIN, 1.0), _Box(at, 0.0, at + LIMIT_WIDTH, LIMIT_HEIGHT)]
    found = [(point, kind, point in (points[0], points[-1])) for _, points, kind in styled for point in points]
    for point, kind, _ in sorted(found, key=lambda entry: (not entry[0].chosen, not entry[2])):
        x, y = frame.place(point)
        width = LABEL_WIDTH + CHARACTER_WIDTH * len(f"{point.concurrency:,}")
        for right, up in OFFSETS:
            left = x + right if right > 0 else x + right - width
            box = _Box(left, y + up - LABEL_HEIGHT / 2, left + width, y + up + LABEL_HEIGHT / 2)
            inside = box.left > 0 and box.right < 1 and box.bottom > 0 and box.top < 1
            if inside and not any(box.meets(other) for other in taken):
                taken.append(box)
                yield _Text(f"{point.concurrency:,}", left, y + up, kind.text())
                break


def _obstacles(places: Sequence[tuple[float, float]]) -> Iterator[_Box]:
    """Yield what a line covers: its points, and its segments in small pieces."""
    for x, y in places:
        yield _around(x, y, POINT, POINT * WIDTH_INCHES / HEIGHT_INCHES)
    for (x, y), (to_x, to_y) in pairwise(places):
        pieces = max(1, round(max(abs(to_x - x), abs(to_y - y)) / PIECE))
        for piece in range(1, pieces):
            share = piece / pieces
            yield _around(x + share * (to_x - x), y + share * (to_y - y), THIN, THIN)


def _around(x: float, y: float, across: float, up: float) -> _Box:
    return _Box(x - across / 2, y - up / 2, x + across / 2, y + up / 2)


def _write(axis: Axes, text: _Text) -> None:
    axis.annotate(
        text.text,
        (text.left, text.middle),
        xycoords="axes fraction",
        fontsize="x-small",
        color=text.colour,
        va="center",
        ha="left",
        zorder=3,
    )


def _title(document: Curve) -> tuple[str, ...]:
    """Return the six labels: model, precision, ISL, OSL, concurrency, layouts; and GPUs and engines."""
    i, shown = document.inputs, [line for line in document.lines if line.points]
    loads = [point.concurrency for line in shown for point in line.points]
    precisions = "/".join(dict.fromkeys((line.weight_precision or "unstated").upper() for line in shown))
    layouts = ", ".join(dict.fromkeys(shape(line) for line in shown))
    gpus = ", ".join(dict.fromkeys(line.gpu for line in shown))
    engines = ", ".join(dict.fromkeys(f"{line.engine} {line.engine_version or ''}".rstrip() for line in shown))
    told = (
        f"{i['model']}, {precisions} weights, ISL {i['isl']:,}, OSL {i['osl']:,}",
        f"{layouts} on {gpus}, concurrency {min(loads):,} to {max(loads):,} per replica (beside points)",
        engines,
    )
    return tuple(row for text in told for row in textwrap.wrap(words(text), TITLE_CHARACTERS))
