"""What `llmsize plan` is asked: the rules of options over those of a fleet's file, its workloads, and their GPU types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from sizing.catalog.prices import price_of
from sizing.catalog.shelf import load_scaling
from sizing.catalog.workloads import FoundFleet, FoundMember, find_fleet
from sizing.cli import plan_rules
from sizing.cli.collecting import Part, check
from sizing.cli.options import Opt, comma_separated
from sizing.cli.reading import is_given
from sizing.cli.resolve import question
from sizing.planning.fleet import Sharing
from sizing.planning.size import Rules
from sizing.question.question import Question
from sizing.specs.demand import Scaling
from sizing.specs.errors import Fault, InputError, nearest
from sizing.specs.fleet import PlanRules

# Options that say the same for every workload of a fleet; all others are of one workload, and stand in its file.
WITH_A_FLEET = ("headroom", "max_utilisation", "percentile", "price_uncertainty")


class Asked(NamedTuple):
    """One workload of the plan with its question, and how it is pooled."""

    name: str
    question: Question
    pool: Sharing


class PlanQuestion(NamedTuple):
    """Everything that a plan is asked, resolved. `moves` are names of workloads with the options of another GPU type."""

    title: str | None
    is_fleet: bool
    asked: tuple[Asked, ...]
    rules: Rules
    spec: PlanRules
    scaling: Scaling
    moves: tuple[tuple[str, Question], ...]


def ask(
    workload: str | None,
    options: tuple[Opt, ...],
    plan_options: tuple[Opt, ...],
    values: Mapping[str, Any],
    *besides: Part[Any],
) -> PlanQuestion:
    """Read options and files. Raises InputError with all faults that can be known, those of `besides` too."""
    fleet = Part(lambda: None if workload is None else find_fleet(workload))
    own = Part(lambda: plan_rules.stated(plan_options, values))
    check(fleet)
    found = fleet.value
    rules = Part(lambda: plan_rules.over(own.value, found))
    wrong = Part(lambda: _refuse_of_one(options, values) if found is not None else None)
    twice = Part(lambda: _refuse_two_prices(values, rules.value))
    check(*besides, own, rules, wrong, twice)
    spec = rules.value
    scaling = load_scaling().spec
    if found is None:
        asked = question(workload, options, _with_headroom(values, spec))
        parts = [Asked(asked.origin.workload_name or "workload", _priced(asked, spec.cloud), "separate")]
    else:
        parts = _members(found, options, _with_headroom(values, spec), spec)
    _check_hours(parts, own.value, spec)
    _check_demand(parts, spec, uncertain=values["uncertain"])
    moves = _moves(parts, found, options, values, spec)
    title = found.id if found is not None else parts[0].question.origin.workload_name
    return PlanQuestion(
        title, found is not None, tuple(parts), plan_rules.resolved(spec, scaling), spec, scaling, moves
    )


def _check_hours(parts: Iterable[Asked], own: PlanRules, spec: PlanRules) -> None:
    """Refuse options on what follows the load where nothing says how the load goes."""
    if spec.cloud is not None or any(part.question.origin.workload.planning.profile is not None for part in parts):
        return
    stated = {"--min-replicas": own.min_replicas, "--spot": own.spot}
    faults = [
        Fault("has no meaning at the same load all day", field=flag, allowed="with --profile, or --cloud")
        for flag, value in stated.items()
        if value is not None
    ]
    if faults:
        raise InputError(faults)


def _with_headroom(values: Mapping[str, Any], spec: PlanRules) -> dict[str, Any]:
    """Return the options with a fleet's headroom where none is given: growth as a share, written as options are."""
    stated = values["headroom"]
    return {**values, "headroom": repr(spec.headroom) if stated is None and spec.headroom is not None else stated}


def _refuse_of_one(options: Iterable[Opt], values: Mapping[str, Any]) -> None:
    faults = [
        Fault("is of one workload; a fleet's file says it for each", field=option.flags[0])
        for option in options
        if option.name not in WITH_A_FLEET and is_given(values[option.name])
    ]
    if faults:
        raise InputError(faults)


def _refuse_two_prices(values: Mapping[str, Any], spec: PlanRules) -> None:
    if spec.cloud is not None and values["price"] is not None:
        message = f"is the price of the provider {spec.cloud!r} already"
        raise InputError(Fault(message, field="--price", allowed="one of --price and --cloud"))


def _members(fleet: FoundFleet, options: tuple[Opt, ...], values: Mapping[str, Any], spec: PlanRules) -> list[Asked]:
    """Return the questions of a fleet's workloads. Raises InputError with the faults of all, at their lines."""
    parts: list[Part[Asked]] = []
    for index, member in enumerate(fleet.members):

        def read(member: FoundMember = member) -> Asked:
            own = _values_of(member, values, member.member.gpu)
            asked = question(member.workload, options, own)
            return Asked(member.name, _priced(asked, spec.cloud), member.member.pool)

        def placed(fault: Fault, member: FoundMember = member, index: int = index) -> Fault:
            # The provider is one for all, of an option or of the fleet's planning.
            if fault.field == "--cloud":
                return plan_rules.placed(fault, "cloud", values["cloud"] is not None, fleet.document)
            return member.placed(fault, fleet.document, index)

        parts.append(Part(read, placed))
    check(*parts)
    return [part.value for part in parts]


def _values_of(member: FoundMember, values: Mapping[str, Any], gpu: str | None) -> dict[str, Any]:
    return {**values, "gpu": gpu, "profile": member.member.profile}


def _priced(asked: Question, provider: str | None) -> Question:
    """Return a question at a provider's prices, of several GPU types over those that it offers.

    Raises InputError where it offers none of them.
    """
    if provider is None:
        return asked
    parts = [(option, Part(partial(price_of, option.gpu, provider))) for option in asked.space.gpu_types]
    offered = [
        replace(option, usd_per_gpu_hour=part.value[0], price_source=part.value[1])
        for option, part in parts
        if not part.faults
    ]
    if not offered:
        raise InputError([fault for _, part in parts[:1] for fault in part.faults])
    return asked.with_(gpu_types=tuple(offered))


def _check_demand(parts: Iterable[Asked], spec: PlanRules, *, uncertain: bool) -> None:
    """Refuse what grows or follows a load where there is none: GPUs alone were asked about, or offline work."""
    if all(part.question.origin.workload.demand is not None for part in parts):
        return
    stated = {
        "--growth": spec.growth,
        "--availability": spec.availability,
        "--maintenance": spec.maintenance,
        "--uncertain": uncertain,
    }
    faults = [
        Fault("has no meaning without a demand", field=flag, allowed="with --rps, --dau or a workload's own demand")
        for flag, value in stated.items()
        if is_given(value)
    ]
    if faults:
        raise InputError(faults)


def _moves(
    parts: Iterable[Asked],
    fleet: FoundFleet | None,
    options: tuple[Opt, ...],
    values: Mapping[str, Any],
    spec: PlanRules,
) -> tuple[tuple[str, Question], ...]:
    """Return the workloads to move, each with its question on another GPU type."""
    if values["move"] is None:
        return ()
    names = [part.name for part in parts]
    found = []
    for text in comma_separated(values["move"]):
        name, _, gpu = (piece.strip() for piece in text.partition("="))
        if not gpu or name not in names:
            what = f"{text!r} is not NAME=GPU" if not gpu else f"{name!r} is no workload here"
            near = nearest(name, names) if gpu else None
            raise InputError(Fault(what, field="--move", allowed=f"NAME=GPU with {', '.join(names)}", nearest=near))
        found.append((name, _moved(name, gpu, fleet, options, _with_headroom(values, spec), spec)))
    if not found:
        raise InputError(Fault("moves nothing", field="--move", allowed="NAME=GPU"))
    return tuple(found)


def _moved(
    name: str, gpu: str, fleet: FoundFleet | None, options: tuple[Opt, ...], values: Mapping[str, Any], spec: PlanRules
) -> Question:
    def of_move(fault: Fault) -> Fault:
        return replace(fault, field="--move") if fault.field in ("--gpu", "gpu") else fault

    def read() -> Question:
        if fleet is None:
            return _priced(question(values["workload"], options, {**values, "gpu": gpu}), spec.cloud)
        member = next(member for member in fleet.members if member.name == name)
        return _priced(question(member.workload, options, _values_of(member, values, gpu)), spec.cloud)

    part = Part(read, of_move)
    check(part)
    return part.value
