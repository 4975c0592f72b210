"""The document of `llmsize validate`: errors by metric and group, what was skipped or missed, and each comparison."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence

from sizing.catalog import shelf
from sizing.evidence.errors import Comparison, by_metric, compare, groups
from sizing.evidence.predict import Result
from sizing.report.documents import plain
from sizing.report.documents_validation import Named, Taken, ValidationReport
from sizing.specs.bands import Bands

PER_ROW = ("id", "metric", "measured", "predicted", "low", "high")


def build(
    results: Sequence[Result], files: Sequence[str], by: Sequence[str]
) -> tuple[ValidationReport, tuple[Comparison, ...]]:
    """Return the document, and the comparisons that it sums up."""
    compared = compare(results, by, shelf.only(Bands).bands)
    taken = Counter(note for result in results if result.resolution for note in result.resolution.notes)
    document = ValidationReport(
        inputs={"files": list(files), "by": list(by)},
        rows=len(results),
        predicted=sum(result.prediction is not None for result in results),
        skipped=tuple(Named(result.row.id, result.skipped) for result in results if result.skipped),
        missed=tuple(
            Named(result.row.id, result.prediction.missed)
            for result in results
            if result.prediction is not None and result.prediction.missed
        ),
        metrics=by_metric(compared),
        groups=groups(compared, by) if by else (),
        assumptions=tuple(
            Taken(what, rows) for what, rows in sorted(taken.items(), key=lambda item: (-item[1], item[0]))
        ),
    )
    return document, compared


def per_row(compared: Sequence[Comparison]) -> str:
    """Return every comparison as CSV text: id, metric, measured, predicted, and the band where there is one."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(PER_ROW)
    for one in compared:
        values = (one.id, one.metric, one.measured, *plain((one.predicted, one.low, one.high)))
        writer.writerow(["" if value is None else value for value in values])
    return out.getvalue()
