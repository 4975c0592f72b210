"""Errors of predictions: one comparison for each metric and row, and statistics by group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sizing.catalog.measured import COLUMNS, METRICS, MeasuredRow
from sizing.evidence.predict import Result, situation_of
from sizing.specs.bands import Band, BandMetric, find, region
from sizing.specs.errors import Fault, raise_any, unknown

DERIVED = ("load", "kind", "metric")
# The metric of error bands for each column of measured rows.
BAND_METRICS: dict[str, BandMetric] = {
    "ttft_ms": "ttft",
    "itl_ms": "itl",
    "e2e_ms": "e2e",
    "req_per_s": "throughput",
    "output_tok_per_s": "throughput",
}


class Comparison(NamedTuple):
    """One measured number and its prediction, both plain and corrected by published runs (if a correction exists).

    `low` and `high` are the error band of the corrected prediction, if there is one. `row` numbers the rows, because ids of
    several files may be equal.
    """

    row: int
    id: str
    metric: str
    measured: float
    predicted: float
    low: float | None
    high: float | None
    key: tuple[str, ...]
    corrected: float

    @property
    def error(self) -> float:
        """Relative error: predicted/measured - 1."""
        return self.predicted / self.measured - 1

    @property
    def corrected_error(self) -> float:
        """Relative error of the corrected prediction."""
        return self.corrected / self.measured - 1


class ErrorFigures(NamedTuple):
    """Errors of one metric: median of |error|, median error (bias), 90th percentile, share of measurements inside the band.

    The last two fields are the medians for corrected predictions.
    """

    n: int
    median_ape: float
    p90_ape: float
    bias: float
    band_coverage: float | None
    corrected_median_ape: float
    corrected_bias: float


class Group(NamedTuple):
    """The statistics of the rows that agree in every grouping column."""

    by: dict[str, str]
    rows: int
    metrics: dict[str, ErrorFigures]


def check_columns(names: Sequence[str], known: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the columns to group by. Raises InputError if there are none, or if no row has one of them."""
    allowed = tuple(dict.fromkeys((*DERIVED, *COLUMNS, *known)))
    faults = [unknown(name, "column", allowed, field="--by") for name in names if name not in allowed]
    if not names:
        faults.append(Fault("names no column", field="--by", allowed=", ".join(allowed)))
    raise_any(faults)
    return tuple(dict.fromkeys(names))


def key_of(result: Result, metric: str, by: Iterable[str]) -> tuple[str, ...]:
    """The value of each grouping column for `metric` of a predicted row, with the catalogue's names."""
    assert result.resolution is not None and result.prediction is not None
    resolved = {
        "engine": result.resolution.engine,
        "gpu": result.resolution.gpu,
        "model": result.resolution.model,
        "kind": "moe" if result.resolution.is_moe else "dense",
        "load": region(result.prediction.in_flight),
        "metric": metric,
    }
    return tuple(resolved[name] if name in resolved else result.row.cells.get(name, "") for name in by)


def is_driven(row: MeasuredRow, metric: str) -> bool:
    """Whether the run itself set `metric`: throughput at a given arrival rate."""
    return row.mode == "open_loop" and BAND_METRICS[metric] == "throughput"


def compare(results: Iterable[Result], by: Sequence[str], bands: Sequence[Band] = ()) -> tuple[Comparison, ...]:
    """A comparison for each metric of each predicted row, in the order of rows and metrics.

    A metric with prediction 0 has no band, and neither has a throughput that the run itself sets.
    """
    found = []
    for number, result in enumerate(results):
        if result.prediction is None:
            continue
        situation = situation_of(result)
        for name, measured in result.row.measured().items():
            predicted = result.prediction.values[name]
            corrected = (result.prediction.corrected or result.prediction.values)[name]
            is_band = predicted > 0 and not is_driven(result.row, name)
            band = find(bands, BAND_METRICS[name], situation) if is_band else None
            low, high = (None, None) if band is None else (corrected * band.low, corrected * band.high)
            key = key_of(result, name, by)
            found.append(Comparison(number, result.row.id, name, measured, predicted, low, high, key, corrected))
    return tuple(found)


def statistics(comparisons: Sequence[Comparison]) -> ErrorFigures:
    """The statistics of one or more `comparisons` of one metric."""
    errors = np.array([comparison.error for comparison in comparisons])
    corrected = np.array([comparison.corrected_error for comparison in comparisons])
    banded = [comparison for comparison in comparisons if comparison.low is not None and comparison.high is not None]
    inside = [entry for entry in banded if entry.low <= entry.measured <= entry.high]  # type: ignore[operator]
    return ErrorFigures(
        n=len(comparisons),
        median_ape=float(np.median(np.abs(errors))),
        p90_ape=float(np.quantile(np.abs(errors), 0.9)),
        bias=float(np.median(errors)),
        band_coverage=len(inside) / len(banded) if banded else None,
        corrected_median_ape=float(np.median(np.abs(corrected))),
        corrected_bias=float(np.median(corrected)),
    )


def by_metric(comparisons: Sequence[Comparison]) -> dict[str, ErrorFigures]:
    """The statistics of each metric in `comparisons`."""
    found = {name: [comparison for comparison in comparisons if comparison.metric == name] for name in METRICS}
    return {name: statistics(ones) for name, ones in found.items() if ones}


def groups(comparisons: Sequence[Comparison], by: Sequence[str]) -> tuple[Group, ...]:
    """The groups of `comparisons` by the columns `by`, sorted by their values."""
    members: dict[tuple[str, ...], list[Comparison]] = {}
    for comparison in comparisons:
        members.setdefault(comparison.key, []).append(comparison)
    found = []
    for key, ones in sorted(members.items()):
        rows = len({comparison.row for comparison in ones})
        found.append(Group(dict(zip(by, key, strict=True)), rows, by_metric(ones)))
    return tuple(found)
