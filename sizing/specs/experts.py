"""Measured kernels of fused experts: a line of hardware_profiles/kernels/<architecture>.csv, and what the lines share."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from sizing.specs.values import Fraction, Sourced


@dataclass(frozen=True, slots=True)
class ExpertKernel:
    """Constants of one fused kernel of experts on one GPU: us, us a value, us a pair and value, shares of peaks, rows.

    `ranks` is `one`, `several` or `any`, or names the all-to-all before it; one that `routes` finds each token's experts itself; `rule` names how rows are cut into tiles; `grid` corrects the logarithm of the time, in
    thousandths.
    """

    gpu: str
    engine: str
    version: str
    precision: str
    kernel: str
    gated: bool
    ranks: str
    routes: bool
    rule: str
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
    points: int
    median_error: float
    p90_error: float
    grid: tuple[float, ...]
    source: str
    date: str
    operation: str = "experts"

    def runs(self, gated: bool, ranks: int) -> bool:
        """Whether it is measured on experts of this kind and on so many ranks."""
        return self.gated == gated and self.ranks in ("any", "one" if ranks == 1 else "several")

    def follows(self, dispatch: str | None) -> bool:
        """Whether it is measured on tokens as an all-to-all of this kind hands them over."""
        return self.ranks == dispatch


Knots = Annotated[tuple[float, ...], Field(min_length=2)]


class ExpertKnots(Sourced):
    """Axes of the corrections, logarithms to base 2; `popularity` is the most liked expert over the least,
    and `sustained` the rate of long products in service over that of the tables."""

    tokens: Knots
    megabytes: Knots
    unevenness: Knots
    fan_out: Knots
    pairs: Knots
    popularity: Annotated[float, Field(ge=1)]
    sustained: Fraction
