"""Memory of one GPU as one row."""

from __future__ import annotations

from sizing.report.documents import MemoryReport, plain
from sizing.report.rows import Rows, labels


def of(document: MemoryReport) -> Rows:
    """Return one row: what it is of, every figure, whether it fits."""
    values = {**labels(document.inputs), **plain(document.memory), "fits": document.fits}
    return Rows("memory", tuple(values), (tuple(values.values()),))
