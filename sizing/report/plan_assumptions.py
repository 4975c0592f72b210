"""The assumptions of a plan: how the peak came about, what reserves and scaling rest on, and how draws are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from sizing.catalog.prices import source_of, usd_per_gpu_hour
from sizing.formats.view import Assumption
from sizing.replica.replica import Replica
from sizing.report.documents_plan import Cloud, Uncertainty
from sizing.report.parts import assumptions
from sizing.report.plan_cloud import Rented

if TYPE_CHECKING:
    from sizing.report.plan import Asking


def of(asking: Asking, cloud: Cloud | None, uncertainty: Uncertainty | None, held: Rented) -> Iterator[Assumption]:
    """Yield what a plan rests on, each once."""
    yield from dict.fromkeys(_of_models(asking, held))
    rules = asking.rules
    if rules.availability is not None and not rules.by_node:
        yield Assumption(
            "failures", "each replica fails by itself", "", "assumed", "binomial; --failures node for whole nodes"
        )
    if rules.growth_per_month is not None:
        yield Assumption("growth", "the same for every workload, at one size of a replica", "", "assumed", "as asked")
    if cloud is not None:
        yield from _of_cloud(asking, cloud)
    if uncertainty is not None:
        yield Assumption(
            "draws", f"{uncertainty.draws:,} of seed {uncertainty.seed}", "", "assumed", uncertainty.measure
        )


def _of_models(asking: Asking, held: Rented) -> Iterator[Assumption]:
    for answer in asking.answers:
        best, request = answer.best, answer.outcome.question
        if best is not None:
            yield from assumptions.of_model(request, answer.asked.notes)
            yield from assumptions.of_memory(request, best.pool.replica)
            yield from assumptions.of_time(request, best.pool.replica, best.pool.load.kernels)
            yield from assumptions.of_limits(request)
            if request.service.extras.cached.varies:
                held_at = f"as over {best.pool.count:,} replicas, spare and later ones left out"
                yield Assumption("what prefix caches find", held_at, "", "assumed", "the size that the peak takes")
            yield from assumptions.of_planning(request, answer.asked, _at_price(best.pool.replica, held))


def _at_price(replica: Replica, held: Rented) -> Replica:
    """Return a candidate at the price of what is rented."""
    if replica.gpu_type.id not in held:
        return replica
    offer = held[replica.gpu_type.id].offer
    option = replace(replica.gpu_type, usd_per_gpu_hour=usd_per_gpu_hour(offer), price_source=source_of(offer))
    return replace(replica, gpu_type=option)


def _of_cloud(asking: Asking, cloud: Cloud) -> Iterator[Assumption]:
    rules = asking.scaling
    for what, value, unit in (
        ("weights over the network", rules.network_gb_per_s, "GB/s"),
        ("weights from disk", rules.disk_gb_per_s, "GB/s"),
        ("start of a node", rules.node_start_s, "s"),
        ("start of the engine", rules.engine_start_s, "s"),
    ):
        yield Assumption(what, value, unit, "assumed", rules.source)
    if cloud.mixes:
        yield Assumption(
            "reserved price", rules.reserved_discount * 100, "% below on demand unless known", "assumed", rules.source
        )
    yield Assumption("load within an hour", "even; it changes at the full hour", "", "assumed", "scaling begins then")
