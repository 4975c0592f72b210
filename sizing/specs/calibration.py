"""The rules by which constants of engines and kernels are refitted: the file hardware_profiles/_calibration.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sizing.specs.bands import BandMetric
from sizing.specs.own_runs import Factor
from sizing.specs.values import Fraction, NonNegative, OneFile, Positive, PositiveInt, Spec, Text


class Fitted(Spec):
    """A field of an engine setting that may change, between bounds; `prior` and `scale` say what is likely without data.

    Of one engine and of rows that begin `since` or end by `until` a version, where stated.
    """

    setting: Literal["host", "front_end"]
    field: Text
    engine: Text | None = None
    since: Text | None = None
    until: Text | None = None
    least: NonNegative
    most: Positive
    step: Positive
    prior: NonNegative
    scale: Positive


class NotFitted(Spec):
    """Rows that are left out of a fit: whose source, GPU or notes contain a text, of one version or of all; and why."""

    source: Text | None = None
    gpu: Text | None = None
    engine_version: Text | None = None
    notes: Text | None = None
    why: Text


class BandRules(Spec):
    """How error bands are found: rows of a run by mode, rows and groups that a class needs; tails tried; share to be covered."""

    rows_per_run: dict[Text, PositiveInt]
    least_rows: PositiveInt
    least_groups: PositiveInt
    tails: tuple[Annotated[float, Field(ge=0, lt=0.5, strict=True)], ...]
    covered: Fraction


class CorrectionRules(Spec):
    """How corrections of step times are found: groups that a class needs; equal groups without error that draw its factors to
    one; share of the error of groups left out by which a correction must lessen it; share by which it may raise that of a metric.
    """

    least_groups: PositiveInt
    shrink_groups: NonNegative
    least_gain: NonNegative
    most_loss: NonNegative


class KeptCollectives(Spec):
    """Rows of collectives of so many GPUs that no refit touches, and why. What is not stated may be anything."""

    operation: Text | None = None
    engine: Text | None = None
    gpus: tuple[PositiveInt, ...]
    profiles: tuple[Text, ...] | None = None
    why: Text


class CollectiveRules(Spec):
    """How collectives of GPU profiles are refitted from tables of measured messages, of up to `most_message_mib`.

    `gpus`, `engines`, `operations` and `backends` say what the tables' names are called here; what has no name is not read. Times
    lie between `least_us` and `most_us`.
    """

    source: Text
    gpus: dict[Text, Text]
    engines: dict[Text, Text]
    operations: dict[Text, Text]
    backends: dict[Text, Text]
    most_message_mib: Positive
    least_us: Positive
    most_us: Positive
    least_points: PositiveInt
    kept: tuple[KeptCollectives, ...]


class OwnRunRules(Spec):
    """How factors are fitted to own runs.

    `spread` is how far from the base profile a factor is expected (compute and bandwidth as logarithms, times in us), `most`
    the spreads that it may go, `far` those beyond which a run is rather of another machine; `error` that of one measurement, beyond `bend` of which it counts linearly, `elsewhere` what other
    lengths, loads and layouts add to the bands. A factor counts as known where runs leave `most_left` of its spread at most.
    The simulator confirms so many `rounds` at most. Runs of one setting that are over `most_apart` errors apart contradict
    each other.
    """

    spread: dict[Factor, Positive]
    most: Positive
    far: Positive
    error: dict[BandMetric, Positive]
    elsewhere: dict[BandMetric, Positive]
    bend: Positive
    most_left: Fraction
    rounds: PositiveInt
    most_apart: Positive


class Calibration(OneFile):
    """The whole file."""

    FILE = "hardware_profiles/_calibration.yaml"

    fields: tuple[Fitted, ...]
    not_fitted: tuple[NotFitted, ...]
    rows_per_group: PositiveInt
    least_points: PositiveInt
    folds: Annotated[int, Field(ge=2, strict=True)]
    loss_scale: Positive
    prior_weight: NonNegative
    rounds: PositiveInt
    least_gain: NonNegative
    bands: BandRules
    corrections: CorrectionRules
    collectives: CollectiveRules
    own_runs: OwnRunRules
    date: Text
