"""How far predictions are off: one comparison a metric and row, and their statistics by group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sizing.bands import region
from sizing.catalog.measured_csv import COLUMNS, METRICS
from sizing.errors import Fault, InputError, nearest
from sizing.validation.run import Result

DERIVED = ("load", "kind", "metric")


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
    """Return the columns to group by. Raises InputError where none is named, and for one that no row has."""
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
    """Return the value of each grouping column for a metric of a predicted row; names are the catalogue's, whatever the row spells."""
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


def compare(results: Iterable[Result], by: Sequence[str]) -> tuple[Comparison, ...]:
    """Return a comparison for each metric of each predicted row, in the order of rows and metrics."""
    return tuple(
        Comparison(
            number, result.row.id, name, value, result.prediction.values[name], None, None, key_of(result, name, by)
        )
        for number, result in enumerate(results)
        if result.prediction is not None
        for name, value in result.row.measured().items()
    )


def statistics(comparisons: Sequence[Comparison]) -> ErrorFigures:
    """Return the statistics of comparisons of one metric, at least one of them."""
    errors = np.array([one.error for one in comparisons])
    banded = [one for one in comparisons if one.low is not None and one.high is not None]
    inside = [one for one in banded if one.low <= one.measured <= one.high]  # type: ignore[operator]
    return ErrorFigures(
        n=len(comparisons),
        median_ape=float(np.median(np.abs(errors))),
        p90_ape=float(np.quantile(np.abs(errors), 0.9)),
        bias=float(np.median(errors)),
        band_coverage=len(inside) / len(banded) if banded else None,
    )


def by_metric(comparisons: Sequence[Comparison]) -> dict[str, ErrorFigures]:
    """Return the statistics of each metric that occurs."""
    found = {name: [one for one in comparisons if one.metric == name] for name in METRICS}
    return {name: statistics(ones) for name, ones in found.items() if ones}


def groups(comparisons: Sequence[Comparison], by: Sequence[str]) -> tuple[Group, ...]:
    """Return the groups, sorted by their values."""
    members: dict[tuple[str, ...], list[Comparison]] = {}
    for one in comparisons:
        members.setdefault(one.key, []).append(one)
    return tuple(
        Group(dict(zip(by, key, strict=True)), len({one.row for one in members[key]}), by_metric(members[key]))
        for key in sorted(members)
    )
