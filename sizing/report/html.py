"""The report page: one HTML file that needs nothing else, drawn from the document that it carries as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sizing import __version__
from sizing.formats.view import Line, plain
from sizing.report import html_answer, html_compare, html_curve, html_memory
from sizing.report.documents_report import Report
from sizing.report.html_cells import Table
from sizing.report.html_curve import Drawing
from sizing.report.html_memory import Bar
from sizing.report.parts.question import optimised
from sizing.report.table_estimate import blocks
from sizing.specs.errors import Fault, InputError

TEMPLATES = Path(__file__).parent / "templates"
NO_JINJA = Fault("needs jinja2, which is not installed", field="llmsize report", allowed="after pip install jinja2")


class Page(NamedTuple):
    """All that the template shows."""

    title: str
    version: str
    feasible: bool
    headline: str
    sentences: tuple[Line, ...]
    asked: tuple[tuple[str, str], ...]
    figures: tuple[Table, ...]
    memory: Bar | None
    drawings: tuple[Drawing, ...]
    curve_note: str
    comparison: Table | None
    sensitivity: Table
    others: tuple[Table, ...]
    assumptions: Table
    sources: tuple[tuple[str, str], ...]
    command: str
    check_command: str | None


def render(document: Report) -> str:
    """Return the page. Raises InputError where jinja2 is missing."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise InputError(NO_JINJA) from None
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    template = environment.get_template("report.html.j2")
    return template.render(page=page(document), document=plain(document))


def page(document: Report) -> Page:
    """Return what the page shows of a document."""
    estimate = document.estimate
    headline, *sentences = _said(document)
    tables = (html_answer.latency(document), html_answer.figures(document))
    return Page(
        title=document.title,
        version=__version__,
        feasible=estimate.feasible,
        headline=headline.text,
        sentences=tuple(sentences),
        asked=html_answer.asked(document),
        figures=tuple(table for table in tables if table is not None),
        memory=None if estimate.memory is None else html_memory.bar(document, estimate.memory, "/estimate/memory"),
        drawings=tuple(html_curve.drawings(document)),
        curve_note=html_curve.note(document),
        comparison=html_compare.comparison(document),
        sensitivity=html_answer.sensitivity(document),
        others=tuple(t for t in (html_answer.alternatives(document), html_answer.rejected(document)) if t.rows),
        assumptions=html_answer.assumptions(document),
        sources=tuple((f"source-{index}", text) for text, index in html_answer.sources(document).items()),
        command=document.command,
        check_command=estimate.simulate_command,
    )


def _said(document: Report) -> list[Line]:
    """Return the answer in the words of the terminal: its first block, and what stands in the way where there is none."""
    first, *more = blocks(document.estimate)
    lines = list(first.lines)
    if not document.estimate.feasible:
        lines += more[1].lines
    else:
        lines.append(Line(document.estimate.limiting.detail, "What limits it"))
    return [*lines, *optimised(document.estimate.inputs)]
