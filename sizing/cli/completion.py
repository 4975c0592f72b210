"""`llmsize completion`: the script with which a shell completes a line, the words that complete it, and the manual page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from sizing import __version__
from sizing.cli.main import GROUPS, application, known_commands, summary

WORDS, MAN = "words", "man"
SCRIPTS = {shell: Path(__file__).with_suffix(f".{shell}") for shell in ("bash", "zsh", "fish")}
# Names to complete: the module of the catalogue and its shelf.
SHELVES = {
    "gpu": ("profiles", "GPUS"),
    "model": ("models", "SHELF"),
    "engine": ("profiles", "ENGINES"),
    "workload": ("workloads", "SHELF"),
    "fleet": ("fleets", "SHELF"),
    "own": ("servers", "SHELF"),
    "topic": ("topics", "TOPICS"),
}
LISTS = ("gpu", "precision")  # options that take several names, separated by commas
SEVERAL, EVERY = ",", "all"


def command(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish; man for the manual page.")],
    line: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
) -> None:
    """Print what a shell needs to complete commands and names.

    It completes commands, options, GPU types, models, workloads and topics. Put the line for your shell into its start-up file.
    """
    from sizing.cli.output import print_text
    from sizing.specs.errors import InputError, nearest

    if shell == WORDS:
        for word in words(line or [""]):
            print_text(word)
    elif shell == MAN and not line:
        print_text(manual(typer.main.get_command(application())))
    elif shell not in SCRIPTS or line:
        known = (*SCRIPTS, MAN)
        what = f"{' '.join([shell, *(line or ())])!r} is no shell"
        raise InputError(what, allowed=", ".join(known), nearest=nearest(shell, known))
    else:
        print_text(SCRIPTS[shell].read_text(encoding="utf-8").rstrip("\n"))


def words(line: Sequence[str]) -> Iterator[str]:
    """Yield the possible last words of a command line (without `llmsize`)."""

    *before, current = line
    if not before:
        candidates: Iterator[str] = iter((*known_commands(), "--help", "--version"))
    elif before[0] not in known_commands():
        return
    else:
        app: Any = typer.main.get_command(application(before[:1]))
        parameters = app.commands[before[0]].params
        candidates = _of_command(before, current, parameters)
    yield from (word for word in candidates if word.startswith(current))


def _of_command(before: Sequence[str], current: str, parameters: Sequence[Any]) -> Iterator[str]:
    """Yield the values of the option before the word, else options, else names for the command's argument."""
    options = {flag: one for one in parameters for flag in one.opts if flag.startswith("-")}
    takes_value = options.get(before[-1])
    if takes_value is not None and not takes_value.is_flag:
        listed, _, _ = current.rpartition(SEVERAL)
        first = f"{listed}{SEVERAL}" if listed and takes_value.name in LISTS else ""
        yield from (first + value for value in _values(takes_value.name))
    elif current.startswith("-"):
        yield from (*options, "--help")
    else:
        yield from _subjects(before[0])


def _subjects(name: str) -> Iterator[str]:
    """Yield the names for the argument of a command."""
    if name in ("gpus", "models", "engines", "prices"):
        yield from _names("gpu" if name == "prices" else name.removesuffix("s"))
    elif name == "explain":
        yield from _names("topic")
    elif name == "completion":
        yield from (*SCRIPTS, MAN)
    elif name == "schema":
        from sizing.report.schemas import names

        yield from names()
    elif name not in ("memory", "step", "roofline", "validate", "import", "config", "mcp", "init"):
        yield from _names("workload")
        if name in ("plan", "workloads"):
            yield from _names("fleet")


def _values(option: str) -> Iterator[str]:
    """Yield the values of an option: the names in a catalogue, else the words that its workload field allows."""
    if option in (*SHELVES, "profile"):
        yield from _names(option)
        if option == "gpu":
            yield EVERY
    else:
        yield from _allowed(option)


def _names(kind: str) -> tuple[str, ...]:
    """The names in a catalogue; only its folder is listed."""
    if kind == "profile":
        from sizing.catalog.workloads import profile_names

        return profile_names()
    module, shelf = SHELVES[kind]
    names: tuple[str, ...] = getattr(import_module(f"sizing.catalog.{module}"), shelf).ids
    return names


def _allowed(option: str) -> Iterator[str]:
    """Yield the words that the field of an option allows."""
    from sizing.cli.output import FORMATS
    from sizing.question.options import QUESTION_OPTIONS
    from sizing.specs.workload import Workload

    if option == "format":
        yield from FORMATS
    path = next((field.field or field.name for field in QUESTION_OPTIONS if field.name == option), "")
    spec: Any = Workload
    for name in path.split(".") if path else ():
        models = (one for one in (spec, *get_args(spec)) if hasattr(one, "model_fields"))
        fields: dict[str, Any] = next((one.model_fields for one in models), {})
        spec = fields[name].annotation if name in fields else None
    yield from dict.fromkeys(_words_of(spec))


def _words_of(kind: Any) -> Iterator[str]:
    """Yield the words of the literals in a type."""
    for part in get_args(kind):
        yield from (part,) if get_origin(kind) is Literal else _words_of(part)


WIDE: dict[str, Any] = dict.fromkeys(("terminal_width", "max_content_width"), 78)  # columns, as on a terminal
HELP = ["-h", "--help"]


def manual(app: Any) -> str:
    """The manual page of an application with all commands. It has no date, so that equal versions give equal pages."""
    return "\n".join(_lines(app))


def _lines(app: Any) -> Iterator[str]:
    yield f'.TH LLMSIZE 1 "" "llmsize {__version__}" "User Commands"'
    yield from (".SH NAME", "llmsize \\- " + _escaped(f"{app.help[:1].lower()}{app.help[1:]}".rstrip(".")))
    yield from (".SH SYNOPSIS", ".B llmsize", ".I COMMAND", "[\\fIOPTIONS\\fR]")
    for group, names in GROUPS.items():
        yield f".SH {_escaped(group).upper()}"
        for name in names:
            yield from (".TP", f".B {_escaped(name)}", _escaped(summary(app.commands[name].help or "")))
    yield ".SH COMMANDS"
    for names in GROUPS.values():
        for name in names:
            command = app.commands[name]
            context = typer.Context(command, info_name=f"llmsize {name}", help_option_names=HELP, **WIDE)
            yield from (f".SS {_escaped(name)}", ".nf", *map(_escaped, command.get_help(context).splitlines()), ".fi")
    yield from (".SH EXIT STATUS", "0 feasible, 1 infeasible, 2 bad input.")
    variable = "LLMSIZE_\\fINAME\\fR sets the option of that name; llmsize config shows what is set."
    yield from (".SH ENVIRONMENT", variable)


def _escaped(text: str) -> str:
    """Text escaped for roff: hyphens can be copied, and no line looks like a request."""
    found = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{found}" if found[:1] in (".", "'") else found
