"""`llmsize simulate` in real time: from options to a resolved deployment and the traffic to drive through it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sizing.answers import counts
from sizing.answers.deployment import deployment
from sizing.answers.pair import way_between
from sizing.answers.resolved import Resolved
from sizing.answers.simulate import PrefillPool, Scenario
from sizing.answers.verify import turns_of
from sizing.catalog.models import FoundModel
from sizing.catalog.paths import expanded
from sizing.catalog.traces import load_trace
from sizing.cli import meaning
from sizing.cli.driving import OF_LENGTHS, OF_LOADS, OWN, Driving, driving, is_number
from sizing.cli.reading import MOST
from sizing.engine import simulation
from sizing.engine.requests import Lengths, enough_within
from sizing.engine.rules import of_engine, with_policy
from sizing.engine.simulation import ReplicaSet, Traffic
from sizing.model.architecture import Layout
from sizing.question import question as requests
from sizing.question.ask import PLACEHOLDER_TOKENS, SEPARATE_PATH, layout_of, with_cache_of, with_origin
from sizing.question.fields import Field, options_of
from sizing.question.names import SEPARATE, Names, look_up
from sizing.question.pools import separate_pools
from sizing.question.question import Question, SeparatePools, load_data
from sizing.question.served import as_served, check_asked, check_served, extras_of
from sizing.question.values import Part, check
from sizing.replica.replica import with_extras
from sizing.specs.data import Data
from sizing.specs.demand import LEAST_REQUESTS_PER_S
from sizing.specs.errors import Fault, InputError
from sizing.specs.units import MOST_DURATION_S
from sizing.specs.workload import RESULTS, Serving, Workload

REQUESTS = 10_000  # of a rate without --requests: the 99th percentile rests on a hundred of them
ROUNDS = 10  # of a closed loop without --requests: each place is filled so often
SPARE_SHARE = 0.1  # of a closed loop that a limit ends: chance in lengths may bring so many more than the mean says


def question(
    options: tuple[Field, ...], workload: str | None, values: Mapping[str, Any], *besides: Part[Any]
) -> Scenario:
    """Read the options and resolve what they name.

    Raises InputError with all faults that can be known, those of `besides` too.
    """
    drive = Part(lambda: driving(options, values))
    read_rows = Part(lambda: _trace(values, drive))
    traced = values["trace"] is not None
    told = (*OF_LOADS, *OF_LENGTHS) if traced else ()  # wrong here, as is a limit in ticks: already said
    unitless = ("itl",) if values["itl"] is not None and is_number(values["itl"]) else ()
    given = {**values, **dict.fromkeys((*told, *unitless))}
    names = look_up(workload, options_of(options, given), single=True, tokens=PLACEHOLDER_TOKENS if traced else None)
    pools = Part(lambda: separate_pools(names, ()), names.layers.at(SEPARATE_PATH))
    against = Part(lambda: contradicted(pools.value, drive.value, values))
    serving = Part(lambda: decode_serving(names, pools.value))
    layout = Part(lambda: layout_of(serving.value), names.layers.by_field)
    rows = Part(lambda: _results_alone(read_rows.value, names.model.value))
    read = load_data()
    request = Part(lambda: _request(names, layout.value, drive.value, rows.value, read), names.layers.by_field)
    idle = Part(
        lambda: meaning.check(options, values, names.workload.value, _file(names), routed(drive.value, pools.value))
    )
    check(*besides, drive, rows, *names.parts, pools, against, layout, request, idle)
    driven, trace = of_decode(drive.value, pools.value), rows.value
    asked = with_origin(request.value, names, read, pools.value)
    resolved = _keeping(deployment(asked, read, None if pools.value is None else pools.value.decode), driven.replicas)
    policies = _deployed(resolved, driven)
    load = Part(lambda: _traffic(resolved, driven, trace, policies), names.layers.by_field)
    prefill = Part(lambda: prefill_of(pools.value, resolved, policies, load.value), names.layers.by_field)
    check(load, prefill)
    _check_share(load.value, driven.replicas)
    return Scenario(
        resolved=resolved,
        policies=policies,
        traffic=load.value,
        limits=asked.origin.workload.limits,
        routing=driven.routing,
        limit_s=driven.limit_s,
        trace=values["trace"],
        counted=trace is not None or driven.requests is not None or driven.limit_s is None,
        replicas_stated=driven.stated_replicas is not None,
        prefill=prefill.value,
    )


def _keeping(resolved: Resolved, replicas: int) -> Resolved:
    """Return a deployment whose caches keep as much between turns as its load leaves, where a think time is stated."""
    request = resolved.question
    if request.service.extras.cached.think_time_s is None or resolved.refused is not None or not resolved.memory.fits:
        return resolved
    if request.target.requests_per_s is None and request.target.concurrency is None:
        raise InputError(
            Fault(
                "needs a load to say how many talks are idle",
                field="--think-time",
                allowed="with --rps or --concurrency",
            )
        )
    extras = counts.keeping(resolved.replica, request.target, replicas, resolved.data)
    return replace(resolved, question=request.with_(extras=extras), replica=with_extras(resolved.replica, extras))


def _file(names: Names) -> Workload | None:
    """Return the workload of the file, before options are laid over it."""
    found = names.found.value
    return None if found is None else found.spec


def _deployed(resolved: Resolved, driven: Driving) -> dict[str, ReplicaSet]:
    """Return the deployment under each policy; its timing constants are shared."""
    extras = resolved.question.service.extras
    own, kernels = of_engine(resolved.settings, driven.slots, verified=extras.verified), resolved.kernels()
    size = driven.batch_size or own.slots
    found = {}
    for name in driven.policies:
        rules = own
        if name != OWN:
            rules = with_policy(own, name, ticks=False, batch_size=size, batch_window=driven.batch_window_s)
        found[name] = ReplicaSet(kernels, resolved.memory, rules, driven.replicas)
    return found


def _trace(values: Mapping[str, Any], drive: Part[Driving]) -> NDArray[Any] | None:
    """Return the rows of a trace; all are read where it is not known how many are to be sent."""
    if values["trace"] is None:
        return None
    if not values["trace"].strip():
        raise InputError(Fault("names no file", field="--trace", allowed="a CSV or JSON-lines file"))
    return load_trace(expanded(values["trace"]), most=None if drive.faults else drive.value.requests)


def _results_alone(trace: NDArray[Any] | None, model: FoundModel) -> NDArray[Any] | None:
    """Return the rows of a trace as a task serves them: with one result each in place of the outputs where that pools."""
    if trace is None or not model.spec.pooled:
        return trace
    return np.column_stack((trace[:, :2], np.full(len(trace), RESULTS)))


def _request(names: Names, layout: Layout, driven: Driving, trace: NDArray[Any] | None, read: Data) -> Question:
    """Return the request; of a trace the longest sequence is what is to be held, where nothing else is stated."""
    model, (engine, version), asked = names.model.value, names.engine.value, names.workload.value
    serving = asked.serving
    _check_turns(asked, driven, traced=trace is not None)
    if trace is not None and serving.max_model_len is None:
        longest = min(int((trace[:, 1] + trace[:, 2]).max()), model.spec.max_position)
        serving = serving.model_copy(update={"max_model_len": longest})
    check_asked(asked, model.spec)
    if asked.pooled and driven.osl_std is not None:
        raise InputError(Fault(f"{asked.task} gives no tokens", field="--osl-std", allowed="none"))
    extras = extras_of(asked, model.spec).over(driven.replicas * layout.dp)
    whole = as_served(asked, extras)
    if trace is None:
        check_served(whole, extras, model.spec)
    return requests.resolve(
        with_cache_of(whole, model).model_copy(update={"serving": serving}),
        model.spec,
        engine,
        version,
        read.defaults,
        gpu_budget=layout.gpus * driven.replicas,
        extras=extras,
    )


def _check_turns(asked: Workload, driven: Driving, *, traced: bool) -> None:
    """Raise InputError for turns whose prompts have lengths from elsewhere too."""
    prefix = asked.optimisations.prefix
    if prefix is None or prefix.turns is None:
        return
    if traced or driven.isl_std is not None or driven.length_ratio is not None:
        other = "a trace" if traced else "--isl-std" if driven.isl_std is not None else "--length-ratio"
        raise InputError(
            Fault(
                f"turns say how long prompts are, and so does {other}",
                field="optimisations.prefix.turns",
                allowed="one of them; of a trace --prefix-hit",
            )
        )


def _traffic(
    resolved: Resolved,
    driven: Driving,
    trace: NDArray[Any] | None,
    policies: Mapping[str, ReplicaSet],
) -> Traffic:
    """Return the load: a trace, a rate, a number in flight, or requests at once. Raises InputError for none."""
    request, arriving, count = resolved.question, driven.arriving, driven.requests
    asked = request.origin.workload
    tokens = asked.tokens
    isl = turns_of(tokens) or _lengths(tokens.isl, driven.isl_std or tokens.isl_std, tokens.isl_max, driven)
    osl = _lengths(tokens.osl, driven.osl_std or tokens.osl_std, tokens.osl_max, driven)
    base = Traffic(isl, osl, count or REQUESTS, seed=driven.seed)
    if trace is not None:
        return replace(base, count=len(trace), trace=trace, longest=request.service.max_model_len)
    base = replace(base, longest=_longest(asked, base, request))
    if request.target.concurrency is not None and arriving.kind is not None:
        closed = replace(base, in_flight=request.target.concurrency, count=count or ROUNDS * request.target.concurrency)
        if count is not None or driven.limit_s is None or not resolved.memory.fits or resolved.refused is not None:
            return closed
        return replace(closed, count=_within_limit(_most_closed(closed, driven.limit_s, policies)))
    if request.target.requests_per_s is not None and arriving.kind is not None:
        rate = request.target.requests_per_s
        open_ = replace(base, rate_per_s=rate, arrivals=arriving.kind, burstiness=arriving.burstiness)
        return replace(open_, count=_count_of_rate(open_, rate, driven))
    if count is None:
        raise InputError(
            Fault(
                "nothing says what to send",
                field="--requests",
                allowed="--rps, --concurrency, --dau, --trace, or --requests alone for all at once",
            )
        )
    return base


def _count_of_rate(traffic: Traffic, rate: float, driven: Driving) -> int:
    """Return how many requests of a rate to send: those stated, all until the limit, or enough for percentiles.

    Raises InputError for a rate so low, or requests so many, that the clock loses the steps in its last digits.
    """
    if rate < LEAST_REQUESTS_PER_S:
        message = f"brings {rate:g} requests/s, too few for a clock to tell steps apart"
        raise InputError(Fault(message, field="demand", allowed=f"at least {LEAST_REQUESTS_PER_S:g}"))
    within = max(1, math.floor(rate * MOST_DURATION_S))
    if driven.limit_s is not None:
        if driven.requests is not None:
            return driven.requests
        enough = enough_within(driven.limit_s, rate, traffic.arrivals, burstiness=traffic.burstiness)
        return _within_limit(enough)
    if driven.requests is not None and driven.requests > within:
        message = f"{driven.requests:,} at {rate:g}/s take longer than a year to arrive"
        raise InputError(Fault(message, field="--requests", allowed=f"at most {within:,}, or a --limit"))
    return driven.requests or min(REQUESTS, within)


def _most_closed(traffic: Traffic, limit_s: float, policies: Mapping[str, ReplicaSet]) -> float:
    """Return how many requests of a closed loop may be served until a limit: none ends sooner than one alone."""
    assert traffic.in_flight is not None
    alone = replace(traffic, isl=Lengths(traffic.isl.mean), osl=Lengths(traffic.osl.mean))
    ends_s = [
        simulation.simulate(replace(deployed, count=1), replace(alone, in_flight=1, count=1)).latencies_s["e2e"]
        for deployed in policies.values()
    ]
    shortest_s = min((end["mean"] for end in ends_s if end), default=limit_s)
    return math.ceil(traffic.in_flight * (1 + (1 + SPARE_SHARE) * limit_s / shortest_s))


def _within_limit(count: float) -> int:
    """Return how many requests may come until the limit. Raises InputError for more than fit memory."""
    if count > MOST:
        message = f"up to {count:,.0f} requests may come until then"
        raise InputError(
            Fault(message, field="--limit", allowed=f"a shorter one (for at most {MOST:,}), or with --requests")
        )
    return int(count)


def _lengths(mean: int, std: float | None, longest: int | None, driven: Driving) -> Lengths:
    if driven.length_ratio is not None:
        return Lengths(mean, shape="uniform", low_share=driven.length_ratio)
    return Lengths(mean, std, driven.length_shape, longest=longest) if std else Lengths(mean)


def _longest(asked: Workload, traffic: Traffic, question: Question) -> int:
    """Return where the two lengths together are cut: at what holds them, or the model's maximum for shapes without an end."""
    if asked.serving.max_model_len:
        return question.service.max_model_len
    endless = any(length.std and length.longest is None for length in (traffic.isl, traffic.osl))
    return question.service.model.max_position if endless else question.service.max_model_len


def _check_share(traffic: Traffic, replicas: int) -> None:
    if traffic.in_flight is not None and traffic.in_flight < replicas:
        raise InputError(
            Fault(
                f"{traffic.in_flight} in flight leave some of {replicas} replicas idle",
                field="--concurrency",
                allowed=f"at least {replicas}",
            )
        )


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


def decode_serving(names: Names, asked: SeparatePools | None) -> Serving:
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
    asked: SeparatePools | None, decode: Resolved, policies: Mapping[str, ReplicaSet], traffic: Traffic
) -> PrefillPool | None:
    """Return the prefill pool before a decode pool, None where there is none.

    Raises InputError for requests in flight, and for pools whose caches differ or that nothing joins.
    """
    if asked is None:
        return None
    if traffic.in_flight is not None:
        allowed = "with --rps, --dau, --trace, or --requests alone"
        raise InputError(Fault("a closed loop is not simulated over two pools", field=SEPARATE, allowed=allowed))
    side, request = asked.prefill, decode.question.with_(precisions=(decode.plan.weight_format,))
    prefill = deployment(request, decode.data, side)
    transfer = way_between(asked, prefill, decode)
    rules = of_engine(prefill.settings, verified=request.service.extras.verified)
    deployed = ReplicaSet(prefill.kernels(), prefill.memory, rules, side.pool.replicas or 1)
    return PrefillPool(prefill, deployed, transfer, asked.facts)
