"""Variables in a text as a shell replaces them: with defaults and alternatives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sizing.catalog.shelf import only
from sizing.specs.launch import LaunchFacts

NAME = r"[A-Za-z_]\w*"
OPERAND = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*"  # of a default, which may hold a default of its own
VARIABLE = re.compile(
    rf"\$\$|\$\(({NAME})\)|\$\{{({NAME}|\d+)(?:(?P<empty>:?)(?P<rule>[-=+?])(?P<operand>{OPERAND}))?\}}|\$({NAME}|\d)"
)


def with_variables(text: str, variables: Mapping[str, str]) -> str:
    """The text with variables replaced if they are known or have a default; others stay, as do those that make it far too long."""
    left = 2 * only(LaunchFacts).script_limits.held

    def value(found: re.Match[str]) -> str:
        nonlocal left
        known = _known(found, variables)
        left -= len(known or "")
        return found[0] if known is None or left < 0 else known

    return VARIABLE.sub(value, text) if "$" in text else text


def names_in(text: str) -> Iterator[str]:
    """Yield the variables that a text names, also in defaults of others."""
    for found in VARIABLE.finditer(text):
        yield from (name for name in (name_of(found),) if name is not None)
        yield from names_in(found["operand"] or "")


def name_of(found: re.Match[str]) -> str | None:
    """The variable of a match of VARIABLE; None for `$$`."""
    return found[1] or found[2] or found[6]


def _known(found: re.Match[str], variables: Mapping[str, str]) -> str | None:
    """The value of a variable, or of what is given in its place; None if nothing says it."""
    known = variables.get(name_of(found) or "")
    missing, rule = known is None or (bool(found["empty"]) and not known), found["rule"]
    if rule == "+" and missing:
        return ""
    if rule == "+" and is_variable(known or ""):
        return None  # it may be empty
    if rule == "+" or (missing and rule in ("-", "=")):
        return with_variables(found["operand"], variables)
    return None if missing else known


def is_variable(text: str) -> bool:
    """Whether a value is set by a variable, which the file may not state."""
    return "$" in text


def is_unread(text: str) -> bool:
    """Whether a text has an expansion of a form that is not read."""
    return "${" in VARIABLE.sub("", text)
