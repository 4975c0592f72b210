"""The terminal table: the answer first, then what it rests on; 80 columns, plain without colour, readable at 60."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from importlib import import_module
from typing import Any, TextIO, cast

from sizing.report.documents import kind_of
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
    """Return the blocks of a document; only the module of its kind is loaded."""
    return cast(Iterable[Block], import_module(f"sizing.report.table_{kind_of(document)}").blocks(document))


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
