"""A topic as one row a line of it."""

from __future__ import annotations

from sizing.formats.view import Row, Rows
from sizing.report.documents_topic import TopicReport

SECTIONS = ("does", "formulas", "modelled", "helps", "does_not_help", "quality", "options", "sources")


def of(document: TopicReport) -> Rows:
    """Return section and text of every line."""
    rows: list[Row] = []
    for section in SECTIONS:
        value = getattr(document, section)
        rows += [(document.topic, section, text) for text in ((value,) if isinstance(value, str) else value)]
    return Rows(("topic", "section", "text"), tuple(rows))
