"""Measured against predicted as a picture: log axes, a colour a group, a panel a metric. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sizing.catalog.measured import METRICS
from sizing.evidence.errors import Comparison
from sizing.formats.pictures import panels, rendered

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_INCHES = 4.2
MOST_LABELLED = 16  # groups in the legend; a longer one would cover the page


def drawable(compared: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return what has a place on logarithmic axes: all but rows that are predicted as nothing."""
    return tuple(one for one in compared if one.predicted > 0)


def draw(compared: Sequence[Comparison], form: str) -> bytes:
    """Draw what is drawable, at least one comparison, as svg, png or pdf. Raises InputError without matplotlib."""
    shown = drawable(compared)
    metrics = [name for name in METRICS if any(one.metric == name for one in shown)]
    drawn, axes = panels(len(metrics), PANEL_INCHES)
    keys = sorted({one.key for one in shown})
    for panel, metric in zip(axes, metrics, strict=True):
        _panel(panel, metric, [one for one in shown if one.metric == metric], keys)
    if len(keys) > 1:
        axes[-1].legend(fontsize="x-small")
    return rendered(drawn, form)


def _panel(panel: Axes, metric: str, ones: Sequence[Comparison], keys: Sequence[tuple[str, ...]]) -> None:
    values = [value for one in ones for value in (one.measured, one.predicted)]
    panel.plot((min(values), max(values)), (min(values), max(values)), color="0.6", linewidth=0.8, zorder=0)
    for number, key in enumerate(keys):
        group = [one for one in ones if one.key == key]
        label = " ".join(key) if number < MOST_LABELLED else None
        panel.scatter(
            [one.measured for one in group],
            [one.predicted for one in group],
            s=6,
            linewidths=0,
            alpha=0.7,
            color=f"C{number % 10}",
            label=label,
        )
    panel.set(xscale="log", yscale="log", xlabel=f"measured {metric}", ylabel=f"predicted {metric}")
