"""Sections as one self-contained HTML file. Every figure in a table has its JSON pointer into the JSON inside the page.

The text of a figure is written from the value at its JSON pointer (RFC 6901), so page and JSON cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sizing import __version__
from sizing.formats.charts import chart
from sizing.formats.details import figure_said, words_of
from sizing.formats.view import Facts, Figure, Prose, Quantity, Table, Text, Whole, plain
from sizing.specs.errors import Fault, InputError

TEMPLATES = Path(__file__).parent / "templates"
NO_JINJA = Fault(
    "needs jinja2, which is not installed", field="llmsize report", remedy="it works after pip install jinja2"
)
ABSENT = "–"
NUMBER_AND_WORD = re.compile("([0-9]) (ms|s|%|GiB|to)(?![a-z])")  # not to be parted by the end of a line
WIDTH = 480.0  # width of a bar
MOST_COLUMNS = 5  # of a table that a phone shows as a table; of a wider one it shows each row as a list


class Cell(NamedTuple):
    """A cell: its text, the JSON pointer of its figure in the record, and the id on the page that it links to."""

    text: str
    pointer: str | None = None
    target: str | None = None


class PageColumn(NamedTuple):
    """The heading of a column, which has figures if `is_number`."""

    name: str
    is_number: bool = True


class PageTable(NamedTuple):
    """A table with its caption. The first column heads the rows. `note` says what is left out. A `folded` one opens on click."""

    caption: str
    columns: tuple[PageColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    folded: bool = False


class Drawings(NamedTuple):
    """Figures, each with the table of its points; a wide page shows them in pairs."""

    drawings: tuple[tuple[Figure, PageTable], ...]


class Share(NamedTuple):
    """A part of a bar: its name, its size, and its place in the SVG."""

    name: str
    text: str
    x: float
    width: float


class Shares(NamedTuple):
    """The parts of a whole as a bar, and a sentence about them. `end` is where the whole ends, None if all parts fit."""

    title: str
    parts: tuple[Share, ...]
    summary: str
    end: float | None
    width: float = WIDTH


class Tile(NamedTuple):
    """A figure that matters for a decision: its name, value and qualification. `style` is good, tight, bad or empty."""

    label: str
    value: Cell
    note: str = ""
    style: str = ""


class Tiles(NamedTuple):
    """The figures of a decision, side by side."""

    tiles: tuple[Tile, ...]


class PageVerdict(NamedTuple):
    """A decision in words, good or not; its colour and icon say the same."""

    is_good: bool
    title: str
    lines: tuple[str, ...]


class BarRow(NamedTuple):
    """A named row of a bar chart: its parts, and its figures in words."""

    name: str
    parts: tuple[Share, ...]
    text: str


class BarChart(NamedTuple):
    """Rows of horizontal bars over one axis. `zero` is the place of 0 on the axis, None if the axis begins at 0.

    `legend` names the parts in their order.
    """

    title: str
    rows: tuple[BarRow, ...]
    legend: tuple[str, ...] = ()
    zero: float | None = None
    width: float = WIDTH


class Numbered(NamedTuple):
    """A numbered list that cells link to: texts with the ids of their items."""

    title: str
    items: tuple[tuple[str, str], ...]


class Chapter(NamedTuple):
    """Sections under a heading. `link` is its name in the links at the top; `style` is the look of its tables and answer."""

    id: str
    title: str
    sections: tuple[
        PageVerdict | Tiles | BarChart | Prose | Facts | Text | PageTable | Drawings | Shares | Numbered, ...
    ]
    link: str = ""
    style: str = ""


def render(title: str, about: str, chapters: Sequence[Chapter], record: Any) -> str:
    """The HTML page, with `about` below its title. Raises InputError if jinja2 is missing."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise InputError(NO_JINJA) from None
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    environment.filters |= {"chart": chart, "kind": lambda section: type(section).__name__, "unbroken": unbroken}
    environment.globals["most_columns"] = MOST_COLUMNS
    template = environment.get_template("page.html.j2")
    return template.render(title=title, about=about, chapters=chapters, version=__version__, document=plain(record))


def unbroken(text: str) -> str:
    """The text of a cell with each number on one line with its unit, and with the word "to" of a range."""
    return NUMBER_AND_WORD.sub("\\1\N{NO-BREAK SPACE}\\2", text)


def value_at(record: Any, pointer: str) -> Any:
    """The value at a JSON pointer in a record of named tuples, tuples and mappings; None beyond a None."""
    node = record
    for step in pointer.removeprefix("/").split("/"):
        if node is None:
            return None
        if hasattr(node, "_fields"):
            node = getattr(node, step)
        elif isinstance(node, (tuple, list)):
            node = node[int(step)]
        else:
            node = node[step]
    return node


def figure(record: Any, pointer: str, write: Callable[[Any], str]) -> Cell:
    """The cell of the figure at `pointer` in the record."""
    value = value_at(record, pointer)
    return Cell(ABSENT if value is None else write(value), pointer)


def page_table(table: Table, *, most: int | None = None, noun: str = "rows", folded: bool = False) -> PageTable:
    """A page table of the first `most` records of `table`. The pointer of a figure is `table.at`, the row and the quantity's key.

    A figure from a quantity with a function (`of`) has no pointer, because it has no place in the record. In a table without
    `at`, no figure has a pointer.
    """

    def cell(index: int, record: Any, quantity: Quantity) -> Cell:
        value = value_at(record, quantity.key) if quantity.of is None else quantity.of(record)
        text = ABSENT if value is None else quantity.write(value)
        in_record = bool(table.at) and quantity.is_number and quantity.of is None
        return Cell(text, f"{table.at}/{index}/{quantity.key}" if in_record else None)

    shown = table.records[:most]
    more = len(table.records) - len(shown)
    rows = [[cell(index, record, quantity) for quantity in table.columns] for index, record in enumerate(shown)]
    known = {at for row in rows for at, each in enumerate(row) if each.text != ABSENT}
    said = [at for at, quantity in enumerate(table.columns) if quantity.shown == "always" or at in known]
    columns = tuple(PageColumn(table.columns[at].heading, table.columns[at].is_number) for at in said)
    note = f"{more:,} more {noun} are in the JSON at the end of this page." if more else ""
    return PageTable(table.title, columns, tuple(tuple(row[at] for at in said) for row in rows), note, folded)


def figures_table(record: Any, title: str, columns: Mapping[str, str], keys: Sequence[str] = ()) -> PageTable:
    """A row for each figure of records with the same fields, and a column for each record: its heading, and its JSON pointer.

    The figures are those of `keys`, by default all numbers. Names and units are those of JSON, in words.
    """
    found = {pointer: value_at(record, pointer) for pointer in columns.values()}
    is_figure = {key for of in found.values() for key in of._fields if type(getattr(of, key)) in (int, float)}

    def row(key: str) -> tuple[Cell, ...]:
        cells, called = [], words_of(key)
        for pointer, of in found.items():
            value, text = getattr(of, key), ABSENT
            if value is not None:
                called, text = figure_said(key, value, pointer.rpartition("/")[2])
            cells.append(Cell(text, f"{pointer}/{key}"))
        return Cell(called), *cells

    rows = tuple(row(key) for key in keys or next(iter(found.values()))._fields if key in is_figure)
    return PageTable(title, (PageColumn("figure", False), *map(PageColumn, columns)), rows)


def shares(bar: Whole) -> Shares:
    """The bar of a page, as long as the whole, or as the sum of all parts if that is more."""
    sizes = [(part.name, part.size) for part in bar.parts]
    filled = sum(size for _, size in sizes)
    longest = max(bar.whole, filled)
    sizes += [("left free", bar.whole - filled)] if filled < bar.whole else []
    parts, x = [], 0.0
    for name, size in sizes:
        width = WIDTH * size / longest
        parts.append(Share(name, bar.write(size), round(x, 1), round(width, 1)))
        x += width
    summary = f"{bar.title}: {', '.join(f'{part.name} {part.text}' for part in parts)}, of {bar.write(bar.whole)}"
    return Shares(
        bar.title, tuple(parts), summary, round(WIDTH * bar.whole / longest, 1) if longest > bar.whole else None
    )


def bar_chart(
    title: str, rows: Sequence[tuple[str, Sequence[tuple[str, float]], str]], legend: Sequence[str] = ()
) -> BarChart:
    """The bar chart of rows, each with a name, (text, value) of each bar, and its figures in words.

    Bars begin at 0. A line marks it where the bars have a legend: they are changes, which go both ways.
    """
    values = [0.0, *(value for _, bars, _ in rows for _, value in bars)]
    low, high = min(values), max(values)
    scale = WIDTH / (high - low) if high > low else 0.0

    def part(text: str, value: float) -> Share:
        return Share(text, text, round((min(value, 0.0) - low) * scale, 1), round(abs(value) * scale, 1))

    found = tuple(BarRow(name, tuple(part(*bar) for bar in bars), text) for name, bars, text in rows)
    return BarChart(title, found, tuple(legend), round(-low * scale, 1) if legend or low < 0 else None)
