"""`llmsize plan`: GPUs over time from users and peaks, with reserves, growth, a cloud that follows the load, and fleets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from sizing.cli.options import FORMAT_OPTIONS, PLAN_OPTIONS, QUIET_OPTIONS, VERIFY_OPTIONS, takes
from sizing.question.options import (
    DEMAND_OPTIONS,
    LIMIT_OPTIONS,
    MODEL_OPTIONS,
    OPTIMISATION_OPTIONS,
    PEAK_OPTIONS,
    PLANNING_OPTIONS,
    SERVING_OPTIONS,
    SET_OPTIONS,
    GivenOptions,
    broken,
    check_rules,
    is_given,
)
from sizing.specs.errors import Fault, InputError, nearest, placed, raise_any
from sizing.specs.units import comma_separated

if TYPE_CHECKING:
    from pathlib import Path

    from sizing.catalog.files import DataFile
    from sizing.catalog.fleets import FoundFleet, FoundMember
    from sizing.catalog.shelf import Found
    from sizing.planning.provision import FleetWorkload
    from sizing.planning.rules import ProvisionRules
    from sizing.question.question import Question
    from sizing.report.plan.record import PlanReport
    from sizing.specs.errors import Part
    from sizing.specs.fleet import PlanRules
    from sizing.specs.workload import Workload

WORKLOAD_OPTIONS = (
    *MODEL_OPTIONS,
    *DEMAND_OPTIONS,
    *PEAK_OPTIONS,
    *LIMIT_OPTIONS,
    *SERVING_OPTIONS,
    *OPTIMISATION_OPTIONS,
    *PLANNING_OPTIONS,
    *(option for option in PLAN_OPTIONS if option.field),
    *SET_OPTIONS,
)
RULE_OPTIONS = tuple(option for option in PLAN_OPTIONS if not option.field)
SEED = 0
OnGpu = Callable[[str | None], "Question"]  # a workload's question on a GPU type


class PlanOptions(NamedTuple):
    """The options of the command itself that are no rules. A command that shares the rules may lack them."""

    start: str | None
    move: str | None = None
    uncertain: bool = False
    seed: int | None = None
    plot: str | None = None
    no_verify: bool = False


@takes((*WORKLOAD_OPTIONS, *RULE_OPTIONS, *FORMAT_OPTIONS, *VERIFY_OPTIONS, *QUIET_OPTIONS))
def command(
    given: GivenOptions,
    workload: Annotated[
        str | None,
        typer.Argument(help="Workload or fleet file, or the name of a ready one (llmsize workloads lists both)."),
    ] = None,
) -> int:
    """Plan capacity: reserves, hours of the day, growth, a fleet.

    It gives GPUs and nodes for the peak, reserves included; with --uncertain, at P10, P50 and P90.

    Exit codes: 0 feasible, 1 infeasible, 2 bad input.
    """
    from sizing.cli.measured import is_rows
    from sizing.cli.output import OutputOptions, chosen_format, complain, print_text, write, write_picture
    from sizing.specs.errors import Part

    own, output, files = given.read(PlanOptions), Part(lambda: chosen_format(given)), Part(lambda: _files(given))
    if own.start is not None and is_rows(own.start):
        from sizing.cli.measured import RESERVED, Additions, print_from
        from sizing.specs.errors import check

        rules = Part(lambda: rows_rules(given))
        check(output, files, rules)
        return print_from(own.start, workload, given.with_(start=None), Additions(RESERVED, rules.value))
    from sizing.report.plan.sections import document, figures

    asked = plan_question(workload, given, output, files)
    plot, seed = files.value
    found = planned(asked, seed, simulated=not own.no_verify)
    if not given.read(OutputOptions).quiet:
        write(document(found), output.value)
    elif found.gpus is not None and found.feasible:
        print_text(str(found.gpus))
    else:
        complain(f"infeasible: {'; '.join(found.problems)}")
    nothing = f"{plot}: not drawn, as there is no plan"
    write_picture(plot, lambda: () if found.gpus is None else figures(found), nothing)
    return 0 if found.feasible else 1


def _files(given: GivenOptions) -> tuple[Path | None, int | None]:
    """The picture to draw and the seed of the draws, each None if not stated. Raises InputError for invalid ones."""
    from sizing.cli.reader import Reader

    own = given.read(PlanOptions)
    with Reader() as read:
        plot, seed = read.picture(own.plot), read.seed(own.seed, SEED)
        read.faults.extend(() if own.uncertain else broken(("no draws",), given))
    return plot, seed if own.uncertain else None


class PlanQuestion(NamedTuple):
    """The resolved question of a plan. `moves` has names of workloads, each with its question on another GPU type."""

    title: str | None
    is_fleet: bool
    workloads: tuple[FleetWorkload, ...]
    rules: ProvisionRules
    moves: tuple[tuple[str, Question], ...]


def planned(question: PlanQuestion, seed: int | None, *, simulated: bool) -> PlanReport:
    """The record of the plan; with a seed, it includes draws of uncertain inputs."""
    from sizing.planning.plan import plan
    from sizing.report.plan.record import record

    found = plan(question.workloads, question.rules, moves=question.moves, seed=seed, simulated=simulated)
    return record(found, title=question.title, is_fleet=question.is_fleet)


def plan_question(workload: str | None, given: GivenOptions, *besides: Part[Any]) -> PlanQuestion:
    """Read options and files. Raises InputError with all faults that it can find, including those of `besides`."""
    from sizing.catalog.shelf import only
    from sizing.planning.provision import FleetWorkload
    from sizing.planning.rules import rules_of
    from sizing.question.names import fleet_at
    from sizing.specs.demand import Scaling
    from sizing.specs.errors import Part, check

    stated, fleet = given.read(PlanOptions), Part(lambda: None if workload is None else fleet_at(workload))
    own = Part(lambda: _own_rules(given))
    check(fleet)
    found = fleet.value
    rules = Part(lambda: _rules(own.value, found))
    wrong = Part(lambda: None if found is None else check_rules(("a fleet",), given))
    twice = Part(lambda: _refuse_two_prices(given, rules.value))
    members = Part(lambda: raise_any(found.faults if found is not None else ()))  # those that could not be looked up
    check(*besides, members, own, rules, wrong, twice)
    headroom = rules.value.headroom
    if headroom is not None and not given.any_of(["headroom"]):  # the fleet's headroom, written as an option
        given = given.with_(headroom=f"{headroom * 100!r}%")
    if found is None:
        question = _priced(workload, given, rules.value)
        workloads = [FleetWorkload(question.origin.workload_name or "workload", question)]
        others: dict[str, OnGpu] = {workloads[0].name: lambda gpu: _priced(workload, given.with_(gpu=gpu), rules.value)}
    else:
        workloads = _members(found, given, rules.value)
        others = {member.name: partial(_of_member, member, given, rules.value) for member in found.members}
    _refuse_idle(workloads, own.value, rules.value, uncertain=stated.uncertain)
    return PlanQuestion(
        title=found.id if found is not None else workloads[0].question.origin.workload_name,
        is_fleet=found is not None,
        workloads=tuple(workloads),
        rules=rules_of(rules.value, only(Scaling)),
        moves=tuple(_moves(stated.move, others)),
    )


def rows_rules(given: GivenOptions) -> ProvisionRules:
    """The rules of a plan from measured rows, whose growth begins today. Raises InputError with their faults."""
    from sizing.catalog.shelf import only
    from sizing.planning.rules import rules_of
    from sizing.specs.demand import Scaling

    return rules_of(_rules(_own_rules(given.without(("start", "cloud"))), None), only(Scaling))


def _own_rules(given: GivenOptions) -> PlanRules:
    from sizing.planning.rules import stated_rules
    from sizing.specs.fleet import PlanRules

    flags = {option.name: option.flags[0] for option in RULE_OPTIONS if option.name in PlanRules.model_fields}
    return stated_rules({name: value for name in flags if is_given(value := given.values.get(name))}, flags)


def _rules(own: PlanRules, fleet: FoundFleet | None) -> PlanRules:
    """The rules of a fleet's file, with options taking precedence. Raises InputError for contradictions.

    A fault names the option if it was given, else the key in the file with its line.
    """
    from sizing.planning.rules import contradictions

    file = fleet.spec.planning if fleet is not None else type(own)()
    rules = file.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})
    in_file = file.model_fields_set - own.model_fields_set
    raise_any(
        _in_file(fault, name, fleet.document) if fleet is not None and name in in_file else fault
        for name, fault in contradictions(rules)
    )
    return rules


def _in_file(fault: Fault, name: str, document: DataFile) -> Fault:
    """The fault of a rule, with its place in the fleet's file."""
    from sizing.planning.rules import key_of

    file, line, key, _ = document.place(("planning", key_of(name)))
    return replace(fault, file=file, line=line, field=key)


def _refuse_two_prices(given: GivenOptions, rules: PlanRules) -> None:
    stated = next((name for name in ("price", "provider") if given.any_of([name])), None)
    if rules.cloud is not None and stated is not None:
        message = f"is the price of the provider {rules.cloud!r} already"
        raise InputError(message, field=f"--{stated}", allowed=f"one of --{stated} and --cloud")


def _refuse_idle(workloads: list[FleetWorkload], own: PlanRules, rules: PlanRules, *, uncertain: bool) -> None:
    """Raise InputError for options that need a load profile or a demand, if there is none."""
    asked = [each.question.origin.workload for each in workloads]
    if rules.cloud is None and all(workload.planning.profile is None for workload in asked):
        check_rules(("no hours",), GivenOptions(PLAN_OPTIONS, own.model_dump()))
    if any(workload.demand is None for workload in asked):
        check_rules(("no demand",), GivenOptions(PLAN_OPTIONS, rules.model_dump()).with_(uncertain=uncertain))


def _priced(workload: str | Found[Workload] | None, given: GivenOptions, rules: PlanRules) -> Question:
    """A workload's question, at a provider's prices if one is named. Only the GPU types that the provider offers remain.

    Raises InputError if the provider offers none of them.
    """
    from sizing.catalog.prices import price_of, provider_and_kind
    from sizing.question.ask import question_of, with_confidence
    from sizing.question.options import options_of
    from sizing.specs.errors import Part

    options = options_of(given)
    asked = question_of(workload, options)
    if given.any_of(["uncertain"]) and given.any_of(("confidence", "conservative")):
        what = "counts what is uncertain already, and --confidence would count it twice"
        raise InputError(what, field="--uncertain", remedy="state one of them")
    asked = with_confidence(asked, options)
    if rules.cloud is None:
        return asked
    provider, kind = provider_and_kind(rules.cloud)
    parts = [(option, Part(partial(price_of, option.gpu, provider, kind))) for option in asked.space.gpu_types]
    offered = tuple(
        replace(option, usd_per_gpu_hour=part.value[0], price_source=part.value[1], price_providers=None)
        for option, part in parts
        if not part.faults
    )
    if not offered:
        raise InputError(parts[0][1].faults)
    if provider != rules.cloud:
        what = f"{rules.cloud!r} names one kind of price, and a plan mixes reserved, on-demand and spot GPUs by itself"
        allowed = f"{provider}, or --provider {provider}:{kind} in place of --cloud"
        raise InputError(what, field="--cloud", allowed=allowed)
    return asked.with_(gpu_types=offered)


def _members(fleet: FoundFleet, given: GivenOptions, rules: PlanRules) -> list[FleetWorkload]:
    """The questions of a fleet's workloads. Raises InputError with all faults, at their lines."""
    from sizing.planning.provision import FleetWorkload
    from sizing.specs.errors import Part, check

    def read(member: FoundMember) -> FleetWorkload:
        return FleetWorkload(member.name, _of_member(member, given, rules, member.member.gpu), member.member.pool)

    def place(index: int, member: FoundMember, fault: Fault) -> Fault:
        # One provider serves all workloads: that of an option or of the fleet's planning.
        if fault.field != "--cloud":
            return member.located(fault, fleet.document, index)
        return fault if given.any_of(["cloud"]) else _in_file(fault, "cloud", fleet.document)

    parts = [Part(partial(read, member), partial(place, index, member)) for index, member in enumerate(fleet.members)]
    check(*parts)
    return [part.value for part in parts]


def _of_member(member: FoundMember, given: GivenOptions, rules: PlanRules, gpu: str | None) -> Question:
    return _priced(member.workload, given.with_(gpu=gpu, profile=member.member.profile), rules)


def _moves(stated: str | None, others: Mapping[str, OnGpu]) -> Iterator[tuple[str, Question]]:
    """Yield the workloads to move, each with its question on another GPU type. `others` makes the question for any type."""

    if stated is None:
        return
    texts, names = comma_separated(stated), list(others)
    if not texts:
        raise InputError("moves nothing", field="--move", allowed="NAME=GPU")
    for text in texts:
        name, _, gpu = (piece.strip() for piece in text.partition("="))
        if not gpu or name not in names:
            what = f"{text!r} is not NAME=GPU" if not gpu else f"{name!r} is no workload here"
            near = nearest(name, names) if gpu else None
            raise InputError(what, field="--move", allowed=f"NAME=GPU with {', '.join(names)}", nearest=near)
        with placed(lambda fault: replace(fault, field="--move") if fault.field in ("--gpu", "gpu") else fault):
            moved = others[name](gpu)
        yield name, moved
