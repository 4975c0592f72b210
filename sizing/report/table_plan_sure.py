"""How sure a plan is, for the terminal: the chance that enough is up, draws of what is uncertain, and moves to other GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sizing.formats.text import Block
from sizing.formats.view import Line, labelled
from sizing.formats.words import rounded_usd
from sizing.planning.fleet import Availability
from sizing.planning.uncertainty import Ranges
from sizing.report.plan import Move

LEAST_MISSING = 1e-7  # per cent, of a probability: what is beyond is lost in sums and in what nodes are known to do


def available(one: Availability, *, single: bool, by_node: bool) -> Iterator[Line]:
    """Write the chance that enough is up: first of the failures that were asked about, then of the others."""
    name = "" if single else f"{one.workload}: "
    target = f" (target {_stated(one.target)})" if one.target is not None else ""
    apart, together = "each by itself", "a node taking all its replicas with it"
    first, second = (one.achieved, apart), (one.achieved_by_node, together)
    if by_node:
        first, second = second, first
    yield Line(
        f"{name}{_nines(first[0], one.node_availability)} of the time at least {one.replicas_needed:,} of {one.replicas_for_failures:,} replicas "
        f"are up, {first[1]}, with nodes of {_stated(one.node_availability)}{target}",
        "Availability",
    )
    if one.achieved_by_node < one.achieved:
        more = ""
        if one.replicas_for_target_by_node is not None and one.replicas_for_target_by_node > one.replicas_for_failures:
            more = f"; {one.replicas_for_target_by_node:,} replicas keep the target then (--failures node)"
        yield Line(f"{_nines(second[0], one.node_availability)} with {second[1]}{more}", " ")


def _stated(chance: float) -> str:
    """Write a probability that was given, no more digits than it has."""
    return f"{chance * 100:.9g} %"


def _nines(chance: float, node_availability: float) -> str:
    """Write a probability to the second digit of what is missing: 99.85 %; certain is only what rests on certain nodes."""
    if node_availability >= 1:
        return "100 %"
    missing = (1 - chance) * 100
    if missing < LEAST_MISSING:
        return f"more than {100 - LEAST_MISSING:.7f} %"
    digits = max(0, math.ceil(round(math.log10(9.5 / missing), 9)))
    return f"{chance * 100:.{digits}f} %"


def moves(found: Sequence[Move]) -> Iterator[Block]:
    """Yield what changes where workloads run on other GPUs."""
    rows = []
    for move in found:
        change = "-"
        if move.usd_per_month is not None and move.usd_per_month_now is not None:
            sign = "+" if move.usd_per_month >= move.usd_per_month_now else "-"
            change = f"{sign}{rounded_usd(abs(move.usd_per_month - move.usd_per_month_now))}"
        rows.append(
            (
                move.workload,
                move.gpu_to,
                move.detail,
                *("-" if value is None else f"{value:,}" for value in (move.workload_gpus, move.gpus, move.nodes)),
                change,
            )
        )
    yield Block(
        columns=("moved", "to GPU", "then", "its GPUs", "all GPUs", "all nodes", "$ a month around the clock"),
        right=(False, False, False, True, True, True, True),
        rows=tuple(rows),
    )


def uncertainty(found: Ranges) -> Iterator[Block]:
    """Yield GPUs and cost over the draws, and what moves them."""
    lines = [
        Line(
            f"{found.gpus.p10:,.0f}, {found.gpus.p50:,.0f} and {found.gpus.p90:,.0f} at P10, P50 and P90 of {found.draws:,} draws "
            f"(seed {found.seed})",
            "GPUs",
        )
    ]
    if found.usd_per_month is not None:
        usd = found.usd_per_month
        lines.append(
            Line(
                f"{rounded_usd(usd.p10)}, {rounded_usd(usd.p50)} and {rounded_usd(usd.p90)} a month around the clock",
                "Cost",
            )
        )
    moving = [one for one in found.influences if one.rank_correlation]
    words = [
        f"{one.input}: rank correlation {one.rank_correlation:+.2f} with {one.of} ({one.distribution})"
        for one in moving
    ]
    lines += labelled("Matters most", words)
    still = [one.input for one in found.influences if not one.rank_correlation]
    if still:
        lines.append(Line(f"{', '.join(still)}: the GPUs are the same in all draws", "No matter"))
    if found.certain:
        lines.append(Line("; ".join(found.certain), "Held certain"))
    yield Block(tuple(lines))
