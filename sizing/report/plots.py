"""What pictures share: formats, colours, a figure of axes, and its bytes; matplotlib is loaded when something is drawn."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sizing.errors import Fault, InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, Color Universal Design (https://jfly.uni-koeln.de/color), with a light grey.
BLACK, BLUE, GREEN, VERMILLION, ORANGE, PALE = "#000000", "#0072B2", "#009E73", "#D55E00", "#E69F00", "#F2F2F2"
DPI = 120
NO_MATPLOTLIB = Fault(
    "needs matplotlib, which is not installed", field="--plot", allowed="after pip install 'llmsize[plot]'"
)


def figure(width_inches: float, heights_inches: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes of the given heights one below the other. Raises InputError without matplotlib."""
    titles_inches = 0.8 * len(heights_inches)
    drawn = _empty(width_inches, sum(heights_inches) + titles_inches)
    axes = drawn.subplots(len(heights_inches), 1, squeeze=False, height_ratios=list(heights_inches))
    return drawn, [row[0] for row in axes]


def panels(count: int, inches: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many square axes side by side. Raises InputError without matplotlib."""
    drawn = _empty(inches * count, inches)
    return drawn, list(drawn.subplots(1, count, squeeze=False)[0])


def _empty(width_inches: float, height_inches: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(NO_MATPLOTLIB) from None
    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def rendered(drawn: Figure, form: str) -> bytes:
    """Return a figure as svg, png or pdf; equal figures give equal bytes, so they carry no date."""
    from matplotlib import rc_context

    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})
    out = io.BytesIO()
    with rc_context({"svg.hashsalt": "llmsize", "svg.fonttype": "none", "hatch.linewidth": 0.5}):
        drawn.savefig(out, format=form, dpi=DPI, metadata=metadata)
    return out.getvalue()
