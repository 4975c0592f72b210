"""What pictures share: colours, a figure of stacked axes, and its bytes; matplotlib is loaded when something is drawn."""

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
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(NO_MATPLOTLIB) from None
    titles_inches = 0.8 * len(heights_inches)
    drawn = Figure(figsize=(width_inches, sum(heights_inches) + titles_inches), layout="constrained")
    axes = drawn.subplots(len(heights_inches), 1, squeeze=False, height_ratios=list(heights_inches))
    return drawn, [row[0] for row in axes]


def rendered(drawn: Figure, form: str) -> bytes:
    """Return a figure as svg, png or pdf; equal figures give equal bytes, so they carry no date."""
    from matplotlib import rc_context

    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})
    out = io.BytesIO()
    with rc_context({"svg.hashsalt": "llmsize", "svg.fonttype": "none", "hatch.linewidth": 0.5}):
        drawn.savefig(out, format=form, dpi=DPI, metadata=metadata)
    return out.getvalue()
