"""Optimisations as one row each: as it is, each alone, the best together."""

from __future__ import annotations

from sizing.formats.view import Row, Rows, plain
from sizing.report.documents_whatif import WhatIfReport
from sizing.report.parts.question import LABELS

COLUMNS = (
    "status", "name", "options", "gpus", "gpus_saved", "layout", "requests_per_s_per_gpu", "max_requests_per_s_per_gpu",
    "ttft_ms", "itl_ms", "e2e_ms", "usd_per_hour", "usd_per_million_output_tokens", "needs", "risk",
)  # fmt: skip
FIGURES = ("ttft_ms", "itl_ms", "e2e_ms", "usd_per_hour", "usd_per_million_output_tokens")


def of(document: WhatIfReport) -> Rows:
    """Return a row for each answer."""
    shared = tuple(document.inputs.get(key) for key in LABELS)
    rows: list[Row] = []
    base, best = document.base, document.best
    if base is not None:
        rows.append(("base", "", "", base.gpus, 0, *_figures(base), "", ""))
    for one in document.options:
        rows.append(("alone", one.name, one.options, one.gpus, one.gpus_saved, *_figures(one), one.needs, one.risk))
    if best is not None:
        answer = best.answer
        rows.append(
            ("best", " + ".join(best.names), best.options, answer.gpus, best.gpus_saved, *_figures(answer), "", "")
        )
    return Rows((*LABELS, *COLUMNS), tuple((*shared, *plain(row)) for row in rows))


def _figures(found: object) -> Row:
    names = ("layout", "requests_per_s_per_gpu", "max_requests_per_s_per_gpu", *FIGURES)
    return tuple(getattr(found, name) for name in names)
