"""A sized fleet: the answer and reserve of each workload, the pools of GPUs, and rented instances with their prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from sizing.answers.answer import Answer, Outcome
from sizing.catalog.prices import offers, offers_of, source_of, usd_per_gpu_hour
from sizing.planning.fleet import GpuPool, Sharing, Tenant, hours_of, peak_of_sums, pools_of
from sizing.planning.nodes import UnreachableError
from sizing.planning.rules import ProvisionRules
from sizing.planning.size import need_of, size_of
from sizing.question.question import Question
from sizing.specs.demand import Scaling
from sizing.specs.gpu import Gpu, GpuType, Price, PriceKind
from sizing.specs.units import HOURS_PER_MONTH

RESERVED: tuple[PriceKind, ...] = ("1-year reserved", "3-year reserved")  # the shorter commitment first
SPOT: tuple[PriceKind, ...] = ("spot",)


class Contracts(NamedTuple):
    """$ per GPU-hour by contract, each with its source."""

    on_demand: float
    on_demand_source: str
    reserved: float
    reserved_source: str
    spot: float
    spot_source: str


def contracts(gpu: Gpu, on_demand: tuple[float, str], rules: Scaling, offer: Price | None = None) -> Contracts:
    """The prices of all contracts, from the `on_demand` price and the usual discounts.

    With an `offer`, the provider's known prices for the same number of GPUs replace the discounts.
    """

    def of(kinds: Sequence[PriceKind], discount: float) -> tuple[float, str]:
        for kind in kinds:
            if offer is None:
                break
            if alike := [each for each in offers(gpu, offer.provider, kind) if each.gpus == offer.gpus]:
                cheapest = min(alike, key=usd_per_gpu_hour)
                return usd_per_gpu_hour(cheapest), source_of(cheapest)
        why = f"{discount * 100:g} % below on demand, assumed: no {kinds[0].split()[-1]} price is known"
        return on_demand[0] * (1 - discount), why

    return Contracts(*on_demand, *of(RESERVED, rules.reserved_discount), *of(SPOT, rules.spot_discount))


class Instances(NamedTuple):
    """Instances of one offer by hour; `joined`: one instance holds the largest replica, or a whole node of it."""

    offer: Price
    by_hour: tuple[int, ...]
    joined: bool

    @property
    def gpus_by_hour(self) -> tuple[int, ...]:
        """GPUs paid for at each hour."""
        return tuple(count * self.offer.gpus for count in self.by_hour)

    @property
    def usd_per_hour(self) -> float:
        """The cost of the busiest hour; instances that run around the clock cost this every hour."""
        return max(self.gpus_by_hour) * usd_per_gpu_hour(self.offer)


def instances(pools: Sequence[GpuPool], gpu: Gpu, provider: str) -> Instances:
    """The provider's cheapest offer for pools of one type of GPU; pools do not share instances.

    One instance of the offer must hold a replica. Where no offer does, GPUs count as if instances were joined. Raises
    InputError where the provider has no price for the type.
    """
    largest = max(size for pool in pools for held in pool.held_by_hour for size, _ in held)
    found = offers_of(gpu, provider)
    holding = [offer for offer in found if offer.gpus >= min(largest, gpu.datasheet.node.gpus)]

    def held(offer: Price) -> Instances:
        hours = zip(*(pool.units_by_hour(offer.gpus) for pool in pools), strict=True)
        return Instances(offer, tuple(map(sum, hours)), bool(holding))

    return min(map(held, holding or found), key=lambda one: one.usd_per_hour)


Rented = Mapping[str, Instances]  # by id of the GPU type; empty without a provider


class FleetWorkload(NamedTuple):
    """A workload to plan for; `pool` says whether it shares GPUs with other workloads."""

    name: str
    question: Question
    pool: Sharing = "separate"


class PlanAnswer(NamedTuple):
    """The outcome of a workload's search."""

    workload: FleetWorkload
    outcome: Outcome

    @property
    def confirmed(self) -> Answer | None:
        """The first answer where no simulation contradicts it: the fleet as a whole has the budget."""
        return self.outcome.best if self.outcome.simulation.passed else None

    @property
    def best(self) -> Answer:
        """The answer. Raises ValueError where there is none."""
        if self.confirmed is None:
            raise ValueError(f"{self.workload.name} has no answer")
        return self.confirmed


class UnitPrice(NamedTuple):
    """$ per GPU-hour on demand, and its source; None where unknown."""

    usd_per_gpu_hour: float | None
    source: str | None


class Provision(NamedTuple):
    """A sized fleet: a tenant for each answer, their pools in the same order, and a provider's instances by GPU type."""

    answers: tuple[PlanAnswer, ...]
    rules: ProvisionRules
    tenants: tuple[Tenant, ...]
    pools: tuple[GpuPool, ...]
    rented: Rented

    @property
    def hours(self) -> int:
        """The common number of hours of all profiles."""
        return hours_of(self.tenants)

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def nodes(self) -> int:
        """Whole nodes of all pools."""
        return sum(pool.nodes for pool in self.pools)

    @property
    def replicas(self) -> int:
        """Replicas of the busiest hour."""
        return max(map(sum, zip(*(pool.replicas_by_hour for pool in self.pools), strict=True)))

    @property
    def gpu_types(self) -> dict[str, GpuType]:
        """The GPU types by id."""
        return {answer.best.pool.replica.gpu_type.id: answer.best.pool.replica.gpu_type for answer in self.answers}

    @property
    def peak_requests_per_s(self) -> float:
        """Requests/s in the busiest hour of all workloads together; the sum of their peaks where one states no rate."""
        return peak_of_sums(self.tenants) or sum(map(peak_of, self.answers, self.tenants))

    def price(self, gpu_id: str) -> UnitPrice:
        """The price of a GPU type: of its rented instances, else its planning price."""
        if gpu_id in self.rented:
            offer = self.rented[gpu_id].offer
            return UnitPrice(usd_per_gpu_hour(offer), source_of(offer))
        gpu_type = self.gpu_types[gpu_id]
        return UnitPrice(gpu_type.usd_per_gpu_hour, gpu_type.price_source)

    @property
    def usd_per_month(self) -> float | None:
        """The cost of all pools on demand around the clock, None where a GPU type has no price."""
        hourly = total(self._usd_per_hour(gpu_id) for gpu_id in self.gpus_by_type)
        return None if hourly is None else hourly * HOURS_PER_MONTH

    @property
    def gpus_by_type(self) -> dict[str, int]:
        """GPUs of all pools by id of their type."""
        ids = dict.fromkeys(pool.gpu_id for pool in self.pools)
        return {gpu_id: sum(pool.gpus for pool in self.pools if pool.gpu_id == gpu_id) for gpu_id in ids}

    def _usd_per_hour(self, gpu_id: str) -> float | None:
        if gpu_id in self.rented:
            return self.rented[gpu_id].usd_per_hour
        price = self.price(gpu_id).usd_per_gpu_hour
        return None if price is None else price * self.gpus_by_type[gpu_id]


def provision(answers: Sequence[PlanAnswer], rules: ProvisionRules) -> Provision:
    """Size a fleet of workloads with answers.

    Raises UnreachableError where no reserve reaches the availability, InputError where spare replicas leave none to serve.
    """
    tenants = tuple(_tenant(answer, rules) for answer in answers)
    return with_tenants(Provision(tuple(answers), rules, tenants, (), {}), tenants)


def with_tenants(fleet: Provision, tenants: tuple[Tenant, ...]) -> Provision:
    """A fleet with other sizes of its workloads, their pools and the instances that hold these."""
    sized, provider = fleet._replace(tenants=tenants, pools=pools_of(tenants, fleet.rules)), fleet.rules.provider
    if provider is None:
        return sized
    rented = {}
    for gpu_id, gpu_type in sized.gpu_types.items():
        pools = [pool for pool in sized.pools if pool.gpu_id == gpu_id]
        rented[gpu_id] = instances(pools, gpu_type.gpu, provider)
    return sized._replace(rented=rented)


def _tenant(answer: PlanAnswer, rules: ProvisionRules) -> Tenant:
    best, question = answer.best, answer.outcome.question
    need = need_of(best, question)
    if question.origin.demanded is None:  # a given number of GPUs: the spare ones serve nothing
        need = need.without(rules.spare)
    size, workload, demanded = size_of(need, rules), answer.workload, question.origin.demanded
    if demanded is not None and not need.in_flight:
        demanded = demanded.at_rate(best.requests_per_s, question.origin.workload.planning)
    return Tenant(workload.name, best.pool.replica.gpu_type.id, workload.pool, need, size, demanded)


def fleet_when_sure(fleet: Provision) -> Provision | None:
    """The fleet with the confident size of each workload (`tenants_sure`) and its reserve; None where one is unknown."""
    found = tenants_sure(fleet)
    known = tuple(tenant for tenant in found if tenant is not None)
    return fleet._replace(tenants=known, pools=pools_of(known, fleet.rules)) if len(known) == len(found) else None


def tenants_sure(fleet: Provision) -> list[Tenant | None]:
    """Each workload with its confident size: the replicas that keep the limits with the stated confidence; None if unknown."""
    return [_surely(*each, fleet.rules) for each in zip(fleet.answers, fleet.tenants, strict=True)]


def _surely(answer: PlanAnswer, tenant: Tenant, rules: ProvisionRules) -> Tenant | None:
    """A workload with its confident size; None where that is unknown, or no reserve reaches the availability."""
    outcome, sure, need = answer.outcome, answer.outcome.by_runs.sure_answer, tenant.need
    if sure is None:
        return None
    if sure.gpus > answer.best.gpus:
        need = need_of(sure, outcome.question)
    with suppress(UnreachableError):
        return tenant._replace(need=need, size=size_of(need, rules))
    return None


def peak_of(answer: PlanAnswer, tenant: Tenant) -> float:
    """Requests/s of a workload at its peak; for a demand in requests in flight, the rate of its answer."""
    return answer.best.requests_per_s if tenant.need.in_flight else tenant.need.demand


def total(values: Iterable[float | None]) -> float | None:
    """The sum of `values`; None where one is unknown."""
    found = list(values)
    known = [value for value in found if value is not None]
    return float(sum(known)) if len(known) == len(found) else None
