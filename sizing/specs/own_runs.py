"""What someone's own runs say of a GPU under one engine, in a profile that extends another."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from sizing.specs.values import Positive, PositiveInt, Spec, Text

Factor = Literal["compute", "bandwidth", "step_us", "sequence_us"]
FACTORS: tuple[Factor, ...] = get_args(Factor)
# Beyond these a run is not of this GPU, or was set up in another way than its row says.
Reached = Annotated[float, Field(ge=0.1, le=10, strict=True)]
Added = Annotated[float, Field(ge=-1e6, le=1e6, strict=True, description="microseconds")]


HIGH_END = 0.9  # the share of runs below the upper end of a range of 8 in 10


class FactorRange(Spec):
    """The range of 8 in 10 values of a fitted factor."""

    factor: Factor
    low: float
    high: float


class OwnBand(Spec):
    """Measured over predicted, the range of 8 in 10 of own runs; `n` of them were measured."""

    metric: Literal["ttft", "itl", "e2e", "throughput"]
    low: Positive
    high: Positive
    n: PositiveInt


class OwnRuns(Spec):
    """Four factors of step times under an engine, fitted to a handful of runs; what they leave alone is as the base profile has it.

    `compute` and `bandwidth` multiply what kernels reach; `step_us` and `sequence_us` are what each step takes more (less
    below zero) of itself and for each running sequence. `ranges` hold 8 in 10 values of each fitted factor; `bands` are the
    errors of the runs themselves, each left out.
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


class GpuExtension(Spec):
    """A profile that is another one, by name or path, with own runs."""

    extends: Text
    own_runs: OwnRuns
