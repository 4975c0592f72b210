"""The terminal table: the answer first, then what it rests on; 80 columns, plain without colour, readable at 60."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import IO, Any, TextIO, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sizing.report import table_estimate, table_listing, table_memory, table_step
from sizing.report.documents import Entry, Estimate, Listing, MemoryReport, StepReport
from sizing.report.lines import Block, Line

NARROWEST, WIDEST, USUAL = 40, 110, 80
LABEL_WIDTH = 16


def write(document: Any, out: TextIO) -> None:
    """Write a document for people to a stream. Colour only on a terminal, and never with NO_COLOR."""
    console = Console(
        file=cast(IO[str], _Encodable(out)), width=_width(out), highlight=False, emoji=False, markup=False
    )
    for index, block in enumerate(_blocks(document)):
        if index:
            console.print()
        _print(console, block)


def _blocks(document: Any) -> Iterable[Block]:
    if isinstance(document, Estimate):
        return table_estimate.blocks(document)
    if isinstance(document, MemoryReport):
        return table_memory.blocks(document)
    if isinstance(document, StepReport):
        return table_step.blocks(document)
    if isinstance(document, (Listing, Entry)):
        return table_listing.blocks(document)
    raise TypeError(f"no table for {type(document).__name__}")


def _width(out: TextIO) -> int:
    if not out.isatty():
        return USUAL
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((USUAL, 24)).columns))


def _print(console: Console, block: Block) -> None:
    if block.columns:
        console.print(_grid(block))
        return
    for line in block.lines:
        console.print(_labelled(line) if line.label else Text(line.text, style=line.style))


def _labelled(line: Line) -> Table:
    """A label in a fixed column and text that folds beside it."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=LABEL_WIDTH, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(line.label, style="bold"), Text(line.text, style=line.style))
    return grid


def _grid(block: Block) -> Table:
    grid = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for name, right in zip(block.columns, block.right, strict=True):
        grid.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in block.rows:
        grid.add_row(*map(Text, row))
    return grid


class _Encodable:
    """A stream that replaces what the terminal's encoding can't show, where a crash would be the alternative."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.encoding = out.encoding or "utf-8"

    def write(self, text: str) -> int:
        """Write text, with `?` for characters that the encoding lacks."""
        return self._out.write(text.encode(self.encoding, errors="replace").decode(self.encoding))

    def flush(self) -> None:
        """Flush the stream."""
        self._out.flush()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self._out.isatty()
