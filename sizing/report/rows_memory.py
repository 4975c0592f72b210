"""Memory of one GPU as one row."""

from __future__ import annotations

from sizing.formats.view import Rows, plain
from sizing.report.documents import MemoryReport
from sizing.report.parts.question import labels


def of(document: MemoryReport) -> Rows:
    """Return one row: what it is of, every figure, whether it fits."""
    values = {**labels(document.inputs), **plain(document.memory), "fits": document.fits}
    return Rows(tuple(values), (tuple(values.values()),))
