"""How answers are checked by simulation: the file hardware_profiles/_verification.yaml, which gives a reason for each number."""

from __future__ import annotations

from sizing.specs.values import Fraction, OneFile, Positive, PositiveInt, Sourced, Spec


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
    most_tries: PositiveInt
    tries_of_a_layout: PositiveInt
    less_load: Fraction
    coarse: Fraction
    least_most: Fraction
    most_within: Fraction
