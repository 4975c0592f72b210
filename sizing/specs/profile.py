"""How a load is spread over a day or a week: 24 or 168 weights, an hour each."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator

from sizing.specs.base import Kind, NonNegative, Spec, Text

HOURS_OF_DAY, HOURS_OF_WEEK = 24, 168
MOST_WEIGHT = 1e9


def check_weights(values: Any) -> tuple[float, ...]:
    """Return weights of 24 or 168 hours as numbers. Raises ValueError where they are others, negative, or all zero."""
    if len(values) not in (HOURS_OF_DAY, HOURS_OF_WEEK):
        raise ValueError(f"a profile has {HOURS_OF_DAY} weights (hours of a day) or {HOURS_OF_WEEK} (of a week from Monday), not {len(values)}")  # fmt: skip
    for hour, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST_WEIGHT:
            raise ValueError(f"the weight of hour {hour}, {value!r}, is no number of at least 0 and at most {MOST_WEIGHT:,.0f}")  # fmt: skip
    weights = tuple(float(value) for value in values)
    if not sum(weights):
        raise ValueError("all weights are 0: nothing happens at any hour")
    return weights


def _profile(value: Any) -> str | tuple[float, ...]:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, (list, tuple)):
        return check_weights(value)
    raise ValueError(f"a profile is a name (office, consumer, ...), the path of its file, or {HOURS_OF_DAY} or {HOURS_OF_WEEK} weights")  # fmt: skip


# What a workload states: a name, a path, or weights.
StatedProfile = Annotated[str | tuple[float, ...], PlainValidator(_profile)]


class Profile(Spec):
    """One file of workloads/profiles: relative load by hour, from midnight or from Monday midnight, local time."""

    name: Text
    description: Text
    weights: Annotated[tuple[NonNegative, ...], PlainValidator(lambda value: check_weights(_listed(value)))]
    kind: Kind
    source: Text
    date: Text


def _listed(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"must be a list of {HOURS_OF_DAY} or {HOURS_OF_WEEK} weights")
    return value
