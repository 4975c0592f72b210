"""Text that comes from outside, made fit to be shown: a name from a file must not steer the terminal it is shown on."""

from __future__ import annotations


def on_one_line(text: str) -> str:
    """Return `printable` text whose own line breaks and tabs, as a description in a file has them, are spaces."""
    return printable(text.replace("\t", " ").replace("\n", " "))


def printable(text: str) -> str:
    """Return text on one line: control characters, bytes that are no UTF-8 and what else has no shape are escaped.

    `a<ESC>[31m` becomes `a\\x1b[31m`, a line break `\\n`, the byte FF of a file's name `\\udcff`.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _SPACES else _escaped(char) for char in text)


# Blanks that str.isprintable does not count, but that take part in numbers and units.
_SPACES = "\u00a0\u202f"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
