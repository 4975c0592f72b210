"""The uncertainty of a size: every input with a range is drawn at random, which gives a range of GPUs and cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.catalog import shelf, traces
from sizing.catalog.files import expanded
from sizing.planning.fleet import Tenant, pooled
from sizing.planning.nodes import Fit
from sizing.planning.provision import PlanAnswer, Provision
from sizing.planning.rules import ProvisionRules
from sizing.planning.size import ROUNDING, reserve_of
from sizing.question import demand as demands
from sizing.specs.bands import Band, Bands, find, region
from sizing.specs.demand import Demand
from sizing.specs.units import HOURS_PER_MONTH
from sizing.specs.values import replaced
from sizing.specs.workload import Defaults, Workload

DRAWS = 10_000
SHARES = (0.1, 0.5, 0.9)
P90_SIGMAS = NormalDist().inv_cdf(0.9)  # 1.2816: the standard deviations between the median and P10 or P90
MODEL_ERROR, PRICE = "model error", "price"
COUNTED = "GPUs"  # what inputs other than the price move
MEASURE = "influence: Spearman's rank correlation of an input with GPUs over all draws, of the price with cost"

Floats = NDArray[np.float64]


class Uncertain(NamedTuple):
    """One workload and its uncertain inputs: the ranges of its file, and the error band of its rate.

    Rented instances of `gpus_per_instance` GPUs are paid for as a whole.
    """

    tenant: Tenant
    workload: Workload
    band: Band | None
    usd_per_gpu_hour: float | None
    gpus_per_instance: int = 1
    arrivals: demands.Arrivals | None = None


class Influence(NamedTuple):
    """The influence of one input on the GPUs, or of the price on the cost: Spearman's rank correlation over the draws."""

    input: str
    distribution: str
    rank_correlation: float
    of: str


class Quantiles(NamedTuple):
    """Values that 10, 50 and 90 % of the draws do not exceed."""

    p10: float
    p50: float
    p90: float


class Ranges(NamedTuple):
    """GPUs and cost over all draws, the inputs by influence (largest first), and the inputs taken as certain."""

    draws: int
    seed: int
    gpus: Quantiles
    usd_per_month: Quantiles | None
    measure: str
    influences: tuple[Influence, ...]
    certain: tuple[str, ...]


class _Input(NamedTuple):
    name: str
    distribution: str
    values: Floats


def draw_sizes(fleet: Sequence[Uncertain], rules: ProvisionRules, *, seed: int, draws: int = DRAWS) -> Ranges:
    """Draw every uncertain input, and size the fleet for each draw.

    Ranges are uniform. The model error is lognormal with the band's ends as P10 and P90, and is drawn for each workload.
    The price factor is uniform and common to all workloads. Equal seeds give equal results.
    """
    random = np.random.default_rng(seed)
    inputs: list[_Input] = []
    bases = []
    for uncertain in fleet:
        prefix = f"{uncertain.tenant.name}: " if len(fleet) > 1 else ""
        own, base = _bases(uncertain, random, draws, rules, prefix=prefix)
        inputs += own
        bases.append(base)
    failures = [_failures(of.tenant, base.max(axis=1), rules) for of, base in zip(fleet, bases, strict=True)]
    gpus, usd_per_h = _gpus(fleet, bases, failures, rules)
    spread = max((uncertain.workload.planning.price_uncertainty or 0.0 for uncertain in fleet), default=0.0)
    if spread and usd_per_h is not None:
        times = random.uniform(1 - spread, 1 + spread, draws)
        inputs.append(_Input(PRICE, f"uniform, {spread * 100:g} % up or down", times))
        usd_per_h = usd_per_h * times
    usd = None if usd_per_h is None else usd_per_h * HOURS_PER_MONTH
    return Ranges(
        draws=draws,
        seed=seed,
        gpus=_quantiles(gpus),
        usd_per_month=None if usd is None else _quantiles(usd),
        measure=MEASURE,
        influences=tuple(_influences(inputs, gpus, usd)),
        certain=tuple(_certain(fleet)),
    )


def _certain(fleet: Sequence[Uncertain]) -> Iterator[str]:
    """Yield the inputs without a range."""
    yield from (
        f"{uncertain.tenant.name}: model (no published runs of its kind)"
        for uncertain in fleet
        if uncertain.band is None
    )
    yield from (
        f"{uncertain.tenant.name}: demand (no range stated)" for uncertain in fleet if not uncertain.workload.uncertain
    )
    spread = [uncertain.workload.planning.price_uncertainty for uncertain in fleet]
    if not any(spread):
        yield "price (no --price-uncertainty)" if set(spread) == {None} else "price (--price-uncertainty 0)"


def of_fleet(fleet: Provision) -> list[Uncertain]:
    """Each workload with its ranges, its price, and the error band of its rate where similar published runs exist."""
    return [_uncertain(answer, tenant, fleet) for answer, tenant in zip(fleet.answers, fleet.tenants, strict=True)]


def _uncertain(answer: PlanAnswer, tenant: Tenant, fleet: Provision) -> Uncertain:
    best, question = answer.best, answer.outcome.question
    workload, gpu_type = question.origin.workload, best.pool.replica.gpu_type
    in_flight = question.target.concurrency or best.requests_per_s * best.latency_s("e2e")["mean"]
    situation = question.service.situation(gpu_type.gpu, region(in_flight / best.pool.count))
    arrivals = None
    if workload.demand is not None and workload.demand.trace is not None:
        rows = traces.load_trace(expanded(workload.demand.trace))
        arrivals = demands.of_trace(rows[:, 0], shelf.only(Defaults).trace_window_s)
    return Uncertain(
        tenant,
        workload,
        find(shelf.only(Bands).bands, "throughput", situation),
        fleet.price(gpu_type.id).usd_per_gpu_hour,
        fleet.rented[gpu_type.id].offer.gpus if gpu_type.id in fleet.rented else 1,
        arrivals,
    )


def _bases(
    one: Uncertain, random: np.random.Generator, draws: int, rules: ProvisionRules, *, prefix: str
) -> tuple[list[_Input], Floats]:
    """The drawn inputs of a workload, and the replicas without reserve by draw and hour."""
    drawn = {field: random.uniform(span.low, span.high, draws) for field, span in one.workload.uncertain.items()}
    inputs = [
        _Input(f"{prefix}{field}", f"uniform, {span.low:g} to {span.high:g}", drawn[field])
        for field, span in one.workload.uncertain.items()
    ]
    need = one.tenant.need
    capacity = np.full(draws, need.per_replica)
    if one.band is not None:
        error = _lognormal(random, one.band, draws)
        what = f"lognormal, P10 {one.band.low:g} and P90 {one.band.high:g} of the predicted rate"
        inputs.append(_Input(f"{prefix}{MODEL_ERROR}", what, error))
        capacity = capacity * error
    wanted = _demands(one, drawn, draws)
    parts = np.array(one.tenant.parts() or (1.0,))
    by_hour = np.ceil(np.outer(wanted * (1 + need.headroom) / capacity, parts) - ROUNDING)
    least = np.minimum(rules.min_replicas, np.maximum(1.0, by_hour.max(axis=1, keepdims=True)))
    return inputs, np.maximum(least, by_hour)


def _lognormal(random: np.random.Generator, band: Band, draws: int) -> Floats:
    """Draw measured over predicted, with 10 % below the band and 10 % above."""
    middle = math.log(band.low * band.high) / 2
    sigma = math.log(band.high / band.low) / (2 * P90_SIGMAS)
    return np.exp(random.normal(middle, sigma, draws))


def _demands(one: Uncertain, drawn: dict[str, Floats], draws: int) -> Floats:
    """The peak demand of every draw, from the workload with the drawn values."""
    if not drawn or one.workload.demand is None or one.tenant.demanded is None:
        return np.full(draws, one.tenant.need.demand)
    found = np.empty(draws)
    columns = [(field.partition(".")[::2], values.tolist()) for field, values in drawn.items()]
    per_head = one.tenant.need.demand / (_people(one.workload.demand) or 1.0)  # 1 in a closed loop, else a rate
    for index in range(draws):
        demand, planning = one.workload.demand, one.workload.planning
        for (section, field), values in columns:
            if section == "demand":
                demand = replaced(demand, field.split("."), values[index])
            else:
                planning = replaced(planning, field.split("."), values[index])
        resolved = demands.resolve_demand(
            demand,
            planning,
            offline=one.workload.mode == "offline",
            shape=one.tenant.demanded.shape,
            arrivals=one.arrivals,
        )
        found[index] = resolved.peak_per_s if resolved.peak_per_s is not None else _people(demand) * per_head
    return found


def _people(demand: Demand) -> float:
    """Requests in flight or concurrent users; 0 for other demands."""
    return float(demand.concurrency or demand.concurrent_users or 0.0)


def _failures(tenant: Tenant, bases: Floats, rules: ProvisionRules) -> Floats:
    """The replicas in reserve for failures of each draw, computed once for each size."""
    sizes, where = np.unique(bases, return_inverse=True)
    return np.array([float(reserve_of(int(size), tenant.need.fit, rules).failures) for size in sizes])[where]


def _gpus(
    fleet: Sequence[Uncertain], bases: Sequence[Floats], failures: Sequence[Floats], rules: ProvisionRules
) -> tuple[Floats, Floats | None]:
    """The GPUs and $ per hour of every draw; workloads in a shared pool are summed hour by hour."""
    hours = math.lcm(*(base.shape[1] for base in bases))
    total, usd = np.zeros(bases[0].shape[0]), np.zeros(bases[0].shape[0])
    for members in pooled([each.tenant for each in fleet]):
        fits = [fleet[i].tenant.need.fit for i in members]
        together = sum(
            np.tile(bases[i], hours // bases[i].shape[1]) * fit.gpus_per_replica
            for i, fit in zip(members, fits, strict=True)
        )
        gpus = np.max(together, axis=1) + _reserve(fits, [failures[i] for i in members], rules)
        total += gpus
        first = fleet[members[0]]
        paid = _paid_for(gpus, fits, first.gpus_per_instance)
        usd += paid * (math.nan if first.usd_per_gpu_hour is None else first.usd_per_gpu_hour)
    return total, None if np.isnan(usd).any() else usd


def _reserve(fits: Sequence[Fit], failures: Sequence[Floats], rules: ProvisionRules) -> Floats:
    """The reserve of a pool in GPUs, by the rules of `fleet.reserve_of_pool`."""
    for_failures = np.array([count * fit.gpus_per_replica for count, fit in zip(failures, fits, strict=True)])
    out = np.array([fit.replicas_together * fit.gpus_per_replica * rules.maintenance for fit in fits])
    together: Floats
    if rules.availability is not None:
        together = for_failures.sum(axis=0) + out.max()
    else:
        together = (for_failures + out[:, np.newaxis]).max(axis=0)
    return together


def _paid_for(gpus: Floats, fits: Sequence[Fit], per_instance: int) -> Floats:
    """The GPUs of the whole instances that hold `gpus`, with idle GPUs in each as for the largest replica."""
    fit = Fit(max(fit.gpus_per_replica for fit in fits), per_instance)
    used = fit.gpus_per_replica * fit.replicas_together / fit.nodes_per_replica  # GPUs in use on a full instance
    paid: Floats = np.ceil(gpus / used - ROUNDING) * per_instance
    return paid


def _quantiles(values: Floats) -> Quantiles:
    """Quantiles without interpolation between draws, as there is no half GPU."""
    return Quantiles(*(float(value) for value in np.quantile(values, SHARES, method="inverted_cdf")))


def _influences(inputs: Sequence[_Input], gpus: Floats, usd: Floats | None) -> list[Influence]:
    found = []
    for name, distribution, values in inputs:
        of_cost = name == PRICE and usd is not None
        rho = rank_correlation(values, usd if of_cost and usd is not None else gpus)
        found.append(Influence(name, distribution, rho, "cost" if of_cost else COUNTED))
    return sorted(found, key=lambda one: -abs(one.rank_correlation))


def rank_correlation(one: Floats, other: Floats) -> float:
    """Spearman's rank correlation; 0 where either is constant. Equal values share their mean rank."""
    first, second = _ranks(one), _ranks(other)
    spread = float(first.std() * second.std())
    return float(np.mean((first - first.mean()) * (second - second.mean()))) / spread if spread else 0.0


def _ranks(values: Floats) -> Floats:
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2)[where]
    return ranks
