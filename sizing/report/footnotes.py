"""Footnotes that reports share: what a result rests on, and how each of its numbers came about."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.report.documents import Assumption, Explanation
from sizing.report.lines import Block, Line, number, stated

KINDS = ("assumed", "derived", "datasheet", "measured")  # the least sure first


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


def assumed(assumptions: tuple[Assumption, ...], *, sources: bool) -> Block:
    """Return what the result rests on, a paragraph for each kind; one line each with `sources`."""
    lines: list[Line] = []
    for kind in KINDS:
        of_kind = [a for a in assumptions if a.kind == kind]
        label = kind.capitalize()
        if sources:
            for index, a in enumerate(of_kind):
                lines.append(Line(_stated(a), label if index == 0 else " "))
                lines.append(Line(a.source, " ", style="dim"))
        elif of_kind:
            lines.append(Line("; ".join(map(_stated, of_kind)), label, style="dim"))
    return Block(tuple(lines))


def _stated(a: Assumption) -> str:
    return f"{a.what}: {stated(a.value)} {a.unit}".rstrip()
