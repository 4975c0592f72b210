"""Results of the user's own runs on a GPU with one engine, in a profile that extends another."""

from typing import Annotated, Literal, get_args

from sizing.specs.units import parse_version
from sizing.specs.values import Positive, PositiveInt, Spec, Text, within

Factor = Literal["compute", "bandwidth", "step_us", "sequence_us"]
FACTORS: tuple[Factor, ...] = get_args(Factor)
# Outside these bounds a run was made on another GPU, or its row does not describe its setup.
MOST_REACHED = 10.0
Reached = Annotated[float, within(1 / MOST_REACHED, MOST_REACHED)]
Added = Annotated[float, within(-1e6, 1e6, "microseconds")]


HIGH_END = 0.9  # the quantile at the upper end of an 8-in-10 range


class FactorRange(Spec):
    """The 8-in-10 range of a fitted factor."""

    factor: Factor
    low: float
    high: float


class OwnBand(Spec):
    """The 8-in-10 range of measured/predicted over own runs. `n` runs measured the metric."""

    metric: Literal["ttft", "itl", "e2e", "throughput"]
    low: Positive
    high: Positive
    n: PositiveInt


class OwnRuns(Spec):
    """Four factors on step times of an engine, fitted to a few runs. Everything else stays as in the base profile.

    `compute` and `bandwidth` multiply the rates that kernels reach. `step_us` and `sequence_us` are added to each step and for
    each running sequence (negative: less time). `ranges` are the 8-in-10 ranges of the factors. `bands` are the errors of each
    run when predicted from the other runs.
    """

    engine: Text
    engine_version: Text
    compute: Reached = 1.0
    bandwidth: Reached = 1.0
    step_us: Added = 0.0
    sequence_us: Added = 0.0
    ranges: tuple[FactorRange, ...] = ()
    bands: tuple[OwnBand, ...] = ()
    points: PositiveInt
    settings: Text
    source: Text
    date: Text

    def other_version(self, title: str, version: str) -> str | None:
        """What is assumed for another version of the engine than the runs were of; None for the same version."""
        if parse_version(version) == parse_version(self.engine_version):
            return None
        return f"{title} {self.engine_version} hold for {version}"


class GpuExtension(Spec):
    """A profile that extends another one, given by name or path, by own runs."""

    extends: Text
    own_runs: OwnRuns
