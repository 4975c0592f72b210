"""The terminal table: the answer first, then what it rests on; 80 columns, plain without colour, readable at 60."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from typing import Any, TextIO

from sizing.report.documents import (
    Entry,
    Estimate,
    Listing,
    MemoryReport,
    SimulationReport,
    StepReport,
    TickReport,
    ValidationReport,
)
from sizing.report.layout import Row, rows
from sizing.report.lines import Block

NARROWEST, WIDEST, USUAL = 60, 110, 80


def render(document: Any, width: int = USUAL) -> str:
    """Return a document as plain text for people, folded at `width` columns."""
    return _plain(rows(_blocks(document), width))


def render_for(document: Any, out: TextIO) -> str:
    """Return a document as text for a stream: as wide as its terminal, styled there unless NO_COLOR is set."""
    if not out.isatty():
        return render(document)
    width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size((USUAL, 24)).columns))
    if os.environ.get("NO_COLOR"):
        return render(document, width)
    return _styled(rows(_blocks(document), width), out)


def _blocks(document: Any) -> Iterable[Block]:
    """Return the blocks of a document; only its own module is loaded."""
    if isinstance(document, Estimate):
        from sizing.report import table_estimate

        return table_estimate.blocks(document)
    if isinstance(document, MemoryReport):
        from sizing.report import table_memory

        return table_memory.blocks(document)
    if isinstance(document, StepReport):
        from sizing.report import table_step

        return table_step.blocks(document)
    if isinstance(document, (Listing, Entry)):
        from sizing.report import table_listing

        return table_listing.blocks(document)
    if isinstance(document, (SimulationReport, TickReport)):
        from sizing.report import table_simulation

        return table_simulation.blocks(document)
    if isinstance(document, ValidationReport):
        from sizing.report import table_validation

        return table_validation.blocks(document)
    raise TypeError(f"no table for {type(document).__name__}")


def _plain(found: Iterable[Row]) -> str:
    return "\n".join("".join(text for text, _ in row).rstrip() for row in found)


def _styled(found: Iterable[Row], out: TextIO) -> str:
    """Let rich write the styles that this terminal knows; the text is folded already."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out, highlight=False, emoji=False, markup=False, soft_wrap=True)
    with console.capture() as capture:
        console.print(Text("\n").join(Text.assemble(*row) for row in found))
    return capture.get().removesuffix("\n")
