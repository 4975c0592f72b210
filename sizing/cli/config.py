"""`llmsize config`: the settings from files and the environment, and the source of each."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    all_: Annotated[
        bool, typer.Option("--all", help="List all options that can be set, with their environment variables.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the current settings, and where each comes from.

    A setting has the long name of an option. It stands in llmsize.yaml or in [tool.llmsize] of pyproject.toml (the nearest such
    file, from the current folder upwards), in llmsize.yaml of the user's folder, or in an environment variable LLMSIZE_NAME. The
    order, strongest first: options, workload, environment, project's file, user's file. An empty variable removes the setting of a
    file. LLMSIZE_CONFIG=FILE is read in place of both files; LLMSIZE_CONFIG=none reads no file.
    """
    from sizing.cli.options import SETTINGS, settings
    from sizing.cli.output import write
    from sizing.question.configuration import Configuration
    from sizing.report.settings import document, document_of_all, record, record_of_all
    from sizing.specs.errors import Part, check

    known, form = Part(settings), "json" if json else "table"
    if all_:  # a fault says to look here
        write(document_of_all(record_of_all(SETTINGS, Configuration() if known.faults else known.value)), form)
    check(known)
    if not all_:
        write(document(record(known.value)), form)
