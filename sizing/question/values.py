"""Values as they are written: parts of a question with all their faults at once, lists with commas, ranges of numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Generic, TypeVar

from sizing.specs.errors import Fault, InputError

T = TypeVar("T")

MOST_VALUES = 10_000
ALLOWED = "numbers with commas (1,8,64), doublings as 1..512, or steps as 1..100:10"
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE][-+]?[0-9]{1,2})?"
_PART = re.compile(rf"({_NUMBER})(?:\s*\.\.\s*({_NUMBER})(?:\s*:\s*({_NUMBER}))?)?\Z")


class Part(Generic[T]):
    """A part of a question, read once; `faults` says why it could not be read.

    A part that reads the `value` of another part fails with the faults of that part.

    A part that reads the `value` of another fails with the faults of that other.
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
    """The value of a part that could not be read was needed; its faults already have their places."""


def check(*parts: Part[Any]) -> None:
    """Raise InputError with the distinct faults of all parts, if there are any."""
    faults = dict.fromkeys(fault for part in parts for fault in part.faults)
    if faults:
        raise InputError(faults)


def positive(value: int | None, field: str) -> int | None:
    """The count `value`. Raises InputError below 1, naming `field`."""
    if value is not None and value < 1:
        raise InputError(Fault(f"{value} must be at least 1", field=field))
    return value


def comma_separated(text: str) -> list[str]:
    """Split `text` at commas; empty and repeated items are dropped."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def numbers(text: str) -> tuple[float, ...]:
    """The numbers that a text lists, in its order and each once.

    `a..b` are a, its doublings below b, and b; `a..b:step` are a, a + step and so on, up to b where a step falls on it.
    Raises ValueError, saying what is wrong, for what is no number or no range, and for more than 10,000 values.
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


def whole_numbers(text: str, most: int) -> tuple[int, ...]:
    """The whole numbers of a list, ascending. Raises ValueError for anything but whole numbers from 1 to `most`."""
    found = numbers(text)
    wrong = next((value for value in found if not (value.is_integer() and 1 <= value <= most)), None)
    if wrong is not None:
        raise ValueError(f"{wrong:g} is no whole number from 1 to {most:,}")
    return tuple(sorted(int(value) for value in found))


def _values(part: str) -> Iterator[Decimal]:
    """The values of one list item. They are decimal, so that steps of 0.1 reach 0.3 exactly."""
    match = _PART.match(part)
    if match is None:
        raise ValueError(f"{part!r} is neither a number nor a range")
    low, high, step = (None if group is None else Decimal(group) for group in match.groups())
    if low is None or high is None:
        return iter(() if low is None else (low,))
    if high < low:
        raise ValueError(f"{part!r} is no range: its second number must be the larger")
    return _doublings(part, low, high) if step is None else _steps(part, low, high, step)


def _doublings(part: str, low: Decimal, high: Decimal) -> Iterator[Decimal]:
    if low == 0 < high:
        raise ValueError(f"{part!r} doubles from 0, which never grows: give a step, as {part}:{high}")
    count = math.ceil(math.log2(high / low)) if high > low else 0
    below = (low * 2**index for index in range(count + 1))
    return iter((*(value for value in below if value < high), high))


def _steps(part: str, low: Decimal, high: Decimal, step: Decimal) -> Iterator[Decimal]:
    if step == 0:
        raise ValueError(f"{part!r} has a step of 0, which ends nowhere")
    steps = (high - low) / step
    if steps >= MOST_VALUES:
        raise ValueError(f"{part!r} has more than {MOST_VALUES:,} values")
    return (low + index * step for index in range(int(steps) + 1))
