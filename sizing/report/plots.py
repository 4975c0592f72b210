"""What pictures share: formats, colours, a figure of axes, and its bytes; matplotlib is loaded when something is drawn."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from sizing.specs.errors import Fault, InputError
from sizing.specs.units import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, Color Universal Design (https://jfly.uni-koeln.de/color), with a light grey.
BLACK, BLUE, GREEN, VERMILLION, ORANGE, PALE = "#000000", "#0072B2", "#009E73", "#D55E00", "#E69F00", "#F2F2F2"
SKY, PURPLE, GREY = "#56B4E9", "#CC79A7", "#595959"  # the rest of their colours, and a grey for text
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
# As many as make no common cycle with the colours: 77 pairs differ, and in greyscale the markers do.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "*")
SOLID, BROKEN = ("-", "-."), ("--", ":")  # lines of what is predicted, and of what was measured
DARKER = 0.6  # the lightest of the colours, times this, stands out from white by 4.5 to 1
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
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and find_spec("matplotlib") is None
        raise InputError(NO_MATPLOTLIB if absent else _broken(error)) from None
    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def _broken(error: ImportError) -> Fault:
    """Return the fault of a matplotlib that is there but cannot be loaded."""
    return Fault(f"needs matplotlib, which cannot be loaded: {printable(str(error))}", field="--plot")


class Style(NamedTuple):
    """How one line is told from others: by colour, by marker and by line style."""

    colour: str
    marker: str
    line: str
    hollow: bool

    def text(self) -> str:
        """Return a darker shade of the colour, in which small text is legible on white."""
        return "#" + "".join(f"{round(int(self.colour[at : at + 2], 16) * DARKER):02X}" for at in (1, 3, 5))

    def drawn(self) -> dict[str, Any]:
        """Return what matplotlib's `plot` takes for it."""
        face = "white" if self.hollow else self.colour
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.line,
            "markerfacecolor": face,
            "markeredgecolor": self.colour,
        }


def style(number: int, *, measured: bool = False) -> Style:
    """Return the style of the line of a number, from 0; one that was measured is broken, its markers hollow."""
    lines = BROKEN if measured else SOLID
    around = number // len(COLOURS)
    return Style(
        COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)], lines[around % len(lines)], hollow=measured
    )


def limit_line(axis: Axes, at: float, label: str) -> None:
    """Draw a limit on the x axis as a dashed vertical line, its label along it at the bottom."""
    axis.axvline(at, color=BLACK, linewidth=1.1, linestyle=(0, (4, 3)), zorder=1.5, gid="limit")
    axis.annotate(
        label,
        (at, 0.02),
        xycoords=("data", "axes fraction"),
        xytext=(3, 0),
        textcoords="offset points",
        rotation=90,
        fontsize="small",
        color=BLACK,
        va="bottom",
        ha="left",
    )


def log_ticks(axis: Axes) -> None:
    """Number a logarithmic x axis as people write numbers, at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def words(text: str) -> str:
    """Return text as a picture takes it: nothing that has no shape, and no dollar that would begin a formula."""
    return printable(text).replace("$", r"\$")


def title(axis: Axes, *rows: str) -> None:
    """Write a title over the left end of the axes, one row below the other."""
    axis.set_title("\n".join(rows), loc="left", fontsize="medium")


def rendered(drawn: Figure, form: str) -> bytes:
    """Return a figure as svg, png or pdf; equal figures give equal bytes, so they carry no date."""
    from matplotlib import rc_context

    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})
    out = io.BytesIO()
    with rc_context({"svg.hashsalt": "llmsize", "svg.fonttype": "none", "hatch.linewidth": 0.5}):
        drawn.savefig(out, format=form, dpi=DPI, metadata=metadata)
    return out.getvalue()
