"""The variables of a Compose file: those of the file `.env` beside it, and its defaults."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from sizing.catalog.files import is_file, read_text

ENVIRONMENT = ".env"
_ENTRY = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=(.*)\Z")
QUOTES = ("'", '"')
_INSIDE = r"(?:[^{}]|\$\{[^{}]*\})*"  # of a default, which may hold a default of its own
_VARIABLE = re.compile(rf"\$\$|\$\{{([A-Za-z_]\w*)(?:(:?)([-?+])({_INSIDE}))?\}}|\$([A-Za-z_]\w*)")


def entries(lines: Iterable[str]) -> dict[str, str]:
    """The variables in lines of `NAME=VALUE`, with or without quotes. Other lines are comments."""
    found = (_ENTRY.match(line) for line in lines)
    return {each[1]: _plain(each[2].strip()) for each in found if each}


def _plain(text: str) -> str:
    """A value without its quotes, or without a comment after it."""
    quoted = text.startswith(QUOTES)
    return text[1:].partition(text[0])[0] if quoted else text.partition(" #")[0].rstrip()


def environment(folder: Path, name: str = ENVIRONMENT) -> dict[str, str]:
    """The variables of a file in a folder; none where there is no such file."""
    path = folder / name
    return entries(read_text(str(path)).splitlines()) if is_file(path) else {}


def names(text: str) -> tuple[str, ...]:
    """The variables that a text takes from Compose, each once."""
    found = (each[1] or each[5] for each in _VARIABLE.finditer(text))
    return tuple(dict.fromkeys(name for name in found if name))


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """A text with the variables that are known or have a default, as Compose replaces them. Others stay, without their message."""

    def value(found: re.Match[str]) -> str:
        name, empty, rule, other = found[1] or found[5], found[2], found[3], found[4]
        if name is None:  # of a shell in the container
            return found[0]
        known = variables.get(name)
        missing = known is None or (bool(empty) and not known)
        if rule == "+":
            return "" if missing else interpolated(other, variables)
        if not missing:
            return str(known)
        if rule == "-":
            return interpolated(other, variables)
        return f"${{{name}}}" if rule else found[0]

    return _VARIABLE.sub(value, text)
