"""Temporary: documents whose command has no `sections` and `rows` yet find theirs by kind, in `table_<kind>`, `rows_<kind>`.

Delete this with the last of those modules.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, cast

from sizing.formats.view import Document, Rows, Section, kind_of


def document_of(record: Any) -> Document[Any]:
    """Return the document of a record; the modules of its kind are loaded when a format asks for them."""
    return Document(record, _sections, _rows)


def _sections(record: Any) -> Iterable[Section]:
    return cast(Iterable[Section], import_module(f"sizing.report.table_{kind_of(record)}").blocks(record))


def _rows(record: Any) -> Rows:
    return cast(Rows, import_module(f"sizing.report.rows_{kind_of(record)}").of(record))
