"""The rules of a plan (reserves, growth, cloud use), their defaults, and contradictions between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import date, timedelta
from typing import Any

from sizing.catalog import shelf
from sizing.catalog.files import checked
from sizing.formats.words import number
from sizing.planning import growth
from sizing.specs.demand import Scaling
from sizing.specs.errors import Fault, InputError, raise_any
from sizing.specs.fleet import PlanRules
from sizing.specs.frozen import Frozen
from sizing.specs.units import MONTHS_PER_YEAR


class ProvisionRules(Frozen):
    """Reserves, growth and cloud use of a plan; none by default.

    `unit_availability` is the availability of a node, derived from `mtbf_hours` and `mttr_hours` where stated. `provider` is
    the cloud whose prices and instances are used. The demand grows from the day `start`. `plan_rules` makes checked rules.
    """

    spare: int = 0
    availability: float | None = None
    unit_availability: float | None = None
    mtbf_hours: float | None = None
    mttr_hours: float | None = None
    by_node: bool = False
    maintenance: bool = False
    growth_per_month: float | None = None
    start: date = field(default_factory=date.today)
    until: date | None = None
    lead_time: timedelta | None = None
    min_replicas: int = 1
    spot_share: float = 0.0
    provider: str | None = None


def plan_rules(**options: Any) -> ProvisionRules:
    """The rules of a plan, from the options of `llmsize plan` by name. Raises InputError with all faults.

    >>> plan_rules(spare=1, growth="5%", start="2026-12", until="2027-12").growth_per_month
    0.05
    """
    stated = stated_rules(options, {})
    faults = [fault for _, fault in contradictions(stated)]
    raise_any(faults)
    return rules_of(stated, shelf.only(Scaling))


def stated_rules(given: Mapping[str, Any], flags: Mapping[str, str]) -> PlanRules:
    """Validate rules given by name. Raises InputError with all faults; each names the rule's flag, else the rule."""
    unknown = sorted(set(given) - set(PlanRules.model_fields))
    if unknown:
        allowed = ", ".join(PlanRules.model_fields)
        raise InputError(Fault("is no rule of a plan", field=name, allowed=allowed) for name in unknown)
    data = {key_of(name): value for name, value in given.items()}
    names = {key_of(name): flags.get(name, name) for name in given}

    return checked(PlanRules, data, lambda path: names[str(path[0])] if path else ", ".join(names.values()))


def key_of(name: str) -> str:
    """The key of a rule in a fleet's file."""
    return PlanRules.model_fields[name].alias or name


def rules_of(rules: PlanRules, scaling: Scaling) -> ProvisionRules:
    """The rules of a plan: the `rules` ones, and defaults for the rest."""
    return ProvisionRules(
        spare=rules.spare or 0,
        availability=rules.availability,
        unit_availability=_node_availability(rules),
        mtbf_hours=rules.mtbf,
        mttr_hours=rules.mttr,
        by_node=rules.failures == "node",
        maintenance=bool(rules.maintenance),
        growth_per_month=rules.growth,
        start=rules.start or date.today(),
        until=_until(rules),
        lead_time=None if rules.lead_time is None else timedelta(hours=rules.lead_time),
        min_replicas=rules.min_replicas or scaling.min_replicas,
        spot_share=rules.spot or 0.0,
        provider=rules.cloud,
    )


def _until(rules: PlanRules) -> date | None:
    """The day on which the growth ends: as stated, or the stated months after the first."""
    if rules.until is not None or rules.months is None:
        return rules.until
    return growth.months_later(rules.start or date.today(), rules.months)


def _node_availability(rules: PlanRules) -> float | None:
    """The availability of a node: from MTBF and MTTR, else as stated; None without either."""
    if rules.mtbf is not None and rules.mttr is not None:
        return of_times(rules.mtbf, rules.mttr)
    return rules.node_availability


def of_times(mtbf_hours: float, mttr_hours: float) -> float:
    """The availability of a unit that runs `mtbf_hours` between failures and takes `mttr_hours` to repair."""
    return mtbf_hours / (mtbf_hours + mttr_hours)


def contradictions(rules: PlanRules) -> Iterator[tuple[str, Fault]]:
    """Yield the name of a rule and its fault for each contradiction."""
    times = (rules.mtbf, rules.mttr)
    if times.count(None) == 1:
        name = "mtbf" if rules.mtbf is not None else "mttr"
        yield name, Fault("one of the two is missing", None, None, "--mtbf, --mttr", "both, or --node-availability")
    if rules.node_availability is not None and times != (None, None):
        message = "says what --mtbf and --mttr say"
        yield "node_availability", Fault(message, field="--node-availability", remedy="state one of them")
    if rules.availability is not None and _node_availability(rules) is None and times.count(None) != 1:
        remedy = "use it with --node-availability, or --mtbf and --mttr"
        yield "availability", Fault("nothing says how often a node is up", field="--availability", remedy=remedy)
    if rules.failures is not None and rules.availability is None:
        remedy = "use it with --availability 99.9%, and --node-availability 99% or --mtbf 1y --mttr 12h"
        yield "failures", Fault("has no meaning without --availability", field="--failures", remedy=remedy)
    if rules.growth is None:
        flags = {"until": "--until", "months": "--months", "start": "--from", "lead_time": "--lead-time"}
        for name, flag in flags.items():
            if getattr(rules, name) is not None:
                yield name, Fault("has no meaning without growth", field=flag, remedy="use it with --growth")
    elif rules.until is not None and rules.months is not None:
        yield (
            "months",
            Fault("says when the growth ends, as --until does", field="--months", remedy="state one of them"),
        )
    elif (until := _until(rules)) is not None:
        name = "until" if rules.months is None else "months"
        for fault in _of_until(until, rules.start or date.today(), rules.growth, f"--{name}"):
            yield name, fault


def _of_until(until: date, start: date, per_month: float, flag: str) -> list[Fault]:
    """The fault of the date `until`: not in the future, too far ahead, or after too much growth; it names the option `flag`."""
    months = (until.year - start.year) * MONTHS_PER_YEAR + until.month - start.month
    if until <= start:
        return [Fault(f"{until} is not after the day of the plan, {start}", field=flag)]
    if months > growth.MOST_MONTHS:
        allowed = f"at most {growth.MOST_MONTHS} months"
        return [Fault(f"{until} is {months:,} months ahead", field=flag, allowed=allowed)]
    if (1 + per_month) ** growth.months_between(start, until) > growth.MOST_TIMES:
        message = (
            f"{number(per_month * 100)} % a month is more than {growth.MOST_TIMES:,.0f} times the demand by {until}"
        )
        return [Fault(message, field=f"--growth, {flag}", allowed="less growth, or an earlier month")]
    return []
