"""Measured against predicted as a picture: log axes, a colour a group, a panel a metric. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sizing.catalog.measured_csv import METRICS
from sizing.catalog.paths import write_bytes
from sizing.errors import Fault, InputError
from sizing.validation.errors import Comparison

SUFFIXES = (".svg", ".png", ".pdf")
PANEL_INCHES = 4.2
MOST_LABELLED = 16  # groups in the legend; a longer one would cover the page


def draw(compared: Sequence[Comparison], path: Path) -> None:
    """Write the picture. Raises InputError without matplotlib, for another suffix, or where the file can't be written.

    Rows predicted as nothing have no place on a logarithmic axis and are left out.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(Fault(f"{path.suffix!r} is no picture format", field="--plot", allowed=", ".join(SUFFIXES)))
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            Fault("needs matplotlib", field="--plot", allowed="after pip install 'llmsize[plot]'")
        ) from None
    shown = [one for one in compared if one.predicted > 0]
    metrics = [name for name in METRICS if any(one.metric == name for one in shown)]
    if not metrics:
        raise InputError(Fault("no row is predicted, so there is nothing to draw", field="--plot"))
    with matplotlib.rc_context({"svg.hashsalt": "llmsize"}):  # the same picture for the same numbers
        figure = Figure(figsize=(PANEL_INCHES * len(metrics), PANEL_INCHES), layout="constrained")
        panels = figure.subplots(1, len(metrics), squeeze=False)[0]
        keys = sorted({one.key for one in shown})
        for panel, metric in zip(panels, metrics, strict=True):
            _panel(panel, metric, [one for one in shown if one.metric == metric], keys)
        if len(keys) > 1:
            panels[-1].legend(fontsize="x-small")
        _save(figure, path)


def _panel(panel: Any, metric: str, ones: Sequence[Comparison], keys: Sequence[tuple[str, ...]]) -> None:
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


def _save(figure: Any, path: Path) -> None:
    out = io.BytesIO()
    form = path.suffix.lower().removeprefix(".")
    figure.savefig(out, format=form, metadata={"Date": None} if form == "svg" else None)
    write_bytes(path, out.getvalue())
