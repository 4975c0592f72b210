"""From `--disaggregate` to what is asked of the two pools of a disaggregated deployment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sizing.answers.answer import Outcome
from sizing.answers.pools import ALIKE, unlike
from sizing.answers.resolved import Resolved, resolve
from sizing.answers.simulate import PrefillPool
from sizing.catalog import gpus, shelf
from sizing.catalog.prices import typical_price
from sizing.cli.collecting import Part, check
from sizing.cli.deploy import layout_of, named_alone, request_alone, resolved
from sizing.cli.driving import OWN, Driving
from sizing.cli.named import Named
from sizing.cli.options import Opt
from sizing.engine.rules import of_engine
from sizing.engine.simulation import Deployed, Traffic
from sizing.engine.transfer import Transfer, transfer_of
from sizing.model.architecture import Layout
from sizing.question.question import PoolSpace, Question, SeparatePools, load_data
from sizing.report.step import Both
from sizing.specs.data import Data
from sizing.specs.errors import Fault, InputError
from sizing.specs.gpu import GpuType
from sizing.specs.optimisations import PHASES, Disaggregate, HandOver, read_pools
from sizing.specs.workload import Serving, Tokens, Workload

FIELD = "optimisations.disaggregate"
Check = Callable[[Workload], Fault | None]


def asked_of(names: Named, checks: Sequence[Check]) -> SeparatePools | None:
    """Return what is asked of each pool, None where a deployment serves as one.

    Raises InputError for an unknown GPU type, and for work that the checks find cannot be split.
    """
    workload = names.workload.value
    wanted = workload.optimisations.disaggregate
    if wanted is None:
        return None
    considered = names.options
    faults = [fault for check in checks if (fault := check(workload)) is not None]
    faults += _of_turns(workload)
    sides = {}
    for phase, pool in (("prefill", wanted.prefill), ("decode", wanted.decode)):
        try:
            sides[phase] = PoolSpace(considered if pool.gpu is None else _named(pool.gpu, names), pool)
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    return SeparatePools(sides["prefill"], sides["decode"], shelf.only(HandOver))


def _of_turns(workload: Workload) -> Sequence[Fault]:
    """Say what of conversations depends on the replicas of one pool and the load of the other."""
    prefix = workload.optimisations.prefix
    if prefix is None or (prefix.turns or 1) == 1 or (prefix.routing == "affinity" and prefix.think_time_s is None):
        return ()
    message = "turns over separate pools are sized where each finds its cache, without a think time"
    return (Fault(message, field="optimisations.prefix.turns", allowed="--prefix-routing affinity; or --prefix-hit"),)


def _named(gpu: str, names: Named) -> tuple[GpuType, ...]:
    """Return a pool's own GPU type."""
    found, price = gpus.load_gpu(gpu), names.price.value
    priced = (price, "as asked") if price is not None else typical_price(found.spec)
    return (GpuType(found.id, found.spec, *priced),)


def decodes(workload: Workload) -> Fault | None:
    """Say that there is nothing to decode."""
    if workload.tokens.osl > 1:
        return None
    return Fault("nothing decodes with OSL 1", field=FIELD, allowed="an output of two tokens and more")


def rated(workload: Workload) -> Fault | None:
    """Say that there is no rate to size pools by."""
    demand = workload.demand
    if demand is not None and demand.concurrency is not None:
        what = "pools are sized by a rate, and requests in flight state none"
        return Fault(what, field=FIELD, allowed="with --rps or --dau")
    if demand is None and workload.mode == "offline":
        return Fault("pools are sized by a rate, which offline work has none of", field=FIELD, allowed="with --rps")
    return None


def searched(question: Question, data: Data, tokens: Tokens | None) -> Outcome:
    """Return what a search of the pools that a question asks for finds, its best answer simulated where there are `tokens`."""
    from sizing.answers import pools
    from sizing.answers.verify import verify

    found = pools.search(question, data)
    return found if tokens is None else verify(found, tokens, data)


# --- a deployment that is given, to be simulated ---------------------------------------------------------------------


def named_in(text: str | None) -> str | None:
    """Return the decode pool's GPU type where both pools name theirs: then no other option has to."""
    try:
        wanted = None if text is None else Disaggregate.model_validate(read_pools(text))
    except ValueError:  # said where the workload is read
        return None
    return wanted.decode.gpu if wanted is not None and wanted.prefill.gpu is not None else None


def contradicted(asked: SeparatePools | None, driven: Driving, values: Mapping[str, Any]) -> None:
    """Raise InputError for what contradicts the simulation of two pools."""
    if asked is None:
        return
    faults = []
    if driven.stated_replicas is not None:
        faults.append(Fault("contradicts --disaggregate, where each pool has its count", field="--replicas"))
    if driven.policies != (OWN,):
        faults.append(
            Fault("contradicts --disaggregate, whose pools are scheduled as the engine does", field="--policy")
        )
    if values["slots"] is not None:
        faults.append(Fault("contradicts --disaggregate", field="--slots", allowed="--max-num-seqs, of both pools"))
    if faults:
        raise InputError(faults)


def decode_serving(names: Named, asked: SeparatePools | None) -> Serving:
    """Return how the engine is run that decodes: the only one, or that of the decode pool."""
    serving = names.workload.value.serving
    return serving if asked is None else asked.decode.serving(serving)


def of_decode(driven: Driving, asked: SeparatePools | None) -> Driving:
    """Return what drives the replicas that decode: as many as are there, or as the decode pool has."""
    return driven if asked is None else driven._replace(stated_replicas=asked.decode.pool.replicas or 1)


def routed(driven: Driving, asked: SeparatePools | None) -> Driving:
    """Return the same with as many replicas as a router may choose among."""
    if asked is None:
        return driven
    return driven._replace(stated_replicas=max(asked.prefill.pool.replicas or 1, asked.decode.pool.replicas or 1))


def prefill_of(
    asked: SeparatePools | None, decode: Resolved, policies: Mapping[str, Deployed], traffic: Traffic
) -> PrefillPool | None:
    """Return the prefill pool before a decode pool, None where there is none.

    Raises InputError for requests in flight, and for pools whose caches differ or that nothing joins.
    """
    if asked is None:
        return None
    if traffic.in_flight is not None:
        allowed = "with --rps, --dau, --trace, or --requests alone"
        raise InputError(Fault("a closed loop is not simulated over two pools", field=FIELD, allowed=allowed))
    side, request = asked.prefill, decode.question
    layout = layout_of(side.serving(request.service.serving))
    precision = decode.plan.weight_format
    prefill = resolve(request, side.gpu_types[0], layout, precision, decode.data, notes=decode.notes)
    transfer = way_between(asked, prefill, decode)
    deployed = Deployed(
        request.service.model,
        layout,
        prefill.kernels(),
        prefill.memory,
        of_engine(prefill.settings, verified=request.service.extras.verified),
        side.pool.replicas or 1,
        request.service.extras.cached.share,
    )
    return PrefillPool(prefill, deployed, transfer, asked.facts)


def way_between(asked: SeparatePools, prefill: Resolved, decode: Resolved) -> Transfer:
    """Return how caches go from one pool to the other.

    Raises InputError for pools whose caches differ or that nothing joins.
    """
    apart = unlike(prefill, decode)
    if apart is not None:
        raise InputError(Fault(apart, field=FIELD, allowed=ALIKE))
    pools = ((asked.prefill, prefill), (asked.decode, decode))
    gpus_of_both = sum((side.pool.replicas or 1) * pool.layout.gpus for side, pool in pools)
    same = prefill.gpu_type.id == decode.gpu_type.id
    within_node = same and gpus_of_both <= prefill.gpu_type.gpu.datasheet.node.gpus
    return transfer_of(
        decode.question.service.model,
        (prefill.layout, prefill.kernels()),
        (decode.layout, decode.kernels()),
        within_node=within_node,
        by_layer=asked.facts.by_layer,
    )


# --- one layout of each pool, without a load ---------------------------------------------------------------------------


def both(options: tuple[Opt, ...], values: Mapping[str, Any], *besides: Part[Any]) -> Both:
    """Return the layouts of both pools that the options describe.

    Raises InputError with all faults that can be known, those of `besides` too.
    """
    names, read = (
        named_alone(options, {**values, "gpu": values["gpu"] or named_in(values["disaggregate"])}),
        load_data(),
    )
    pools = Part(lambda: asked_of(names, ()), names.origin.at(("optimisations", "disaggregate")))

    def layout(phase: str) -> Layout:
        side: PoolSpace = getattr(pools.value, phase)
        return layout_of(side.serving(names.workload.value.serving))

    prefill, decode = (Part(lambda phase=phase: layout(phase), names.origin.by_field) for phase in PHASES)  # type: ignore[misc]
    request = Part(lambda: request_alone(names, read), names.origin.by_field)
    check(*besides, *names.parts, pools, prefill, decode, request)
    asked = pools.value
    assert asked is not None
    one, other = (
        resolved(names, request.value, side.gpu_types[0], each.value, read)
        for side, each in ((asked.prefill, prefill), (asked.decode, decode))
    )
    way = Part(lambda: way_between(asked, one, other), names.origin.by_field)
    check(way)
    return Both(one, other, way.value, asked.facts)
