"""The manual page `llmsize.1`: the help of all commands in roff."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from sizing import __version__
from sizing.cli.help.examples import GROUPS
from sizing.cli.help.text import summary

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
