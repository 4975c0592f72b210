"""Listings and single entries of the catalogue for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sizing.report.documents import Entry, Listing
from sizing.report.lines import Block, Line

UNLISTED = ("aliases",)  # wide, and in the entry itself and in JSON


def blocks(document: Listing | Entry) -> Iterator[Block]:
    """Yield the blocks of a listing (columns) or of one entry (its YAML, indented)."""
    if isinstance(document, Entry):
        yield Block((Line(f"{document.name}  ({document.file})", style="bold"),))
        yield Block(tuple(Line(text) for text in _outline(document.entry, 0)))
        return
    kept = [i for i, name in enumerate(document.columns) if name not in UNLISTED]
    rows = tuple(tuple(_cell(row[i]) for i in kept) for row in document.rows)
    numeric = tuple(all(isinstance(row[i], (int, float, type(None))) for row in document.rows) for i in kept)
    yield Block(columns=tuple(document.columns[i] for i in kept), right=numeric, rows=rows)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,g}" if isinstance(value, (int, float)) else str(value)


def _outline(value: Any, depth: int) -> Iterator[str]:
    """Write nested data as an outline: plain lists and small rows on one line."""
    indent = "  " * depth
    if isinstance(value, dict):
        for key, entry in value.items():
            if isinstance(entry, dict) or (
                isinstance(entry, list) and any(isinstance(e, (dict, list)) for e in entry)
            ):
                yield f"{indent}{key}:"
                yield from _outline(entry, depth + 1)
            else:
                yield f"{indent}{key}: {_scalar(entry)}"
    elif isinstance(value, list):
        for entry in value:
            yield f"{indent}- {_scalar(entry)}"


def _scalar(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_scalar(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return ", ".join(map(_scalar, value))
    return str(value)
