"""What a user can do wrong, as data: one fault a line, all faults of a run together."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One mistake in the input: where it is, which field, what is wrong, what is allowed, what was probably meant."""

    message: str
    file: str | None = None
    line: int | None = None
    field: str | None = None
    allowed: str | None = None
    nearest: str | None = None

    def __str__(self) -> str:
        """Render as one line: `file:line: field: message; allowed: ...; did you mean ...?`."""
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        text = ": ".join(part for part in (place, self.field, self.message) if part)
        if self.allowed:
            text += f"; allowed: {self.allowed}"
        if self.nearest:
            text += f"; did you mean {self.nearest}?"
        return " ".join(text.split())


class InputError(Exception):
    """The input is wrong in one or more ways; the command line prints one line a fault and exits with 2."""

    def __init__(
        self,
        faults: str | Fault | Iterable[Fault],
        *,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
        allowed: str | None = None,
        nearest: str | None = None,
    ) -> None:
        """Collect one fault or several; a message is one fault, with the other fields of `Fault`."""
        found = Fault(faults, file, line, field, allowed, nearest) if isinstance(faults, str) else faults
        self.faults: tuple[Fault, ...] = (found,) if isinstance(found, Fault) else tuple(found)
        super().__init__("\n".join(map(str, self.faults)))


class UntimedError(InputError):
    """A deployment that is right in itself, but that the data hold nothing to time by: a peak or an efficiency is missing."""


def unknown(word: str, noun: str, known: Iterable[str], *, field: str | None = None) -> Fault:
    """The fault of a `word` that is no `noun`, which are the `known`."""
    names = list(known)
    return Fault(f"{word!r} is no {noun}", field=field, allowed=", ".join(names), nearest=nearest(word, names))


def nearest(word: str, known: Sequence[str], *, count: int = 1) -> str | None:
    """The known words most like `word`, joined by ` or `, or None when nothing is close."""
    lowered = {name.lower(): name for name in known}
    hits = difflib.get_close_matches(word.lower(), list(lowered), n=count, cutoff=0.6)
    return " or ".join(lowered[hit] for hit in hits) or None
