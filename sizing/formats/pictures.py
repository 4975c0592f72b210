"""Pictures as svg, png or pdf: a figure of the view model drawn by `draw`, and what other pictures share.

Matplotlib is loaded when something is drawn.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from sizing.formats.view import Figure as Described
from sizing.formats.view import Mark, Series
from sizing.specs.errors import Fault, InputError
from sizing.specs.units import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, Color Universal Design (https://jfly.uni-koeln.de/color), with a light grey.
BLACK, BLUE, GREEN, VERMILLION, ORANGE, PALE = "#000000", "#0072B2", "#009E73", "#D55E00", "#E69F00", "#F2F2F2"
SKY, PURPLE, GREY = "#56B4E9", "#CC79A7", "#595959"  # the rest of their colours, and a grey for text
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
# As many as make no common cycle with the colours: 77 pairs differ, and in greyscale the markers do.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "*")
SOLID, BROKEN = ("-", "-."), ("--", ":")  # lines of what is predicted, and of what was measured
DARKER = 0.6  # the lightest of the colours, times this, stands out from white by 4.5 to 1
DPI = 120
NO_MATPLOTLIB = Fault(
    "needs matplotlib, which is not installed", field="--plot", allowed="after pip install 'llmsize[plot]'"
)


def figure(width_inches: float, heights_inches: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes of the given heights one below the other. Raises InputError without matplotlib."""
    titles_inches = 0.8 * len(heights_inches)
    drawn = _empty(width_inches, sum(heights_inches) + titles_inches)
    axes = drawn.subplots(len(heights_inches), 1, squeeze=False, height_ratios=list(heights_inches))
    return drawn, [row[0] for row in axes]


def panels(count: int, inches: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many square axes side by side. Raises InputError without matplotlib."""
    drawn = _empty(inches * count, inches)
    return drawn, list(drawn.subplots(1, count, squeeze=False)[0])


def _empty(width_inches: float, height_inches: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and find_spec("matplotlib") is None
        raise InputError(NO_MATPLOTLIB if absent else _broken(error)) from None
    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def _broken(error: ImportError) -> Fault:
    """Return the fault of a matplotlib that is there but cannot be loaded."""
    return Fault(f"needs matplotlib, which cannot be loaded: {printable(str(error))}", field="--plot")


class Style(NamedTuple):
    """How one line is told from others: by colour, by marker and by line style."""

    colour: str
    marker: str
    line: str
    hollow: bool

    def text(self) -> str:
        """Return a darker shade of the colour, in which small text is legible on white."""
        return "#" + "".join(f"{round(int(self.colour[at : at + 2], 16) * DARKER):02X}" for at in (1, 3, 5))


def style(number: int, *, measured: bool = False) -> Style:
    """Return the style of the line of a number, from 0; one that was measured is broken, its markers hollow."""
    lines = BROKEN if measured else SOLID
    around = number // len(COLOURS)
    return Style(
        COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)], lines[around % len(lines)], hollow=measured
    )


def limit_line(axis: Axes, at: float, label: str) -> None:
    """Draw a limit on the x axis as a dashed vertical line, its label along it at the bottom."""
    axis.axvline(at, color=BLACK, linewidth=1.1, linestyle=(0, (4, 3)), zorder=1.5, gid="limit")
    axis.annotate(
        label,
        (at, 0.02),
        xycoords=("data", "axes fraction"),
        xytext=(3, 0),
        textcoords="offset points",
        rotation=90,
        fontsize="small",
        color=BLACK,
        va="bottom",
        ha="left",
    )


def log_ticks(axis: Axes) -> None:
    """Number a logarithmic x axis as people write numbers, at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def words(text: str) -> str:
    """Return text as a picture takes it: nothing that has no shape, and no dollar that would begin a formula."""
    return printable(text).replace("$", r"\$")


def title(axis: Axes, *rows: str) -> None:
    """Write a title over the left end of the axes, one row below the other."""
    axis.set_title("\n".join(rows), loc="left", fontsize="medium")


def rendered(drawn: Figure, form: str) -> bytes:
    """Return a figure as svg, png or pdf; equal figures give equal bytes, so they carry no date."""
    from matplotlib import rc_context

    metadata: dict[str, None] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})
    out = io.BytesIO()
    with rc_context({"svg.hashsalt": "llmsize", "svg.fonttype": "none", "hatch.linewidth": 0.5}):
        drawn.savefig(out, format=form, dpi=DPI, metadata=metadata)
    return out.getvalue()


# --- a figure of the view model ------------------------------------------------------------------------------------------

WIDTH_INCHES, HEIGHT_INCHES = 10.0, 5.8
TITLE_CHARACTERS, LEGEND_CHARACTERS = 100, 40
ROOM_X, ROOM_Y = 1.18, 1.09  # times the outermost points, that the axes extend
# What a label and a point take up, in shares of the axes' width and height; where another has the room, a label is left out.
LABEL_WIDTH, CHARACTER_WIDTH, LABEL_HEIGHT, POINT = 0.004, 0.0082, 0.026, 0.011
PIECE, THIN = 0.008, 0.002  # of a line's segments
LIMIT_WIDTH, LIMIT_HEIGHT = 0.022, 0.2  # of the words beside the limit
OFFSETS = ((0.009, -0.030), (-0.009, 0.030), (0.009, 0.030), (-0.009, -0.030))  # of a label, first choice first

Place = tuple[float, float]  # in shares of the axes' width and height


def draw(described: Described, form: str) -> bytes:
    """Draw series with at least one mark as svg, png or pdf, y from 0. Raises InputError without matplotlib."""
    drawn, (axis,) = figure(WIDTH_INCHES, [HEIGHT_INCHES])
    limit, marks = described.limit, [mark for series in described.series for mark in series.marks]
    xs = [mark.x for mark in marks] + ([limit.at] if limit is not None else [])
    low, high, top = min(xs) / ROOM_X, max(xs) * ROOM_X, max(mark.y for mark in marks) * ROOM_Y

    def place(mark: Mark) -> Place:
        return math.log(mark.x / low) / math.log(high / low), mark.y / top

    styled = []
    for number, series in enumerate(described.series):
        kind = style(number if series.style is None else series.style, measured=series.measured)
        if series.marks:
            axis.plot(
                *_coordinates(series.marks), color=kind.colour, marker=kind.marker, linestyle=kind.line, markersize=5.0,
                markerfacecolor="white" if kind.hollow else kind.colour, markeredgecolor=kind.colour, linewidth=1.3,
                label=_wrapped(series.name, LEGEND_CHARACTERS), gid=f"line-{number}", zorder=2,
            )  # fmt: skip
            styled.append((series, kind, [place(mark) for mark in series.marks]))
    if ringed := [mark for mark in marks if mark.ringed]:
        axis.plot(
            *_coordinates(ringed), linestyle="none", marker="o", markersize=11, markerfacecolor="none",
            markeredgecolor=GREY, markeredgewidth=0.8, label=described.ringed, gid="pareto", zorder=2.5,
        )  # fmt: skip
    if chosen := [mark for mark in marks if mark.chosen]:
        axis.plot(
            *_coordinates(chosen), linestyle="none", marker="*", markersize=19, markerfacecolor="#FFFFFF",
            markeredgecolor=BLACK, markeredgewidth=1.2, label=described.chosen, gid="chosen", zorder=1.8,
        )  # fmt: skip
    across = None
    if limit is not None:
        limit_line(axis, limit.at, limit.text)
        across = place(Mark(limit.at, 0.0))[0]
    for text, (left, middle), colour in _labels(styled, across):
        axis.annotate(
            text,
            (left, middle),
            xycoords="axes fraction",
            fontsize="x-small",
            color=colour,
            va="center",
            ha="left",
            zorder=3,
        )
    log_ticks(axis)
    axis.set(xlim=(low, high), ylim=(0, top), xlabel=described.x_name, ylabel=described.y_name)
    title(axis, *(_wrapped(row, TITLE_CHARACTERS) for row in described.title.splitlines()))
    axis.grid(True, which="major", color="0.9", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small")
    return rendered(drawn, form)


def _wrapped(text: str, characters: int) -> str:
    return "\n".join(textwrap.wrap(words(text), characters))


def _coordinates(marks: Sequence[Mark]) -> tuple[list[float], list[float]]:
    return [mark.x for mark in marks], [mark.y for mark in marks]


class _Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )


def _labels(
    styled: Sequence[tuple[Series, Style, list[Place]]], limit: float | None
) -> Iterator[tuple[str, Place, str]]:
    """Yield the marks' labels where they have room: the chosen first, then the ends of lines, then the others."""
    taken = [box for _, _, places in styled for box in _obstacles(places)]
    if limit is not None:
        taken += [_Box(limit - THIN, 0.0, limit + THIN, 1.0), _Box(limit, 0.0, limit + LIMIT_WIDTH, LIMIT_HEIGHT)]
    found = [
        (mark, kind, place, mark in (series.marks[0], series.marks[-1]))
        for series, kind, places in styled
        for mark, place in zip(series.marks, places, strict=True)
    ]
    for mark, kind, (x, y), _ in sorted(found, key=lambda entry: (not entry[0].chosen, not entry[3])):
        width = LABEL_WIDTH + CHARACTER_WIDTH * len(mark.label)
        for right, up in OFFSETS:
            left = x + right if right > 0 else x + right - width
            box = _Box(left, y + up - LABEL_HEIGHT / 2, left + width, y + up + LABEL_HEIGHT / 2)
            inside = box.left > 0 and box.right < 1 and box.bottom > 0 and box.top < 1
            if inside and not any(box.meets(other) for other in taken):
                taken.append(box)
                yield mark.label, (left, y + up), kind.text()
                break


def _obstacles(places: Sequence[Place]) -> Iterator[_Box]:
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
