"""Footnotes that reports share: what a result rests on, and how each of its numbers came about."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.report.documents import Assumption, Explanation
from sizing.report.lines import Block, Line, number, stated

NO_ITL = Line("No tokens after the first (OSL 1): the limit on ITL does not apply")
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
    """Return what the result rests on, a paragraph for each kind; with `sources`, each by number and listed below."""
    numbers: dict[str, int] = {}
    lines: list[Line] = []
    for kind in KINDS:
        told = [_told(a, numbers if sources else None) for a in assumptions if a.kind == kind]
        if told:
            lines.append(Line("; ".join(told), kind.capitalize(), style="dim"))
    for index, text in enumerate(numbers, start=1):
        lines.append(Line(f"[{index}] {text}", "Sources" if index == 1 else " ", style="dim"))
    return Block(tuple(lines))


def _told(a: Assumption, numbers: dict[str, int] | None) -> str:
    text = f"{a.what}: {stated(a.value)} {a.unit}".rstrip()
    if numbers is None or not a.source:
        return text
    return f"{text} [{numbers.setdefault(a.source, len(numbers) + 1)}]"
