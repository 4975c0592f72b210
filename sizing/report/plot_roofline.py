"""A roofline as a picture: roofs by precision on logarithmic axes, an operation a colour and marker. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sizing.formats.pictures import BLACK, BLUE, GREEN, ORANGE, VERMILLION, figure, rendered
from sizing.formats.words import number, plural
from sizing.replica.intensity import roof_flops_per_s
from sizing.report.roofline import Roof, RooflinePoint, RooflineReport
from sizing.specs.units import TERA

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_INCHES, HEIGHT_INCHES = 10.0, 5.6
SKY, PURPLE, GREY = "#56B4E9", "#CC79A7", "#595959"  # the rest of Okabe and Ito's colours, and a grey for text
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "*")  # as many as there are no colours: the pairs differ
ROOF_LINES = ("-", "--", "-.", ":")
LEAST_AREA, AREA_A_DOUBLING = 14.0, 6.0  # of a marker in square points
ROOM = 3.0  # times the outermost points, that the axes extend


class _Style(NamedTuple):
    colour: str
    marker: str


def draw(document: RooflineReport, form: str) -> bytes:
    """Draw a roofline as svg, png or pdf. Raises InputError without matplotlib."""
    drawn, (axis,) = figure(WIDTH_INCHES, [HEIGHT_INCHES])
    points = [one for one in document.operations if one.flops > 0]
    low, high = _extent(points, document.roofs)
    for roof, line in zip(document.roofs, cycle(ROOF_LINES), strict=False):
        _roof(axis, roof, line, low, high)
    names = dict.fromkeys(one.name for one in points)
    for name, style in zip(names, _styles(), strict=False):
        _operation(axis, [one for one in points if one.name == name], name, style)
    _label_sizes(axis, points)
    axis.set(xscale="log", yscale="log", xlim=(low, high))
    axis.set_xlabel("arithmetic intensity (FLOP per byte of device memory)")
    axis.set_ylabel("attained (TFLOP/s per GPU)")
    axis.set_title(_title(document), loc="left", fontsize="medium")
    axis.grid(True, which="major", color="0.9", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small")
    return rendered(drawn, form)


def _styles() -> Iterator[_Style]:
    return (_Style(colour, marker) for colour, marker in zip(cycle(COLOURS), cycle(MARKERS), strict=False))


def _extent(points: Sequence[RooflinePoint], roofs: Sequence[Roof]) -> tuple[float, float]:
    """Return the intensities that the axis shows: those of the points and ridges, with room."""
    found = [one.intensity_flops_per_byte for one in points if one.intensity_flops_per_byte]
    found += [roof.ridge_flops_per_byte for roof in roofs]
    return min(found) / ROOM, max(found) * ROOM


def _roof(axis: Axes, roof: Roof, line: str, low: float, high: float) -> None:
    """Draw the slope of the bandwidth up to the ridge, and the peak from there on."""
    peak, bandwidth, ridge = roof.peak_flops_per_s, roof.bandwidth_bytes_per_s, roof.ridge_flops_per_byte
    at = np.array([low, ridge, high])
    height = [roof_flops_per_s(float(x), peak, bandwidth) / TERA for x in at]
    label = (
        f"roof, {roof.precision.upper()}: {number(peak / TERA, 4)} TFLOP/s,\n{number(bandwidth / TERA)} TB/s, "
        f"ridge {number(ridge)} FLOP/byte"
    )
    axis.plot(at, height, color=BLACK, linewidth=1.4, linestyle=line, label=label, zorder=1)
    axis.plot([ridge, ridge], [height[0], height[1]], color=GREY, linewidth=0.6, linestyle=":", zorder=0)


def _operation(axis: Axes, points: Sequence[RooflinePoint], name: str, style: _Style) -> None:
    """Draw one operation: filled of decode, hollow of prefill, larger for larger batches and longer prompts."""
    label: str | None = name
    for phase, face in (("decode", style.colour), ("prefill", "none")):
        shown = [one for one in points if one.phase == phase]
        if not shown:
            continue
        x = [one.intensity_flops_per_byte or 0.0 for one in shown]
        y = [one.attained_flops_per_s / TERA for one in shown]
        areas = [LEAST_AREA + AREA_A_DOUBLING * index for index in range(len(shown))]
        axis.plot(x, y, color=style.colour, linewidth=0.7, alpha=0.6, zorder=2)
        axis.scatter(
            x,
            y,
            s=areas,
            marker=style.marker,
            facecolors=face,
            edgecolors=style.colour,
            linewidths=1.0,
            label=f"{label} (prefill)" if phase == "prefill" and label == name else label,
            zorder=3,
        )
        label = None


def _label_sizes(axis: Axes, points: Sequence[RooflinePoint]) -> None:
    """Write the batches beside the decode operation that takes longest, the prompt lengths beside prefill attention."""
    decode = [one for one in points if one.phase == "decode"]
    also = {one.name for one in decode}
    prefill = [one for one in points if one.phase == "prefill" and one.name not in also]
    longest = _longest(decode)
    _label(axis, [one for one in decode if one.name == longest], (-7, 5), "right")
    _label(axis, [one for one in prefill if one.name == _longest(prefill)], (7, -4), "left")


def _label(axis: Axes, points: Sequence[RooflinePoint], offset: tuple[int, int], align: str) -> None:
    for one in points:
        at = (one.intensity_flops_per_byte or 0.0, one.attained_flops_per_s / TERA)
        size = one.batch if one.batch is not None else one.prompt_tokens
        axis.annotate(
            f"{size:,}", at, xytext=offset, textcoords="offset points", fontsize="x-small", color=GREY, ha=align
        )


def _longest(points: Sequence[RooflinePoint]) -> str | None:
    """Return the operation that takes longest of those whose intensity depends on the size; of all where none does."""
    named: dict[str, list[RooflinePoint]] = {}
    for one in points:
        named.setdefault(one.name, []).append(one)

    def grows(group: Sequence[RooflinePoint]) -> bool:
        found = [one.intensity_flops_per_byte or 0.0 for one in group]
        return max(found) > ROOM * min(found)

    growing = {name: group for name, group in named.items() if grows(group)} or named
    return max(growing, key=lambda name: sum(one.seconds for one in growing[name]), default=None)


def _title(document: RooflineReport) -> str:
    i = document.inputs
    batches, prompts = i["batches"], i["prompt_tokens"]
    return (
        f"{i['model']}, {i['weight_precision'].upper()} weights, {i['kv_precision'].upper()} KV cache, {i['layout']} on "
        f"{i['gpu']}, {i['engine_title']} {i['engine_version']}\n"
        f"decode (filled) of {_span(batches)} sequences at {i['context_tokens']:,} tokens of context, prefill (hollow) of "
        f"{_span(prompts)} tokens; larger is more\n{_crossing(document.compute_bound_from.decode_batch)}"
    )


def _crossing(batch: int | None) -> str:
    if batch is None:
        return "decode: products with weights are compute-bound at no batch"
    return f"decode: products with weights are compute-bound from {plural(batch, 'sequence')} on"


def _span(sizes: Sequence[int]) -> str:
    return f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
