"""Tables of the page: every figure is read from the document by its JSON pointer, so page and JSON cannot differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sizing.formats import view

Write = Callable[[Any], str]


class Cell(NamedTuple):
    """One cell: its text, the JSON pointer (RFC 6901) of the figure in the document, the id on the page that it leads to."""

    text: str
    pointer: str | None = None
    target: str | None = None


class Column(NamedTuple):
    """A heading, and whether figures stand below it."""

    name: str
    is_number: bool = True


class Table(NamedTuple):
    """A table with its caption; the first column heads the rows. `note` says what was left out."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


def value_at(document: Any, pointer: str) -> Any:
    """Return the value that a JSON pointer leads to in a document of named tuples, tuples and mappings."""
    node = document
    for step in pointer.removeprefix("/").split("/"):
        if hasattr(node, "_fields"):
            node = getattr(node, step)
        elif isinstance(node, (tuple, list)):
            node = node[int(step)]
        else:
            node = node[step]
    return node


def figure(document: Any, pointer: str, write: Write, absent: str = "–") -> Cell:
    """Return the cell of a figure as `write` writes it; `absent` where the document has none."""
    value = value_at(document, pointer)
    return Cell(absent if value is None else write(value), pointer)


def words(text: str) -> Cell:
    """Return a cell without a figure."""
    return Cell(text)


def section_table(document: Any, section: view.Table, absent: str = "–") -> Table:
    """Return a table of a document's section; its figures lead to where the records stand in the document."""

    def cell(index: int, record: Any, quantity: view.Quantity) -> Cell:
        if not quantity.is_number:
            return words(quantity._replace(nothing=absent).text(record))
        return figure(document, f"{section.at}/{index}/{quantity.key}", quantity.write, absent)

    rows = (tuple(cell(index, record, q) for q in section.columns) for index, record in enumerate(section.records))
    return Table(section.title, tuple(Column(q.heading, q.is_number) for q in section.columns), tuple(rows))


def columns(*names: str, words_first: int = 1, words_last: int = 0) -> tuple[Column, ...]:
    """Return headings of which the first and last so many head words, the others figures."""
    last = len(names) - words_last
    return tuple(Column(name, words_first <= index < last) for index, name in enumerate(names))


def capped(rows: Sequence[tuple[Cell, ...]], most: int, noun: str) -> tuple[tuple[tuple[Cell, ...], ...], str]:
    """Return the first so many rows, and a note of how many more the document has."""
    more = len(rows) - most
    return tuple(rows[:most]), f"{more:,} more {noun} are in the JSON at the end of this page." if more > 0 else ""
