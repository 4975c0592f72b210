"""`llmsize validate`: errors of predictions against measured rows by metric and group, and what was skipped or missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from sizing.catalog import shelf
from sizing.catalog.measured import METRICS, LeftOut, Unread
from sizing.evidence.errors import Comparison, ErrorFigures, Group, by_metric, compare, groups
from sizing.evidence.notes import doubts
from sizing.evidence.predict import Result
from sizing.formats.tables import csv_lines
from sizing.formats.view import (
    Document,
    Facts,
    Figure,
    Line,
    Mark,
    Prose,
    Quantity,
    Rows,
    Section,
    Series,
    Table,
    in_words,
    plain,
    rows_of,
)
from sizing.formats.words import plural
from sizing.report.parts.quantities import COLUMN_TITLES
from sizing.report.parts.screen import reasons
from sizing.specs.bands import Bands
from sizing.specs.calibration import Calibration

PER_ROW = ("id", "metric", "measured", "predicted", "low", "high", "corrected")
MOST_NAMED = 16  # groups in the legend of the pictures


class Taken(NamedTuple):
    """An assumption for values that rows do not state, and the number of rows that need it."""

    what: str
    rows: int


class ValidationReport(NamedTuple):
    """The record of `llmsize validate`.

    `rows` counts the rows read, and `predicted` the rows compared. `missed` rows are compared with a prediction of 0 because the
    model can't run them. `skipped` rows are not compared. `doubtful` rows are compared, and fits leave out them or some of their
    figures. Errors are shares: 0.1 is 10 %.
    """

    inputs: dict[str, Any]
    rows: int
    predicted: int
    skipped: tuple[LeftOut, ...]
    missed: tuple[LeftOut, ...]
    metrics: dict[str, ErrorFigures]
    groups: tuple[Group, ...]
    assumptions: tuple[Taken, ...]
    doubtful: tuple[LeftOut, ...] = ()
    schema: str = "llmsize.validation/1"


def record(
    results: Sequence[Result], files: Sequence[str], by: Sequence[str], unread: Sequence[Unread] = ()
) -> tuple[ValidationReport, tuple[Comparison, ...]]:
    """The record of comparisons, grouped by `by`; rows `unread` are skipped."""
    compared = compare(results, by, shelf.only(Bands).bands)
    taken = Counter(note for result in results if result.resolution for note in result.resolution.notes)
    reasons_unread = (LeftOut(row.id, row.reason) for row in unread)
    report = ValidationReport(
        inputs={"files": list(files), "by": list(by)},
        rows=len(results) + len(unread),
        predicted=sum(result.prediction is not None for result in results),
        skipped=(*(LeftOut(each.row.id, each.skipped) for each in results if each.skipped), *reasons_unread),
        missed=tuple(
            LeftOut(each.row.id, each.prediction.missed)
            for each in results
            if each.prediction is not None and each.prediction.missed
        ),
        metrics=by_metric(compared),
        groups=groups(compared, by) if by else (),
        assumptions=tuple(sorted((Taken(*each) for each in taken.items()), key=lambda each: (-each.rows, each.what))),
        doubtful=tuple(
            LeftOut(each.row.id, why)
            for each in results
            if each.prediction is not None
            for why in doubts(each.row, shelf.only(Calibration).not_fitted)
        ),
    )
    return report, compared


def per_row(compared: Sequence[Comparison]) -> str:
    """Every comparison as CSV text: id, metric, measured, predicted, and the band if there is one."""
    values = (
        (one.id, one.metric, one.measured, *plain((one.predicted, one.low, one.high, one.corrected)))
        for one in compared
    )
    return csv_lines((PER_ROW, *values)) + "\n"


def rows(record: ValidationReport) -> Rows:
    """A row for each group and metric, then the rows for all groups together. A metric that is also a group has one column."""
    by = record.inputs["by"]
    found = [
        {**group.by, "metric": metric, **figures._asdict()}
        for group in record.groups
        for metric, figures in group.metrics.items()
    ]
    of_all = dict.fromkeys(by, "all")
    found += [{**of_all, "metric": metric, **figures._asdict()} for metric, figures in record.metrics.items()]
    return rows_of(found, (*dict.fromkeys((*by, "metric")), *ErrorFigures._fields))


def _percent(name: str, heading: str, form: str) -> Quantity:
    return Quantity(name, heading, lambda share: format(100 * share, form), shown="always")


FIGURES = (
    _percent("median_ape", "median", ".1f"),
    _percent("p90_ape", "p90", ".1f"),
    _percent("bias", "bias", "+.1f"),
    _percent("corrected_median_ape", "corrected", ".1f"),
    _percent("corrected_bias", "corrected bias", "+.1f"),
    _percent("band_coverage", "inside", ".0f"),
    Quantity("n", "n", "{:,}".format),
)

MEANING = (
    "Errors of the prediction in %. median, p90: of the size of the error; bias: median of the error with its sign; corrected: "
    "with the correction by published runs; inside: share of measurements within the error band; n: number of rows."
)
SPARE = ("corrected bias", "inside", "p90", "corrected")  # columns that a narrow terminal drops for the group names


def sections(record: ValidationReport) -> Iterator[Section]:
    """Yield the number of predicted rows, a table for each metric, and the rows left out with reasons."""
    missed = f", {len(record.missed):,} of them as impossible" if record.missed else ""
    headline = f"{plural(record.rows, 'row')}: {record.predicted:,} predicted{missed}, {len(record.skipped):,} skipped"
    yield Prose((Line(MEANING),), headline)
    by = record.inputs["by"]
    for metric, figures in record.metrics.items():
        grouped = [group for group in record.groups if metric in group.metrics]
        found = [
            {**{name: group.by[name] or "-" for name in by}, **group.metrics[metric]._asdict()} for group in grouped
        ]
        of_all = {**dict.fromkeys(by, ""), **dict.fromkeys(by[:1], "all"), **figures._asdict()}
        labels = (in_words(name, name, shown="always") for name in by)
        yield Table((*labels, *FIGURES), (*found, of_all), title=COLUMN_TITLES[metric], spare=SPARE)
    yield Facts(tuple(reasons("Missed", record.missed)))
    yield Facts(tuple(reasons("Skipped", record.skipped)))
    yield Facts(tuple(reasons("Doubtful", record.doubtful)))
    yield Facts(tuple(Line(f"{taken.what} ({plural(taken.rows, 'row')})", "Taken") for taken in record.assumptions))


def figures(compared: Sequence[Comparison]) -> tuple[Figure, ...]:
    """A figure of measured against predicted values for each metric, without rows whose prediction is zero."""
    shown = [comparison for comparison in compared if comparison.predicted > 0]
    keys = sorted({comparison.key for comparison in shown})
    names = [" ".join(key) if len(keys) > 1 else "" for key in keys[:MOST_NAMED]]
    names += [""] * (len(keys) - len(names))

    def panel(metric: str) -> Figure:
        found = [comparison for comparison in shown if comparison.metric == metric]
        series = [
            Series(name, tuple(Mark(each.measured, each.predicted) for each in found if each.key == key), look="points")
            for name, key in zip(names, keys, strict=True)
        ]
        values = [value for each in found for value in (each.measured, each.predicted)]
        exact = Series("", tuple(Mark(value, value) for value in (min(values), max(values))), look="line")
        return Figure(f"measured {metric}", f"predicted {metric}", tuple(series), guides=(exact,), logarithmic="xy")

    return tuple(panel(metric) for metric in METRICS if any(each.metric == metric for each in shown))


document = partial(Document, sections=sections, rows=rows)
