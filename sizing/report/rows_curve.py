"""A curve as one row a point; a line that does not fit is one row with its reason."""

from __future__ import annotations

from typing import Any

from sizing.answers.points import METRICS, CurvePoint, Percentiles
from sizing.formats.view import Row, Rows, plain
from sizing.report.curve import OF_POINTS
from sizing.report.curve import CurveRecord as Curve
from sizing.report.parts.pools import shape_words

OF_LINE = (
    "origin", "gpu", "weight_precision", "kv_precision", "engine", "engine_version", "tp", "pp", "ep", "dp", "cp", "dcp", "gpus",
    "source",
)  # fmt: skip
FIGURES = tuple(name for name in CurvePoint._fields if name not in (*OF_POINTS, "limits_met", "row", "x_ms"))
QUANTILES = ("p50", "p90", "p95", "p99")


def of(document: Curve) -> Rows:
    """Return the points of all lines, each with the labels that its numbers are of."""
    quantiles = tuple(f"{metric}_{statistic}_ms" for metric in METRICS for statistic in QUANTILES)
    met = tuple(f"{name}_limit_met" for name, limit in document.limits.items() if limit is not None)
    pools = ("pools",) if any(line.pools is not None for line in document.lines) else ()
    columns = (
        "model", "isl", "osl", *OF_LINE, *pools, *FIGURES, *quantiles, *met, "pareto", "knee", "chosen", "row", "reason"
    )  # fmt: skip
    shared = tuple(document.inputs[name] for name in ("model", "isl", "osl"))
    rows: list[Row] = []
    for line in document.lines:
        start = (*shared, *(getattr(line, name) for name in OF_LINE))
        if pools:
            start = (*start, shape_words(line.pools) if line.pools is not None else None)
        rows += [(*start, *_cells(point, document)) for point in line.points]
        if not line.points:
            rows.append((*start, *[None] * (len(columns) - len(start) - 1), line.reason))
    return Rows(columns, tuple(tuple(plain(row)) for row in rows))


def _cells(point: CurvePoint, document: Curve) -> tuple[Any, ...]:
    latencies: Percentiles = point.latency_ms
    return (
        *(getattr(point, name) for name in FIGURES),
        *(getattr(getattr(latencies, metric), statistic) for metric in METRICS for statistic in QUANTILES),
        *(point.limits_met[name] for name, limit in document.limits.items() if limit is not None),
        point.pareto,
        point.knee,
        point.chosen,
        point.row,
        None,
    )
