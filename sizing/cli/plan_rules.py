"""The rules of a plan: those that options state, over those of a fleet's file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import date
from typing import Any

from pydantic import ValidationError

from sizing.catalog.faults import faults_of
from sizing.catalog.files import Document, FieldPath
from sizing.catalog.workloads import FoundFleet
from sizing.cli.options import Opt
from sizing.cli.reading import is_given
from sizing.planning import growth, size
from sizing.planning.size import Rules
from sizing.specs.demand import Scaling
from sizing.specs.errors import Fault, InputError
from sizing.specs.fleet import PlanRules


def stated(options: Iterable[Opt], values: Mapping[str, Any]) -> PlanRules:
    """Return the rules that options state."""
    flags = {option.name: option.flags[0] for option in options if option.name in PlanRules.model_fields}
    given = {name: values[name] for name in flags if is_given(values[name])}
    data = {PlanRules.model_fields[name].alias or name: value for name, value in given.items()}
    by_alias = {PlanRules.model_fields[name].alias or name: flag for name, flag in flags.items()}

    def place(path: FieldPath) -> tuple[None, None, str, None]:
        return None, None, by_alias.get(str(path[0]) if path else "", ", ".join(by_alias[key] for key in data)), None

    try:
        return PlanRules.model_validate(data)
    except ValidationError as error:
        raise InputError(faults_of(error, PlanRules, data, place)) from None


def over(own: PlanRules, fleet: FoundFleet | None = None) -> PlanRules:
    """Return the rules of options over those of a fleet's file. Raises InputError for what does not go together.

    A fault names the option where it was given, else the key of the file with its line.
    """
    file = fleet.spec.planning if fleet is not None else PlanRules()
    rules = file.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})
    faults = [
        placed(fault, name, name in own.model_fields_set or name not in file.model_fields_set, fleet and fleet.document)
        for name, fault in _contradictions(rules)
    ]
    if faults:
        raise InputError(faults)
    return rules


def placed(fault: Fault, name: str, of_option: bool, document: Document | None) -> Fault:
    """Return a fault of a rule with its place in the fleet's file, unless it is of an option."""
    if of_option or document is None:
        return fault
    file, line, key, _ = document.place(("planning", PlanRules.model_fields[name].alias or name))
    return replace(fault, file=file, line=line, field=key)


def _contradictions(rules: PlanRules) -> Iterator[tuple[str, Fault]]:
    """Yield what does not go together, with the rule that is to blame."""
    times = (rules.mtbf, rules.mttr)
    if times.count(None) == 1:
        one = "mtbf" if rules.mtbf is not None else "mttr"
        yield one, Fault("one of the two is missing", None, None, "--mtbf, --mttr", "both, or --node-availability")
    if rules.node_availability is not None and times != (None, None):
        message = "says what --mtbf and --mttr say"
        yield "node_availability", Fault(message, field="--node-availability", allowed="one of them")
    if rules.availability is not None and _node_availability(rules) is None and times.count(None) != 1:
        allowed = "with --node-availability, or --mtbf and --mttr"
        yield "availability", Fault("nothing says how often a node is up", None, None, "--availability", allowed)
    if rules.failures is not None and rules.availability is None:
        yield "failures", Fault("has no meaning without --availability", field="--failures")
    if rules.growth is None:
        for name, flag in (("until", "--until"), ("start", "--from")):
            if getattr(rules, name) is not None:
                yield name, Fault("has no meaning without growth", field=flag, allowed="with --growth")
    elif rules.until is not None:
        for fault in _until(rules.until, rules.start or date.today(), rules.growth):
            yield "until", fault


def _until(until: date, start: date, per_month: float) -> list[Fault]:
    """Say what is wrong with a date: it is past, too far ahead, or the demand has grown beyond all bounds by then."""
    months = (until.year - start.year) * growth.MONTHS_PER_YEAR + until.month - start.month
    if until <= start:
        return [Fault(f"{until} is not after the day of the plan, {start}", field="--until")]
    if months > growth.MOST_MONTHS:
        allowed = f"at most {growth.MOST_MONTHS} months"
        return [Fault(f"{until} is {months:,} months ahead", field="--until", allowed=allowed)]
    if (1 + per_month) ** growth.months_between(start, until) > growth.MOST_TIMES:
        message = f"{per_month * 100:g} % a month is more than {growth.MOST_TIMES:,.0f} times the demand by {until}"
        return [Fault(message, field="--growth, --until", allowed="less growth, or an earlier month")]
    return []


def resolved(spec: PlanRules, scaling: Scaling) -> Rules:
    """Return the rules that a plan goes by, with what is assumed where they are silent."""
    return Rules(
        spare=spec.spare or 0,
        availability=spec.availability,
        unit_availability=_node_availability(spec),
        by_node=spec.failures == "node",
        maintenance=bool(spec.maintenance),
        growth_per_month=spec.growth,
        start=spec.start or date.today(),
        until=spec.until,
        min_replicas=spec.min_replicas or scaling.min_replicas,
        spot_share=spec.spot or 0.0,
    )


def _node_availability(spec: PlanRules) -> float | None:
    """Return the availability of a node: from its times, or as stated; None where neither is."""
    if spec.mtbf is not None and spec.mttr is not None:
        return size.of_times(spec.mtbf, spec.mttr)
    return spec.node_availability
