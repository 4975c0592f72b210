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

    def __init__(self, faults: Fault | Iterable[Fault]) -> None:
        """Collect one fault or several."""
        self.faults: tuple[Fault, ...] = (faults,) if isinstance(faults, Fault) else tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


class UntimedError(InputError):
    """A deployment that is right in itself, but that the data hold nothing to time by: a peak or an efficiency is missing."""


def nearest(word: str, known: Sequence[str], *, count: int = 1) -> str | None:
    """The known words most like `word`, joined by ` or `, or None when nothing is close."""
    lowered = {name.lower(): name for name in known}
    hits = difflib.get_close_matches(word.lower(), list(lowered), n=count, cutoff=0.6)
    return " or ".join(lowered[hit] for hit in hits) or None
