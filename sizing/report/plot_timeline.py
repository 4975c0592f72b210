"""The teaching simulator's run as a picture: slots over time with true step widths; below, queue, TTFT and E2E.

The colours are of the Okabe-Ito palette, which colour-blind readers tell apart; in greyscale they differ in lightness,
and prefill is hatched besides where the steps are few enough to see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sizing.engine.ticks import DECODE, EMPTY, PREFILL, TickResult, TickStep
from sizing.formats.pictures import BLACK, BLUE, GREEN, ORANGE, PALE, VERMILLION, figure, rendered

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_EDGED = 400  # steps with a line around each; more would be lines alone
MOST_HATCHED = 40_000  # steps x slots; hatching more takes minutes, and nobody could tell
SLOT_INCHES, LOWER_INCHES, WIDTH_INCHES = 0.35, 2.6, 11.0
TALLEST_INCHES = 12.0  # of the slots of one run


class Look(NamedTuple):
    """How a state is drawn."""

    label: str
    colour: str
    hatch: str


LOOKS = {
    PREFILL: Look("prefill", BLUE, "////"),
    DECODE: Look("decode", ORANGE, ""),
    EMPTY: Look("empty", PALE, ""),
}


def draw(results: Mapping[str, TickResult], form: str) -> bytes:
    """Draw runs by policy, one below the other, as svg, png or pdf. Raises InputError where matplotlib is missing."""
    heights = []
    for result in results.values():
        slots = len(result.timeline[0].states) if result.timeline else 1
        heights += [min(TALLEST_INCHES, max(1.0, slots * SLOT_INCHES)), LOWER_INCHES]
    drawn, axes = figure(WIDTH_INCHES, heights)
    for index, (policy, result) in enumerate(results.items()):
        upper, lower = axes[2 * index], axes[2 * index + 1]
        _slots(upper, result.timeline)
        _measured(lower, result)
        upper.set_title(
            f"{policy}: {result.completed:,} of {result.arrived:,} requests by tick {result.end_tick:,g}", loc="left"
        )
        for axis in (upper, lower):
            axis.set_xlim(0, max(result.end_tick, 1))
    return rendered(drawn, form)


def _slots(axis: Axes, timeline: Sequence[TickStep]) -> None:
    """One row a slot, the first at the top; every step as wide as it took."""
    count = len(timeline[0].states) if timeline else 0
    hatched = len(timeline) * count <= MOST_HATCHED
    edged = hatched and len(timeline) <= MOST_EDGED
    for state, look in LOOKS.items():
        for slot in range(count):
            spans = _spans(timeline, slot, state, apart=edged)
            axis.broken_barh(
                spans,
                (slot + 0.6, 0.8),
                facecolor=look.colour,
                edgecolor=BLACK if edged or (look.hatch and hatched) else "none",
                linewidth=0.4 if edged else 0.0,
                hatch=look.hatch if hatched else "",
                label=look.label if slot == 0 else "_",
            )
    axis.set_ylim(count + 0.5, 0.5)
    axis.set_yticks(range(1, count + 1) if count <= 32 else range(1, count + 1, count // 16))
    axis.set_ylabel("slot")
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(LOOKS), frameon=False)


def _spans(timeline: Sequence[TickStep], slot: int, state: str, *, apart: bool) -> list[tuple[float, float]]:
    """Return (start, width) of a slot's steps in a state; neighbours become one unless `apart`."""
    spans: list[tuple[float, float]] = []
    for step in timeline:
        if step.states[slot] != state:
            continue
        start = step.start
        if spans and not apart and sum(spans[-1]) == start:
            start = spans.pop()[0]
        spans.append((start, step.end - start))
    return spans


def _measured(axis: Axes, result: TickResult) -> None:
    """Points of TTFT and E2E when each was measured, on the left; the queue on the right."""
    r, end = result.requests, result.end_tick
    first = [(at, at - since) for at, since in zip(r.first_token, r.arrival, strict=True) if at <= end]
    done = [(at, at - since) for at, since in zip(r.finished, r.arrival, strict=True) if at <= end]
    for points, label, marker, colour in ((first, "TTFT", "o", VERMILLION), (done, "E2E", "^", GREEN)):
        axis.plot(*_columns(points), linestyle="none", marker=marker, markersize=4, color=colour, label=label)
    axis.set_ylabel("TTFT, E2E (ticks)")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("ticks")
    right = axis.twinx()
    queue = [(step.start, step.queue) for step in result.timeline]
    queue += [(step.end, step.queue) for step in result.timeline[-1:]]
    right.plot(*_columns(queue), drawstyle="steps-post", color=BLACK, linewidth=1, label="queue size")
    right.set_ylabel("queue size (requests)")
    right.set_ylim(bottom=0)
    handles = [*axis.get_lines(), *right.get_lines()]
    axis.legend(handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, ncols=3)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
