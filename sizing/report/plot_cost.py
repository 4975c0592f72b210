"""Break-even as a picture: yearly cost against requests a day, a line an option, points where they cross. Needs matplotlib."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sizing.formats.pictures import BLACK, BLUE, GREEN, ORANGE, VERMILLION, figure, rendered
from sizing.formats.words import number
from sizing.planning.bill import BreakEven
from sizing.planning.break_even import SECONDS_PER_DAY, Days, usd_per_year
from sizing.planning.offers import CostOption
from sizing.planning.usage import LoadKind
from sizing.report.cost import CostReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_INCHES, HEIGHT_INCHES = 10.0, 5.6
SKY, PURPLE, GREY = "#56B4E9", "#CC79A7", "#595959"  # the rest of Okabe and Ito's colours, and a grey for text
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
LINES = (
    "-",
    "--",
    "-.",
    ":",
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (8, 2)),
)  # as many as there are no colours: the pairs differ
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LOADS: dict[LoadKind, str] = {
    "mean_load": "mean load",
    "stated_demand": "stated demand around the clock",
    "as_sized": "full use of the replicas sized",
}
POINTS = 3_000  # along the axis: steps look like steps
DIGITS = 2  # of a break-even
LINES_OF_MARK, INCHES_OF_LINE = 2, 0.21  # in the list of what is drawn
LEAST, MOST = 0.1, 4.0  # of the loads of interest, that the axis shows
NARROW = 1.25  # least factor between the loads at its ends


class _Style(NamedTuple):
    colour: str
    line: str | tuple[int, tuple[int, ...]]


def draw(document: CostReport, form: str) -> bytes:
    """Draw costs against load as svg, png or pdf. Raises InputError without matplotlib."""
    marked = _marked(document)
    listed = len(document.options) + LINES_OF_MARK * len(marked)
    drawn, (axis,) = figure(WIDTH_INCHES, [max(HEIGHT_INCHES, INCHES_OF_LINE * listed)])
    here = _here(document)
    loads = _loads(marked, here)
    styles = zip(cycle(COLOURS), cycle(LINES), strict=False)
    for option, (colour, line) in zip(document.options, styles, strict=False):
        axis.plot(
            loads,
            usd_per_year(option.curves, loads),
            color=colour,
            linestyle=line,
            linewidth=1.6,
            label=_plain(option.name),
        )
    by_name = {option.name: option for option in document.options}
    for pair, marker in zip(marked, cycle(MARKERS), strict=False):
        _mark(axis, pair, by_name[pair.one], marker)
    what = LOADS[document.load or "mean_load"]
    axis.axvline(here, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    axis.annotate(
        f"{what}: {number(here)} a day", (here, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -4),
        textcoords="offset points", fontsize="small", color=GREY, rotation=90, va="top",
    )  # fmt: skip
    axis.set(xscale="log", yscale="log", xlim=(loads[0], loads[-1]))
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.set_xlabel("requests a day, at the demand's own ratio of peak to mean")
    axis.set_ylabel("US dollars a year")
    axis.set_title(_title(document), loc="left", fontsize="medium")
    axis.grid(True, which="major", color="0.9", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small")
    return rendered(drawn, form)


def _here(document: CostReport) -> float:
    """Return the requests a day that the report's figures are of."""
    return (document.load_requests_per_s or 0.0) * SECONDS_PER_DAY


def _marked(document: CostReport) -> list[BreakEven]:
    """Return the pairs to mark: those of own servers, of rented ones where nothing is owned."""
    found = [pair for pair in document.break_even if _points(pair)]
    owned = {option.name for option in document.options if option.kind == "own"}
    return [pair for pair in found if pair.one in owned] if owned else found


def _loads(marked: list[BreakEven], here: float) -> Days:
    """Return the loads to draw: around that of the report and the break-even points."""
    found = [here, *(load for pair in marked for load in _points(pair))]
    return np.geomspace(LEAST * min(found), MOST * max(max(found), NARROW * min(found)), POINTS)


def _points(pair: BreakEven) -> list[float]:
    """Return the loads to mark of a pair: from where it stays cheaper, or where it first is."""
    return [load for load in (pair.requests_per_day or pair.first_requests_per_day,) if load]


def _mark(axis: Axes, pair: BreakEven, one: CostOption, marker: str) -> None:
    """Mark a break-even: filled where `one` stays cheaper at every higher load, hollow where it is so for the first time."""
    for load in _points(pair):
        cost = usd_per_year(one.curves, np.array([load]))[0]
        stays = pair.requests_per_day is not None
        label = f"{pair.one} = {pair.other}:\n{'from' if stays else 'first at'} {number(load, DIGITS)} a day"
        axis.plot(
            [load],
            [cost],
            marker=marker,
            markersize=8,
            color=BLACK,
            fillstyle="full" if stays else "none",
            linestyle="",
            label=_plain(label),
            zorder=3,
        )


def _plain(text: str) -> str:
    """Return text that matplotlib does not read as a formula."""
    return text.replace("$", r"\$")


def _title(document: CostReport) -> str:
    i, run = document.inputs, document.deployments[0]
    return (
        f"{i['model']}, {i['weight_precision'].upper()} weights, ISL {i['isl']:,}, OSL {i['osl']:,}, on {run.gpu}, "
        f"{i['engine_title']} {i['engine_version']}"
    )
