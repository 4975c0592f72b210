"""The steps of both pools as one row an operation."""

from __future__ import annotations

from sizing.formats.view import Row, Rows
from sizing.report import rows_step
from sizing.report.documents_pools import StepPools
from sizing.units import GIGA, MILLI


def of(document: StepPools) -> Rows:
    """Return one row an operation, with its pool; the way of the cache between them is one too."""
    rows: list[Row] = []
    if document.prefill is not None:
        rows += [("prefill", *row) for row in rows_step.of(document.prefill).rows]
    if document.kv_transfer is not None and document.kv_transfer_ms is not None:
        sent = document.kv_transfer.gb_per_gpu * GIGA
        rows.append(
            ("", "kv_transfer", 1, None, None, sent, document.kv_transfer_ms * MILLI, None, document.kv_transfer.link)
        )
    if document.decode is not None:
        rows += [("decode", *row) for row in rows_step.of(document.decode).rows]
    return Rows(("pool", *rows_step.COLUMNS), tuple(rows))
