"""`llmsize config`: the settings from files and the environment, and the source of each."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    all_: Annotated[bool, typer.Option("--all", help="List every option that can be set, with its variable.")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON in place of a table.")] = False,
) -> None:
    """Show the settings in force and what each comes from.

    A setting is an option by its long name: in llmsize.yaml or [tool.llmsize] of pyproject.toml (the nearest upwards), in
    llmsize.yaml of the user's folder, or as a variable LLMSIZE_NAME. The user's file gives way to the project's file, that to the
    environment, that to a workload, that to options. An empty variable takes back what files say. LLMSIZE_CONFIG=FILE is read in
    place of both files, none reads neither.
    """
    from sizing.cli.options import SETTINGS, settings
    from sizing.cli.output import write
    from sizing.report.settings import document, document_of_all, record, record_of_all

    known = settings()
    if all_:
        write(document_of_all(record_of_all(SETTINGS, known)), "json" if json else "table")
    else:
        write(document(record(known)), "json" if json else "table")
