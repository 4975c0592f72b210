"""Break-even as a picture: yearly cost against requests a day, a line an option, points where they cross. Needs matplotlib."""

from __future__ import annotations

from itertools import cycle

import numpy as np

from sizing.formats.pictures import BLACK, COLOURS, GREY, MARKERS, figure, rendered, title, words
from sizing.formats.words import number
from sizing.planning.break_even import SECONDS_PER_DAY, usd_per_year
from sizing.planning.usage import LoadKind
from sizing.report.cost import CostReport

WIDTH_INCHES, HEIGHT_INCHES = 10.0, 5.6
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))  # one fewer than colours: the pairs differ
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


def draw(record: CostReport, form: str) -> bytes:
    """Draw costs against load as svg, png or pdf: around the load of the report and the break-even points.

    A mark is filled where an option stays cheaper at every higher load, hollow where it is so for the first time. Raises
    InputError without matplotlib.
    """
    here = (record.load_requests_per_s or 0.0) * SECONDS_PER_DAY
    owned = {option.name for option in record.options if option.kind == "own"}
    crossings = [
        (pair, load)
        for pair in record.break_even
        if (load := pair.requests_per_day or pair.first_requests_per_day) and (not owned or pair.one in owned)
    ]
    listed = len(record.options) + LINES_OF_MARK * len(crossings)
    drawn, (axis,) = figure(WIDTH_INCHES, [max(HEIGHT_INCHES, INCHES_OF_LINE * listed)])
    found = [here, *(load for _, load in crossings)]
    loads = np.geomspace(LEAST * min(found), MOST * max(*found, NARROW * min(found)), POINTS)
    curves = {option.name: option.curves for option in record.options}
    for name, colour, line in zip(curves, cycle(COLOURS), cycle(LINES), strict=False):
        costs = usd_per_year(curves[name], loads)
        axis.plot(loads, costs, color=colour, linestyle=line, linewidth=1.6, label=words(name))
    for (pair, load), marker in zip(crossings, cycle(MARKERS), strict=False):
        stays = pair.requests_per_day is not None
        label = (
            f"{words(f'{pair.one} = {pair.other}')}:\n{'from' if stays else 'first at'} {number(load, DIGITS)} a day"
        )
        (cost,) = usd_per_year(curves[pair.one], np.array([load]))
        fill = "full" if stays else "none"
        axis.plot([load], [cost], marker, markersize=8, color=BLACK, fillstyle=fill, label=label, zorder=3)
    axis.axvline(here, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    axis.annotate(
        f"{LOADS[record.load or 'mean_load']}: {number(here)} a day", (here, 1.0), xycoords=("data", "axes fraction"),
        xytext=(4, -4), textcoords="offset points", fontsize="small", color=GREY, rotation=90, va="top",
    )  # fmt: skip
    axis.set(xscale="log", yscale="log", xlim=(loads[0], loads[-1]), ylabel="US dollars a year")
    axis.set_xlabel("requests a day, at the demand's own ratio of peak to mean")
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_formatter(lambda value, _: f"{value:,.0f}")
    title(axis, _title(record))
    axis.grid(True, which="major", color="0.9", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small")
    return rendered(drawn, form)


def _title(record: CostReport) -> str:
    i, run = record.inputs, record.deployments[0]
    return (
        f"{i['model']}, {i['weight_precision'].upper()} weights, ISL {i['isl']:,}, OSL {i['osl']:,}, on {run.gpu}, "
        f"{i['engine_title']} {i['engine_version']}"
    )
