"""Measured kernels: a line of hardware_profiles/kernels/<gpu>.csv, and data common to all lines."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from sizing.specs.frozen import Frozen
from sizing.specs.spec import Constraint, Spec
from sizing.specs.values import NO_ENTRIES, Fraction, NonNegative, OneFile, PositiveInt, Sourced, Text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PER_THOUSAND = 1e-3


class MeasuredKernel(Frozen, kw_only=True):
    """One kernel on one GPU, fitted to its measured times.

    `precision` is that of the product, or of the cache in decode. `grid` has the corrections as they stand in the file, in
    thousandths: most kernels are never used. `points` are the measured ones. The errors are shares, on whole shapes that the fit did not see.
    """

    operation: str
    gpu: str
    engine: str
    version: str
    precision: str
    kernel: str
    points: int
    median_error: float
    p90_error: float
    grid: str
    source: str
    date: str

    @cached_property
    def corrections(self) -> "NDArray[np.float64]":
        """What the formula's time is corrected by, as logarithms; empty without corrections."""
        import numpy as np  # a list of GPUs reads these kernels' types without it

        return PER_THOUSAND * np.array(self.grid.split(), dtype=float)


class Surface(MeasuredKernel, kw_only=True):
    """A kernel of products or attention, with the constants of its operation's formula.

    `cache` is the cache's precision if it differs from the kernel's. `variant` names the shapes or the tiling that the formula is
    for. `head_sizes` are the measured ones.
    """

    cache: str
    variant: str
    head_sizes: tuple[int, ...]
    constants: Mapping[str, float]


class ExpertKernel(MeasuredKernel, kw_only=True):
    """A kernel of fused experts, with its constants: us, us per value, us per pair and value, shares of peaks, rows.

    `ranks` is `one`, `several` or `any`, or names the all-to-all before the kernel. `routes`: the kernel finds each token's
    experts itself. `rule` names how rows are cut into tiles. `shapes` are the inputs x width of whole experts for which alone
    the engine runs the kernel; empty for a kernel of any shape.
    """

    gated: bool
    ranks: str
    routes: bool
    rule: str
    shapes: tuple[str, ...]
    t0_us: float
    t1_us: float
    local_us: float
    loop_us_per_value: float
    pair_us_per_input: float
    pair_us_per_width: float
    token_us_per_input: float
    copy_us_per_input: float
    copy_us_per_width: float
    compute: float
    memory: float
    tile_rows: float
    p: float
    tile_depth: float

    def runs(self, gated: bool, ranks: int) -> bool:
        """Whether the kernel was measured with this kind of experts and on this number of ranks."""
        return self.gated == gated and self.ranks in ("any", "one" if ranks == 1 else "several")


Knots = Annotated[tuple[float, ...], Constraint(min_length=2)]


class ExpertKnots(Sourced):
    """Axes of the corrections, as logarithms to base 2.

    `popularity` is the load of the most popular expert over the least popular.
    """

    tokens: Knots
    megabytes: Knots
    unevenness: Knots
    fan_out: Knots
    pairs: Knots
    popularity: Annotated[float, Constraint(ge=1)]

    @property
    def spread(self) -> float:
        """The variance of the experts' loads over their mean squared, with loads spread evenly in their logarithm."""
        most = self.popularity
        return (most + 1) * math.log(most) / (2 * (most - 1)) - 1 if most > 1 else 0.0


class Chips(Spec):
    """The GPUs of an architecture: the usual number of multiprocessors, and exceptions by GPU name in `of`.

    `reference` is the GPU whose kernels stand in for GPUs without their own; `reference_w` and `reference_tflops` are its power
    and 16-bit peak. `files` hold the kernels. `sustained` is the rate of long products in service over their rate in the tables,
    `sustained_experts` that of long products of experts.
    `drawn_gb_per_s` is the bandwidth that products reach on GPUs with too few multiprocessors for their memory, by GPU. Decode
    attention reads a cache at `most_read` of the bandwidth at most.
    """

    files: tuple[Text, ...]
    reference: Text
    reference_w: Annotated[float, Constraint(gt=0)]
    reference_tflops: Annotated[float, Constraint(gt=0)]
    multiprocessors: PositiveInt
    sustained: Fraction
    sustained_experts: Fraction
    most_read: Fraction = 1.0
    of: dict[Text, PositiveInt] = NO_ENTRIES
    drawn_gb_per_s: dict[Text, Annotated[float, Constraint(gt=0)]] = NO_ENTRIES

    def weight_of_the_rest(self, gpu: str, tflops: float) -> float:
        """The weight of all work outside the tensor cores in a kernel's time, relative to the reference GPU.

        This work takes as long on each multiprocessor of either GPU, but the tensor cores differ in speed. 1 if `of` lacks `gpu`.
        """
        own = self.of.get(gpu)
        return 1.0 if own is None else tflops / own / (self.reference_tflops / self.multiprocessors)


def carried(share: float, weight: float) -> float:
    """The share of a peak that a kernel reaches if its work outside the tensor cores weighs `weight` times as much."""
    return share if share >= 1 else 1 / (1 + weight * (1 / share - 1))


class Power(Sourced):
    """Clock under power limits: long products slow down by (watts per FLOP of the GPU / of the reference)^`exponent`."""

    exponent: NonNegative


class ProductKnots(Spec):
    """Axes of the corrections of products: rows, and widths (outputs and inputs). Beyond the largest values corrections fade."""

    rows: Knots
    widths: Knots
    most_rows: PositiveInt
    most_width: PositiveInt


class AttentionKnots(Spec):
    """Axes of the corrections of attention: heads x sequences, tokens, queries per key, and coarser axes of tokens and heads."""

    heads: Knots
    tokens: Knots
    group: Knots
    few_tokens: Knots
    few_heads: Knots


class Forms(Sourced):
    """Data common to the formulas of dense kernels. Decode attention is linear between `contexts`, in tokens."""

    products: ProductKnots
    decode: AttentionKnots
    prefill: AttentionKnots
    pair_heads: Knots
    contexts: Annotated[tuple[float, ...], Constraint(min_length=1)]
    fading_octaves: Annotated[float, Constraint(gt=0)]


class MeasuredKernels(OneFile):
    """The file hardware_profiles/_kernels.yaml."""

    FILE = "hardware_profiles/_kernels.yaml"

    experts: ExpertKnots
    forms: Forms
    power: Power
    chips: dict[Text, Chips]
