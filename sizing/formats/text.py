"""A document as text: 80 columns by default, readable at 60 columns and without colour.

Sections become blocks, and blocks become rows that fit a width. Labels have a hanging indent; columns fold their widest cells.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import Any, NamedTuple, TextIO

from sizing.formats.view import (
    GAP,
    USUAL,
    Document,
    Facts,
    Figure,
    Line,
    Prose,
    Section,
    Table,
    Whole,
    labelled,
)
from sizing.specs.units import on_one_line

NARROWEST, WIDEST = 60, 160
LABEL_WIDTH = 10
SCREEN = 24  # rows of the smallest terminal
BAR_WIDTH, BEYOND = 60, "!"  # characters of a bar, and the mark of the parts that exceed the whole
SPARE_NOTE = 6  # the rank of a spare note among spare lines
HEADING_LINES = 3  # the most lines of a heading, where the table has room
NARROWEST_COLUMN = 6
# The number of a source, and what ties it to its text.
CITED, TIED = re.compile(r"(\[\d+\]) (?=\S)"), "\N{NO-BREAK SPACE}"
PARTS, HYPHENATED = re.compile(r"[^/]*/|[^/]+"), re.compile(r"[^-]*-|[^-]+")  # of a word that is too long for its cell

Row = tuple[tuple[str, str], ...]  # a row of text as pieces with their styles


class Column(NamedTuple):
    """A column of a block: its heading, whether it is right-aligned, and its cells with their styles."""

    heading: str
    right: bool
    cells: tuple[str, ...]
    styles: tuple[str, ...]

    def width(self) -> int:
        """The widest cell, or the least width at which the heading takes no more lines than `HEADING_LINES`."""
        width = max(map(len, self.heading.split()), default=0)
        while width and len(wrap(self.heading, width)) > HEADING_LINES:
            width += 1
        return max(width, *map(len, self.cells))


class Block(NamedTuple):
    """Columns, and lines below them. An empty line separates blocks.

    If the columns are too wide together, the `spare` columns are left out one by one, in the order of `spare`. If a screen is
    too short for all, it is without a `spare_whole` block.
    """

    lines: tuple[Line, ...] = ()
    columns: tuple[Column, ...] = ()
    spare: tuple[str, ...] = ()
    spare_whole: bool = False


def render(document: Document[Any], width: int = USUAL, *, detailed: bool = False) -> str:
    """A document as plain text for people, folded at `width` columns; if `detailed`, with everything in its record."""
    return _plain_text(_rows(document, width, detailed=detailed))


def render_for(document: Document[Any], out: TextIO, *, detailed: bool = False) -> str:
    """A document as text for a stream, as wide as its terminal.

    It has styles on a terminal or with FORCE_COLOR, but never with NO_COLOR.
    """
    width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size((USUAL, 24)).columns)) if out.isatty() else USUAL
    found = _rows(document, width, detailed=detailed)
    plain = os.environ.get("NO_COLOR") or not (out.isatty() or os.environ.get("FORCE_COLOR"))
    return _plain_text(found) if plain else _styled(found, out)


def _rows(document: Document[Any], width: int, *, detailed: bool) -> list[Row]:
    """The rows of a document. If they exceed a screen, spare lines are left out, unless `detailed`."""
    blocks = list(_blocks(document, detailed=detailed))
    found = list(rows(blocks, width))
    if not detailed and len(_unspared(blocks, width)) > SCREEN:
        blocks = [block for block in blocks if not block.spare_whole]
        found = list(rows(blocks, width))
    lines = [
        (at, place, line) for at, block in enumerate(blocks) for place, line in enumerate(block.lines) if line.spare
    ]
    dropped: set[tuple[int, int]] = set()
    for at, place, _ in sorted(lines, key=lambda each: (each[2].spare, each[0], -each[1])):
        if detailed or len(found) <= SCREEN:
            break
        dropped.add((at, place))
        kept = (block._replace(lines=tuple(_kept(block.lines, at, dropped))) for at, block in enumerate(blocks))
        found = list(rows(kept, width))
    return found


def _kept(lines: Iterable[Line], at: int, dropped: Container[tuple[int, int]]) -> Iterator[Line]:
    """The lines of the block `at` that are not dropped. The label of a dropped line goes to the line that stood under it."""
    label = ""
    for place, line in enumerate(lines):
        if (at, place) in dropped:
            label = line.label.strip() or label
        else:
            yield line._replace(label=label) if label and line.label == " " else line
            label = ""


def _unspared(blocks: Iterable[Block], width: int) -> list[Row]:
    """The rows of blocks without their spare lines."""
    kept = (block._replace(lines=tuple(line for line in block.lines if not line.spare)) for block in blocks)
    return list(rows(kept, width))


def _plain_text(rows: Iterable[Row]) -> str:
    return "\n".join("".join(text for text, _ in row).rstrip() for row in rows)


def _styled(rows: Iterable[Row], out: TextIO) -> str:
    """Write the styles that this terminal supports. The text is already folded."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out, highlight=False, emoji=False, markup=False, soft_wrap=True)
    with console.capture() as capture:
        console.print(Text("\n").join(Text.assemble(*row) for row in rows))
    return capture.get().removesuffix("\n")


def _blocks(document: Document[Any], *, detailed: bool) -> Iterator[Block]:
    from sizing.formats.details import details

    for section in document.sections(document.record):
        for block in blocks_of(section):
            yield block._replace(lines=tuple(_with_details(block.lines))) if detailed else block
    for section in details(document.record) if detailed else ():
        yield from blocks_of(section)


def _with_details(lines: Iterable[Line]) -> Iterator[Line]:
    for line in lines:
        if line.detailed is None:
            yield line
        else:
            yield from (each._replace(style=line.style) for each in labelled(line.label, line.detailed))


def blocks_of(section: Section) -> Iterator[Block]:
    """Yield a section as blocks. The title of a table is a separate block."""
    title = (Line(section.title, style="bold"),) if section.title and not isinstance(section, Whole) else ()
    if isinstance(section, Table):
        yield Block(title)
        yield _columns(section)
    elif isinstance(section, (Facts, Prose)):
        yield Block((*title, *section.lines))
    elif isinstance(section, Figure):
        yield Block(tuple(_drawn(section)), spare_whole=section.spare)
    elif isinstance(section, Whole):
        yield Block(tuple(labelled(section.title, (_shares(section), _key(section)))))
    else:
        yield Block((*title, *map(Line, section.text.split("\n"))))


def _columns(table: Table) -> Block:
    """A table as a block, with the columns that hold information about its records."""
    spare_notes = (Line(note, style="dim", spare=SPARE_NOTE) for note in table.spare_notes)
    screen_notes = (Line(note, style="dim", of_screen=True, detailed=()) for note in table.screen_notes)
    notes = (*spare_notes, *(Line(note, style="dim") for note in table.notes), *screen_notes)
    if not table.records:
        return Block(notes)
    columns = []
    for column in table.columns:
        cells = tuple(column.text(record) for record in table.records)
        said = set(cells) - {column.nothing}
        if column.shown == "always" or len(said) > (1 if column.shown == "differs" else 0):
            styles = tuple("" if column.style is None else column.style(record) for record in table.records)
            columns.append(Column(column.heading, column.is_number, cells, styles))
    return Block(notes, tuple(columns), table.spare)


def _shares(bar: Whole) -> str:
    """The parts as runs of their letters. `BAR_WIDTH` characters are the whole, or the sum of the parts if that is more."""
    unit = max(bar.whole, sum(part.size for part in bar.parts)) / BAR_WIDTH
    text, end = "", 0.0
    for part in bar.parts:
        end += part.size
        text = text.ljust(round(end / unit), part.letter)
    whole = round(bar.whole / unit)
    return f"[{text[:whole].ljust(whole, '.')}]{BEYOND * (len(text) - whole)}"


def _key(bar: Whole) -> str:
    parts = ", ".join(f"{part.letter} {part.name} {bar.write(part.size)}" for part in bar.parts)
    left = bar.whole - sum(part.size for part in bar.parts)
    rest = f". left free {bar.write(left)}" if left >= 0 else f"{BEYOND} too much {bar.write(-left)}"
    return f"{parts}, {rest}, of {bar.write(bar.whole)}"


def _drawn(figure: Figure) -> Iterator[Line]:
    """Yield a figure drawn with characters: the names of the axes, the plot, and the legend."""
    from sizing.formats.charts import legend, plotted

    yield Line(f"{figure.y_name} over {figure.x_name}", style="bold")
    yield from map(Line, plotted(figure))
    yield Line(legend(figure), style="dim")


def rows(blocks: Iterable[Block], width: int) -> Iterator[Row]:
    """Yield the rows of all blocks that are not empty, with an empty row between blocks. No row is wider than `width`."""
    filled = (_shown(block) for block in blocks if block.lines or block.columns)
    for index, block in enumerate(filled):
        if index:
            yield ()
        if block.columns:
            yield from _grid(block, width)
        for line in block.lines:
            yield from _labelled(line, width) if line.label else _plain(line, width)


def _shown(block: Block) -> Block:
    """The block without control characters, because names come from files and options."""
    lines = tuple(line._replace(text=on_one_line(line.text), label=on_one_line(line.label)) for line in block.lines)
    columns = (
        column._replace(heading=on_one_line(column.heading), cells=tuple(map(on_one_line, column.cells)))
        for column in block.columns
    )
    return block._replace(lines=lines, columns=tuple(columns))


def _plain(line: Line, width: int) -> Iterator[Row]:
    """Fold text under its own indent plus two columns. A path is never cut."""
    indent = " " * (len(line.text) - len(line.text.lstrip()) + 2)
    for text in _lines(line.text, width, subsequent_indent=indent):
        yield ((text, line.style),)


def _labelled(line: Line, width: int) -> Iterator[Row]:
    """Fold text next to its label; a path is never cut. A label that is too long for its column takes room from the first line."""
    label = f"{line.label}{GAP}".ljust(LABEL_WIDTH)
    more = len(label) - LABEL_WIDTH
    texts = _lines(line.text, width - LABEL_WIDTH, initial_indent=" " * more) or [""]
    yield (label, "bold"), (texts[0][more:], line.style)
    yield from (((" " * LABEL_WIDTH, ""), (text, line.style)) for text in texts[1:])


def _lines(text: str, width: int, **indent: str) -> list[str]:
    """Fold text between words. The number of a source stays on the line of its first word."""
    joined = CITED.sub(f"\\1{TIED}", text)
    folded = wrap(joined, width, break_on_hyphens=False, break_long_words=False, **indent)  # type: ignore[arg-type]
    return [line.replace(TIED, " ") for line in folded]


def _grid(block: Block, width: int) -> Iterator[Row]:
    columns = _without_spare(block, width)
    widths = _widths(columns, width)
    right = [column.right for column in columns]
    for cells in _folded([column.heading for column in columns], widths, right, top=False):
        yield ((GAP.join(cells).rstrip(), "bold"),)
    rows_ = zip(*(column.cells for column in columns), strict=True)
    for row, styles in zip(rows_, zip(*(column.styles for column in columns), strict=True), strict=True):
        for cells in _folded(row, widths, right, top=True):
            yield tuple((cell + GAP, style) for cell, style in zip(cells, styles, strict=True))


def _without_spare(block: Block, width: int) -> tuple[Column, ...]:
    """The columns of a block without those spare ones that would make the others fold."""
    columns = block.columns
    for name in block.spare:
        if sum(column.width() + len(GAP) for column in columns) - len(GAP) > width:
            columns = tuple(column for column in columns if column.heading != name)
    return columns


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """The widths of the columns. If the full widths are too wide together, the widest columns shrink.

    Columns that can fold between words shrink first, so that names stay whole for copying.
    """
    widths = [column.width() for column in columns]
    room = width - len(GAP) * (len(widths) - 1)
    words = [_unfolded(column) for column in columns]
    while sum(widths) > room:
        foldable = [size if size > max(word, NARROWEST_COLUMN) else 0 for size, word in zip(widths, words, strict=True)]
        candidates = foldable if any(foldable) else widths
        if max(candidates) <= NARROWEST_COLUMN:
            break
        widths[candidates.index(max(candidates))] -= 1
    return widths


def _unfolded(column: Column) -> int:
    """The width of the longest part of a column that does not fold: a word, or a figure with its unit."""
    parts = [word for text in (column.heading, *(() if column.right else column.cells)) for word in text.split()]
    return max(map(len, [*parts, *(column.cells if column.right else ())]), default=0)


def _folded(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], *, top: bool) -> Iterator[list[str]]:
    """Yield the lines of one row, cell by cell. Shorter cells are aligned at the top, or at the bottom in a heading."""
    folded = [_cell_lines(cell, size) for cell, size in zip(cells, widths, strict=True)]
    if not top:
        most = max(map(len, folded))
        folded = [[""] * (most - len(lines)) + lines for lines in folded]
    for parts in zip_longest(*folded, fillvalue=""):
        yield [
            part.rjust(size) if is_right else part.ljust(size)
            for part, size, is_right in zip(parts, widths, right, strict=True)
        ]


def _cell_lines(cell: str, size: int) -> list[str]:
    """Fold a cell between words; a word that is too long, as a path, folds after its slashes or hyphens."""
    first, slash, rest = cell.partition("/")
    if slash and " " not in cell and len(cell) > size > len(first) and len(rest) <= size:
        return [first + slash, rest]
    lines = [""]
    for word in cell.split():
        for at, piece in enumerate(_pieces(word, size)):
            gap = "" if at or not lines[-1] else " "
            if lines[-1] and len(lines[-1]) + len(gap) + len(piece) > size:
                lines.append(piece)
            else:
                lines[-1] += gap + piece
    return lines


def _pieces(word: str, size: int) -> list[str]:
    """A word whole if it fits, else cut after its slashes; a part that is too long after its hyphens, else at `size`."""
    if len(word) <= size:
        return [word]
    pieces: list[str] = []
    for part in PARTS.findall(word):
        pieces += [part] if len(part) <= size else HYPHENATED.findall(part)
    return [piece[at : at + size] for piece in pieces for at in range(0, len(piece), size)]
