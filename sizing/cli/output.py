"""Writing a document to stdout in the format asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sizing.errors import Fault, InputError, nearest

FORMATS = ("table", "json", "csv", "markdown")

# What stands in for characters that a terminal's encoding lacks; any other becomes a question mark.
PLAINER = str.maketrans({"×": "x", "–": "-", "—": "-", "‑": "-", "µ": "u", "’": "'", "≥": ">=", "≤": "<="})


def chosen_format(values: Mapping[str, Any]) -> str:
    """Return the output format that the options ask for. Raises InputError for an unknown one, or for two."""
    name = values.get("format")
    if values.get("quiet") and (values.get("json") or name is not None):
        asked = "--json" if values.get("json") else f"--format {name}"
        raise InputError(Fault("prints the GPU count alone, so it contradicts " + asked, field="--quiet"))
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
        from sizing.report.table import render_for

        print_text(render_for(document, sys.stdout))


def write_file(path: Path, text: str) -> None:
    """Write text to a file that an option names. Raises InputError where that is impossible."""
    try:
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(Fault(f"cannot be written: {error.strerror or error}", file=str(path))) from None


def print_text(text: str) -> None:
    """Print text and a newline; characters that the terminal's encoding lacks give way rather than crash."""
    try:
        sys.stdout.write(encodable(text, sys.stdout.encoding or "utf-8") + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Write to nowhere from here on: the reader has gone (`| head`), which is no error of the command."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def encodable(text: str, encoding: str) -> str:
    """Return text that an encoding can write: as it is, else with plainer characters."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(PLAINER).encode(encoding, errors="replace").decode(encoding)
    return text
