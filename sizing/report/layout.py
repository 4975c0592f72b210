"""From blocks to rows of text that fit a width: labels with a hanging indent, columns that fold their widest cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap

from sizing.report.lines import Block, Line
from sizing.specs.units import on_one_line

LABEL_WIDTH = 17
GAP = "  "
NARROWEST_COLUMN = 6

Row = tuple[tuple[str, str], ...]  # pieces of one row of text, each with its style


def rows(blocks: Iterable[Block], width: int) -> Iterator[Row]:
    """Yield the rows of all blocks that hold anything, an empty row between two blocks. No row is wider than `width`."""
    filled = (_shown(block) for block in blocks if block.lines or block.rows)
    for index, block in enumerate(filled):
        if index:
            yield ()
        if block.rows:
            yield from _grid(block, width)
        for line in block.lines:
            yield from _labelled(line, width) if line.label else _plain(line, width)


def _shown(block: Block) -> Block:
    """Return a block whose words hold nothing that steers a terminal: names come from files and options."""
    lines = tuple(line._replace(text=on_one_line(line.text), label=on_one_line(line.label)) for line in block.lines)
    rows_ = tuple(tuple(map(on_one_line, row)) for row in block.rows)
    return block._replace(lines=lines, columns=tuple(map(on_one_line, block.columns)), rows=rows_)


def _plain(line: Line, width: int) -> Iterator[Row]:
    """Fold text under its own indent, two further in."""
    indent = " " * (len(line.text) - len(line.text.lstrip()) + 2)
    for text in wrap(line.text, width, subsequent_indent=indent, break_on_hyphens=False):
        yield ((text, line.style),)


def _labelled(line: Line, width: int) -> Iterator[Row]:
    """A label in a fixed column, and text that folds beside it."""
    label = line.label
    for text in wrap(line.text, width - LABEL_WIDTH, break_on_hyphens=False) or [""]:
        yield (f"{label:<{LABEL_WIDTH}}", "bold"), (text, line.style)
        label = ""


def _grid(block: Block, width: int) -> Iterator[Row]:
    block = _without_spare(block, width)
    widths = _widths(block, width)
    for cells in _folded(block.columns, widths, block.right, top=False):
        yield ((cells, "bold"),)
    for row in block.rows:
        for cells in _folded(row, widths, block.right, top=True):
            yield ((cells, ""),)


def _without_spare(block: Block, width: int) -> Block:
    """Return a block without as many of its spare columns as the others need to stand unfolded."""
    for name in block.spare:
        full = _full_widths(block)
        if name not in block.columns or sum(full) + len(GAP) * (len(full) - 1) <= width:
            continue
        at = block.columns.index(name)
        block = block._replace(
            columns=block.columns[:at] + block.columns[at + 1 :],
            right=block.right[:at] + block.right[at + 1 :],
            rows=tuple(row[:at] + row[at + 1 :] for row in block.rows),
        )
    return block


def _full_widths(block: Block) -> list[int]:
    """Every column as wide as its cells and the longest word of its heading."""
    return [
        max(max(map(len, name.split())), *(len(row[i]) for row in block.rows)) for i, name in enumerate(block.columns)
    ]


def _widths(block: Block, width: int) -> list[int]:
    """Return the full widths; where they are too wide, the widest give way.

    First those that fold between words, for a name is there to be copied.
    """
    widths = _full_widths(block)
    room = width - len(GAP) * (len(widths) - 1)
    words = [
        max((len(word) for row in (block.columns, *block.rows) for word in row[i].split()), default=0)
        for i in range(len(widths))
    ]
    while sum(widths) > room:
        foldable = [size if size > word else 0 for size, word in zip(widths, words, strict=True)]
        candidates = foldable if any(foldable) else widths
        if max(candidates) <= NARROWEST_COLUMN:
            break
        widths[candidates.index(max(candidates))] -= 1
    return widths


def _folded(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], *, top: bool) -> Iterator[str]:
    """Yield the lines of one row; cells of fewer lines stand at its top, headings at its bottom."""
    folded = [wrap(cell, size) or [""] for cell, size in zip(cells, widths, strict=True)]
    if not top:
        most = max(map(len, folded))
        folded = [[""] * (most - len(lines)) + lines for lines in folded]
    for parts in zip_longest(*folded, fillvalue=""):
        aligned = (
            part.rjust(size) if is_right else part.ljust(size)
            for part, size, is_right in zip(parts, widths, right, strict=True)
        )
        yield GAP.join(aligned).rstrip()
