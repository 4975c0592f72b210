"""Read values from text (comma-separated lists, whole numbers, ranges), check plain ones, and collect all faults of a question."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Generic, TypeVar

from sizing.specs.errors import Fault, InputError, nearest, raise_any
from sizing.specs.units import parse_number

T = TypeVar("T")

MOST_VALUES = 10_000
MOST_UNSTEPPED = 64  # the most values of a range without a step: more are seldom meant
ALLOWED = "numbers with commas (1,8,64), ranges as 1..5, doublings as 1..512x2, or steps as 1..100:10"
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE][-+]?[0-9]{1,2})?[kK]?"
_PART = re.compile(rf"({_NUMBER})(?:\s*\.\.\s*({_NUMBER})(?:\s*([:xX])\s*({_NUMBER}))?)?\Z")


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


def comma_separated(text: str) -> list[str]:
    """Split `text` at commas; empty and repeated items are dropped."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def numbers(text: str) -> tuple[float, ...]:
    """The distinct numbers of a text, in its order.

    `a..b` lists the whole numbers from a to b. `a..b:step` lists a, a + step and so on, up to at most b. `a..bxn` lists a,
    a n, a n^2 and so on below b, and then b. Raises ValueError for anything else, for a long range without a step, and for
    more than 10,000 values.
    """
    found: dict[float, None] = {}
    for part in (part.strip() for part in text.split(",")):
        if part:
            found.update((float(value), None) for value in _values(part))
            if len(found) > MOST_VALUES:
                raise ValueError(f"{text!r} lists more than {MOST_VALUES:,} values")
    if not found:
        raise ValueError("names no number")
    return tuple(found)


def whole_number(text: str) -> int:
    """Read a whole number as people write it (`2k`, `1,000`). Raises ValueError."""
    value, digits = parse_number(text), text.strip().lstrip("+-").replace(",", "")
    if digits.isdecimal():
        return int(text.replace(",", ""))
    if digits[-1].lower() in "km" and value.is_integer():
        return int(value)
    raise ValueError(f"{text!r} is no whole number")


def whole_numbers(text: str, most: int) -> tuple[int, ...]:
    """The whole numbers of a list, ascending. Raises ValueError for anything but whole numbers from 1 to `most`."""
    found = numbers(text)
    wrong = next((value for value in found if not (value.is_integer() and 1 <= value <= most)), None)
    if wrong is not None:
        raise ValueError(f"{wrong:g} is no whole number from 1 to {most:,}")
    return tuple(sorted(int(value) for value in found))


def _values(part: str) -> Iterator[Decimal]:
    """The values of one list item, in decimals so that steps of 0.1 reach 0.3 exactly."""
    match = _PART.match(part)
    if match is None:
        raise ValueError(f"{part!r} is neither a number nor a range")
    low, high, step = (None if group is None else _decimal(group) for group in match.group(1, 2, 4))
    if low is None or high is None:
        return iter(() if low is None else (low,))
    if high < low:
        raise ValueError(f"{part!r} is no range: its second number must be the larger")
    if match[3] is not None and match[3] != ":":
        return _multiples(part, low, high, step or Decimal(0))
    count = int(high - low) + 1
    if step is None and (low != int(low) or high != int(high) or count > MOST_UNSTEPPED):
        what = f"has {count:,} values" if low == int(low) and high == int(high) else "has no whole steps"
        raise ValueError(f"{part!r} {what}: write {part}x2 for doublings, or {part}:{_round_step(low, high)} for steps")
    return _steps(part, low, high, Decimal(1) if step is None else step)


def _decimal(text: str) -> Decimal:
    return Decimal(text[:-1]) * 1000 if text[-1] in "kK" else Decimal(text)


def _round_step(low: Decimal, high: Decimal) -> str:
    """Write a one-digit step that divides a range into about ten values."""
    tenth = (high - low) / 10 or Decimal(1)
    return f"{Decimal(f'{tenth:.0e}').normalize():f}"


def _multiples(part: str, low: Decimal, high: Decimal, factor: Decimal) -> Iterator[Decimal]:
    if factor <= 1 or low == 0 < high:
        what = "multiplies 0" if factor > 1 else f"multiplies by {factor}"
        raise ValueError(f"{part!r} {what}, which never grows: give steps, as {part.partition('..')[0]}..{high}:{high}")
    values = [low]
    while values[-1] * factor < high:
        values.append(values[-1] * factor)
        if len(values) > MOST_VALUES:
            raise ValueError(f"{part!r} has more than {MOST_VALUES:,} values")
    return iter((*values, high) if high > low else values)


def _steps(part: str, low: Decimal, high: Decimal, step: Decimal) -> Iterator[Decimal]:
    if step == 0:
        raise ValueError(f"{part!r} has a step of 0, which ends nowhere")
    steps = (high - low) / step
    if steps >= MOST_VALUES:
        raise ValueError(f"{part!r} has more than {MOST_VALUES:,} values")
    return (low + index * step for index in range(int(steps) + 1))


class Checks:
    """Collects a fault for each invalid value; None means not stated and is valid."""

    def __init__(self) -> None:
        """Start without faults."""
        self._faults: list[Fault] = []

    def whole(self, field: str, value: Any, *, least: int = 1) -> None:
        """A whole number of at least `least`."""
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            self._add(field, value, f"a whole number of at least {least}")

    def wholes(self, field: str, values: Any) -> None:
        """Whole numbers of at least 1."""
        for value in self._listed(field, values):
            self.whole(field, value)

    def number(self, field: str, value: Any, *, most: float = math.inf) -> None:
        """A number above 0, at most `most`."""
        fine = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= most
        if value is not None and not fine:
            self._add(field, value, "a number above 0" + ("" if most == math.inf else f", at most {most:g}"))

    def words(self, field: str, values: Any, known: Sequence[str]) -> None:
        """Known words, at least one."""
        for value in self._listed(field, values):
            self.word(field, value, known)

    def word(self, field: str, value: Any, known: Sequence[str]) -> None:
        """A known word."""
        if value is not None and value not in known:
            near = nearest(value, known) if isinstance(value, str) else None
            self._add(field, value, ", ".join(known), near)

    def check(self) -> None:
        """Raise InputError with the faults collected."""
        raise_any(self._faults)

    def _listed(self, field: str, values: Any) -> Iterator[Any]:
        if isinstance(values, (tuple, list)) and values:
            yield from values
        elif values is not None:
            self._add(field, values, "a list of at least one value")

    def _add(self, field: str, value: Any, allowed: str, near: str | None = None) -> None:
        self._faults.append(Fault(f"{value!r} is not allowed", field=field, allowed=allowed, nearest=near))
