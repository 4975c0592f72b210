"""How far predictions are off: one comparison a metric and row, and their statistics by group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sizing.catalog import gpus
from sizing.catalog.measured import COLUMNS, METRICS, MeasuredRow
from sizing.evidence.predict import Result
from sizing.specs.bands import Band, BandMetric, DrivingMode, Situation, find, region
from sizing.specs.errors import Fault, InputError, nearest

DERIVED = ("load", "kind", "metric")
# The metric and the mode of error bands that a column of measured rows and their mode are of.
BAND_METRICS: dict[str, BandMetric] = {
    "ttft_ms": "ttft",
    "itl_ms": "itl",
    "e2e_ms": "e2e",
    "req_per_s": "throughput",
    "output_tok_per_s": "throughput",
}
BAND_MODES: dict[str, DrivingMode] = {
    "closed_loop": "served",
    "open_loop": "served",
    "static_batch": "batch",
    "max_throughput": "offline",
}


class Comparison(NamedTuple):
    """One measured number and its prediction; `low` and `high` bound the band where there is one.

    `row` counts the rows of a run, for the ids of several files may be the same.
    """

    row: int
    id: str
    metric: str
    measured: float
    predicted: float
    low: float | None
    high: float | None
    key: tuple[str, ...]

    @property
    def error(self) -> float:
        """Relative error: predicted/measured - 1."""
        return self.predicted / self.measured - 1


class ErrorFigures(NamedTuple):
    """Errors of one metric: medians of |error| and error (bias), 90th percentile, share of measurements inside the band."""

    n: int
    median_ape: float
    p90_ape: float
    bias: float
    band_coverage: float | None


class Group(NamedTuple):
    """The statistics of the rows with one value of every grouping column."""

    by: dict[str, str]
    rows: int
    metrics: dict[str, ErrorFigures]


def check_columns(names: Sequence[str], known: Iterable[str] = ()) -> tuple[str, ...]:
    """The columns to group by. Raises InputError for no column, and for a column that no row has."""
    allowed = tuple(dict.fromkeys((*DERIVED, *COLUMNS, *known)))
    faults = [
        Fault(f"{name!r} is no column", field="--by", allowed=", ".join(allowed), nearest=nearest(name, allowed))
        for name in names
        if name not in allowed
    ]
    if not names:
        faults.append(Fault("names no column", field="--by", allowed=", ".join(allowed)))
    if faults:
        raise InputError(faults)
    return tuple(dict.fromkeys(names))


def key_of(result: Result, metric: str, by: Iterable[str]) -> tuple[str, ...]:
    """The value of each grouping column for `metric` of a predicted row. Names are those of the catalogue."""
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


def situation_of(result: Result) -> Situation:
    """The situation of a predicted row, for its error bands."""
    assert result.resolution is not None and result.prediction is not None
    gpu = gpus.load_gpu(result.resolution.gpu).spec
    return Situation(
        mode=BAND_MODES[result.row.mode],
        vendor=gpu.vendor,
        engine=result.resolution.engine,
        architecture=gpu.architecture,
        kind="moe" if result.resolution.is_moe else "dense",
        load=region(result.prediction.in_flight),
    )


def is_driven(row: MeasuredRow, metric: str) -> bool:
    """Whether `metric` was set by the run itself: throughput under a rate."""
    return row.mode == "open_loop" and BAND_METRICS[metric] == "throughput"


def compare(results: Iterable[Result], by: Sequence[str], bands: Sequence[Band] = ()) -> tuple[Comparison, ...]:
    """A comparison for each metric of each predicted row, in the order of rows and metrics.

    A metric that is predicted as 0 gets no band, nor does a throughput that the run itself sets.
    """
    found = []
    for number, result in enumerate(results):
        if result.prediction is None:
            continue
        situation = situation_of(result)
        for name, measured in result.row.measured().items():
            predicted = result.prediction.values[name]
            is_band = predicted > 0 and not is_driven(result.row, name)
            band = find(bands, BAND_METRICS[name], situation) if is_band else None
            low, high = (None, None) if band is None else (predicted * band.low, predicted * band.high)
            key = key_of(result, name, by)
            found.append(Comparison(number, result.row.id, name, measured, predicted, low, high, key))
    return tuple(found)


def statistics(comparisons: Sequence[Comparison]) -> ErrorFigures:
    """The statistics of one or more `comparisons` of one metric."""
    errors = np.array([comparison.error for comparison in comparisons])
    banded = [comparison for comparison in comparisons if comparison.low is not None and comparison.high is not None]
    inside = [entry for entry in banded if entry.low <= entry.measured <= entry.high]  # type: ignore[operator]
    return ErrorFigures(
        n=len(comparisons),
        median_ape=float(np.median(np.abs(errors))),
        p90_ape=float(np.quantile(np.abs(errors), 0.9)),
        bias=float(np.median(errors)),
        band_coverage=len(inside) / len(banded) if banded else None,
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
    return tuple(
        Group(
            dict(zip(by, key, strict=True)),
            len({comparison.row for comparison in members[key]}),
            by_metric(members[key]),
        )
        for key in sorted(members)
    )
