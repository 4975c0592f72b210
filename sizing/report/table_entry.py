"""One entry of the catalogue for the terminal: its fields indented, measured rows, sources by number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sizing.formats.text import Block
from sizing.formats.view import Line
from sizing.formats.words import percent
from sizing.report.documents_listing import Entry
from sizing.report.table_listing import cell

EXACT_DIGITS = 15  # as many as a float holds of any decimal number
LEADING = ("operation", "precision", "provider", "value")  # what a row is about
# Measured rows are many and alike: they follow all else, each as short as it can be.
MEASURED = "efficiency"
NOT_CONSTANTS = ("operation", "precision", "engine", "version", "points", "median_error", "p90_error", "source", "date")


def blocks(document: Entry) -> Iterator[Block]:
    """Yield the blocks of an entry."""
    sources: dict[str, int] = {}
    plain = {key: value for key, value in document.entry.items() if key != MEASURED}
    measured = document.entry.get(MEASURED, ())
    yield Block((Line(f"{document.name} ({document.file})", style="bold"),))
    yield Block(tuple(Line(text) for text in _outline(plain, 0, sources)))
    yield Block(tuple(Line(text) for text in _measured_rows(measured, sources)))
    yield Block(tuple(Line(f"[{index}] {text}", style="dim") for text, index in sources.items()))


def _measured_rows(rows: Sequence[dict[str, Any]], sources: dict[str, int]) -> Iterator[str]:
    """Write measured rows, one a line; a source that all share stands once, above them."""
    stated = [f"{row['source']} ({row['date']})" for row in rows]
    shared = len(set(stated)) == 1
    if rows:
        yield f"{MEASURED}:" + (f" {_numbered(stated[0], sources)}" if shared else "")
    for row, source in zip(rows, stated, strict=True):
        yield f"  {_measured(row)}" + ("" if shared else f" {_numbered(source, sources)}")


def _measured(row: dict[str, Any]) -> str:
    """Return what was measured, on which engine version, the constants, and how many points they fit how well."""
    what = " ".join(str(row[key]) for key in ("operation", "precision", "engine", "version") if row.get(key))
    constants = {key: value for key, value in row.items() if key not in NOT_CONSTANTS and value is not None}
    words = {
        key: " ".join(map(_scalar, value)) if isinstance(value, list) else value for key, value in constants.items()
    }
    fit = [f"n {row['points']}"] if row.get("points") else []
    fit += [f"error {percent(row['median_error'])}"] if row.get("median_error") is not None else []
    return f"{what}: {_scalar(words)}" + (f" ({', '.join(fit)})" if fit else "")


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
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:.{EXACT_DIGITS}g}"
    return cell(value)
