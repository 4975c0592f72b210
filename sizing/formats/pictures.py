"""Figures of the view model as svg, png or pdf. Matplotlib is loaded on the first picture.

Series also differ without colour: by marker or dashes. States of bars differ by lightness and hatching.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from sizing.formats.view import Bars, Figure, Mark, Series, Tick
from sizing.specs.errors import Fault, InputError
from sizing.specs.units import printable

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# Okabe and Ito, Color Universal Design (https://jfly.uni-koeln.de/color), with greys for rings, grid and empty areas.
BLACK, BLUE, ORANGE = "#000000", "#0072B2", "#E69F00"
COLOURS = (BLUE, "#D55E00", "#009E73", "#CC79A7", ORANGE, "#56B4E9", BLACK)
GREY, LIGHT, PALE = "#595959", "#E6E6E6", "#F2F2F2"
# Their number has no common factor with the number of colours: 77 pairs differ. In greyscale the markers differ.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "*")
SOLID, BROKEN = ("-", "-."), ("--", ":")  # lines through filled markers, and through hollow ones
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))  # for lines without markers; 35 pairs differ
STATES = ((BLUE, "////"), (ORANGE, ""), (PALE, ""))  # colours and hatches of bars
DARKER = 0.6  # the lightest colour times this has a contrast of 4.5 to 1 with white
DPI = 120
WIDTH_INCHES, HEIGHT_INCHES = 10.0, 5.8  # size of a single figure
STACKED_INCHES, WIDER_INCHES, ABREAST_INCHES, TITLE_INCHES = 2.5, 2.0, 3.6, 0.8  # for several figures
ROW_INCHES, LEAST_INCHES, MOST_INCHES = 0.35, 1.0, 12.0  # heights of rows of bars
LEGEND_INCHES = 0.21  # height of a line of the legend
TITLE_CHARACTERS, LEGEND_CHARACTERS = 105, 40
LIMIT_POINTS = 18.0  # distance of the title from the axes if the text of a limit is between them
ROOM_X, ROOM_Y = 1.18, 0.09  # room beyond the outermost points: a factor on x, a share of the span on y
DECADE = 250.0  # pixels of a decade from which 2 and 5 get numbers too
LARGEST_POINT, LEAST_POINT, GROWTH = 8.0, 2.0, 6.0  # marker sizes in points, and their growth in square points
INSTALLED = "it works after pip install 'llmsize[plot]'"
NO_MATPLOTLIB = Fault("needs matplotlib, which is not installed", field="--plot", remedy=INSTALLED)


class Style(NamedTuple):
    """The style of a series: colour, marker, the line through markers, and the dashes of a line without markers."""

    colour: str
    marker: str
    line: str
    dashes: str | tuple[int, tuple[int, ...]]
    face: str

    def text(self) -> str:
        """The colour, dark enough for small text on white."""
        return "#" + "".join(f"{round(int(self.colour[at : at + 2], 16) * DARKER):02X}" for at in (1, 3, 5))


def style(number: int, *, hollow: bool = False, black: bool = False) -> Style:
    """The style of the series with this number, from 0."""
    lines, colour = BROKEN if hollow else SOLID, BLACK if black else COLOURS[number % len(COLOURS)]
    line = lines[number // len(COLOURS) % len(lines)]
    face = "white" if hollow else colour
    return Style(colour, MARKERS[number % len(MARKERS)], line, DASHES[number % len(DASHES)], face)


def draw(figures: Sequence[Figure], form: str, *, abreast: bool = False) -> bytes:
    """Draw figures as svg, png or pdf: one below the other, or side by side (`abreast`) with the legend of the last.

    Raises InputError without matplotlib.
    """
    heights = [_inches(figure, alone=len(figures) == 1) for figure in figures]
    if abreast:
        drawn = _empty(ABREAST_INCHES * len(figures) + WIDER_INCHES, ABREAST_INCHES)
        axes = drawn.subplots(1, len(figures), squeeze=False)[0]
    else:
        width = WIDTH_INCHES + (WIDER_INCHES if len(figures) > 1 else 0.0)
        drawn = _empty(width, sum(heights) + TITLE_INCHES * len(figures))
        axes = drawn.subplots(len(figures), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, figure in zip(axes, figures, strict=True):
        _panel(axis, figure, legend=not abreast or figure is figures[-1])
    return rendered(drawn, form)


def _inches(figure: Figure, *, alone: bool) -> float:
    if figure.bars:
        return min(MOST_INCHES, max(LEAST_INCHES, len(figure.bars[0].rows) * ROW_INCHES))
    listed = sum(_wrapped(series.name, LEGEND_CHARACTERS).count("\n") + 1 for series in figure.series + figure.guides)
    return max(HEIGHT_INCHES, listed * LEGEND_INCHES) if alone else STACKED_INCHES


def _empty(width_inches: float, height_inches: float) -> matplotlib.figure.Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and find_spec("matplotlib") is None
        broken = Fault(f"needs matplotlib, which cannot be loaded: {printable(str(error))}", field="--plot")
        raise InputError(NO_MATPLOTLIB if absent else broken) from None
    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def rendered(drawn: matplotlib.figure.Figure, form: str) -> bytes:
    """The bytes of a picture without a date, so that equal pictures have equal bytes."""
    from matplotlib import rc_context

    metadata: dict[str, None] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})
    out = io.BytesIO()
    with rc_context({"svg.hashsalt": "llmsize", "svg.fonttype": "none", "hatch.linewidth": 0.5}):
        drawn.savefig(out, format=form, dpi=DPI, metadata=metadata)
    return out.getvalue()


def _panel(axis: Axes, figure: Figure, *, legend: bool) -> None:
    styled = _content(axis, figure)
    handles, names = axis.get_legend_handles_labels()
    if figure.right is not None:
        right = axis.twinx()
        _content(right, figure.right)
        handles, names = [*handles, *right.get_lines()], [*names, *(series.name for series in figure.right.series)]
        right.spines.top.set_visible(False)
    for text, at, colour in _labels(axis, styled, figure.limit):
        axis.annotate(text, at, xycoords="axes fraction", fontsize="x-small", color=colour, va="center", zorder=3)
    room = LIMIT_POINTS if figure.limit is not None else None
    axis.set_title(_wrapped(figure.title, TITLE_CHARACTERS), loc="left", fontsize="medium", pad=room)
    if not figure.bars:
        axis.grid(which="major", color=LIGHT, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    if legend and names:
        place = (1.01 if figure.right is None else 1.08, 1.0)
        axis.legend(handles, names, loc="upper left", bbox_to_anchor=place, frameon=False, fontsize="small")


def _content(axis: Axes, figure: Figure) -> list[tuple[Series, Style]]:
    """Draw a figure over scaled axes, and yield the style of each series."""
    styled = []
    for number, series in enumerate(figure.series):
        own = number if series.style is None else series.style
        styled.append((series, style(own, hollow=series.hollow)))
    styled += [(guide, style(number, hollow=guide.hollow, black=True)) for number, guide in enumerate(figure.guides)]
    named = {""}
    for number, (series, kind) in enumerate(styled):
        label = "_" if series.name in named else _wrapped(series.name, LEGEND_CHARACTERS)
        named.add(series.name)
        _series(axis, series, kind, label, f"line-{number}")
    _bars(axis, figure.bars)
    marks = [mark for series in figure.series for mark in series.marks]
    ringed, chosen = [mark for mark in marks if mark.ringed], [mark for mark in marks if mark.chosen]
    for found, shape, size, colour, name, ident in (
        (ringed, "o", 11, GREY, figure.ringed, "pareto"),
        (chosen, "*", 19, BLACK, figure.chosen, "chosen"),
    ):
        if found:
            axis.plot(*_coordinates(found), shape, ms=size, mfc="none", mec=colour, label=words(name), gid=ident)
    _scale(axis, figure)
    if figure.limit is not None:
        axis.axvline(figure.limit.at, color=BLACK, linewidth=1.1, linestyle=(0, (4, 3)), zorder=1.5, gid="limit")
        place = figure.limit.at, 1.0  # above the axes, where nothing crosses it
        above = axis.annotate(words(figure.limit.text), place, (0, 2), ("data", "axes fraction"), "offset points")
        above.set(va="bottom", ha="center", fontsize="small")
    return styled


def _series(axis: Axes, series: Series, kind: Style, label: str, ident: str) -> None:
    xs, ys = _coordinates(series.marks)
    look, bare = series.look, series.look in ("line", "steps", "area")
    size = max(LEAST_POINT, min(LARGEST_POINT, 24 / math.sqrt(len(xs) or 1))) if look == "points" else 5.0
    lines = {"marked": kind.line, "growing": kind.line, "points": "none"}
    axis.plot(
        xs, ys, color=kind.colour, marker="" if bare else kind.marker, markersize=size, markerfacecolor=kind.face,
        markeredgecolor=kind.colour, linestyle=lines.get(look, kind.dashes), linewidth=0.7 if look == "growing" else 1.4,
        drawstyle="steps-post" if look in ("steps", "area") else "default", label=label, gid=ident,
        zorder=1.5 if kind.colour == BLACK else 2,
    )  # fmt: skip
    if look == "growing":
        areas = [25 + GROWTH * index for index in range(len(xs))]
        axis.scatter(xs, ys, areas, facecolors=kind.face, edgecolors=kind.colour, marker=kind.marker, zorder=2.2)
    elif look == "area":
        axis.fill_between(xs, ys, step="post", color=kind.colour, alpha=0.35, linewidth=0, zorder=1)


def _coordinates(marks: Sequence[Mark]) -> tuple[list[float], list[float]]:
    return [mark.x for mark in marks], [mark.y for mark in marks]


def _bars(axis: Axes, bars: Sequence[Bars]) -> None:
    """Draw rows of bars, the first at the top."""
    for state, (colour, hatch) in zip(bars, STATES, strict=False):
        for row, spans in enumerate(state.rows):
            drawn = axis.broken_barh(spans, (row + 0.6, 0.8), facecolor=colour, label="_" if row else state.name)
            if state.edged:
                drawn.set(edgecolor=BLACK, linewidth=0.4, hatch=hatch)


def _scale(axis: Axes, figure: Figure) -> None:
    """Scale both axes to the figure and number them as people write numbers."""
    axis.set(xlabel=figure.x_name, ylabel=figure.y_name, **{f"{name}scale": "log" for name in figure.logarithmic})
    axis.margins(x=0.0, y=ROOM_Y)
    xs = [mark.x for series in figure.series + figure.guides for mark in series.marks]
    xs += [figure.limit.at] if figure.limit is not None else []
    if figure.span is not None or xs:
        axis.set_xlim(figure.span or (min(xs) / ROOM_X, max(xs) * ROOM_X))
    if "y" not in figure.logarithmic:
        rows = len(figure.bars[0].rows) if figure.bars else 0
        whole = rows or all(float(mark.y).is_integer() for series in figure.series for mark in series.marks)
        axis.locator_params(axis="y", integer=bool(whole))
        axis.set_ylim(*((rows + 0.5, 0.5) if rows else (0, figure.top)))
    _number(axis.xaxis, *axis.get_xlim(), pixels=axis.bbox.width)
    _number(axis.yaxis, *axis.get_ylim(), pixels=axis.bbox.height)
    if figure.x_ticks:
        axis.set_xticks([tick.at for tick in figure.x_ticks], [tick.text for tick in figure.x_ticks])


def _number(axis: Axis, low: float, high: float, *, pixels: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if axis.get_scale() == "log":
        few = math.log10(high / low) * DECADE < pixels
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def words(text: str) -> str:
    """Text for a picture: characters without a glyph are removed, and a dollar sign starts no formula."""
    return printable(text).replace("$", r"\$")


def _wrapped(text: str, characters: int) -> str:
    return "\n".join(line for row in text.splitlines() for line in textwrap.wrap(words(row), characters))


# --- labels next to marks ------------------------------------------------------------------------------------------------

# The axes are a grid of cells. Labels and points occupy cells; a label is left out
# if its cells are taken.
COLUMNS, ROWS = 250, 150
CHARACTER_CELLS, LABEL_CELLS, POINT_CELLS = 2, 4, 3
PIECES = 250  # pieces of a segment of a line
OFFSETS = ((2, -4), (-2, 4), (2, 4), (-2, -4), (-5, 8), (5, -8))  # offsets of a label in cells, in order of preference

Place = tuple[float, float]


def _labels(axis: Axes, styled: Sequence[tuple[Series, Style]], limit: Tick | None) -> Iterator[tuple[str, Place, str]]:
    """Yield the labels of marks, placed in shares of the axes: first the chosen point, then ends of lines, then the others.

    A label stands nearer to its own mark than to any other.
    """
    found = [
        (not mark.chosen, mark not in (series.marks[0], series.marks[-1]), mark, kind)
        for series, kind in styled
        for mark in series.marks
        if mark.label
    ]
    if not found:
        return
    shares, marks = axis.transData - axis.transAxes, [mark for series, _ in styled for mark in series.marks]

    def cell(mark: Mark) -> Place:
        across, up = shares.transform((mark.x, mark.y))
        return across * COLUMNS, up * ROWS

    lines = [[cell(mark) for mark in series.marks] for series, _ in styled]
    taken = {place for line in lines for x, y in line for place in _cells(x - 1, y - 1, POINT_CELLS, POINT_CELLS)}
    if limit is not None:
        across = cell(Mark(limit.at, 1.0))[0]
        lines.append([(across, 0), (across, ROWS)])
    for (x, y), (to_x, to_y) in (pair for line in lines for pair in pairwise(line)):
        taken |= {
            (round(x + (to_x - x) * piece / PIECES), round(y + (to_y - y) * piece / PIECES)) for piece in range(PIECES)
        }
    for _, _, mark, kind in sorted(found, key=lambda entry: entry[:2]):
        width, (x, y) = 1 + CHARACTER_CELLS * len(mark.label), cell(mark)
        for right, up in OFFSETS:
            left, bottom = x + right - (width if right < 0 else 0), y + up - LABEL_CELLS / 2
            room = _cells(left, bottom, width, LABEL_CELLS)
            inside = 0 < left < COLUMNS - width and 0 < bottom < ROWS - LABEL_CELLS
            middle = left + width / 2, y + up
            own = math.dist((x, y), middle) <= min(math.dist(cell(other), middle) for other in marks)
            if inside and own and not room & taken:
                taken |= room
                yield mark.label, (left / COLUMNS, (y + up) / ROWS), kind.text()
                break


def _cells(left: float, bottom: float, width: int, height: int) -> set[tuple[int, int]]:
    x, y = round(left), round(bottom)
    return {(column, row) for column in range(x, x + width) for row in range(y, y + height)}
