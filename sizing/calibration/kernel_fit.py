"""Constants of a row of a GPU profile fitted to measured kernels, by least squares in the logarithm of time.

Errors count squared up to the scale of the calibration's loss and logarithmically beyond (Cauchy), as in
`sizing.calibration`: a few sizes that run another kernel or stay in a cache do not move what the others say.

The formulas are those that time a step (`sizing.replica.kernels`), so that a row means what is evaluated: without the launch
gaps, front ends and fused kernels that an engine's settings add.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.calibration.kernel_points import Array, Summary
from sizing.model.precision import peak_flops
from sizing.replica import kernels, roofline
from sizing.specs.calibration import ConstantRange
from sizing.specs.gpu import CollectiveRow, DecodeAttentionRow, EfficiencyRow, Gpu, MlaDecodeRow, PrefillAttentionRow
from sizing.specs.units import GIGA, MICRO

Constants = dict[str, float | tuple[float, ...]]

# The fields of a row that its evaluation reads; a share or an alpha next to a curve is ignored.
CURVES = {
    "prefill_attention": "flop_fraction",
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"), "us"),
}
SCALARS = {
    "gemm": ("t0_us", "compute", "memory", "p"),
    "moe": ("t0_us", "compute", "memory", "p"),
    "decode_attention": ("t0_us", "memory"),
    "prefill_attention": ("t0_us",),
}
LEAST = 1e-3  # of a constant, in its unit, where its logarithm is taken: a launch of a nanosecond is none
NOTHING = 2e-3  # what a fit leaves of a launch that it takes for none
SIGNIFICANT = 3
WEIGHT_ONLY = frozenset(name for names in kernels.WEIGHT_ONLY_ROWS.values() for name in names)
SIXTEEN_BIT = "bf16"


class FitErrors(NamedTuple):
    """Median and 90th percentile of |predicted/measured - 1|, and the mean loss that a fit makes small."""

    median: float
    p90: float
    loss: float


class Refit(NamedTuple):
    """A refitted row, and errors: of the profile's constants, of the fitted ones, and on sizes left out of the fit."""

    row: EfficiencyRow
    before: FitErrors
    after: FitErrors
    left_out: FitErrors
    points: int

    def gain(self) -> float:
        """The relative reduction of the loss on sizes left out, against the profile's constants."""
        return 1 - self.left_out.loss / self.before.loss if self.before.loss > 0 else 0.0


class Terms(NamedTuple):
    """The terms of a fit: bounds of each constant, the scale of the loss, and the number of folds."""

    bounds: Mapping[str, ConstantRange]
    loss_scale: float
    folds: int


def constants_of(row: EfficiencyRow) -> Constants:
    """The constants of a row's formula, by name."""
    found: Constants = {name: float(getattr(row, name)) for name in SCALARS.get(row.operation, ())}
    if row.operation in CURVES:
        found[CURVES[row.operation]] = tuple(getattr(row, CURVES[row.operation]))
    return found


def with_constants(row: EfficiencyRow, constants: Constants) -> EfficiencyRow:
    """A row with other constants."""
    changed: EfficiencyRow = row.model_copy(update=dict(constants))
    return changed


def peak(gpu: Gpu, precision: str) -> float:
    """The dense peak in FLOP/s that a row's shares refer to; products with weight-only quantisation run at 16 bit."""
    return peak_flops(gpu.datasheet.dense_tflops, SIXTEEN_BIT if precision in WEIGHT_ONLY else precision)


def seconds(row: EfficiencyRow, gpu: Gpu, points: Summary) -> Array:
    """The seconds of each point by a row and its GPU's datasheet. Raises ValueError for latent attention."""
    flops, moved = points.column("flops"), points.column("bytes")
    bandwidth = gpu.datasheet.memory.bandwidth_gb_per_s * GIGA
    if isinstance(row, CollectiveRow):
        return np.asarray(roofline.measured_s(moved, row.kib, row.us))
    if isinstance(row, DecodeAttentionRow):
        launch_s = row.t0_us * MICRO
        busy_s = roofline.streamed_s(moved, bandwidth_bytes_per_s=bandwidth, memory=row.memory, t0_s=launch_s)
        return np.asarray(busy_s)
    if isinstance(row, PrefillAttentionRow):
        share = roofline.curve_share(points.column("size"), row.tokens, row.flop_fraction)
        return row.t0_us * MICRO + np.maximum(flops / (peak(gpu, row.precision) * share), moved / bandwidth)
    if isinstance(row, MlaDecodeRow):
        raise ValueError("latent attention has no points")
    return np.asarray(
        roofline.combined_s(
            flops,
            moved,
            peak_flops=peak(gpu, row.precision),
            compute=row.compute,
            bandwidth_bytes_per_s=bandwidth,
            memory=row.memory,
            p=row.p,
            t0_s=row.t0_us * MICRO,
        )
    )


def fitted(row: EfficiencyRow, gpu: Gpu, points: Summary, terms: Terms) -> EfficiencyRow:
    """A row with the constants, between their bounds, that time the points best. The fit starts at the row's own."""
    from scipy.optimize import least_squares

    names = [(name, np.size(value)) for name, value in constants_of(row).items()]
    least, most = (
        np.log(np.concatenate([np.full(size, max(getattr(terms.bounds[name], end), LEAST)) for name, size in names]))
        for end in ("least", "most")
    )
    start = np.log(np.maximum(np.concatenate([np.atleast_1d(value) for value in constants_of(row).values()]), LEAST))
    measured = np.log(points.column("seconds"))

    def tried(at: Array) -> EfficiencyRow:
        values, begin = np.exp(at), 0
        constants: Constants = {}
        for name, size in names:
            part = tuple(float(value) for value in values[begin : begin + size])
            constants[name] = part if name in CURVES.values() else part[0]
            begin += size
        return with_constants(row, constants)

    def residuals(at: Array) -> Array:
        return np.asarray(np.log(seconds(tried(at), gpu, points)) - measured)

    inside = np.clip(start, least + LEAST, most - LEAST)
    found = least_squares(residuals, inside, bounds=(least, most), loss="cauchy", f_scale=terms.loss_scale)
    return tried(found.x)


def errors(predicted_s: Array, measured_s: Array, loss_scale: float) -> FitErrors:
    """The errors of predictions against measurements."""
    ratio = predicted_s / measured_s
    off = np.abs(ratio - 1)
    loss = np.log1p((np.log(ratio) / loss_scale) ** 2)
    return FitErrors(float(np.median(off)), float(np.quantile(off, 0.9)), float(np.mean(loss)))


def refit(row: EfficiencyRow, gpu: Gpu, points: Summary, terms: Terms) -> Refit:
    """Fit a row, and once without each fold of sizes, which gives the errors on sizes left out."""
    measured, size = points.column("seconds"), points.column("size")
    fold = np.searchsorted(np.unique(size), size) % terms.folds
    left_out_s = np.empty_like(measured)
    for number in np.unique(fold):
        without, only = (_some(points, chosen) for chosen in (fold != number, fold == number))
        if without.points:
            left_out_s[fold == number] = seconds(fitted(row, gpu, without, terms), gpu, only)
        else:  # of one size alone: nothing is left to learn from
            left_out_s[fold == number] = seconds(row, gpu, only)
    best = rounded(fitted(row, gpu, points, terms))
    return Refit(
        row=best,
        before=errors(seconds(row, gpu, points), measured, terms.loss_scale),
        after=errors(seconds(best, gpu, points), measured, terms.loss_scale),
        left_out=errors(left_out_s, measured, terms.loss_scale),
        points=len(measured),
    )


def rounded(row: EfficiencyRow) -> EfficiencyRow:
    """A row with the number of digits that profiles have."""
    return with_constants(
        row,
        {
            name: tuple(map(_rounded, value)) if isinstance(value, tuple) else _rounded(value)
            for name, value in constants_of(row).items()
        },
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT}g}") if value > NOTHING else 0.0


def _some(points: Summary, chosen: NDArray[np.bool_]) -> Summary:
    return points._replace(points=tuple(p for p, one in zip(points.points, chosen, strict=True) if one))
