"""What is uncertain of a plan's workloads, and what the draws of it say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sizing.catalog import shelf, traces
from sizing.catalog.paths import expanded
from sizing.planning.size import Rules
from sizing.planning.uncertainty import Ranges, Uncertain
from sizing.question import demand
from sizing.question.question import situation_of
from sizing.report.documents_plan import Uncertainty
from sizing.report.plan import member_of, price_of
from sizing.report.plan_cloud import Rented
from sizing.specs import bands

if TYPE_CHECKING:
    from sizing.report.plan import WorkloadAnswer

MEASURE = "influence: Spearman's rank correlation of an input with GPUs over all draws, of the price with cost"


def uncertain_of(answer: WorkloadAnswer, rules: Rules, held: Rented) -> Uncertain:
    """Return a workload with its ranges, its price and the error band of its rate, where published runs of its kind are known."""
    best, request, workload = answer.best, answer.outcome.question, answer.asked.workload
    assert best is not None
    option = best.pool.replica.gpu_type
    in_flight = request.target.concurrency or best.requests_per_s * best.latency_s("e2e")["mean"]
    load = bands.region(in_flight / best.pool.count)
    band = bands.find(shelf.load_bands().spec.bands, "throughput", situation_of(request, option.gpu, load))
    arrivals = None
    if workload.demand is not None and workload.demand.trace is not None:
        rows = traces.load_trace(expanded(workload.demand.trace))
        arrivals = demand.of_trace(rows[:, 0], answer.asked.defaults.trace_window_s)
    member = member_of(answer, rules)
    instance = held[option.id].offer.gpus if option.id in held else 1
    return Uncertain(member, workload, answer.asked.defaults, band, price_of(answer, held), instance, arrivals)


def build(fleet: Sequence[Uncertain], found: Ranges) -> Uncertainty:
    """Return the figures of the draws, with what was taken as certain for want of a range."""
    certain = [f"{one.member.name}: model (no published runs of its kind)" for one in fleet if one.band is None]
    certain += [f"{one.member.name}: demand (no range stated)" for one in fleet if not one.workload.uncertain]
    spread = [one.workload.planning.price_uncertainty for one in fleet]
    if not any(spread):
        certain.append("price (no --price-uncertainty)" if set(spread) == {None} else "price (--price-uncertainty 0)")
    return Uncertainty(
        draws=found.draws,
        seed=found.seed,
        gpus=found.gpus,
        usd_per_month=found.usd_per_month,
        measure=MEASURE,
        influences=found.influences,
        certain=tuple(certain),
    )
