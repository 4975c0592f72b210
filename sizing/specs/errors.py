"""Mistakes of the user as data: one fault a line, all faults of a run together, of files, parts of a question and plain values."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from sizing.specs.frozen import Frozen

T = TypeVar("T")

FieldPath = tuple[str | int, ...]  # the keys and indices that lead to a field
# The place of a field: file, line, display name, and value as written. Unknown parts are None.
Place = tuple[str | None, int | None, str, str | None]
REQUIRED = "is required"  # the message for a field that is missing
UNKNOWN_KEY = "unknown key"  # the message for a key that a file does not have


class Fault(Frozen):
    """One mistake in the input: its place, the field, the message, the allowed values, the likely intention, and the `remedy`.

    The remedy is a sentence that says what to do, where allowed values are not what helps.
    """

    message: str
    file: str | None = None
    line: int | None = None
    field: str | None = None
    allowed: str | None = None
    nearest: str | None = None
    remedy: str | None = None

    def __str__(self) -> str:
        """Render as one line: `file:line: field: message; allowed: ...; remedy; did you mean ...?`."""
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        text = ": ".join(part for part in (place, self.field, self.message) if part)
        if self.allowed:
            text += f"; allowed: {self.allowed}"
        if self.remedy:
            text += f"; {self.remedy}"
        if self.nearest and self.nearest != self.allowed:
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
        remedy: str | None = None,
    ) -> None:
        """Collect one fault or several. A message makes one fault; the keywords are its other fields."""
        found = Fault(faults, file, line, field, allowed, nearest, remedy) if isinstance(faults, str) else faults
        self.faults: tuple[Fault, ...] = (found,) if isinstance(found, Fault) else tuple(found)
        super().__init__("\n".join(map(str, self.faults)))


def raise_any(faults: Iterable[Fault]) -> None:
    """Raise InputError with `faults`, each once, if there are any."""
    found = dict.fromkeys(faults)
    if found:
        raise InputError(found)


@contextmanager
def collected(faults: list[Fault]) -> Iterator[None]:
    """Add the faults of an InputError to `faults`, and go on after the block."""
    try:
        yield
    except InputError as error:
        faults += error.faults


@contextmanager
def placed(place: Callable[[Fault], Fault]) -> Iterator[None]:
    """Raise the InputError of the block again, with its faults as `place` returns them."""
    try:
        yield
    except InputError as error:
        raise InputError(map(place, error.faults)) from None


class UntimedError(InputError):
    """A valid deployment that cannot be timed, because a peak or an efficiency is missing in the data."""


def unknown(word: str, noun: str, known: Iterable[str], *, field: str | None = None) -> Fault:
    """The fault of an unknown `word`. `noun` says what it should be, and `known` lists the valid words."""
    names = list(known)
    return Fault(f"{word!r} is no {noun}", field=field, allowed=", ".join(names), nearest=nearest(word, names))


def nearest(word: str, known: Sequence[str], *, count: int = 1) -> str | None:
    """The other known words most similar to `word`, joined by ` or `; None if nothing is close.

    A word with another first letter must be closer, because few people mistype that letter.
    """
    lowered, text = {name.lower(): name for name in known if name != word}, word.lower()
    alike = difflib.get_close_matches(text, [name for name in lowered if name[:1] == text[:1]], n=count, cutoff=0.6)
    close = difflib.get_close_matches(text, list(lowered), n=count, cutoff=0.75)
    hits = sorted({*alike, *close}, key=lambda hit: -difflib.SequenceMatcher(None, hit, text).ratio())
    return " or ".join(lowered[hit] for hit in hits[:count]) or None


class Part(Generic[T]):
    """A part of a question, read once; `faults` says why it could not be read.

    A part that reads the `value` of another part fails with the faults of that part.
    """

    def __init__(self, read: Callable[[], T], placed: Callable[[Fault], Fault] | None = None) -> None:
        """Call `read`; `placed` adds a place to each fault."""
        self.faults: tuple[Fault, ...] = ()
        try:
            self._value = read()
        except MissingPartError as error:
            self.faults = error.faults
        except InputError as error:
            self.faults = error.faults if placed is None else tuple(map(placed, error.faults))

    @property
    def value(self) -> T:
        """The value read. Raises InputError with the faults of a part that could not be read."""
        if self.faults:
            raise MissingPartError(self.faults)
        return self._value


class MissingPartError(InputError):
    """Raised where the value of an unreadable part is needed; its faults already have their places."""


def check(*parts: Part[Any]) -> None:
    """Raise InputError with the distinct faults of all parts, if there are any."""
    raise_any(fault for part in parts for fault in part.faults)


def positive(value: int | None, field: str) -> int | None:
    """The count `value`. Raises InputError below 1, naming `field`."""
    if value is not None and value < 1:
        raise InputError(f"{value} must be at least 1", field=field)
    return value


def not_allowed(field: str, value: Any, allowed: str, near: str | None = None) -> Fault:
    """The fault of a value that is not allowed."""
    return Fault(f"{value!r} is not allowed", field=field, allowed=allowed, nearest=near)


def not_whole(field: str, *values: Any, least: int = 1) -> Iterator[Fault]:
    """Yield a fault for each value that is no whole number of at least `least`; None is not stated."""
    for value in values:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            yield not_allowed(field, value, f"a whole number of at least {least}")


def not_above_0(field: str, value: Any, *, most: float = math.inf) -> Iterator[Fault]:
    """Yield a fault for a value that is no number above 0, at most `most`; None is not stated."""
    fine = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= most
    if value is not None and not fine:
        yield not_allowed(field, value, "a number above 0" + ("" if most == math.inf else f", at most {most:g}"))


def not_known(field: str, known: Sequence[str], *values: Any) -> Iterator[Fault]:
    """Yield a fault for each value that is no known word; None is not stated."""
    for value in values:
        if value is not None and value not in known:
            yield not_allowed(field, value, ", ".join(known), nearest(value, known) if isinstance(value, str) else None)


def listed(field: str, values: Any, faults: Callable[..., Iterable[Fault]], *known: Sequence[str]) -> Iterator[Fault]:
    """Yield the `faults` of each value of a list, or that of what is no list of at least one value; None is not stated."""
    if isinstance(values, (tuple, list)) and values:
        yield from faults(field, *known, *values)
    elif values is not None:
        yield not_allowed(field, values, "a list of at least one value")
