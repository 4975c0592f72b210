"""Documents as JSON (byte-identical for the same question), CSV (RFC 4180) and Markdown pipe tables."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sizing.formats.view import Document, Rows, plain
from sizing.formats.words import stated
from sizing.specs.units import on_one_line, printable

FORMULAS = ("=", "+", "-", "@")  # a formula in a spreadsheet begins with one of these
MARKUP = re.compile(r"([\\`*\[\]<>|])")  # characters that Markdown would read as links, tags or columns


def as_json(document: Document[Any]) -> str:
    """The record as indented JSON; in ASCII, so that it is the same in every encoding."""
    return json.dumps(plain(document.record), indent=2, ensure_ascii=True, allow_nan=False)


def json_line(record: Any) -> str:
    """A record as JSON on one line."""
    return json.dumps(plain(record), ensure_ascii=True, allow_nan=False)


def as_csv(document: Document[Any]) -> str:
    """The document's rows as CSV without a trailing newline. A value that does not apply is empty."""
    table = _rows(document)
    return csv_lines((table.columns, *table.rows))


def csv_lines(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as lines of CSV, without a trailing newline."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_csv_cell(value) for value in row] for row in rows)
    return out.getvalue().removesuffix("\n")


def _csv_cell(value: Any) -> Any:
    if value is None:
        return ""
    return _guarded(printable(value)) if isinstance(value, str) else value


def _guarded(text: str) -> str:
    """Text that a spreadsheet reads as text: a quote is put before text that looks like a formula, but not before a number."""
    if not text.lstrip().startswith(FORMULAS):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def as_markdown(document: Document[Any]) -> str:
    """The document's rows as a Markdown table with four significant digits, without empty columns."""
    table = _rows(document)
    kept = [i for i in range(len(table.columns)) if any(row[i] not in (None, "") for row in table.rows)]
    head = [table.columns[i] for i in kept]
    lines = [_markdown_line(head), _markdown_line(["---"] * len(head))]
    words = [table.in_words.get(name, markdown_cell) for name in table.columns]
    lines += [_markdown_line([words[i](row[i]) for i in kept]) for row in table.rows]
    return "\n".join(lines)


def _markdown_line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def markdown_cell(value: Any) -> str:
    """A value as a cell of a Markdown table."""
    if value is None:
        return ""
    if isinstance(value, float):
        return stated(value)
    return MARKUP.sub(r"\\\1", on_one_line(str(value)))


def _rows(document: Document[Any]) -> Rows:
    return document.rows(document.record)


WRITERS: dict[str, Callable[[Document[Any]], str]] = {"json": as_json, "csv": as_csv, "markdown": as_markdown}
