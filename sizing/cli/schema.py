"""`llmsize schema`: the JSON Schema of an input file or of a result."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A kind of file: workload, fleet, gpu, model, engine or server; or result, or a command for its own result."
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of a file or a result.

    Editors check a file against the schema that its first line names: # yaml-language-server: $schema=workload.json
    """
    import json

    from sizing.cli.output import print_text
    from sizing.report.schemas import names, schema
    from sizing.specs.errors import InputError, nearest

    known = names()
    if name is None or name not in known:
        what = "is needed" if name is None else f"{name!r} has no schema"
        near = None if name is None else nearest(name, list(known))
        raise InputError(what, field="NAME" if name is None else None, allowed=", ".join(known), nearest=near)
    print_text(json.dumps(schema(name), indent=2))
