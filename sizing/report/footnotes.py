"""Footnotes that reports share: what a result rests on, and how each of its numbers came about."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.report.documents import Assumption, Explanation
from sizing.report.lines import Block, Line, number


def explained(explanations: tuple[Explanation, ...]) -> Iterator[Block]:
    """Yield each number with its formula, the values put in, and their source."""
    for e in explanations:
        value = number(e.value, 5) if isinstance(e.value, float) else str(e.value)
        yield Block(
            (
                Line(f"{e.what} = {value} {e.unit}".rstrip() + f"  [{e.kind}]", style="bold"),
                Line(e.formula, "  formula"),
                Line(e.inputs, "  values"),
                Line(e.source, "  source"),
            )
        )


def assumed(assumptions: tuple[Assumption, ...]) -> Iterator[Line]:
    """Yield what the result rests on, with its kind; sources are in JSON and --explain."""
    for index, a in enumerate(assumptions):
        value = number(a.value, 4) if isinstance(a.value, float) else str(a.value)
        text = f"{a.what}: {value} {a.unit}".rstrip() + f" ({a.kind})"
        yield Line(text, f"Assumed [{index + 1}]" if index == 0 else f"        [{index + 1}]", style="dim")
