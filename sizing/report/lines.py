"""What a terminal report is made of: blocks of labelled lines, or of columns; and numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple


class Line(NamedTuple):
    """One line: an optional label and text that may fold."""

    text: str
    label: str = ""
    style: str = ""


class Block(NamedTuple):
    """Columns with rows (`right` marks right-aligned ones), lines below them; an empty line separates blocks.

    Of the columns those called `spare` give way, the first of them first, where all together are too wide.
    """

    lines: tuple[Line, ...] = ()
    columns: tuple[str, ...] = ()
    right: tuple[bool, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    spare: tuple[str, ...] = ()


def labelled(label: str, texts: Iterable[str]) -> Iterator[Line]:
    """Yield lines of which the first has the label."""
    for index, text in enumerate(texts):
        yield Line(text, " " if index else label)


def number(value: float | None, digits: int = 3) -> str:
    """Write a number with its significant digits, thousands separated; `-` where there is none."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    if rounded == int(rounded) == value:
        return f"{rounded:,.0f}"
    whole_digits = math.floor(math.log10(abs(rounded))) + 1
    return f"{rounded:,.{max(0, digits - whole_digits)}f}"


def stated(value: float | str, digits: int = 4) -> str:
    """Write a value that was given, not computed: no more digits than it has."""
    if isinstance(value, str):
        return value
    text = number(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def milliseconds(value_ms: float | None) -> str:
    """Write a latency with its unit: ms below one second, s above."""
    if value_ms is None:
        return "-"
    return f"{number(value_ms)} ms" if float(f"{value_ms:.3g}") < 1000 else f"{number(value_ms / 1000)} s"


def money(usd: float | None) -> str:
    """Write dollars: cents below a hundred, whole dollars above."""
    if usd is None:
        return "-"
    return f"${usd:,.2f}" if usd < 99.995 else f"${usd:,.0f}"


def rounded_usd(usd: float | None) -> str:
    """Write dollars that rest on predictions: three significant digits."""
    return "-" if usd is None else f"${number(usd)}"


def percent(share: float | None) -> str:
    """Write a share as a percentage."""
    return "-" if share is None else f"{share * 100:.0f} %"


def gib(value: float) -> str:
    """Write GiB with one decimal, two below ten."""
    return f"{value:,.1f}" if abs(value) >= 9.995 else f"{value:,.2f}"


def plural(count: float, noun: str) -> str:
    """Write a count with its noun."""
    return f"{count:,.0f} {noun}" + ("" if count == 1 else "s")


def lengths(inputs: Mapping[str, Any]) -> str:
    """Write the mean lengths; a task in place of outputs where it gives none."""
    out = f"OSL {inputs['osl']:,}" if inputs["osl"] else inputs["task"]
    return f"ISL {inputs['isl']:,}, {out}"


def limit_words(name: str) -> str:
    """Write what ends a load: a latency in capitals, a capacity in words."""
    return name.upper() if name in ("ttft", "itl", "e2e") else name.replace("_", " ")
