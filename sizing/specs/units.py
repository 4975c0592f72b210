"""Units: constants, and parsers of what people write (`500ms`, `p95:1.5s`, `20%`) into base units.

GB is 10^9 bytes, GiB is 2^30 bytes, tera is 10^12. Internally the base units are seconds, bytes and FLOPs. Human units appear
only in file keys and on the screen, and every name states its unit. This module also parses engine versions into numbers that
compare, reads lists of numbers, and makes text from files safe for a terminal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

MEGA = 1e6
GIGA = 1e9
TERA = 1e12
MICRO = 1e-6
MILLI = 1e-3
KIB = 2**10
MIB = 2**20
GIB = 2**30
SECONDS_PER_HOUR = 3600.0
HOURS_PER_DAY = 24.0
DAYS_PER_MONTH = 365 / 12
HOURS_PER_MONTH = HOURS_PER_DAY * DAYS_PER_MONTH
MONTHS_PER_YEAR = 12
BITS_PER_BYTE = 8
WATTS_PER_KW = 1000.0
JOULES_PER_KWH = WATTS_PER_KW * SECONDS_PER_HOUR
MILLION_TOKENS = 1_000_000  # for which prices are quoted

_DURATION_S = {
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_DURATION = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([a-zµ]+)\s*$")
# No GPU step takes less than a microsecond, and no run that is simulated or limited takes longer than a year.
LEAST_DURATION_S, MOST_DURATION_S = 1e-6, 8784 * SECONDS_PER_HOUR


class Statistics(NamedTuple):
    """Mean and percentiles of a latency in ms; null if there are no values."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None


STATISTICS = Statistics._fields
PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
_LOOSE_LIMIT = re.compile(rf"\s*({'|'.join(STATISTICS)})[\s=<]+([^:=<]+)", re.IGNORECASE)


def parse_duration_s(text: str, *, more: str = "") -> float:
    """Read a duration with its unit into seconds: `500ms`, `0.5 s`, `2min`.

    Raises ValueError when the unit is missing or unknown, which also says `more`, or the value is out of range.
    """
    match = _DURATION.match(text)
    if match is None or match[2] not in _DURATION_S:
        raise ValueError(f"{text!r} is not a duration with a unit, as 500ms, 1.5s or 2min{more}")
    seconds = float(match[1]) * _DURATION_S[match[2]]
    if not LEAST_DURATION_S <= seconds <= MOST_DURATION_S:
        raise ValueError(f"{text!r} is out of range, from 1us to {MOST_DURATION_S / SECONDS_PER_HOUR:,.0f}h")
    return seconds


def parse_limit(text: str) -> tuple[str, float]:
    """Read a latency limit into (statistic, seconds): `500ms` limits the mean, `p95:500ms` a percentile."""
    if (loose := _LOOSE_LIMIT.fullmatch(text)) is not None:
        raise ValueError(f"{text!r} has no colon: write {loose[1]}:{loose[2]}")
    statistic, _, duration = text.rpartition(":")
    statistic = statistic.strip().lower() or "mean"
    if statistic not in STATISTICS:
        raise ValueError(f"{statistic!r} is not a statistic ({', '.join(STATISTICS)})")
    return statistic, parse_duration_s(duration, more="; of a percentile p95:1s")


def plain_float(text: str) -> float:
    """Read a number in ASCII digits. Raises ValueError for `1_000` and for digits of other scripts."""
    if not text.isascii() or "_" in text:
        raise ValueError(f"{text!r} is no number in plain digits")
    return float(text)


_COUNT = re.compile(r"(?P<sign>[-+]?)(?P<number>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[^,]*?)(?P<times>[kKmM]?)")
_TIMES = {"": 1.0, "k": 1e3, "m": 1e6}


def parse_number(text: str) -> float:
    """Read a number as people write it: `1,000`, `2k`, `1.5M`; k is a thousand, M a million.

    Raises ValueError for any other text.
    """
    match = _COUNT.fullmatch(text.strip())
    try:
        value = plain_float("" if match is None else match["sign"] + match["number"].replace(",", ""))
    except ValueError:
        raise ValueError(f"{text!r} is no number, as 1000, 1,000 or 2k") from None
    return value * _TIMES[match["times"].lower()] if match is not None else value


def parse_growth(value: str | float, *, more: str = ", or {:g}%") -> float:
    """Read a growth: `20%` and `0.2` are both 0.2, `100%` and 1 both 1.

    Raises ValueError for a bare number above 1, because it could be a percentage or a multiple (`more`).
    """
    text = str(value).strip()
    try:
        share = plain_float(text[:-1]) / 100 if text.endswith("%") else plain_float(text)
    except ValueError:
        share = math.nan
    if not (share >= 0 and math.isfinite(100 * share)):
        raise ValueError(f"{text!r} is no share from 0 up, as 0.2 or 20%")
    if share > 1 and not text.endswith("%"):
        raise ValueError(f"{text!r} is above 1: write {share:g}% or {share / 100:g}{more.format(share * 100)}")
    return share


MONTHS_PER_QUARTER = 3
_PERIODS = {"month": 1, "quarter": MONTHS_PER_QUARTER, "year": MONTHS_PER_YEAR}  # in months
_GROWTH_OF = re.compile(rf"(?P<share>.*?)\s*(?:/|\bper\b|\ba\b)\s*(?P<period>{'|'.join(_PERIODS)})", re.IGNORECASE)


def parse_monthly_growth(value: str | float) -> float:
    """Read a growth into its share per month: `3%` and `3%/month` are 0.03, `50%/year` is 1.5 ** (1 / 12) - 1; also `10%/quarter`.

    Raises ValueError as `parse_growth` does.
    """
    match = _GROWTH_OF.fullmatch(str(value).strip())
    months = 1 if match is None else _PERIODS[match["period"].lower()]
    try:
        share = parse_growth(value if match is None else match["share"])
    except ValueError as error:
        raise ValueError(f"{error}, and its period: 3%/month, 10%/quarter or 50%/year") from None
    return share if months == 1 else over_months(share, 1 / months)


def over_months(share: float, months: float) -> float:
    """The growth over `months` months of a demand that grows by `share` each month, compounded."""
    return float((1 + share) ** months - 1)


def parse_share(value: str | float) -> float:
    """Read a part of a whole as `parse_growth` does. Raises ValueError for more than 100 %."""
    share = parse_growth(value, more="")
    if share > 1:
        raise ValueError(f"{value!r} is not between 0 and 1 (0 % and 100 %)")
    return share


def usd_per_million_tokens(usd_per_hour: float | None, tokens_per_s: float) -> float | None:
    """$ per million tokens at a steady rate: $/h / (tokens/s * 3600) * 1e6; None without a price."""
    return None if usd_per_hour is None else usd_per_hour / (tokens_per_s * SECONDS_PER_HOUR) * MILLION_TOKENS


def kwh_per_million_tokens(power_w: float, tokens_per_s: float) -> float:
    """kWh per million tokens at a steady rate; `power_w` is at the meter, including PUE."""
    return power_w / tokens_per_s * MILLION_TOKENS / JOULES_PER_KWH


SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(text: str) -> float:
    """Read bytes as engines do: G and GiB are 2^30, g and GB are 10^9 (`25G`, `25GB`). Raises ValueError for other text."""
    size = text.strip()
    number = size.removesuffix("B").removesuffix("b").removesuffix("i")
    unit = number[-1:]
    if unit in SIZES:
        factor = SIZES[unit.lower()] if size.endswith("B") and not size.endswith("iB") else SIZES[unit]
        return plain_float(number[:-1]) * factor
    return plain_float(number)


def lognormal_mean_below(mean: float, std: float, longest: float) -> float:
    """Mean of min(X, `longest`) for a lognormal X with `mean` and standard deviation `std`."""
    sigma2 = math.log1p((std / mean) ** 2)
    if sigma2 == 0:  # the square of a tiny spread underflows
        return min(mean, longest)
    sigma, mu = math.sqrt(sigma2), math.log(mean) - sigma2 / 2
    normal = NormalDist()
    at = (math.log(longest) - mu) / sigma
    return mean * normal.cdf(at - sigma) + longest * (1 - normal.cdf(at))


def on_one_line(text: str) -> str:
    """`printable` text, after line breaks and tabs of the text itself have become spaces."""
    return printable(text.replace("\t", " ").replace("\n", " "))


def printable(text: str) -> str:
    """Text on one line: control characters, bytes that are not UTF-8 and other invisible characters are escaped.

    `a<ESC>[31m` becomes `a\\x1b[31m`, a line break `\\n`, the byte FF of a file's name `\\udcff`.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in _SPACES else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


# Blanks that str.isprintable rejects, but that occur in numbers and units.
_SPACES = "\u00a0\u202f"


_VERSION = re.compile(
    r"v?(?P<release>[0-9]+(?:\.[0-9]+)*)"
    r"(?P<pre>(?:a|b|rc)[0-9]+)?"
    r"(?:\.?post(?P<post>[0-9]+))?"
    r"(?:\.dev[0-9]*)?"
    r"(?:\+[a-z0-9.]+)?",
    re.IGNORECASE,
)


@cache
def parse_version(text: str) -> tuple[int, ...]:
    """Read a version into comparable numbers: `0.4.6.post5` is (0, 4, 6, 5), `1.2.0rc5` is (1, 2, 0).

    A pre-release or development build compares equal to its release, because it has that code. Raises ValueError for other text.
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a version, as 0.19, 0.4.6.post5 or 1.2.0rc5")
    release = tuple(int(part) for part in match["release"].split("."))
    return (*release, int(match["post"])) if match["post"] and not match["pre"] else release


LEAST_GIB = 0.1  # the last decimal of memory that is missing


def missing_gib(value: float) -> str:
    """Write the GiB that are missing, with one decimal: never as none."""
    return f"{value:,.1f}" if value >= LEAST_GIB / 2 else f"less than {LEAST_GIB:g}"


MOST_VALUES = 10_000
MOST_UNSTEPPED = 64  # the most values of a range without a step: more are seldom meant
LISTED_NUMBERS = "numbers with commas (1,8,64), ranges as 1..5, doublings as 1..512x2, or steps as 1..100:10"
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE][-+]?[0-9]{1,2})?[kK]?"
_PART = re.compile(rf"({_NUMBER})(?:\s*\.\.\s*({_NUMBER})(?:\s*([:xX])\s*({_NUMBER}))?)?\Z")


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
