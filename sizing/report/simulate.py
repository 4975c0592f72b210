"""`llmsize simulate`: a load through the engine's scheduler in real time, a run for each policy; separate pools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from sizing.answers.simulate import Runs, Scenario
from sizing.engine.simulation import Run
from sizing.formats.view import (
    Assumption,
    Document,
    Facts,
    Figure,
    Line,
    Mark,
    Quantity,
    Rows,
    Section,
    Series,
    Table,
    in_words,
    labelled,
    plain,
)
from sizing.formats.words import milliseconds, number, percent, plural
from sizing.model.extras import NOTHING
from sizing.question.question import situation_of
from sizing.report.parts import assumptions, bands, pools, traffic
from sizing.report.parts.assumptions import NO_ITL, NO_ITL_LINE
from sizing.report.parts.bands import Predicted
from sizing.report.parts.figures import MemoryFigures
from sizing.report.parts.memory import LayoutMemory, layout_memory, memory_line
from sizing.report.parts.pools import SimulatedPools
from sizing.report.parts.question import LimitInMs, inputs_of_layout, labels, limits_in_ms, setup
from sizing.report.parts.requests import latencies
from sizing.specs.bands import LATENCIES, ErrorBand, region
from sizing.specs.units import MILLI
from sizing.specs.workload import GENERATE

OWN = "engine"  # the policy that the engine itself has
SPREAD_OUT = "--replicas N spreads the load, which one replica is driven with here, over N; llmsize estimate finds N for a demand"
NOT_CONVERGED = "not converged: the queue kept growing, so latencies depend on how long the run was"
TOO_LONG = "refused (too long for the cache or the model)"
WASTED = "wasted: slots empty while requests waited"
GOODPUT = "; goodput: requests/s that keep every limit"
OF_MANY = "running and cache of one replica on average, queued in all, most queued on one"


class Spread(NamedTuple):
    """A latency in ms over the requests of a simulation; null where none was measured."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


class QueueFigures(NamedTuple):
    """Waiting requests: mean over time and at the end over all replicas, and the most on one replica."""

    mean: float | None = None
    max: int | None = None
    end: int | None = None


class Extent(NamedTuple):
    """A quantity of one replica over time."""

    mean: float | None = None
    max: float | None = None


class SimulatedRun(NamedTuple):
    """One run in real time under one policy; every figure is null where nothing could be run.

    `wasted_slot_share` is slot time that was empty while requests waited; `missed` names the limits not kept.
    """

    policy: str
    arrived: int | None = None
    completed: int | None = None
    refused: int | None = None
    duration_s: float | None = None
    requests_per_s: float | None = None
    requests_per_s_per_gpu: float | None = None
    output_tokens_per_s: float | None = None
    output_tokens_per_s_per_gpu: float | None = None
    ttft_ms: Spread = Spread()
    itl_ms: Spread = Spread()
    e2e_ms: Spread = Spread()
    queue: QueueFigures = QueueFigures()
    batch: Extent = Extent()
    kv_utilisation: Extent = Extent()
    preemptions: int | None = None
    goodput_requests_per_s: float | None = None
    gpu_utilisation: float | None = None
    wasted_slot_share: float | None = None
    stable: bool | None = None
    missed: tuple[str, ...] = ()


class SimulationReport(NamedTuple):
    """The record of `llmsize simulate`: a run for each policy, none of them run where the deployment does not fit.

    `disaggregated` is the state of each pool where prefill and decode are separate, else null.
    """

    passed: bool
    inputs: dict[str, Any]
    runs: tuple[SimulatedRun, ...]
    memory: MemoryFigures
    bands: dict[str, ErrorBand]
    reason: str | None
    suggestions: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    disaggregated: SimulatedPools | None = None
    schema: str = "llmsize.simulation/1"


def record(scenario: Scenario, runs: Runs) -> SimulationReport:
    """The record of a scenario and its runs; where the deployment does not fit, its deficit."""
    memory = _memory(scenario)
    found = tuple(_run(policy, runs.served.get(policy), scenario) for policy in scenario.policies)
    suggestions = memory.suggestions
    if not scenario.replicas_stated and any(run.stable is False for run in found):
        suggestions = suggestions or (SPREAD_OUT,)
    return SimulationReport(
        passed=memory.fits
        and all(run.completed and run.stable and not run.refused and not run.missed for run in found),
        inputs=_inputs(scenario, runs),
        runs=found,
        memory=memory.memory,
        bands=bands.bounds((*memory.predicted, *_predictions(scenario, runs, found))),
        reason=memory.reason,
        suggestions=suggestions,
        assumptions=tuple(_rests_on(scenario, found)) if runs.served else memory.assumptions,
        disaggregated=_pools(scenario, runs),
    )


def _memory(scenario: Scenario) -> LayoutMemory:
    """The memory of a deployment; of separate pools that of the prefill pool where its memory is too small."""
    memory = layout_memory(scenario.resolved)
    if scenario.prefill is None:
        return memory
    pool = "decode"
    if memory.fits and not scenario.fits:
        memory, pool = layout_memory(scenario.prefill.resolved), "prefill"
    return memory if memory.reason is None else memory._replace(reason=f"the {pool} pool: {memory.reason}")


def _run(policy: str, served: Run | None, scenario: Scenario) -> SimulatedRun:
    if served is None:
        return SimulatedRun(policy)
    limits = limits_in_ms(scenario.limits)
    tokens_per_s = 0.0 if scenario.resolved.question.service.model.pooled else served.output_tokens_per_s
    spreads = {f"{name}_ms": _spread(served.latencies_s[name]) for name in LATENCIES}
    return SimulatedRun(
        policy=policy,
        arrived=served.arrived,
        completed=served.completed,
        refused=served.refused,
        duration_s=served.duration_s,
        requests_per_s=served.requests_per_s,
        requests_per_s_per_gpu=served.requests_per_s / scenario.gpus,
        output_tokens_per_s=tokens_per_s,
        output_tokens_per_s_per_gpu=tokens_per_s / scenario.gpus,
        **spreads,
        queue=QueueFigures(served.queue_mean, served.queue_max, served.queue_end),
        batch=Extent(served.batch_mean, served.batch_max),
        kv_utilisation=Extent(served.cache_mean, served.cache_max),
        preemptions=served.preemptions,
        goodput_requests_per_s=served.goodput_per_s if any(limits.values()) else None,
        gpu_utilisation=served.busy,
        wasted_slot_share=served.wasted,
        stable=served.stable,
        missed=tuple(name for name in LATENCIES if _misses(spreads[f"{name}_ms"], limits[f"{name}_ms"])),
    )


def _spread(seconds: dict[str, float]) -> Spread:
    return Spread(*(seconds[key] / MILLI for key in Spread._fields)) if seconds else Spread()


def _misses(spread: Spread, limit: LimitInMs | None) -> bool:
    """Whether a statistic is above its limit; a latency without any measurement keeps it."""
    value = None if limit is None else getattr(spread, limit.statistic)
    return limit is not None and value is not None and value > limit.ms


def _pools(scenario: Scenario, runs: Runs) -> SimulatedPools | None:
    if scenario.prefill is None or runs.pools is None:
        return None
    prefill = pools.simulated(scenario.prefill.resolved, scenario.prefill.deployed.count, runs.pools.prefill)
    decode = pools.simulated(scenario.resolved, scenario.deployed.count, runs.pools.decode)
    isl, _ = traffic.mean_lengths(scenario.traffic)
    way = pools.transfer_figures(scenario.prefill.transfer, isl)
    return SimulatedPools(prefill, decode, runs.pools.transfer_s / MILLI, way, prefill.gpus / decode.gpus)


def _predictions(scenario: Scenario, runs: Runs, found: Sequence[SimulatedRun]) -> Iterator[Predicted]:
    """The predicted figures of the run under the engine's own policy.

    Published measurements are of replicas that serve as one without optimisations; other scenarios have no predictions.
    Latencies of a stable run are predictions. So are rates, unless the run is stable and requests came at a rate or
    from a trace: then they were asked for.
    """
    question, load = scenario.resolved.question, scenario.traffic
    service = question.service
    if scenario.prefill is not None or service.extras != NOTHING or service.model.pooled or OWN not in runs.served:
        return
    served, index = runs.served[OWN], list(scenario.policies).index(OWN)
    prefix = f"runs.{index}." if len(found) > 1 else ""  # the figures of a single run stand in the record itself
    run = found[index]
    in_flight = load.in_flight or served.requests_per_s * served.latencies_s["e2e"].get("mean", 0.0)
    at = region(in_flight / scenario.deployed.count)
    paced = load.rate_per_s is not None or load.trace is not None
    offline = not paced and load.in_flight is None  # all at once
    situation = situation_of(question, scenario.resolved.gpu_type.gpu, at)
    situation = situation._replace(mode="offline" if offline else "served")
    if run.stable:
        for metric in LATENCIES:
            for statistic in bands.STATISTICS:
                value = getattr(getattr(run, f"{metric}_ms"), statistic)
                yield Predicted(f"{prefix}{metric}_ms.{statistic}", value, metric, situation)
    if not (paced and run.stable):
        for name in ("requests_per_s", "output_tokens_per_s"):
            for each in (name, f"{name}_per_gpu"):
                yield Predicted(f"{prefix}{each}", getattr(run, each), "throughput", situation)


def _inputs(scenario: Scenario, runs: Runs) -> dict[str, Any]:
    load, deployed, dynamic = scenario.traffic, scenario.deployed, scenario.policies.get("dynamic")
    isl, osl = traffic.mean_lengths(load)
    sent = next((served.requests for served in runs.served.values()), None)
    routed = scenario.routed and load.in_flight is None
    return {
        "clock": "seconds",
        **inputs_of_layout(scenario.resolved),
        "replicas": deployed.count,
        "gpus": scenario.gpus,
        "policies": list(scenario.policies),
        "slots": deployed.rules.slots,
        "isl": isl,
        "osl": 0.0 if scenario.resolved.question.service.model.pooled else osl,
        **traffic.lengths(load, sent),
        "load": traffic.load(load, counted=scenario.counted, trace=scenario.trace),
        "prefix_hit": deployed.shard.extras.cached.share,
        "routing": scenario.routing if routed else None,
        "seed": load.seed,
        "limit_s": scenario.limit_s,
        "limits": limits_in_ms(scenario.limits),
        **({"batch_size": dynamic.rules.batch_size, "batch_window_s": dynamic.rules.batch_window} if dynamic else {}),
    }


def _rests_on(scenario: Scenario, runs: Sequence[SimulatedRun]) -> Iterator[Assumption]:
    resolved, in_flight, replicas = scenario.resolved, scenario.traffic.in_flight, scenario.deployed.count
    replica = resolved.replica
    yield from assumptions.of_model(resolved.question, resolved.notes)
    yield from assumptions.of_memory(resolved.question, replica)
    yield from assumptions.of_time(resolved.question, replica, scenario.deployed.kernels)
    if in_flight is not None and replicas > 1:
        share, why = max(1, round(in_flight / replicas)), "replicas are alike; one is simulated"
        yield Assumption("requests in flight", share, "per replica", "assumed", why)
    if scenario.prefill is not None:
        yield from pools.assumptions(scenario.prefill.facts)
    decoded = not any(run.completed for run in runs) or any(run.itl_ms.mean for run in runs)
    if scenario.limits.itl is not None and not decoded:
        yield NO_ITL


def document(record: SimulationReport) -> Document[SimulationReport]:
    """The document of a simulation."""
    return Document(record, sections, rows)


def rows(record: SimulationReport) -> Rows:
    """One row for each policy. A figure with parts (a latency, the queue) has one column for each part."""
    shared = {**labels(record.inputs), "tp": record.inputs["tp"]}
    found = [{**shared, **_flat(run._replace(missed="; ".join(run.missed)))} for run in record.runs]  # type: ignore[arg-type]
    return Rows(tuple(found[0]), [tuple(row.values()) for row in found])


def _flat(run: SimulatedRun) -> dict[str, Any]:
    """The figures of a run by column name, those of a pool included."""
    flat: dict[str, Any] = {}
    for name, value in plain(run).items():
        flat |= {f"{name}_{part}": entry for part, entry in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _figure(key: str, heading: str, write: Callable[[Any], str] = number) -> Quantity:
    return Quantity(key, heading, write, lambda row: row.get(key))


def _near_nothing(value: float) -> str:
    """Write a mean near zero with digits beyond two decimals."""
    return "0" if value < 0.005 else number(value)


POLICY = in_words("policy", "policy", itemgetter("policy"))
RATES = (
    POLICY,
    _figure("requests_per_s", "requests/s"),
    _figure("output_tokens_per_s", "tokens/s"),
    *(_figure(f"{q.key}_mean", q.heading, q.write) for q in bands.LATENCY_QUANTITIES),
    in_words("note", "note", itemgetter("note"), nothing=""),
)
PERCENTILES = tuple(
    Quantity(name, name, milliseconds, itemgetter(at)) for at, name in enumerate(Spread._fields, start=1)
)
USE = (
    _figure("gpu_utilisation", "GPU busy", percent),
    _figure("wasted_slot_share", "wasted", percent),
    _figure("batch_mean", "running"),
    _figure("batch_max", "most running"),
    _figure("queue_mean", "queued", _near_nothing),
    _figure("queue_max", "most queued"),
    _figure("queue_end", "queued at end"),
    _figure("kv_utilisation_mean", "cache", percent),
    _figure("kv_utilisation_max", "most cached", percent),
    _figure("preemptions", "preempted", lambda count: f"{count:,}" if count else "-"),
    _figure("goodput_requests_per_s", "goodput"),
)
SPARE = ("queued at end", "most cached", "most queued", "most running")


def sections(record: SimulationReport) -> Iterator[Section]:
    """The figures of one run, or of several in a table; use; the question. Where it does not fit: what would help."""
    if record.reason is not None:
        yield Facts(tuple(_asked(record)), record.reason[0].upper() + record.reason[1:])
        yield Facts((memory_line(record.memory), *labelled("What would help", record.suggestions)))
    else:
        yield from _one(record, record.runs[0]) if len(record.runs) == 1 else _several(record)
        yield from _use(record)
        yield Facts(tuple(_asked(record)))
    yield assumptions.assumed(record.assumptions)


def _one(record: SimulationReport, run: SimulatedRun) -> Iterator[Section]:
    tokens = f"{number(run.output_tokens_per_s)} output tokens/s"
    if record.inputs["task"] != GENERATE:
        tokens = f"{number((run.requests_per_s or 0.0) * record.inputs['isl'])} input tokens/s"
    yield Facts(
        tuple(_answer(record, run)),
        f"{number(run.requests_per_s)} requests/s ({number(run.requests_per_s_per_gpu)} per GPU), {tokens} from "
        f"{_deployed(record)}",
    )
    names = [q for q in bands.LATENCY_QUANTITIES if getattr(run, q.key).mean is not None]
    label = in_words("latency", "latency" if run.stable else "not converged", itemgetter(0))
    spreads = [(q.heading, *getattr(run, q.key)) for q in names]
    yield Table((label, *PERCENTILES), spreads, notes=(bands.run_words(record.bands),))


def _several(record: SimulationReport) -> Iterator[Section]:
    """Rates and mean latencies by policy; marks refer to the notes below."""
    notes = [Line(f"Mean latencies; {_deployed(record)}", style="dim")]
    for run in record.runs:
        notes += [Line(f"! {run.policy}: {_miss(record, run, name)}") for name in run.missed]
        if run.refused:
            notes.append(Line(f"x {run.policy}: {plural(run.refused, 'request')} {TOO_LONG}"))
    if any(not run.stable for run in record.runs):
        notes.append(Line(f"* {NOT_CONVERGED}"))
    notes += _remarks(record)
    own = [f"runs.{index}." for index, run in enumerate(record.runs) if run.policy == OWN]
    banded = next((prefix for prefix in own if any(path.startswith(prefix) for path in record.bands)), None)
    words = bands.run_words(record.bands, banded or "")
    notes.append(words if banded is None else words._replace(text=f"{OWN}: {words.text}"))
    rows = [{**_flat(run), "note": _marks(run)} for run in record.runs]
    yield Table(RATES, rows, "/runs", notes=tuple(notes))


def _marks(run: SimulatedRun) -> str:
    return "*" * (not run.stable) + "!" * bool(run.missed) + "x" * bool(run.refused)


def _deployed(record: SimulationReport) -> str:
    i, both = record.inputs, record.disaggregated
    if both is None:
        return f"{i['gpus']} x {i['gpu']}, {plural(i['replicas'], 'replica')}"
    gpus = f"{i['gpus']} x {both.prefill.gpu}" if both.prefill.gpu == both.decode.gpu else plural(i["gpus"], "GPU")
    return f"{gpus}: {pools.shape_words(both, between=', ')}"


def _answer(record: SimulationReport, run: SimulatedRun) -> Iterator[Line]:
    refused = f", {run.refused:,} {TOO_LONG}" if run.refused else ""
    duration = milliseconds((run.duration_s or 0.0) / MILLI)
    yield Line(f"{run.completed:,} of {run.arrived:,} requests served in {duration}{refused}")
    if not run.stable:
        yield Line(f"Unstable, latencies {NOT_CONVERGED}", style="bold")
    yield from (Line(_miss(record, run, name), style="bold") for name in run.missed)
    kept = [
        f"{name.removesuffix('_ms').upper()} {limit.statistic} {milliseconds(limit.ms)}"
        for name, limit in record.inputs["limits"].items()
        if limit is not None
    ]
    if kept and not run.missed and run.completed:
        yield Line(f"Limits kept: {', '.join(kept)}")
    yield from _remarks(record)


def _remarks(record: SimulationReport) -> Iterator[Line]:
    yield from map(Line, record.suggestions)
    if NO_ITL in record.assumptions:
        yield NO_ITL_LINE


def _miss(record: SimulationReport, run: SimulatedRun, name: str) -> str:
    limit = record.inputs["limits"][f"{name}_ms"]
    value = getattr(getattr(run, f"{name}_ms"), limit.statistic)
    return f"Limit missed: {name.upper()} {limit.statistic} {milliseconds(value)}, limit {milliseconds(limit.ms)}"


def _use(record: SimulationReport) -> Iterator[Section]:
    """Use over time of the replicas under each policy, or of each pool, and the transfer between pools."""
    both = record.disaggregated
    if both is None:
        limited, several = any(record.inputs["limits"].values()), record.inputs["replicas"] > 1
        dim = tuple(Line(text, style="dim") for text in (WASTED + GOODPUT * limited, *[OF_MANY] * several))
        yield Table((POLICY, *USE), list(map(_flat, record.runs)), "/runs", notes=dim, spare=SPARE)
        return
    way = f"{milliseconds(both.kv_transfer_ms)} on average, in TTFT: {pools.transfer_words(both.kv_transfer)}"
    rows = [{"pool": name, **getattr(both, name)._asdict()} for name in ("prefill", "decode")]
    below = (Line(OF_MANY, style="dim"), Line(way, "KV transfer"))
    yield Table((in_words("pool", "pool", itemgetter("pool")), *USE), rows, "/disaggregated", notes=below, spare=SPARE)


def _asked(record: SimulationReport) -> Iterator[Line]:
    """Model, precision, ISL, OSL, concurrency, TP, engine, load and policy."""
    i = record.inputs
    model, engine, *optimised = setup(i)
    yield model
    out = f"OSL {traffic.length_words(i, 'osl')}" if i["task"] == GENERATE else i["task"]
    yield Line(f"ISL {traffic.length_words(i, 'isl')}, {out}{_running(record)}", "Workload")
    yield Line(traffic.load_words(i), "Load")
    yield engine
    yield from optimised
    policies = ", ".join("the engine's own" if name == OWN else name for name in i["policies"])
    window = f", batches of {i['batch_size']:,} or after {i['batch_window_s']:g} s" if "batch_size" in i else ""
    each = f" on each of {i['dp']} attention groups" if i["dp"] > 1 else ""
    routing = f", {i['routing']} routing" if i["routing"] else ""
    yield Line(f"{policies}; up to {i['slots']:,} at once{window}{each}{routing}", "Policy")


def _running(record: SimulationReport) -> str:
    """Write the requests in flight over all replicas, running or queued: as asked, else the mean of the only run.

    Requests whose cache is on its way between pools are not counted.
    """
    i, run, both = record.inputs, record.runs[0], record.disaggregated
    stated, replicas = i["load"]["concurrency"], i["replicas"]
    if len(record.runs) > 1 or run.batch.mean is None:
        return "" if stated is None else f", concurrency {stated:,}"
    if both is not None:
        running = sum(pool.batch_mean * pool.replicas + pool.queue_mean for pool in (both.prefill, both.decode))
        return f", concurrency {number(running)}"
    in_flight = float(stated or run.batch.mean * replicas + (run.queue.mean or 0.0))
    each = f" ({number(in_flight / replicas)} per replica)" if replicas > 1 else ""
    return f", concurrency {number(in_flight)}{each}"


def figures(served: Mapping[str, Run]) -> Iterator[Figure]:
    """Yield for each policy the state of one replica over time, and below it the latencies, which differ by a factor of
    a hundred.
    """
    for policy, run in served.items():
        times = [sample.time for sample in run.samples]
        measured = tuple(latencies(run.requests))
        end = max([*times, *(mark.x for series in measured for mark in series.marks)], default=1.0)

        def line(name: str, values: Iterable[float], style: int, times: Sequence[float] = times) -> Series:
            return Series(name, tuple(map(Mark, times, values)), style, look="line")

        state = (
            line("running", (sample.running for sample in run.samples), 0),
            line("queued", (sample.queued for sample in run.samples), 6),
        )
        cache = line("cache", (100 * sample.cache for sample in run.samples), 3)
        title = f"{policy}: {run.completed:,} of {run.arrived:,} requests in {run.duration_s:,.4g} s"
        cache_figure = Figure("", "cache held (%)", (cache,), logarithmic="", span=(0, end), top=100)
        yield Figure("", "requests on a replica", state, logarithmic="", title=title, span=(0, end), right=cache_figure)
        yield Figure("s", "TTFT, E2E (s)", measured, logarithmic="y", span=(0, end))
