"""A fleet: several workloads on the GPUs of one owner, and the rules of their planning."""

import re
from datetime import date
from typing import Annotated, Any, ClassVar, Literal

from sizing.specs.demand import StatedProfile
from sizing.specs.spec import After, Alone, Constraint, Schema, Spec
from sizing.specs.values import AnyCase, AsShare, Growth, MonthlyGrowth, ShareOfAll, Text, within

_MONTH = re.compile(r"([0-9]{4})-([0-9]{2})(?:-([0-9]{2}))?\Z")
_LONG = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(min|h|d|w|y)\Z")
_HOURS = {"min": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0, "y": 8760.0}
MOST_HOURS = 1e9
LAST_YEAR = 2200
MOST_LEAD_HOURS = 10 * 8760.0  # ten years
BY_MONTHS = "a number of months from the first day on is stated by months (--months 12)"
LEAST_AVAILABILITY = 0.5  # a node that is down most of the time is not worth planning with


def _day(value: Any) -> date:
    """Read `2027-12` (its first day) or `2027-12-31`."""
    if isinstance(value, date):
        return value
    found = _MONTH.match(value.strip()) if isinstance(value, str) else None
    try:
        if found is not None:
            return date(int(found[1]), int(found[2]), int(found[3] or 1))
    except ValueError:
        pass
    raise ValueError(f"{value!r} is no month or day, as 2027-12 or 2027-12-31")


def _end(value: Any) -> date:
    try:
        return _day(value)
    except ValueError as error:
        raise ValueError(f"{error}; {BY_MONTHS}") from None


def _long_hours(value: Any) -> float:
    """Read a long duration into hours: `8h`, `30d`, `5y`."""
    found = _LONG.match(value) if isinstance(value, str) else None
    hours = float(found[1]) * _HOURS[found[2]] if found is not None else 0.0
    if not 0 < hours <= MOST_HOURS:
        raise ValueError(f"{value!r} is no duration with a unit, as 8h, 30d or 5y")
    return hours


def _plannable(value: date) -> date:
    if value.year > LAST_YEAR:
        raise ValueError(f"{value} is no day of a plan; it begins in {LAST_YEAR} at the latest")
    return value


Day = Annotated[date, Alone(_day)]
LongHours = Annotated[float, Alone(_long_hours)]
Target = Annotated[float, Constraint(ge=LEAST_AVAILABILITY, lt=1), AsShare]
Available = Annotated[float, within(LEAST_AVAILABILITY, 1), AsShare]


class PlanRules(Spec):
    """Reserves on top of the peak size, growth of the demand, and use of a cloud. Every field may be absent.

    `failures` says what fails together: a single replica, or all replicas of a node. `from` is the day of the plan; `until`, or
    `months` later, the growth ends.
    """

    ALIASES: ClassVar = {"start": "from"}

    spare: Annotated[int, within(0, 10_000)] | None = None
    headroom: Growth | None = None
    availability: Target | None = None
    node_availability: Available | None = None
    mtbf: LongHours | None = None
    mttr: LongHours | None = None
    failures: Annotated[Literal["replica", "node"], AnyCase] | None = None
    maintenance: bool | None = None
    growth: MonthlyGrowth | None = None
    start: Annotated[Day, After(_plannable)] | None = None
    until: Annotated[date, Alone(_end)] | None = None
    months: Annotated[int, within(1, 10_000)] | None = None
    lead_time: Annotated[LongHours, Constraint(le=MOST_LEAD_HOURS)] | None = None
    min_replicas: Annotated[int, within(1, 10_000)] | None = None
    spot: ShareOfAll | None = None
    cloud: Text | None = None


def _workload(value: Any) -> Any:
    if (isinstance(value, str) and value.strip()) or isinstance(value, dict):
        return value
    raise ValueError("a workload is a name, the path of its file, or its keys themselves")


class Member(Spec):
    """One workload of a fleet, given by name, by path or in full, with its GPU type and its pool.

    `profile` replaces the workload's own peak.
    """

    name: Text | None = None
    workload: Annotated[Any, Alone(_workload), Schema({"type": ["string", "object"]})]
    gpu: Text | None = None
    profile: StatedProfile | None = None
    pool: Annotated[Literal["shared", "separate"], AnyCase] = "separate"


class Fleet(Spec):
    """One fleet, a file of workloads/fleets or a user's own."""

    name: Text | None = None
    description: Text | None = None
    fleet: Annotated[tuple[Member, ...], Constraint(min_length=1, max_length=100, words="a list of 1 to 100 workloads")]
    planning: PlanRules = PlanRules()
    source: Text | None = None

    def validate(self) -> None:
        """Refuse two workloads of one name."""
        names = [member.name for member in self.fleet if member.name is not None]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"two workloads are called {', '.join(sorted(twice))}; each needs a name of its own")
