"""Latency against throughput: a chart for each latency that matters, each with the table of its points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sizing.answers.curve_points import CurvePoint, metrics_of
from sizing.formats.page import PageTable, page_table
from sizing.formats.view import Figure, Mark, Quantity, Series, Table, Tick, in_words
from sizing.formats.words import milliseconds, number
from sizing.report.curve.record import LineRecord, shape
from sizing.report.curve.sections import PER_8
from sizing.report.page.record import RateLine, RatePoint, Report
from sizing.report.page.tables import columns
from sizing.report.parts.quantities import of_task
from sizing.report.parts.question import LimitInMs
from sizing.specs.workload import LATENCIES, Metric, latency_name

RATE_NOTE = (
    "A line is a layout, a point a rate of Poisson arrivals at one replica; up and to the left is better. The dashed "
    "vertical line is the limit, a ring marks the load of the answer. The rates are shares of the highest stable one."
)
CURVE_NOTE = (
    "A line is a layout, a point a number of requests in flight on one replica, all started together; up and to the left is "
    "better. The dashed vertical line is the limit, a ring marks the most throughput within the limits."
)


def drawings(report: Report) -> Iterator[tuple[Figure, PageTable]]:
    """Yield a chart for each latency to draw, each with the table of its points."""
    inputs = report.estimate.inputs
    limits: dict[str, LimitInMs | None] = {name: inputs.limits[f"{name}_ms"] for name in LATENCIES}
    if inputs.single_result:
        limits["itl"] = None
    for metric in metrics_of(limits, inputs.mode):
        limit = limits[metric]
        statistic = limit.statistic if limit is not None else "mean"
        called = latency_name(metric, single=inputs.single_result)
        series = tuple(Series(_name(line), tuple(_marks(line, metric, statistic, called))) for line in _lines(report))
        if any(one.marks for one in series):
            tick = None if limit is None else Tick(limit.ms, f"limit {milliseconds(limit.ms)}")
            title = f"{called[0].upper()}{called[1:]} ({statistic}) against throughput"
            drawn = Figure(f"{called}, {statistic} (ms)", PER_8, series, limit=tick, title=title)
            yield drawn, _points(report, metric, statistic, called)


def _lines(report: Report) -> Sequence[LineRecord | RateLine]:
    if report.curve is None:
        return report.rates
    lines: tuple[LineRecord, ...] = report.curve.lines
    return lines


def _name(line: LineRecord | RateLine) -> str:
    runs = shape(line) if isinstance(line, LineRecord) else str(line.sizes)
    return ", ".join(part for part in (line.gpu, (line.weight_precision or "").upper(), runs) if part)


def _marks(line: LineRecord | RateLine, metric: Metric, statistic: str, called: str) -> Iterator[Mark]:
    for point in line.points:
        if isinstance(point, CurvePoint):
            x, load = point.latency(metric, statistic), f"{point.concurrency:,} in flight"
        else:
            x = getattr(getattr(point, f"{metric}_ms"), statistic)
            load = f"{number(point.requests_per_s_per_replica)} requests/s a replica"
        y = point.requests_per_s_per_8_gpus
        if not x or y is None:
            continue
        broken = "" if point.feasible else "; a limit is broken"
        latency = f"{called} {statistic} {milliseconds(x)}"
        text = f"{_name(line)}: {load}, {latency}, {number(y)} {PER_8}{broken}"
        yield Mark(x, y, text=text, chosen=_is_marked(point))


def _is_marked(point: CurvePoint | RatePoint) -> bool:
    return point.chosen if isinstance(point, CurvePoint) else point.is_answer


def _points(report: Report, metric: Metric, statistic: str, called: str) -> PageTable:
    rates = report.curve is None
    shown, root = (columns("rates"), "/rates") if rates else (columns("curve"), "/curve/lines")
    at = f"{metric}_ms/{statistic}" if rates else f"latency_ms/{metric}/{statistic}"
    mark, how = "the answer" if rates else "chosen", "simulated" if report.simulated else "closed form"

    def verdict(point: CurvePoint | RatePoint) -> str:
        return ("yes" if point.feasible else "no") + (f", {mark}" if _is_marked(point) else "")

    def of_line(index: int, line: LineRecord | RateLine) -> PageTable:
        columns = (
            in_words("layout", "layout", lambda _: _name(line)),
            Quantity(at, f"{called} {statistic}", milliseconds),
            *of_task(shown, report.estimate.inputs.task),
            in_words("feasible", "limits kept", verdict),
        )
        means = f"{called} {statistic} on the axis; latencies without a statistic are means"
        return page_table(
            Table(columns, line.points, f"{root}/{index}/points", f"Points of the curves ({how}), {means}")
        )

    tables = [of_line(index, line) for index, line in enumerate(_lines(report))]
    return tables[0]._replace(rows=tuple(row for table in tables for row in table.rows))
