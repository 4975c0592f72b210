"""Listings and single entries of the catalogue for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sizing.report.documents import Entry, Listing
from sizing.report.lines import Block, Line, stated

UNLISTED = ("aliases",)  # wide, and in the entry itself and in JSON
LEADING = ("operation", "precision", "provider", "value")  # what a row is about
HEADINGS = {
    "memory_gib": "GiB",
    "bandwidth_gb_per_s": "GB/s",
    "bf16_tflops": "BF16 TFLOPS",
    "fp8_tflops": "FP8 TFLOPS",
    "parameters_b": "billion parameters",
    "active_parameters_b": "active",
    "isl": "ISL",
    "osl": "OSL",
}


def blocks(document: Listing | Entry) -> Iterator[Block]:
    """Yield the blocks of a listing (columns), or of one entry: its fields indented, then its sources by number."""
    if isinstance(document, Entry):
        sources: dict[str, int] = {}
        yield Block((Line(f"{document.name} ({document.file})", style="bold"),))
        yield Block(tuple(Line(text) for text in _outline(document.entry, 0, sources)))
        yield Block(tuple(Line(f"[{index}] {text}", style="dim") for text, index in sources.items()))
        return
    kept = [i for i, name in enumerate(document.columns) if name not in UNLISTED]
    rows = tuple(tuple(_cell(row[i]) for i in kept) for row in document.rows)
    numeric = tuple(all(isinstance(row[i], (int, float, type(None))) for row in document.rows) for i in kept)
    names = tuple(HEADINGS.get(document.columns[i], document.columns[i]) for i in kept)
    yield Block(columns=names, right=numeric, rows=rows)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return stated(value) if isinstance(value, (int, float)) else str(value)


def _outline(value: dict[str, Any], depth: int, sources: dict[str, int]) -> Iterator[str]:
    """Write nested data as an outline: plain values and small rows on one line, sources by number."""
    indent = "  " * depth
    for key, entry in value.items():
        label = indent + key.replace("_", " ")
        if isinstance(entry, dict) and not _is_small(entry):
            yield f"{label}:"
            yield from _outline(entry, depth + 1, sources)
        elif isinstance(entry, list) and any(isinstance(e, dict) for e in entry):
            yield f"{label}:"
            for row in entry:
                yield f"{indent}  - {_row(row, sources)}"
        elif key in ("source", "sources"):
            yield f"{label}: {_numbered(entry, sources)}"
        else:
            yield f"{label}: {_scalar(entry)}"


def _is_small(value: dict[str, Any]) -> bool:
    return all(not isinstance(entry, (dict, list)) for entry in value.values()) and "source" not in value


def _row(value: Any, sources: dict[str, int]) -> str:
    if not isinstance(value, dict):
        return _scalar(value)
    keys = sorted(value, key=lambda key: key not in LEADING)
    stated = [f"{key.replace('_', ' ')} {_scalar(value[key])}" for key in keys if key != "source"]
    return ", ".join(stated) + (f" {_numbered(value['source'], sources)}" if "source" in value else "")


def _numbered(stated: str | list[str], sources: dict[str, int]) -> str:
    """Return the numbers of sources, giving one to each that is new."""
    texts = [stated] if isinstance(stated, str) else stated
    return " ".join(f"[{sources.setdefault(text, len(sources) + 1)}]" for text in texts)


def _scalar(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_scalar(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return ", ".join(map(_scalar, value))
    return _cell(value)
