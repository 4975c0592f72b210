"""The rows of a document that tabular formats (CSV, Markdown) write: column names once, then one tuple a row.

Those of `llmsize.<name>/1` are made by the module `rows_<name>`, loaded when such a document is written.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple, cast

from sizing.report.documents import kind_of

Row = tuple[Any, ...]


class Rows(NamedTuple):
    """A table: a title, column names, rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


LABELS = ("model", "weight_precision", "isl", "osl", "engine", "engine_version")


def of(document: Any) -> Rows:
    """Return the table of a document."""
    return cast(Rows, import_module(f"sizing.report.rows_{kind_of(document)}").of(document))


def labels(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return what every figure is of."""
    return {key: inputs.get(key) for key in LABELS}
