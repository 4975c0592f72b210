"""Numbers, times, money and shares as text for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import ROUND_FLOOR, Context
from typing import TypeGuard

from sizing.specs.units import MONTHS_PER_YEAR, over_months

ROUNDING = 1e-6  # of a minute: what floating point adds is no minute
NOTHING = "-"  # written for a missing or infinite figure, such as the capacity of an API


def is_figure(value: float | None) -> TypeGuard[float]:
    """Whether a value is neither None nor infinite nor NaN."""
    return value is not None and math.isfinite(value)


def number(value: float | None, digits: int = 3) -> str:
    """Write a number with `digits` significant digits and thousands separators; `-` for None or infinity."""
    if not is_figure(value):
        return NOTHING
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    if rounded == int(rounded) == value:
        return f"{rounded:,.0f}"
    whole_digits = math.floor(math.log10(abs(rounded))) + 1
    return f"{rounded:,.{max(0, digits - whole_digits)}f}"


def number_down(value: float, digits: int = 3) -> str:
    """Write a number as `number` does, but rounded down: the figure that is written is never above the value."""
    return number(float(Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(repr(float(value)))), digits)


def stated(value: float | str, digits: int = 4) -> str:
    """Write a stated (not computed) value with no more digits than it has; a whole number, such as a setting, is exact."""
    if isinstance(value, str):
        return value
    if is_figure(value) and value == int(value) and abs(value) < EXACT:
        return f"{value:,.0f}"
    text = number(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def monthly_growth(per_month: float) -> str:
    """Write a growth per month and, compounded, per year: `5 % a month (79.6 % a year)`."""
    of_year = over_months(per_month, MONTHS_PER_YEAR)
    return f"{stated(per_month * 100)} % a month ({number(of_year * 100)} % a year)"


def milliseconds(value_ms: float | None) -> str:
    """Write a latency with its unit: ms below one second, s above."""
    if not is_figure(value_ms):
        return NOTHING
    return f"{number(value_ms)} ms" if float(f"{value_ms:.3g}") < 1000 else f"{number(value_ms / 1000)} s"


def money(usd: float | None) -> str:
    """Write dollars: cents below a hundred, whole dollars above; three significant digits of what is less than half a cent."""
    if not is_figure(usd):
        return NOTHING
    return rounded_usd(usd) if 0 < usd < 0.005 else f"${usd:,.2f}" if usd < 99.995 else f"${usd:,.0f}"


def rounded_usd(usd: float | None) -> str:
    """Write predicted dollars with three significant digits."""
    return f"${number(usd)}" if is_figure(usd) else NOTHING


def percent(share: float | None) -> str:
    """Write a share as a percentage."""
    return f"{share * 100:.0f} %" if is_figure(share) else NOTHING


EXACT = 1e9  # whole numbers below it are written with all digits
MOST_DECIMALS = 4  # of a percentage; what differs less is equal


def of_limit(share: float, limit: float = 1.0, *, least: bool = False) -> str:
    """Write a share that a limit bounds from above, or from below with `least`, as a percentage.

    One that misses its limit has the decimals that tell the two apart: 100.2 % of a limit is never written as 100 %.
    """
    missed = share < limit if least else share > limit
    decimals = range(MOST_DECIMALS + 1) if missed else range(1)
    apart = (n for n in decimals if f"{share * 100:.{n}f}" != f"{limit * 100:.{n}f}")
    return f"{share * 100:.{next(apart, 0)}f} %"


def gib(value: float) -> str:
    """Write GiB with one decimal, two below ten."""
    if not is_figure(value):
        return NOTHING
    return f"{value:,.1f}" if abs(value) >= 9.995 else f"{value:,.2f}"


def joined(names: Iterable[str]) -> str:
    """Write the distinct names with a plus between them."""
    return " + ".join(dict.fromkeys(names))


def plural(count: float, noun: str) -> str:
    """Write a count with its noun."""
    return f"{count:,.0f} {noun}" + ("" if count == 1 else "s")


def duration(seconds: float) -> str:
    """Write a duration, rounded up: `5 h 12 min`; below an hour with seconds, `3 min 50 s`; below a minute in seconds."""
    if seconds < 60:
        return f"{number(seconds)} s"
    whole, rest = divmod(math.ceil(seconds - ROUNDING * 60), 60)
    if whole < 60 and rest:
        return f"{whole} min {rest} s"
    hours, minutes = divmod(math.ceil(seconds / 60 - ROUNDING), 60)
    return " ".join([f"{hours:,} h"] * bool(hours) + [f"{minutes} min"] * bool(minutes))


def between(low: float, high: float, write: Callable[[float], str]) -> str:
    """Write a range, with the unit once where both ends share it."""
    first, last = write(low), write(high)
    if first == last:
        return first
    figure, _, unit = first.partition(" ")
    return f"{figure if unit == last.partition(' ')[2] else first} to {last}"
