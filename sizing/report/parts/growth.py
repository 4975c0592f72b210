"""The growth of a plan: the size and the cost at its end, and the months in which nodes are due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sizing.formats.view import Line
from sizing.formats.words import monthly_growth, number, plural, rounded_usd
from sizing.planning.growth import Growing, Month
from sizing.report.parts.screen import first_lines


def growth_lines(growth: Growing) -> Iterator[Line]:
    """Yield the growth with the size and the cost at its end, then the months in which nodes are due, expected and to be sure."""
    then = growth.at_date
    until = "; --months 12 or --until 2027-12 adds up its cost"
    if then is not None:
        nodes_sure = then.nodes_sure or then.nodes
        in_nodes = f" in {nodes_sure:,}" if nodes_sure > then.nodes else ""
        sure = f" ({then.gpus_sure:,}{in_nodes} to be sure)" if (then.gpus_sure or 0) > then.gpus else ""
        held = f"{plural(then.gpus, 'GPU')} in {plural(then.nodes, 'node')}{sure}"
        until = f": {number(then.times)} times the demand, {held}"
    yield Line(f"{_growing_from(growth)}{until}", "Growth")
    if growth.usd_of_last_month is not None and growth.usd_in_all is not None:
        last, whole = rounded_usd(growth.usd_of_last_month), rounded_usd(growth.usd_in_all)
        yield Line(f"{last} in the last month, {whole} in all, at month-end sizes", " ", spare=9)
    expected = _due(growth, growth.next_node, growth.additions)
    hint = "; when to order: --lead-time 12w" if growth.next_node and not growth.next_node.order_by else ""
    first, *later = first_lines("Next node", [expected[0] + hint, *expected[1:]], "node", spare=7)
    within = growth.until is None or bool(growth.additions)
    yield from (first._replace(spare=0 if within else 8), *later)
    surely = _due(growth, growth.next_node_sure, growth.additions_sure, sure=True)
    if growth.next_node_sure is not None and surely != expected:
        first, *later = first_lines("To be sure", surely, "node", spare=6)
        yield from (first._replace(spare=0 if growth.additions_sure else 6), *later)


def _due(growth: Growing, first: Month | None, within: Sequence[Month], *, sure: bool = False) -> list[str]:
    """Each month in which nodes are due, with the expected or the sure size; a month after the growth's end is not due."""

    def node(month: Month) -> str:
        gpus, nodes = (month.gpus_sure or 0, month.nodes_sure or 0) if sure else (month.gpus, month.nodes)
        past = ", which is past" if month.order_by is not None and month.order_by < growth.start else ""
        order = f"; order by {month.order_by}{past}" if month.order_by else ""
        return f"{month.month}: {plural(gpus, 'GPU')} in {plural(nodes, 'node')}{order}"

    if first is None:
        return ["none in twenty years"]
    if growth.until is not None and not within:
        return [f"none before the growth ends; if it goes on after {growth.until}, in {node(first)}"]
    return [f"due in {node(month)}" for month in within or [first]]


def _growing_from(growth: Growing) -> str:
    """Write a growth, from when it is counted and, where its end is known, over how many months."""
    said = f"{monthly_growth(growth.per_month)} from {growth.start}"
    if growth.months is None:
        return said
    return f"{said} over {growth.months:.3g} {'month' if growth.months == 1 else 'months'}"
