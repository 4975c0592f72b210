"""A roofline as one row an operation of a step."""

from __future__ import annotations

from sizing.formats.view import Rows, plain
from sizing.report.documents_roofline import RooflinePoint, RooflineReport

LABELS = ("model", "gpu", "engine", "engine_version", "weight_precision", "kv_precision", "layout", "context_tokens")


def of(document: RooflineReport) -> Rows:
    """Return one row an operation, each with the labels that its numbers are of."""
    labels = tuple(document.inputs[name] for name in LABELS)
    rows = tuple((*labels, *plain(point).values()) for point in document.operations)
    return Rows((*LABELS, *RooflinePoint._fields), rows)
