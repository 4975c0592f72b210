"""Reading lists of numbers: `1,8,64`, doublings as `1..512`, steps as `1..100:10`, and these with commas."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal

MOST_VALUES = 10_000
ALLOWED = "numbers with commas (1,8,64), doublings as 1..512, or steps as 1..100:10"
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE][-+]?[0-9]{1,2})?"
_PART = re.compile(rf"({_NUMBER})(?:\s*\.\.\s*({_NUMBER})(?:\s*:\s*({_NUMBER}))?)?\Z")


def numbers(text: str) -> tuple[float, ...]:
    """Return the numbers that a text lists, in its order and each once.

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
    """Return the numbers that a text lists, ascending. Raises ValueError for what is no whole number from 1 to `most`."""
    found = numbers(text)
    wrong = next((value for value in found if not (value.is_integer() and 1 <= value <= most)), None)
    if wrong is not None:
        raise ValueError(f"{wrong:g} is no whole number from 1 to {most:,}")
    return tuple(sorted(int(value) for value in found))


def _values(part: str) -> Iterator[Decimal]:
    """Return the values of one part of a list: decimal, so that steps of 0.1 fall on 0.3."""
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
    """Return `low`, its doublings below `high`, and `high`."""
    if low == 0 < high:
        raise ValueError(f"{part!r} doubles from 0, which never grows: give a step, as {part}:{high}")
    count = math.ceil(math.log2(high / low)) if high > low else 0
    below = (low * 2**index for index in range(count + 1))
    return iter((*(value for value in below if value < high), high))


def _steps(part: str, low: Decimal, high: Decimal, step: Decimal) -> Iterator[Decimal]:
    """Return `low`, `low` + `step` and so on up to `high`."""
    if step == 0:
        raise ValueError(f"{part!r} has a step of 0, which ends nowhere")
    steps = (high - low) / step
    if steps >= MOST_VALUES:
        raise ValueError(f"{part!r} has more than {MOST_VALUES:,} values")
    return (low + index * step for index in range(int(steps) + 1))
