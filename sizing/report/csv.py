"""CSV: the rows of a document, RFC 4180, empty where a value does not apply."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from sizing.report import rows
from sizing.specs.units import printable


def render(document: Any) -> str:
    """Return the document's rows as CSV text without a trailing newline."""
    table = rows.of(document)
    return lines((table.columns, *table.rows))


def lines(found: Iterable[Sequence[Any]]) -> str:
    """Return rows as lines of CSV, without a trailing newline."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_cell(value) for value in row] for row in found)
    return out.getvalue().removesuffix("\n")


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) else value
