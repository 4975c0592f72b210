"""A plan: GPUs and nodes for the peak of a fleet with reserves, growth, a cloud that follows the load, and uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sizing.answers.answer import Suggestion
from sizing.answers.estimate import answer, suggestions
from sizing.catalog import shelf
from sizing.planning import uncertainty
from sizing.planning.cloud import Cloud, cloud_of
from sizing.planning.fleet import grown
from sizing.planning.growth import Growing, GrownSize, growing, paid_months
from sizing.planning.nodes import UnreachableError
from sizing.planning.provision import FleetWorkload, PlanAnswer, Provision, fleet_when_sure, provision, with_tenants
from sizing.planning.rules import ProvisionRules
from sizing.planning.size import order_with
from sizing.planning.uncertainty import Ranges
from sizing.question.names import SEPARATE
from sizing.question.options import unpooled
from sizing.question.question import Question
from sizing.specs.demand import Scaling
from sizing.specs.errors import InputError


class MovedWorkload(NamedTuple):
    """A workload moved to another type of GPU; `fleet` is the whole fleet after the move, None without an answer."""

    answer: PlanAnswer
    fleet: Provision | None


class Plan(NamedTuple):
    """The result of `plan`."""

    answers: tuple[PlanAnswer, ...]
    rules: ProvisionRules
    scaling: Scaling
    fleet: Provision | None = None  # None where a workload has no answer, or for the reason `unreachable`
    sure_fleet: Provision | None = None  # with the confidence, by published runs; None where a workload has none
    growth: Growing | None = None
    cloud: Cloud | None = None
    moves: tuple[MovedWorkload, ...] = ()
    draws: Ranges | None = None  # None without a seed
    unreachable: str | None = None
    suggestions: tuple[tuple[str, Suggestion], ...] = ()  # single changes that make a workload feasible

    @property
    def gpus_over_budget(self) -> int:
        """GPUs above the budget of the first question; 0 within the budget or without one."""
        budget = self.answers[0].outcome.question.rules.gpu_budget
        return 0 if budget is None or self.fleet is None else max(0, self.fleet.gpus - budget)

    @property
    def feasible(self) -> bool:
        """Whether there is a plan within the budget."""
        return self.fleet is not None and not self.gpus_over_budget

    @property
    def usd_per_month(self) -> float | None:
        """The monthly cost: on demand around the clock, or with a provider's instances that follow the load."""
        return None if self.fleet is None else _usd_per_month(self.fleet, self.cloud)


def _usd_per_month(fleet: Provision, cloud: Cloud | None) -> float | None:
    if cloud is not None and fleet.rules.provider is not None and fleet.hours > 1:
        return cloud.usd_per_month
    return fleet.usd_per_month


def plan(
    workloads: Question | Sequence[FleetWorkload],
    rules: ProvisionRules,
    *,
    moves: Sequence[tuple[str, Question]] = (),
    seed: int | None = None,
    simulated: bool = True,
) -> Plan:
    """Size a fleet of workloads, or of a single question.

    Each workload is answered as by `estimate`, but with the fewest GPUs including the reserve. `moves` are names of
    workloads with their question on other GPU types. With a `seed`, GPUs and cost are also found over draws of the
    uncertain inputs. Raises InputError for separate pools.

    >>> from sizing import ask, plan_rules
    >>> found = plan(ask("chat", gpu="h100-sxm", rps=2), plan_rules(spare=1), simulated=False)
    >>> found.feasible, found.fleet.gpus
    (True, 4)
    """
    if isinstance(workloads, Question):
        workloads = [FleetWorkload(workloads.origin.workload_name or "workload", workloads)]
    if any(each.question.space.pools is not None for each in workloads):
        raise InputError(unpooled("plan", SEPARATE))
    answers = tuple(_answer(workload, rules, simulated=simulated) for workload in workloads)
    found = Plan(answers, rules, shelf.only(Scaling))
    unmet = [each for each in answers if each.confirmed is None]
    if unmet:
        helps = tuple(
            (each.workload.name, change) for each in unmet for change in suggestions(each.outcome, simulated=simulated)
        )
        return found._replace(suggestions=helps)
    try:
        fleet = provision(answers, rules)
        return found._replace(
            draws=None if seed is None else uncertainty.draw_sizes(uncertainty.of_fleet(fleet), rules, seed=seed),
            moves=tuple(_moved(fleet, name, question, simulated=simulated) for name, question in moves),
            growth=_growth(fleet, sure := fleet_when_sure(fleet), found.scaling),
            fleet=fleet,
            sure_fleet=sure,
            cloud=cloud_of(fleet, found.scaling),
        )
    except UnreachableError as error:
        return found._replace(unreachable=str(error))


def _answer(workload: FleetWorkload, rules: ProvisionRules, *, simulated: bool) -> PlanAnswer:
    """The answer with the fewest GPUs including the reserve of this workload alone, in a shared pool too."""
    return PlanAnswer(workload, answer(workload.question, simulated=simulated, order=order_with(rules)))


def _moved(fleet: Provision, name: str, question: Question, *, simulated: bool) -> MovedWorkload:
    now = next(each for each in fleet.answers if each.workload.name == name)
    moved = _answer(now.workload._replace(question=question), fleet.rules, simulated=simulated)
    if moved.confirmed is None:
        return MovedWorkload(moved, None)
    return MovedWorkload(moved, provision([moved if each is now else each for each in fleet.answers], fleet.rules))


def _growth(fleet: Provision, sure: Provision | None, scaling: Scaling) -> Growing | None:
    """The growth of the fleet, at the same rate for every workload, with its cost; None without stated growth.

    A month is paid for at the size that its end takes. `sure` is the fleet at its confident size, which grows alike.
    """
    rules = fleet.rules
    if rules.growth_per_month is None:
        return None

    def at(times: float, provision: Provision = fleet) -> Provision:
        return (
            provision
            if times == 1
            else with_tenants(provision, tuple(grown(each, times, rules) for each in provision.tenants))
        )

    def size(times: float) -> GrownSize:
        then, surely = at(times), None if sure is None else at(times, sure)
        return then.replicas, then.gpus, then.nodes, surely and surely.gpus, surely and surely.nodes

    found = growing(rules.growth_per_month, rules.start, rules.until, size, rules.lead_time)
    if rules.until is None:
        return found
    months = [
        (_usd_per_month(then := at(times), cloud_of(then, scaling)), share)
        for times, share in paid_months(rules.growth_per_month, rules.start, rules.until)
    ]
    known = [(usd, share) for usd, share in months if usd is not None]
    if not known or len(known) < len(months):
        return found
    return found._replace(usd_of_last_month=known[-1][0], usd_in_all=sum(usd * share for usd, share in known))
