"""The `llmsize` application: its commands, and how their failures end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from sizing import __version__
from sizing.cli import estimate, listings, memory, simulate, step, validate
from sizing.cli.output import discard_output
from sizing.errors import InputError

app = typer.Typer(
    name="llmsize",
    help="How many GPUs an LLM service needs, how sure that is, and what it costs.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

INFEASIBLE, BAD_INPUT, INTERRUPTED = 1, 2, 130


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llmsize {__version__}")
        raise typer.Exit()


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Size GPU deployments for LLM inference."""


app.command("estimate")(estimate.command)
app.command("memory")(memory.command)
app.command("step")(step.command)
app.command("simulate")(simulate.command)
app.command("validate")(validate.command)
app.command("gpus")(listings.gpus)
app.command("models")(listings.models)
app.command("engines")(listings.engines)
app.command("workloads")(listings.workloads)


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. A bug shows its traceback; a user's mistake is one line a fault."""
    code = _run(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        command = typer.main.get_command(app)
        asked = list(arguments) or ["--help"]
        code = command.main(asked, prog_name="llmsize", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.Exit as exit_:
        return exit_.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except InputError as error:
        return _bad_input(map(str, error.faults))
    except Exception as error:
        # Usage errors carry their text; their class differs between versions of typer.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        return _bad_input([" ".join(message().split())])


def _bad_input(lines: map[str] | list[str]) -> int:
    for line in dict.fromkeys(lines):
        print(f"llmsize: {line}", file=sys.stderr)
    return BAD_INPUT
