"""What is tried beside a question: the file hardware_profiles/_advice.yaml, which gives a reason for each number."""

from __future__ import annotations

from sizing.specs.values import Fraction, OneFile, Positive, PositiveInt, Sourced, Spec


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
    stable_utilisation: Fraction
    times_alone: tuple[Positive, ...]
    spare: Positive
    still_looser: Fraction
    tries: PositiveInt
    separate_pools: Fraction
    least_gain: Fraction
    varied: Fraction
    far_off: Positive
    most_gpus: Positive
    replica_gpus: tuple[PositiveInt, ...]
    measure_first: Positive

    def fills_nodes(self, gpus: int) -> bool:
        """Whether replicas of `gpus` GPUs leave no GPU of a node unused."""
        return gpus in self.replica_gpus or gpus % self.replica_gpus[-1] == 0
