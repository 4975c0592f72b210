"""Errors of predictions as one row a group and metric."""

from __future__ import annotations

from sizing.formats.view import Rows, plain
from sizing.report.documents_validation import ValidationReport
from sizing.validation.errors import ErrorFigures


def of(document: ValidationReport) -> Rows:
    """Return one row a group and metric, those of all rows last.

    The metric has its column once, also where rows are grouped by it.
    """
    by = tuple(document.inputs["by"])
    labels = tuple(dict.fromkeys((*by, "metric")))
    values = [
        ({**group.by, "metric": metric}, found) for group in document.groups for metric, found in group.metrics.items()
    ]
    values += [({**dict.fromkeys(by, "all"), "metric": metric}, found) for metric, found in document.metrics.items()]
    rows = tuple(tuple(plain((*(of[name] for name in labels), *found))) for of, found in values)
    return Rows((*labels, *ErrorFigures._fields), rows)
