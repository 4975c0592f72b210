"""What a terminal report is made of: blocks of labelled lines, or of columns; and numbers as people read them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One line: an optional label and text that may fold."""

    text: str
    label: str = ""
    style: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Lines, or columns with rows (`right` marks right-aligned columns); an empty line separates blocks."""

    lines: tuple[Line, ...] = ()
    columns: tuple[str, ...] = ()
    right: tuple[bool, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def number(value: float | None, digits: int = 3) -> str:
    """Write a number with its significant digits, thousands separated; `-` where there is none."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:,.{digits}g}"


def milliseconds(value_ms: float | None) -> str:
    """Write a latency: ms below ten seconds, s above."""
    if value_ms is None:
        return "-"
    return f"{number(value_ms)} ms" if value_ms < 10_000 else f"{number(value_ms / 1000)} s"


def percent(share: float | None) -> str:
    """Write a share as a percentage."""
    return "-" if share is None else f"{share * 100:.0f} %"


def gib(value: float) -> str:
    """Write GiB with one decimal, two below ten."""
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def plural(count: float, noun: str) -> str:
    """Write a count with its noun."""
    return f"{count:,.0f} {noun}" + ("" if count == 1 else "s")
