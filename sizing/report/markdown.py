"""Markdown: the rows of a document as a pipe table, numbers at four significant digits, for tickets and pull requests."""

from __future__ import annotations

from typing import Any

from sizing.report import rows
from sizing.report.lines import stated
from sizing.specs.units import on_one_line


def render(document: Any) -> str:
    """Return the document's rows as a Markdown table; columns without any value are left out."""
    table = rows.of(document)
    kept = [i for i in range(len(table.columns)) if any(row[i] not in (None, "") for row in table.rows)]
    head = [table.columns[i] for i in kept]
    lines = [_line(head), _line(["---"] * len(head))]
    lines += [_line([_cell(row[i]) for i in kept]) for row in table.rows]
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return stated(value)
    return on_one_line(str(value)).replace("|", "\\|")
