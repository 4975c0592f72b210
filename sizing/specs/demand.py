"""The demand of a workload: exactly one kind of demand, its profile over a day or a week, and how a cloud follows it.

A profile has 24 weights (hours of a day) or 168 weights (hours of a week).
"""

import math
from functools import cache
from typing import Annotated, Any

from sizing.specs.spec import After, Alone, Constraint, Schema, Spec
from sizing.specs.units import HOURS_PER_DAY, SECONDS_PER_HOUR, parse_duration_s
from sizing.specs.values import (
    AsNumber,
    Flag,
    Kind,
    NonNegative,
    OneFile,
    Positive,
    PositiveInt,
    Sourced,
    Text,
    above,
    within,
)

ROUNDING_SLACK = 1e-9  # 12/3 is 4 replicas, whatever floating point says


def requests_per_s(
    daily_active_users: float, requests_per_user_per_day: float, active_hours: float, peak_to_mean: float
) -> float:
    """Peak requests/s of a user base: users * requests / active seconds * peak over mean."""
    mean = daily_active_users * requests_per_user_per_day / (SECONDS_PER_HOUR * active_hours)
    return mean * peak_to_mean


def daily_active_users(
    requests_per_s: float, requests_per_user_per_day: float, active_hours: float, peak_to_mean: float
) -> float:
    """Users whose peak rate is `requests_per_s`. The inverse of the function `requests_per_s`."""
    return requests_per_s * SECONDS_PER_HOUR * active_hours / (requests_per_user_per_day * peak_to_mean)


def replicas_for(demand: float, per_replica: float) -> int:
    """Whole replicas that meet a demand; raises ValueError where a replica serves nothing."""
    if per_replica <= 0:
        raise ValueError("a replica that serves nothing can't meet a demand")
    return max(1, math.ceil(demand / per_replica - ROUNDING_SLACK))


def hours_per_year() -> float:
    """Hours of a year of 365 days, the course's 31,536,000 s."""
    return 365 * HOURS_PER_DAY


HOURS_OF_DAY, HOURS_OF_WEEK = 24, 168
MOST_WEIGHT = 1e9


def check_weights(values: Any) -> tuple[float, ...]:
    """The weights of 24 or 168 hours as floats. Raises ValueError for another count, a bad weight, or only zeros."""
    if len(values) not in (HOURS_OF_DAY, HOURS_OF_WEEK):
        raise ValueError(
            f"a profile has {HOURS_OF_DAY} weights (hours of a day) or {HOURS_OF_WEEK} (of a week from Monday), not {len(values)}"
        )
    for hour, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST_WEIGHT:
            raise ValueError(
                f"the weight of hour {hour}, {value!r}, is no number of at least 0 and at most {MOST_WEIGHT:,.0f}"
            )
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
_WEIGHT = {"type": "number", "minimum": 0}
_WEIGHTS = {"type": "array", "items": _WEIGHT, "minItems": HOURS_OF_DAY, "maxItems": HOURS_OF_WEEK}
_NAME_OR_WEIGHTS = Schema({"anyOf": [{"type": "string"}, _WEIGHTS]})
StatedProfile = Annotated[str | tuple[float, ...], Alone(_profile), _NAME_OR_WEIGHTS]


class Profile(Spec):
    """One file of workloads/profiles: relative load by hour, from midnight or from Monday midnight, local time."""

    name: Text
    description: Text
    weights: Annotated[tuple[NonNegative, ...], Alone(lambda value: check_weights(_listed(value)))]
    kind: Kind
    source: Text
    date: Text


def _listed(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"must be a list of {HOURS_OF_DAY} or {HOURS_OF_WEEK} weights")
    return value


Discount = Annotated[float, Constraint(ge=0, lt=1)]


class Scaling(OneFile, Sourced):
    """Rates and times that give the start-up time of a replica, the fewest replicas, and contract discounts. All are assumed."""

    FILE = "workloads/_scaling.yaml"

    network_gb_per_s: Positive
    disk_gb_per_s: Positive
    engine_start_s: NonNegative
    node_start_s: NonNegative
    min_replicas: PositiveInt
    reserved_discount: Discount
    spot_discount: Discount


# One request in twelve days. At lower rates the simulated clock grows so large that step times fall below float precision.
LEAST_REQUESTS_PER_S = 1e-6
LEAST_REQUESTS_EACH = 1e-3  # requests per user and day, session, call or document; anything less is a mistake

Rate = Annotated[float, within(LEAST_REQUESTS_PER_S, 1e9), AsNumber]
People = Annotated[float, above(0, 1e11), AsNumber]
Yearly = Annotated[float, above(0, 1e15), AsNumber]
RequestsEach = Annotated[float, within(LEAST_REQUESTS_EACH, 1e9)]


def _is_duration(text: str) -> str:
    parse_duration_s(text)
    return text


Duration = Annotated[Text, After(_is_duration), Constraint(words="a duration with its unit (10min)")]


class Sessions(Spec):
    """Users active at the same time at the peak. Each sends `requests_per_session` requests in `session_length`."""

    concurrent_users: People
    requests_per_session: RequestsEach
    session_length: Duration

    @property
    def requests_per_s(self) -> float:
        """Requests/s of all users: users * requests / seconds of a session."""
        return self.concurrent_users * self.requests_per_session / self.session_s

    @property
    def session_s(self) -> float:
        """Length of a session in seconds."""
        return parse_duration_s(self.session_length)


class CallsPerYear(Spec):
    """Calls per year. Requests per call are stated, or follow from minutes per call and requests per minute."""

    calls: Yearly
    requests_per_call: RequestsEach | None = None
    minutes: Annotated[float, above(0, 1e6)] | None = None
    requests_per_minute: Annotated[float, above(0, 1e6)] | None = None

    def validate(self) -> None:
        """Refuse requests that are counted twice, or not at all."""
        by_time = (self.minutes, self.requests_per_minute)
        if (self.requests_per_call is None) == (by_time == (None, None)) or by_time.count(None) == 1:
            raise ValueError("state requests_per_call, or minutes and requests_per_minute")

    @property
    def requests_each(self) -> float:
        """Requests of one call."""
        if self.requests_per_call is not None:
            return self.requests_per_call
        assert self.minutes is not None and self.requests_per_minute is not None  # validated
        return self.minutes * self.requests_per_minute


class DocumentsPerYear(Spec):
    """Documents per year, each with `requests_per_document` requests."""

    documents: Yearly
    requests_per_document: RequestsEach = 1.0


class Demand(Spec):
    """Exactly one kind of demand.

    Rates, `concurrency` and `concurrent_users` are peak values; active users are counted per day, calls and documents per year.
    A trace is a file of arrivals; its mean and its busiest minute are used. `concurrency` is the mean number of requests in
    flight under random arrivals; in a `closed_loop` it is the exact number, as benchmark clients hold it. A concurrent user
    sends the next request `think_time` after an answer. `documents` are requests of offline work, all answered `within` a time.
    """

    requests_per_s: Rate | None = None
    concurrency: Annotated[int, above(0, 10**9)] | None = None
    daily_active_users: People | None = None
    sessions: Sessions | None = None
    calls_per_year: CallsPerYear | None = None
    documents_per_year: DocumentsPerYear | None = None
    mean_requests_per_s: Rate | None = None
    trace: Text | None = None
    concurrent_users: People | None = None
    documents: Annotated[float, within(1, 1e15), AsNumber] | None = None
    closed_loop: Flag | None = None
    think_time: Duration | None = None
    within: Duration | None = None

    def validate(self) -> None:
        """Refuse no demand, several, and details of another one."""
        given = [name for name in self.kinds() if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"states {len(given)} demands, {' and '.join(given)}; state exactly one")
        if not given:
            raise ValueError(f"states no demand; state exactly one of {', '.join(self.kinds())}")
        if self.closed_loop and self.concurrency is None:
            raise ValueError("closed_loop is of requests in flight: concurrency states how many")
        if self.think_time is not None and self.concurrent_users is None:
            raise ValueError("think_time is of concurrent_users, who ask again after it")
        if (self.within is None) != (self.documents is None):
            raise ValueError("documents and within state a demand together: 2,000,000 documents within 6h")

    @classmethod
    @cache
    def kinds(cls) -> tuple[str, ...]:
        """The names of all kinds of demand."""
        return tuple(name for name in cls.model_fields if name not in ("closed_loop", "think_time", "within"))

    @property
    def kind(self) -> str:
        """The name of the kind that is stated."""
        return next(name for name in self.kinds() if getattr(self, name) is not None)

    @property
    def think_time_s(self) -> float | None:
        """The stated think time in seconds."""
        return None if self.think_time is None else parse_duration_s(self.think_time)

    @property
    def within_s(self) -> float | None:
        """The seconds within which all documents are done."""
        return None if self.within is None else parse_duration_s(self.within)
