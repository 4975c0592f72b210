"""Pictures of `llmsize simulate`: for each policy the state over time above, latencies below.

The state is running and queued requests and the cache; in ticks it is that of each slot, with true widths of steps.

The colours are of the Okabe-Ito palette, which colour-blind readers tell apart; in greyscale they differ in lightness,
and prefill is hatched besides where the steps are few enough to see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sizing.engine.ticks import DECODE, EMPTY, PREFILL, TickResult, TickStep
from sizing.formats.pictures import BLACK, BLUE, GREEN, ORANGE, PALE, VERMILLION, figure, rendered

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sizing.engine.requests import Requests
    from sizing.engine.simulation import Run

MOST_POINTS = 2000  # of a latency; of more requests every n-th is drawn
MOST_EDGED = 400  # steps with a line around each; more would be lines alone
MOST_HATCHED = 40_000  # steps x slots; hatching more takes minutes, and nobody could tell
SLOT_INCHES, STATE_INCHES, LATENCY_INCHES, WIDTH_INCHES = 0.35, 2.4, 2.5, 11.0
LEAST_INCHES, TALLEST_INCHES = 1.0, 12.0  # of the slots of one run
LEGEND: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "frameon": False, "ncols": 3}


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


class Panel(NamedTuple):
    """The two axes of one run: a title, inches of the upper, and what draws each."""

    title: str
    inches: float
    state: Callable[[Axes], None]
    latencies: Callable[[Axes], None]


def draw_runs(served: Mapping[str, Run], form: str) -> bytes:
    """Draw runs by policy, one below the other, as svg, png or pdf. Raises InputError where matplotlib is missing."""

    def panel(policy: str, run: Run) -> Panel:
        title = f"{policy}: {run.completed:,} of {run.arrived:,} requests in {run.duration_s:,.4g} s"
        return Panel(title, STATE_INCHES, lambda axis: _state(axis, run), lambda axis: _latencies(axis, run))

    return _drawn([panel(*entry) for entry in served.items()], form)


def draw_ticks(results: Mapping[str, TickResult], form: str) -> bytes:
    """Draw runs in ticks by policy, one below the other, as `draw_runs` does."""

    def panel(policy: str, result: TickResult) -> Panel:
        title = f"{policy}: {result.completed:,} of {result.arrived:,} requests by tick {result.end_tick:,g}"
        slots = len(result.timeline[0].states) if result.timeline else 1
        inches = min(TALLEST_INCHES, max(LEAST_INCHES, slots * SLOT_INCHES))
        return Panel(title, inches, lambda axis: _slots(axis, result), lambda axis: _measured(axis, result))

    return _drawn([panel(*entry) for entry in results.items()], form)


def _drawn(panels: Sequence[Panel], form: str) -> bytes:
    drawn, axes = figure(WIDTH_INCHES, [inches for panel in panels for inches in (panel.inches, LATENCY_INCHES)])
    for panel, upper, lower in zip(panels, axes[::2], axes[1::2], strict=True):
        lower.sharex(upper)  # before twins are made, which share it too
        panel.state(upper)
        panel.latencies(lower)
        upper.set_title(panel.title, loc="left")
    return rendered(drawn, form)


def _state(axis: Axes, run: Run) -> None:
    """Requests of one replica on the left, its cache on the right."""
    times = [sample.time for sample in run.samples]
    axis.plot(times, [sample.running for sample in run.samples], color=BLUE, linewidth=1, label="running")
    axis.plot(times, [sample.queued for sample in run.samples], "--", color=BLACK, linewidth=1, label="queued")
    axis.set(ylabel="requests on a replica")
    axis.set_ylim(bottom=0)
    cache = [100 * sample.cache for sample in run.samples]
    right = _right(axis, times, cache, color=VERMILLION, linestyle=":", label="cache")
    right.set(ylabel="cache held (%)", ylim=(0, 100))


def _right(axis: Axes, x: Sequence[float], y: Sequence[float], **look: Any) -> Axes:
    """Draw a line with an axis of its own on the right; the legend names those of both."""
    right = axis.twinx()
    right.plot(x, y, linewidth=1, **look)
    axis.legend(handles=[*axis.get_lines(), *right.get_lines()], **LEGEND)
    return right


def _latencies(axis: Axes, run: Run) -> None:
    """TTFT and E2E on a logarithmic scale: they differ by a hundred times."""
    _points(axis, run.requests, "s", math.inf, size=2)
    axis.set_yscale("log")
    axis.legend(**LEGEND, markerscale=3)


def _points(axis: Axes, requests: Requests, unit: str, until: float, size: int) -> None:
    """Draw TTFT and E2E when each was measured."""
    arrival = np.asarray(requests.arrival)
    looks = ((requests.first_token, "TTFT", "o", VERMILLION), (requests.finished, "E2E", "^", GREEN))
    for times, label, marker, colour in looks:
        at = np.asarray(times)
        happened = np.flatnonzero(at <= until)  # what never happened is NaN
        shown = happened[:: max(1, -(-happened.size // MOST_POINTS))]
        waited = at[shown] - arrival[shown]
        axis.plot(at[shown], waited, linestyle="none", marker=marker, markersize=size, color=colour, label=label)
    axis.set(ylabel=f"TTFT, E2E ({unit})", xlabel=unit)


def _slots(axis: Axes, result: TickResult) -> None:
    """One row a slot, the first at the top; every step as wide as it took."""
    timeline = result.timeline
    count = len(timeline[0].states) if timeline else 0
    hatched = len(timeline) * count <= MOST_HATCHED
    edged = hatched and len(timeline) <= MOST_EDGED
    for state, look in LOOKS.items():
        for slot in range(count):
            axis.broken_barh(
                _spans(timeline, slot, state, apart=edged),
                (slot + 0.6, 0.8),
                facecolor=look.colour,
                edgecolor=BLACK if edged or (look.hatch and hatched) else "none",
                linewidth=0.4 if edged else 0.0,
                hatch=look.hatch if hatched else "",
                label=look.label if slot == 0 else "_",
            )
    axis.set(xlim=(0, max(result.end_tick, 1)), ylim=(count + 0.5, 0.5), ylabel="slot")
    axis.set_yticks(range(1, count + 1) if count <= 32 else range(1, count + 1, count // 16))
    axis.legend(**LEGEND)


def _spans(timeline: Sequence[TickStep], slot: int, state: str, *, apart: bool) -> list[tuple[float, float]]:
    """(Start, width) of a slot's steps in a state; neighbours become one unless `apart`."""
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
    """TTFT and E2E when each was measured, on the left; the queue on the right."""
    _points(axis, result.requests, "ticks", result.end_tick, size=4)
    axis.set_ylim(bottom=0)
    steps = result.timeline
    times = [*(step.start for step in steps), *(step.end for step in steps[-1:])]
    queue = [*(step.queue for step in steps), *(step.queue for step in steps[-1:])]
    right = _right(axis, times, queue, drawstyle="steps-post", color=BLACK, label="queue size")
    right.set(ylabel="queue size (requests)")
    right.set_ylim(bottom=0)
