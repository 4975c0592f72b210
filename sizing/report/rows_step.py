"""A step as one row an operation."""

from __future__ import annotations

from sizing.formats.view import Rows, plain
from sizing.report.documents_step import StepReport

COLUMNS = ("name", "count", "flops", "bytes", "message_bytes", "seconds", "share", "bound")


def of(document: StepReport) -> Rows:
    """Return one row an operation."""
    return Rows(COLUMNS, tuple(tuple(plain(o)[c] for c in COLUMNS) for o in document.operations))
