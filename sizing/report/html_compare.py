"""The page's comparison: the best layout of each GPU type and weight precision, or why it has none."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.formats.words import milliseconds, money, number, percent
from sizing.report.documents_compare import CompareCandidate
from sizing.report.documents_report import Report
from sizing.report.html_answer import ABSENT, LATENCIES
from sizing.report.html_cells import Cell, Table, Write, columns, figure, words
from sizing.report.parts.layouts import layout

FIGURES: tuple[tuple[str, str, Write], ...] = (
    ("GPUs", "gpus", "{:,}".format),
    ("$/h", "usd_per_hour", money),
    ("$ a million output tokens", "usd_per_million_output_tokens", money),
    ("W", "power_w", number),
    ("TTFT", "ttft_ms", milliseconds),
    ("ITL", "itl_ms", milliseconds),
    ("E2E", "e2e_ms", milliseconds),
    ("headroom", "headroom", percent),
)


def comparison(report: Report) -> Table | None:
    """Return a row for each GPU type and precision in the order of the document; None where nothing was compared."""
    if report.comparison is None:
        return None
    how = "each simulated" if report.simulated else "closed form"
    names = (name for name, _, _ in FIGURES)
    heads = columns("GPU", "layout", *names, "what limits it", words_first=2, words_last=1)
    return Table(f"The best layout of each ({how}), means of latencies", heads, tuple(_rows(report)))


def _rows(report: Report) -> Iterator[tuple[Cell, ...]]:
    candidates: tuple[CompareCandidate, ...] = report.comparison.candidates
    for index, one in enumerate(candidates):
        at = f"/comparison/candidates/{index}"
        figures = (figure(report, f"{at}/{name}", write) for _, name, write in FIGURES)
        limits = _limit(one.limit) if one.reason is None else one.reason
        yield words(f"{one.gpu}, {one.weight_precision.upper()}"), words(_layout(one)), *figures, words(limits)


def _layout(one: CompareCandidate) -> str:
    if one.replicas is None:
        return ABSENT
    return f"{one.replicas} x {layout(one)}"


def _limit(name: str) -> str:
    return f"{name.upper()} limit" if f"{name}_ms" in dict(LATENCIES) else name.replace("_", " ")
