"""A run in real time as a picture: running and queued requests, cache, and the latencies, over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sizing.engine.simulation import Served
from sizing.formats.pictures import BLACK, BLUE, GREEN, VERMILLION, figure, rendered

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 2000  # of a latency; every so many-th request is drawn of more
STATE_INCHES, LATENCY_INCHES, WIDTH_INCHES = 2.4, 2.4, 11.0


def draw(served: Mapping[str, Served], form: str) -> bytes:
    """Draw runs by policy, one below the other, as svg, png or pdf. Raises InputError where matplotlib is missing."""
    drawn, axes = figure(WIDTH_INCHES, [STATE_INCHES, LATENCY_INCHES] * len(served))
    for index, (policy, run) in enumerate(served.items()):
        upper, lower = axes[2 * index], axes[2 * index + 1]
        _state(upper, run)
        _latencies(lower, run)
        upper.set_title(
            f"{policy}: {run.completed:,} of {run.arrived:,} requests in {run.duration_s:,.4g} s", loc="left"
        )
        lower.sharex(upper)
    return rendered(drawn, form)


def _state(axis: Axes, run: Served) -> None:
    """Requests of one replica on the left, its cache on the right."""
    times = [sample.time for sample in run.samples]
    axis.plot(times, [sample.running for sample in run.samples], color=BLUE, linewidth=1, label="running")
    axis.plot(
        times, [sample.queued for sample in run.samples], color=BLACK, linewidth=1, linestyle="--", label="queued"
    )
    axis.set_ylabel("requests on a replica")
    axis.set_ylim(bottom=0)
    right = axis.twinx()
    cache = [100 * sample.cache for sample in run.samples]
    right.plot(times, cache, color=VERMILLION, linewidth=1, linestyle=":", label="cache")
    right.set_ylabel("cache held (%)")
    right.set_ylim(0, 100)
    handles = [*axis.get_lines(), *right.get_lines()]
    axis.legend(handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, ncols=3)


def _latencies(axis: Axes, run: Served) -> None:
    """TTFT and E2E of requests when each was measured, on a logarithmic scale: they differ by a hundred times."""
    arrival = np.asarray(run.requests.arrival)
    for times, label, marker, colour in (
        (run.requests.first_token, "TTFT", "o", VERMILLION),
        (run.requests.finished, "E2E", "^", GREEN),
    ):
        at = np.asarray(times)
        happened = np.flatnonzero(~np.isnan(at))
        shown = happened[:: max(1, -(-happened.size // MOST_POINTS))]
        axis.plot(
            at[shown],
            at[shown] - arrival[shown],
            linestyle="none",
            marker=marker,
            markersize=2,
            color=colour,
            label=label,
        )
    axis.set_yscale("log")
    axis.set_ylabel("TTFT, E2E (s)")
    axis.set_xlabel("s")
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, ncols=2, markerscale=3)
