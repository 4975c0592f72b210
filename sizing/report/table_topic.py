"""A topic for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.formats.text import Block
from sizing.formats.view import Line
from sizing.report.documents_topic import TopicReport


def blocks(document: TopicReport) -> Iterator[Block]:
    """Yield the blocks of a topic: a paragraph each."""
    yield Block((Line(document.name, style="bold"),))
    yield Block((Line(document.does, "What it does"),))
    yield Block(tuple(_listed("Formula", document.formulas)))
    yield Block((Line(document.modelled, "Modelled"),))
    yield Block((Line(document.helps, "Helps"),))
    yield Block((Line(document.does_not_help, "Does not help"),))
    yield Block((Line(document.quality, "Quality"),))
    yield Block(tuple(_listed("Options", document.options)))
    yield Block(tuple(_listed("Sources", document.sources, style="dim")))


def _listed(label: str, lines: tuple[str, ...], style: str = "") -> Iterator[Line]:
    for number, text in enumerate(lines):
        yield Line(text, label if number == 0 else " ", style)
