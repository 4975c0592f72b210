"""The page's comparison: the best layout of each GPU type and weight precision, or why it has none."""

from __future__ import annotations

from sizing.formats import view
from sizing.formats.view import in_words
from sizing.formats.words import money
from sizing.report.compare import CompareCandidate
from sizing.report.documents_report import Report
from sizing.report.html_cells import Table, section_table
from sizing.report.parts import quantities
from sizing.report.parts.layouts import layout
from sizing.report.parts.limiting import limit_words


def _layout(c: CompareCandidate) -> str | None:
    return None if c.replicas is None else f"{c.replicas} x {layout(c)}"


def _limit(c: CompareCandidate) -> str:
    if c.reason is not None:
        return c.reason
    return limit_words(c.limit) + (" limit" if f"{c.limit}_ms" in c.limited else "")


COLUMNS = (
    in_words("gpu", "GPU", lambda c: f"{c.gpu}, {c.weight_precision.upper()}"),
    in_words("layout", "layout", _layout),
    quantities.GPUS._replace(write="{:,}".format),
    quantities.USD_PER_HOUR,
    quantities.USD_PER_MILLION_OUTPUT_TOKENS._replace(heading="$ a million output tokens", write=money),
    quantities.POWER_W._replace(heading="W"),
    *quantities.LATENCIES,
    quantities.HEADROOM,
    in_words("limit", "what limits it", _limit),
)


def comparison(report: Report) -> Table | None:
    """Return a row for each GPU type and precision in the order of the document; None where nothing was compared."""
    if report.comparison is None:
        return None
    how = "each simulated" if report.simulated else "closed form"
    title = f"The best layout of each ({how}), means of latencies"
    return section_table(report, view.Table(COLUMNS, report.comparison.candidates, "/comparison/candidates", title))
