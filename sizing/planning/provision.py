"""A sized fleet: the answer and reserve of each workload, the pools of GPUs, and the rented instances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from sizing.answers.answer import Answer, Outcome
from sizing.catalog.prices import source_of, usd_per_gpu_hour
from sizing.planning.availability import UnreachableError
from sizing.planning.fleet import GpuPool, Sharing, Tenant, hours_of, peak_of_sums, pools_of
from sizing.planning.instances import Instances, instances
from sizing.planning.rules import ProvisionRules
from sizing.planning.size import need_of, size_of
from sizing.question.question import Question
from sizing.specs.gpu import GpuType
from sizing.specs.units import HOURS_PER_MONTH

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
    def best(self) -> Answer:
        """The answer. Raises ValueError where there is none."""
        if self.outcome.confirmed is None:
            raise ValueError(f"{self.workload.name} has no answer")
        return self.outcome.confirmed


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


def surely(fleet: Provision) -> Provision | None:
    """The fleet with the confident size of each workload (`tenants_sure`) and its reserve; None where one is unknown."""
    found = tenants_sure(fleet)
    known = tuple(tenant for tenant in found if tenant is not None)
    return fleet._replace(tenants=known, pools=pools_of(known, fleet.rules)) if len(known) == len(found) else None


def tenants_sure(fleet: Provision) -> list[Tenant | None]:
    """Each workload with its confident size: the replicas that keep the limits with the stated confidence; None if unknown."""
    return [_surely(*each, fleet.rules) for each in zip(fleet.answers, fleet.tenants, strict=True)]


def _surely(answer: PlanAnswer, tenant: Tenant, rules: ProvisionRules) -> Tenant | None:
    """A workload with its confident size; None where that is unknown, or no reserve reaches the availability."""
    outcome, need = answer.outcome, tenant.need
    if outcome.surely is None:
        return None
    if outcome.surely.gpus > answer.best.gpus:
        need = need_of(outcome.surely, outcome.question)
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
