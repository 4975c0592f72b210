"""Writing a document to stdout in the format asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from sizing.errors import Fault, InputError, nearest

FORMATS = ("table", "json", "csv", "markdown")


def chosen_format(values: Mapping[str, Any]) -> str:
    """Return the output format that the options ask for. Raises InputError for an unknown one."""
    name = values.get("format")
    if values.get("json"):
        if name not in (None, "json"):
            raise InputError(Fault("contradicts --json", field=f"--format {name}"))
        return "json"
    if name is None:
        return "table"
    if name not in FORMATS:
        raise InputError(
            Fault(
                f"{name!r} is no format",
                field="--format",
                allowed=", ".join(FORMATS),
                nearest=nearest(name, FORMATS),
            )
        )
    return str(name)


def write(document: Any, name: str) -> None:
    """Write a document to stdout; the module of its format renders the text."""
    if name == "json":
        from sizing.report.json import render as render_json

        print_text(render_json(document))
    elif name == "csv":
        from sizing.report.csv import render as render_csv

        print_text(render_csv(document))
    elif name == "markdown":
        from sizing.report.markdown import render as render_markdown

        print_text(render_markdown(document))
    else:
        from sizing.report.table import write as write_table

        write_table(document, sys.stdout)


def print_text(text: str) -> None:
    """Print text and a newline; characters that the terminal's encoding lacks become `?` rather than a crash."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding) + "\n")
