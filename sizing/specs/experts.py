"""Measured kernels of fused experts: a line of hardware_profiles/kernels/<architecture>.csv, and data common to all lines."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from sizing.specs.values import Fraction, Sourced


@dataclass(frozen=True, slots=True)
class ExpertKernel:
    """Constants of one fused expert kernel on one GPU: us, us per value, us per pair and value, shares of peaks, rows.

    `ranks` is `one`, `several` or `any`, or names the all-to-all before the kernel. `routes`: the kernel finds each token's
    experts itself. `rule` names how rows are cut into tiles. `grid` corrects the logarithm of the time, in thousandths.
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
        """Whether the kernel was measured with this kind of experts and on this number of ranks."""
        return self.gated == gated and self.ranks in ("any", "one" if ranks == 1 else "several")

    def follows(self, dispatch: str | None) -> bool:
        """Whether the kernel was measured behind the all-to-all `dispatch`."""
        return self.ranks == dispatch


Knots = Annotated[tuple[float, ...], Field(min_length=2)]


class ExpertKnots(Sourced):
    """Axes of the corrections, as logarithms to base 2.

    `popularity` is the load of the most popular expert over the least popular. `sustained` is the rate of long products in
    service over their rate in the tables.
    """

    tokens: Knots
    megabytes: Knots
    unevenness: Knots
    fan_out: Knots
    pairs: Knots
    popularity: Annotated[float, Field(ge=1)]
    sustained: Fraction
