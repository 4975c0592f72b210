"""`llmsize report`: the answer with all that explains it as one HTML file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sizing.cli.options import VERIFY_OPTIONS, takes
from sizing.question.fields import WORKLOAD_OPTIONS

if TYPE_CHECKING:
    from pathlib import Path

STDOUT = "-"


@takes((*WORKLOAD_OPTIONS, *VERIFY_OPTIONS))
def command(
    workload: Annotated[
        str | None, typer.Argument(help="Workload file, or a ready one's name (llmsize workloads).")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="HTML file to write; - for standard output.")
    ] = None,
    **values: Any,
) -> None:
    """Write the answer, its curves, alternatives, assumptions and what would change it as one HTML page.

    Exit codes: 0 feasible, 1 infeasible, 2 bad input.
    """
    from sizing.cli.output import complain, print_text, write_file
    from sizing.cli.reported import report
    from sizing.question.ask import question_of
    from sizing.question.fields import options_of
    from sizing.question.values import Part
    from sizing.report.page import html

    target = Part(lambda: _target(output))
    asked = question_of(workload, options_of(WORKLOAD_OPTIONS, values), target)
    again = _command(workload, output or STDOUT, values)
    document = report(asked, values, again)
    page = html(document)
    if target.value is None:
        print_text(page.removesuffix("\n"))
    else:
        write_file(target.value, "--output", page.encode())
        complain(f"wrote {output}, {len(page.encode()):,} bytes")
    if not document.estimate.feasible:
        raise typer.Exit(1)


def _target(output: str | None) -> Path | None:
    """Return the file to write, None for standard output. Raises InputError where it can't be."""
    from sizing.cli.reading import Reader
    from sizing.specs.errors import Fault, InputError

    if output is None:
        raise InputError(
            Fault("is needed", field="--output", allowed="an HTML file to write, or - for standard output")
        )
    if output == STDOUT:
        return None
    read = Reader({"output": output}, [])
    path = read.target("output", "--output")
    read.check()
    return path


def _command(workload: str | None, output: str, values: Mapping[str, Any]) -> str:
    """Return the command line that was given, quoted for a shell."""
    from sizing.cli.rules import is_given

    words = ["llmsize", "report", *([workload] if workload is not None else [])]
    for option in (*WORKLOAD_OPTIONS, *VERIFY_OPTIONS):
        value = values[option.name]
        if value is True:
            words.append(option.flags[0])
        elif is_given(value):
            words += [option.flags[0], f"{value:.12g}" if isinstance(value, float) else str(value)]
    return shlex.join([*words, "-o", output])
