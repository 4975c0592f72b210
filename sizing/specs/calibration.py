"""How the engines' constants of time are refitted: the file hardware_profiles/_calibration.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sizing.specs.base import Fraction, NonNegative, Positive, PositiveInt, Spec, Text


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
    """Rows that are left out of a fit: whose source or GPU contains a text, of one version or of all; and why."""

    source: Text | None = None
    gpu: Text | None = None
    engine_version: Text | None = None
    why: Text


class BandRules(Spec):
    """How error bands are found: rows and groups that a class needs; tails tried beyond each end; share to be covered."""

    least_rows: PositiveInt
    least_groups: PositiveInt
    tails: tuple[Annotated[float, Field(ge=0, lt=0.5, strict=True)], ...]
    covered: Fraction


class Calibration(Spec):
    """The whole file."""

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
    date: Text
