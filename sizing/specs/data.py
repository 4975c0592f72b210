"""The data files that every evaluation reads, and the rules by which answers are varied and verified."""

from typing import Literal

from sizing.specs.spec import Spec
from sizing.specs.values import Fraction, OneFile, Positive, PositiveInt, Sourced, Text
from sizing.specs.workload import Limits


class PrecisionFormat(Spec):
    """How a weight or cache format is stored and computed.

    `bits` is the mean storage of one value with its scales. `compute` names the dense peaks that can multiply it, best first. If
    the hardware has none of them, or its vendor is not in `vendors` (empty: any), the format is weight-only and multiplies at 16
    bit.
    """

    bits: Positive
    compute: tuple[Literal["fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4"], ...]
    vendors: tuple[Text, ...] = ()
    source: Text


class Formats(OneFile):
    """The file hardware_profiles/_formats.yaml."""

    FILE = "hardware_profiles/_formats.yaml"

    formats: dict[str, PrecisionFormat]
    date: Text


class Longer(Spec):
    """By latency: the factor on a mean with which a limit also holds in a longer run."""

    itl: Positive
    e2e: Positive


class Advice(OneFile, Sourced):
    """The whole file: factors on limits, shares of GPUs and of rates, and bounds on what is tried."""

    FILE = "hardware_profiles/_advice.yaml"

    most_relaxed: Positive
    threshold_step: Positive
    sure: Longer
    legible_share: Fraction
    usual_limits: Limits
    stable_utilisation: Fraction
    times_alone: tuple[Positive, ...]
    spare: Positive
    still_looser: Fraction
    tries: PositiveInt
    separate_pools: Fraction
    least_gain: Fraction
    varied: Fraction
    far_off: Positive
    nearly_idle: Positive
    most_gpus: Positive
    replica_gpus: tuple[PositiveInt, ...]
    measure_first: Positive

    def fills_nodes(self, gpus: int) -> bool:
        """Whether replicas of `gpus` GPUs leave no GPU of a node unused."""
        return gpus in self.replica_gpus or gpus % self.replica_gpus[-1] == 0


class Close(Spec):
    """For each statistic of a limit: a short run within this share of the limit does not decide."""

    mean: Fraction
    p50: Fraction
    p90: Fraction
    p95: Fraction
    p99: Fraction


class Verification(OneFile, Sourced):
    """The whole file: run lengths in requests or E2E times, standard errors that decide, and bounds on what is tried."""

    FILE = "hardware_profiles/_verification.yaml"

    missed: Fraction
    requests: PositiveInt
    close: Close
    known: Fraction
    longer: PositiveInt
    longest: PositiveInt
    batches: PositiveInt
    sure_to_hold: Positive
    sure_to_miss: Positive
    sure_enough: Positive
    warm_up: Positive
    measured: Positive
    cool_down: Positive
    fewest_requests: PositiveInt
    population_rounds: PositiveInt
    population_within: Fraction
    most_chunks: PositiveInt
    most_replicas: PositiveInt
    rounds_of_pools: PositiveInt
    most_tries: PositiveInt
    tries_of_a_layout: PositiveInt
    less_load: Fraction
    coarse: Fraction
    least_most: Fraction
    most_within: Fraction
