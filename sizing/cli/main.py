"""The `llmsize` application: its commands, and the handling of their failures."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from sizing import __version__
from sizing.cli.help.text import CommandHelp, GroupHelp
from sizing.cli.options import with_values
from sizing.cli.output import OutputError, complain, discard, files_with, flush_output
from sizing.question.options import DISAGGREGATE, POOLED, broken, unpooled
from sizing.specs.errors import Fault, InputError, unknown

LISTINGS = ("gpus", "models", "engines", "workloads", "prices")
COMPLETING = ["completion", "words"]
# Commands with their modules, in the order of messages. Only the requested module is loaded.
NAMED = {
    **{
        name: f"{name}:command"
        for name in (
            "estimate", "plan", "cost", "memory", "step", "curve", "compare", "sweep", "roofline", "report", "simulate",
            "whatif", "explain", "validate", "calibrate", "deploy", "check",
        )
    },
    "import": "imports:command",
    **{name: f"listings:{name}" for name in LISTINGS},
    "mcp": "mcp:command",
    "schema": "schema:command",
    "config": "config:command",
    "completion": "help.completion:command",
}  # fmt: skip
# Any other file in this folder with a function `command` is a command with the file's name.
_FILES = {name: f"{name}:command" for name in files_with("def command(", Path(__file__).parent)}
COMMANDS = NAMED | {name: place for name, place in _FILES.items() if place not in NAMED.values()}

BAD_VALUE = "Invalid value for"  # the beginning of a usage error about the value of an option
INFEASIBLE, BAD_INPUT = 1, 2
MOST_COMMANDS = 6  # that have an option which another command lacks
MOST_LINES, FIRST_LINES = 40, 10  # lines of faults: of very many, only the first are shown, and the others are counted
# Strings longer than any path are cut, not what ends them.
ENDLESS = re.compile(r"(\S{60})\S{340,}?(['\");:,.]*)(?!\S)")
HELP_COLUMNS = 100  # the most columns for help on a wide terminal
INTERRUPTED, READER_LEFT = 130, 141  # as a shell reports SIGINT and SIGPIPE: 128 and the signal's number


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llmsize {__version__}")
        raise typer.Exit()


def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Size GPU deployments for LLM inference."""


def application(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The application with the commands `names`."""
    app = typer.Typer(
        name="llmsize",
        cls=GroupHelp,
        help="How many GPUs an LLM service needs, how sure that is, and what it costs.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_COLUMNS},
    )
    app.callback()(_common)
    for name in names:
        module, _, function = COMMANDS[name].partition(":")
        app.command(name, cls=CommandHelp)(getattr(import_module(f"sizing.cli.{module}"), function))
    return app


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. A bug shows its traceback; each fault of the user is one line.

    If the output can't be written, the exit code is 2, with one line on stderr. If the reader has closed the pipe (`| head`),
    the exit code is `READER_LEFT`, without a message.
    """
    if sys.stderr is None:  # closed (2>&-): print(file=None) would write to stdout
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the end
    try:
        if sys.stdout is None:
            raise OutputError()
        code = _run(arguments)
        flush_output()
    except OutputError as error:
        if sys.stdout is not None:
            discard(sys.stdout)
        return READER_LEFT if error.left else _bad_input([str(error)])
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        completing = list(arguments[:2]) == COMPLETING  # the words that follow belong to the line to complete
        asked = list(arguments) if completing else with_values(arguments) or ["--help"]
        if not asked[0].startswith("-") and asked[0] not in COMMANDS:
            raise InputError(unknown(asked[0], "command", COMMANDS))
        pools = any(word.partition("=")[0] == DISAGGREGATE for word in asked) and not completing
        if pools and asked[0] in set(COMMANDS) - set(POOLED):
            raise InputError(unpooled(asked[0], DISAGGREGATE))
        command = typer.main.get_command(application(asked[:1] if asked[0] in COMMANDS else COMMANDS))
        code = command.main(asked, prog_name="llmsize", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.Exit as exit_:
        return exit_.exit_code
    except typer.Abort:
        return INTERRUPTED
    except InputError as error:
        return _bad_input(map(str, error.faults))
    except SystemExit:  # typer's end where the reader of its help has left
        raise OutputError(BrokenPipeError()) from None
    except OSError as error:  # faults in named files are InputErrors, so this is the output or the machine itself
        raise OutputError(error) from None
    except Exception as error:
        # Usage errors are recognised by their text, because their class differs between typer versions.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        if (option := getattr(error, "option_name", None)) is not None and hasattr(error, "possibilities"):
            return _bad_input([str(_no_option(asked[0], option, error))])
        spellings = getattr(getattr(error, "param", None), "opts", None)
        text = f"{spellings[0]}: {getattr(error, 'message', '')}" if spellings and BAD_VALUE in message() else message()
        return _bad_input([" ".join(text.split())])


def _no_option(command: str, option: str, error: Exception) -> Fault:
    """The fault of an unknown option: why this command has none, or the commands that have it.

    An option of no command is another tool's, for which it suggests our name, or a mistyped one: the nearest.
    """
    from sizing.question.options import other_tools

    context = getattr(error, "ctx", None)
    known = [flag for parameter in context.command.params for flag in parameter.opts] if context else []
    word = option.lstrip("-").replace("_", "-").lower()
    own = (foreign := other_tools()).get(word) or foreign.get(word.removesuffix("s"))
    if own not in known and (others := _commands_with(option)) and command in COMMANDS:
        refused = broken([command], (), {word.replace("-", "_"): True})
        some = ", ".join(others[:MOST_COMMANDS])
        have = f"{some} {'has' if len(others) == 1 else 'have'} it"
        remedy = f"write the name alone: llmsize {command} NAME" if command in LISTINGS else have
        return next(iter(refused), Fault(f"{command} has no such option", field=option, remedy=remedy))
    possible = getattr(error, "possibilities", None) or ()
    likest = max(possible, key=lambda flag: SequenceMatcher(None, option, flag).ratio(), default=None)
    nearest = own if own in known else likest
    return Fault(f"{command} has no such option", field=option, remedy=f"see llmsize {command} --help", nearest=nearest)


def _commands_with(option: str) -> list[str]:
    commands = getattr(typer.main.get_command(application()), "commands", {})
    return [name for name, each in commands.items() if any(option in parameter.opts for parameter in each.params)]


def _bad_input(lines: Iterable[str]) -> int:
    said = list(dict.fromkeys(lines))
    shown = said if len(said) <= MOST_LINES else said[:FIRST_LINES]
    for line in shown:
        complain(ENDLESS.sub(r"\1...\2", line))
    if len(shown) < len(said):
        complain(f"and {len(said) - len(shown):,} more faults")
    return BAD_INPUT
