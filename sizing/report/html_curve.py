"""The page's charts of throughput against latency, one for each latency that is limited, and their table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from sizing.answers.points import METRICS, CurvePoint, Metric
from sizing.formats.words import milliseconds, number, percent
from sizing.report.curve import CurveRecord, LineRecord, RateLine, RatePoint, shape
from sizing.report.documents_report import Report
from sizing.report.html_cells import Cell, Table, columns, figure, words
from sizing.report.html_chart import Chart, Datum, Series, chart
from sizing.report.parts.figures import Statistics
from sizing.report.parts.layouts import layout
from sizing.specs.workload import Limits

THROUGHPUT = "requests/s per 8 GPUs"
Shown = tuple[tuple[str, str, Callable[[Any], str]], ...]  # of a table: heading, key of the point, how it is written
CURVE_COLUMNS: Shown = (
    ("in flight on a replica", "concurrency", "{:,}".format),
    ("TTFT", "ttft_ms", milliseconds),
    ("ITL", "itl_ms", milliseconds),
    ("E2E", "e2e_ms", milliseconds),
    (THROUGHPUT, "requests_per_s_per_8_gpus", number),
    ("requests/s a GPU", "requests_per_s_per_gpu", number),
    ("tokens/s a user", "output_tokens_per_s_per_user", number),
    ("cache used", "kv_cache_utilisation", percent),
)
RATE_COLUMNS: Shown = (
    ("requests/s a replica", "requests_per_s_per_replica", number),
    ("of the stable rate", "share_of_stable", percent),
    ("in flight on a replica", "in_flight", number),
    ("TTFT", "ttft_ms/mean", milliseconds),
    ("ITL", "itl_ms/mean", milliseconds),
    ("E2E", "e2e_ms/mean", milliseconds),
    (THROUGHPUT, "requests_per_s_per_8_gpus", number),
    ("requests/s a GPU", "requests_per_s_per_gpu", number),
)


class Drawing(NamedTuple):
    """A chart with the table of its points."""

    chart: Chart
    table: Table


def first_metric(limits: Limits, mode: str) -> Metric:
    """Return the latency to mark the best point by: E2E of whole answers; of streams TTFT, or ITL where it alone is limited."""
    return shown_metrics({name: getattr(limits, name) for name in METRICS}, mode)[0]


def shown_metrics(limits: dict[str, Any], mode: str) -> tuple[Metric, ...]:
    """Return the latencies to draw against: those limited, else the one that counts in the mode."""
    limited = tuple(name for name in METRICS if limits[name] is not None)
    return limited or ("ttft" if mode == "streaming" else "e2e",)


def drawings(report: Report) -> tuple[Drawing, ...]:
    """Return a chart for each latency that counts, each with the table of its points."""
    limits: dict[str, Any] = {name: report.estimate.inputs["limits"][f"{name}_ms"] for name in METRICS}
    if report.estimate.inputs["osl"] <= 1:
        limits["itl"] = None
    found = []
    for metric in shown_metrics(limits, report.estimate.inputs["mode"]):
        limit = limits[metric]
        statistic = limit["statistic"] if limit is not None else "mean"
        drawn = chart(
            f"chart-{metric}",
            f"{metric.upper()} ({statistic}) against throughput",
            f"{metric.upper()}, {statistic} (ms)",
            THROUGHPUT,
            [_series(line, metric, statistic) for line in _lines(report)],
            None if limit is None else (limit["ms"], f"limit {milliseconds(limit['ms'])}"),
        )
        if drawn is not None:
            found.append(Drawing(drawn, _table(report, metric, statistic)))
    return tuple(found)


def note(report: Report) -> str:
    """Say what the lines and points are, and which point is marked."""
    if report.rates:
        return (
            "A line is a layout, a point a rate of Poisson arrivals at one replica; up and to the left is better. The dashed "
            "vertical line is the limit, a ring marks the load of the answer. The rates are shares of the highest stable one."
        )
    return (
        "A line is a layout, a point a number of requests in flight on one replica, all started together; up and to the left is "
        "better. The dashed vertical line is the limit, a ring marks the most throughput within the limits."
    )


def _lines(report: Report) -> Sequence[LineRecord | RateLine]:
    if report.curve is None:
        return report.rates
    curve: CurveRecord = report.curve
    return curve.lines


def _latency_ms(point: CurvePoint | RatePoint, metric: Metric) -> Statistics:
    """Return the statistics of a latency of a point."""
    found = point.latency_ms if isinstance(point, CurvePoint) else point
    return cast(Statistics, getattr(found, metric if isinstance(point, CurvePoint) else f"{metric}_ms"))


def _name(line: LineRecord | RateLine) -> str:
    runs = shape(line) if isinstance(line, LineRecord) else layout(line)
    parts = (line.gpu, (line.weight_precision or "").upper(), runs)
    return ", ".join(part for part in parts if part)


def _series(line: LineRecord | RateLine, metric: Metric, statistic: str) -> Series:
    return Series(_name(line), tuple(_data(line, metric, statistic)))


def _data(line: LineRecord | RateLine, metric: Metric, statistic: str) -> Iterator[Datum]:
    for point in line.points:
        x = getattr(_latency_ms(point, metric), statistic)
        y = point.requests_per_s_per_8_gpus
        if x is not None and y is not None:
            yield Datum(x, y, _said(line, point, f"{metric.upper()} {statistic} {milliseconds(x)}"), _marked(point))


def _marked(point: CurvePoint | RatePoint) -> bool:
    return point.chosen if isinstance(point, CurvePoint) else point.is_answer


def _said(line: LineRecord | RateLine, point: CurvePoint | RatePoint, latency: str) -> str:
    limits = "" if point.feasible else "; a limit is broken"
    if isinstance(point, CurvePoint):
        load = f"{point.concurrency:,} in flight"
    else:
        load = f"{number(point.requests_per_s_per_replica)} requests/s a replica"
    throughput = f"{number(point.requests_per_s_per_8_gpus)} {THROUGHPUT}"
    return f"{_name(line)}: {load}, {latency}, {throughput}{limits}"


def _table(report: Report, metric: Metric, statistic: str) -> Table:
    rates = report.curve is None
    shown, root = (RATE_COLUMNS, "/rates") if rates else (CURVE_COLUMNS, "/curve/lines")
    rows: list[tuple[Cell, ...]] = []
    for row, line in enumerate(_lines(report)):
        points: Sequence[CurvePoint | RatePoint] = line.points
        for column, point in enumerate(points):
            at = f"{root}/{row}/points/{column}"
            x = f"{at}/{metric}_ms/{statistic}" if rates else f"{at}/latency_ms/{metric}/{statistic}"
            cells = (figure(report, f"{at}/{name}", write) for _, name, write in shown)
            mark = ("the answer" if rates else "chosen") if _marked(point) else ""
            verdict = ", ".join(text for text in ("yes" if point.feasible else "no", mark) if text)
            rows.append((words(_name(line)), figure(report, x, milliseconds), *cells, words(verdict)))
    names = (f"{metric.upper()} {statistic}", *(name for name, _, _ in shown))
    how = "simulated" if report.simulated else "closed form"
    return Table(
        f"Points of the curves ({how}), {metric.upper()} {statistic} on the axis; latencies without a statistic are means",
        columns("layout", *names, "limits kept", words_last=1),
        tuple(rows),
    )
