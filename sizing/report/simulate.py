"""`llmsize simulate`: a load through the engine's scheduler in real time, a run for each policy; separate pools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sizing.answers.confidence import least_of
from sizing.answers.simulate import Runs, Scenario, ranges
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
    filled,
    in_words,
    plain,
    rows_of,
)
from sizing.formats.words import milliseconds, number, percent, plural
from sizing.model.extras import NOTHING
from sizing.model.memory import MemoryUse
from sizing.replica.timing import timed
from sizing.report.parts import assumptions, evidence, pools, quantities, screen, traffic
from sizing.report.parts.evidence import Predicted
from sizing.report.parts.memory import LayoutMemory, layout_memory
from sizing.report.parts.pools import SimulatedPools
from sizing.report.parts.question import (
    LayoutInputs,
    LimitInMs,
    LimitsInMs,
    inputs_of_layout,
    is_limited,
    labels,
    limits_in_ms,
    replica_lines,
)
from sizing.report.parts.screen import (
    KEPT,
    MISSED,
    OK,
    LimitRow,
    assumption_lines,
    first_lines,
    memory_bar,
    next_line,
    rate,
    verdict,
)
from sizing.report.parts.sentences import assumed, line
from sizing.report.parts.traffic import LengthInputs, LoadInputs, latencies
from sizing.specs.bands import BandMetric, ErrorBand, Situation, region
from sizing.specs.units import MILLI
from sizing.specs.workload import GENERATE, LATENCIES, latency_name

OWN = "engine"  # the engine's own policy
EACH = "requests/s within limits counts requests that keep every limit themselves; a limit on a mean or a percentile allows some to miss it"
STRICT = "see below"
SPREAD_OUT = (
    "one replica gets the whole load here; --replicas N spreads it over N; llmsize estimate finds N for a demand"
)
NOT_CONVERGED = "Unstable: the queue kept growing, so latencies depend on the length of the run"
TOO_LONG = "too long for the cache or the model"


class Spread(NamedTuple):
    """Statistics of a latency in ms over the requests of a simulation; null if no request has a measurement."""

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
    """One run in real time under one policy; every figure is null if the run was not possible.

    `wasted_slot_share` is the share of slot time that was empty while requests waited. `missed` names the limits not kept.
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


class SimulationInputs(NamedTuple):
    """The resolved inputs of a simulation. Batch sizes and windows are those of dynamic batching alone."""

    clock: str
    of_layout: LayoutInputs
    replicas: int
    replicas_stated: bool
    gpus: int
    policies: tuple[str, ...]
    slots: int
    isl: float
    osl: float
    isl_lengths: LengthInputs | None
    osl_lengths: LengthInputs | None
    load: LoadInputs
    prefix_hit: float
    routing: str | None
    seed: int
    limit_s: float | None
    limits: LimitsInMs
    batch_size: int | None
    batch_window_s: float | None


class SimulationReport(NamedTuple):
    """The record of `llmsize simulate`: a run for each policy. If the deployment does not fit, no run has figures.

    `disaggregated` is the state of each pool if prefill and decode are separate, else null.
    """

    passed: bool
    inputs: SimulationInputs
    runs: tuple[SimulatedRun, ...]
    memory: MemoryUse
    bands: dict[str, ErrorBand]
    reason: str | None
    suggestions: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    disaggregated: SimulatedPools | None = None
    schema: str = "llmsize.simulation/1"


def record(scenario: Scenario, runs: Runs) -> SimulationReport:
    """The record of a scenario and its runs; if the deployment does not fit, the memory that it lacks."""
    memory = _memory(scenario)
    found = tuple(_run(policy, runs.served.get(policy), scenario) for policy in scenario.policies)
    suggestions = memory.suggestions
    if not scenario.replicas_stated and any(run.stable is False for run in found):
        suggestions = suggestions or (SPREAD_OUT,)
    return filled(
        SimulationReport,
        memory,
        passed=memory.fits and not any(_problem(run, scenario.resolved.question.service.task) for run in found),
        inputs=_inputs(scenario, runs),
        runs=found,
        bands=evidence.bounds((*memory.predicted, *_predictions(scenario, runs, found))),
        suggestions=suggestions,
        assumptions=tuple(_rests_on(scenario, found)) if runs.served else memory.assumptions,
        disaggregated=_pools(scenario, runs),
    )


def _memory(scenario: Scenario) -> LayoutMemory:
    """The memory of a deployment. For separate pools, that of the prefill pool if it alone does not fit, else of the decode pool."""
    memory = layout_memory(scenario.resolved)
    if scenario.pair is None:
        return memory
    pool = "decode"
    if memory.fits and not scenario.fits:
        memory, pool = layout_memory(scenario.pair.prefill), "prefill"
    return memory if memory.reason is None else memory._replace(reason=f"the {pool} pool: {memory.reason}")


def _run(policy: str, run: Run | None, scenario: Scenario) -> SimulatedRun:
    if run is None:
        return SimulatedRun(policy)
    limits = limits_in_ms(scenario.limits)
    tokens_per_s = 0.0 if scenario.resolved.question.service.model.pooled else run.output_tokens_per_s
    spreads = {
        f"{name}_ms": Spread(**{statistic: value / MILLI for statistic, value in run.latencies_s[name].items()})
        for name in LATENCIES
    }
    return filled(
        SimulatedRun,
        run,
        policy=policy,
        requests_per_s_per_gpu=run.requests_per_s / scenario.gpus,
        output_tokens_per_s=tokens_per_s,
        output_tokens_per_s_per_gpu=tokens_per_s / scenario.gpus,
        **spreads,
        queue=QueueFigures(run.queue_mean, run.queue_max, run.queue_end),
        batch=Extent(run.batch_mean, run.batch_max),
        kv_utilisation=Extent(run.cache_mean, run.cache_max),
        goodput_requests_per_s=run.goodput_per_s if any(limits.values()) else None,
        gpu_utilisation=run.busy,
        wasted_slot_share=run.wasted,
        missed=tuple(name for name in LATENCIES if _misses(spreads[f"{name}_ms"], limits[f"{name}_ms"])),
    )


def _misses(spread: Spread, limit: LimitInMs | None) -> bool:
    """Whether a statistic is above its limit; a latency without measurements keeps the limit."""
    value = None if limit is None else getattr(spread, limit.statistic)
    return limit is not None and value is not None and value > limit.ms


def _pools(scenario: Scenario, runs: Runs) -> SimulatedPools | None:
    pair = scenario.pair
    if pair is None or not runs.served:
        return None
    (run,) = runs.served.values()
    counts = (part.count for part in scenario.deployed.parts)
    prefill, decode = map(pools.simulated, (pair.prefill, scenario.resolved), counts, run.parts)
    isl, _ = traffic.mean_lengths(scenario.traffic)
    way = pools.transfer_figures(pair.transfer, isl)
    return SimulatedPools(prefill, decode, run.transfer_s / MILLI, way, prefill.gpus / decode.gpus)


def _predictions(scenario: Scenario, runs: Runs, found: Sequence[SimulatedRun]) -> Iterator[Predicted]:
    """The predicted figures of the run under the engine's own policy.

    Published measurements cover one pool without optimisations, so other scenarios have no predictions. The latencies of a
    stable run are predictions. Rates are predictions too, unless the run is stable and its requests came at a given rate or
    from a trace: then the rate is an input.
    """
    question, load = scenario.resolved.question, scenario.traffic
    service = question.service
    if scenario.pair is not None or service.extras != NOTHING or service.model.pooled or OWN not in runs.served:
        return
    served, index = runs.served[OWN], tuple(scenario.policies).index(OWN)
    prefix = f"runs.{index}." if len(found) > 1 else ""  # the record itself holds the figures of a single run
    run = found[index]
    in_flight = load.in_flight or served.requests_per_s * served.latencies_s["e2e"].get("mean", 0.0)
    at = region(in_flight / scenario.deployed.count)
    paced = load.rate_per_s is not None or load.trace is not None
    offline = not paced and load.in_flight is None  # all at once
    situation = question.service.situation(scenario.resolved.replica.gpu_type.gpu, at)
    situation = situation._replace(mode="offline" if offline else "served")
    if run.stable:
        likely = {band.metric: band for band in ranges(scenario)}
        least = _least(scenario, situation) if likely else {}
        yield from evidence.of_latencies(run, prefix, situation, likely, least)
    if not (paced and run.stable):
        for name in ("requests_per_s", "output_tokens_per_s"):
            for each in (name, f"{name}_per_gpu"):
                yield Predicted(f"{prefix}{each}", getattr(run, each), "throughput", situation)


def _least(scenario: Scenario, situation: Situation) -> dict[BandMetric, float]:
    """The low ends of the latencies of a lone request on the scenario's replica."""
    load = timed(scenario.resolved.replica)
    itl_ms = load.solo_itl_s / MILLI if load.batching.decodes else None
    return least_of(load.solo_ttft_s / MILLI, itl_ms, situation._replace(mode="served", load="solo"))


def _inputs(scenario: Scenario, runs: Runs) -> SimulationInputs:
    load, deployed, dynamic = scenario.traffic, scenario.deployed, scenario.policies.get("dynamic")
    isl, osl = traffic.mean_lengths(load)
    sent = next((served.requests for served in runs.served.values()), None)
    routed = scenario.routed and load.in_flight is None
    return filled(
        SimulationInputs,
        scenario,
        clock="seconds",
        of_layout=inputs_of_layout(scenario.resolved),
        replicas=deployed.count,
        policies=tuple(scenario.policies),
        slots=deployed.rules.slots,
        isl=isl,
        osl=0.0 if scenario.resolved.question.service.model.pooled else osl,
        isl_lengths=traffic.lengths(load, "isl", sent),
        osl_lengths=traffic.lengths(load, "osl", sent),
        load=traffic.load(load, counted=scenario.counted, trace=scenario.trace),
        prefix_hit=deployed.shard.extras.cached.share,
        routing=scenario.routing if routed else None,
        seed=load.seed,
        limits=limits_in_ms(scenario.limits),
        batch_size=dynamic.rules.batch_size if dynamic else None,
        batch_window_s=dynamic.rules.batch_window if dynamic else None,
    )


def _rests_on(scenario: Scenario, runs: Sequence[SimulatedRun]) -> Iterator[Assumption]:
    resolved, in_flight, replicas = scenario.resolved, scenario.traffic.in_flight, scenario.deployed.count
    yield from assumptions.of_model(resolved.question, resolved.notes)
    yield from assumptions.of_replica(resolved.question, resolved.replica, scenario.deployed.kernels)
    if in_flight is not None and replicas > 1:
        yield assumed("in flight on a replica", value=max(1, round(in_flight / replicas)))
    if scenario.pair is not None:
        yield from pools.assumptions(scenario.pair.facts)
    decoded = not any(run.completed for run in runs) or any(run.itl_ms.mean for run in runs)
    if scenario.limits.itl is not None and not decoded:
        yield assumed("no ITL")


def rows(record: SimulationReport) -> Rows:
    """One row for each policy. A figure with parts (a latency, the queue) has one column for each part."""
    shared = {**labels(record.inputs), "tp": record.inputs.of_layout.sizes.tp}
    found = [{**_flat(run), "missed": "; ".join(run.missed)} for run in record.runs]
    return rows_of(found, tuple(found[0]), shared)


def _flat(run: SimulatedRun) -> dict[str, Any]:
    """The figures of a run by column name, including the figures of pools."""
    flat: dict[str, Any] = {}
    for name, value in plain(run).items():
        flat |= {f"{name}_{part}": entry for part, entry in value.items()} if isinstance(value, dict) else {name: value}
    return flat


COMPARED = (
    in_words("policy", "policy"),
    Quantity("requests_per_s", "requests/s"),
    *(Quantity(f"{q.key}_mean", q.heading, q.write) for q in quantities.LATENCY_QUANTITIES),
    Quantity("gpu_utilisation", "GPU busy", percent),
    Quantity("wasted_slot_share", "wasted", percent),
    Quantity("batch_mean", "running"),
    Quantity("goodput_requests_per_s", "goodput"),
    in_words("verdict", "", nothing="", style=lambda row: MISSED if row["verdict"] != OK else KEPT),
)
SPARE = ("running", "wasted", "GPU busy", "goodput")
WASTED = "wasted: slots empty while requests waited; goodput: requests/s that keep every limit"


def sections(record: SimulationReport) -> Iterator[Section]:
    """Yield the verdict, the figures of the runs (several as a table), their use and the load; or changes that would help."""
    if record.reason is not None:
        yield Facts((verdict(record.reason[0].upper() + record.reason[1:], good=False),))
        yield memory_bar(record.memory)
    else:
        yield Facts(tuple(_answer(record)), _headline(record))
        if len(record.runs) == 1:
            run, banded = record.runs[0], record.disaggregated is None
            yield screen.figures(_judged(record, run), "simulated", banded=banded, note=_each_keeps(record, run))
        else:
            rows = [{**_flat(run), "verdict": _problem(run, record.inputs.of_layout.task) or OK} for run in record.runs]
            yield Table(COMPARED, rows, "/runs", notes=(WASTED,), spare=SPARE)
    helps = first_lines("Try", record.suggestions, "change")
    yield Facts((*_around(record), *helps, *assumption_lines(record.assumptions), next_line()))


def _headline(record: SimulationReport) -> str:
    i, both, run = record.inputs, record.disaggregated, record.runs[0]
    deployed = f"{i.gpus} x {i.of_layout.gpu} = {plural(i.replicas, 'replica')} x {i.of_layout.sizes}"
    if both is not None:
        deployed = f"{plural(i.gpus, 'GPU')}: {pools.shape_words(both, between=', ')}"
    rate = f": {number(run.requests_per_s)} requests/s" if len(record.runs) == 1 else f", {len(record.runs)} policies"
    return deployed + rate


def _answer(record: SimulationReport) -> Iterator[Line]:
    """Yield the verdict, which agrees with the exit code, and the extent of the simulation."""
    run, several = record.runs[0], len(record.runs)
    problems = [text for each in record.runs if (text := _problem(each, record.inputs.of_layout.task))]
    text = "Every limit is kept" if is_limited(record.inputs.limits) else "Every request is served, no limit is set"
    if problems:
        passing = f"{several - len(problems)} of {several} policies serve every request in time"
        text = problems[0] if several == 1 else passing
    yield verdict(text[0].upper() + text[1:], good=record.passed)
    if not all(each.stable for each in record.runs):
        yield Line(NOT_CONVERGED)
    if several == 1:
        duration_ms = (run.duration_s or 0.0) / MILLI
        tokens = run.output_tokens_per_s if record.inputs.of_layout.task == GENERATE else None
        yield line("simulated", run, duration_ms=duration_ms, tokens=tokens)


def _problem(run: SimulatedRun, task: str) -> str:
    """Write the problem of a run; empty if there is none."""
    missed = [latency_name(name, single=task != GENERATE) for name in run.missed]
    parts = [] if run.stable else ["unstable"]
    parts += [f"{' and '.join(missed)} over the limit"] if missed else []
    parts += [f"{plural(run.refused, 'request')} {TOO_LONG}"] if run.refused else []
    return ", ".join(parts) or ("" if run.completed else "nothing was served")


def _each_keeps(record: SimulationReport, run: SimulatedRun) -> str:
    """Write why a run that passes serves more requests than keep the limits; empty otherwise."""
    served, kept = run.requests_per_s, run.goodput_requests_per_s
    return "" if served is None or kept is None or kept >= served or not record.passed else EACH


def _judged(record: SimulationReport, run: SimulatedRun) -> Iterator[LimitRow]:
    """Yield the latencies and rates of a run, each with its limit."""
    yield from screen.latencies(screen.by_name(run), record.inputs.limits, screen.bands_in(record.bands))
    yield rate("requests/s", run.requests_per_s, band=record.bands.get("requests_per_s"))
    if run.goodput_requests_per_s is not None:
        strict = STRICT if _each_keeps(record, run) else ""
        yield rate("requests/s within limits", run.goodput_requests_per_s)._replace(verdict=strict)


def _around(record: SimulationReport) -> Iterator[Line]:
    """Yield the load, the replica, and its use over time."""
    i, run, both = record.inputs, record.runs[0], record.disaggregated
    out = f"OSL {traffic.length_words(i.osl, i.osl_lengths)}" if i.of_layout.task == GENERATE else i.of_layout.task
    isl, load = traffic.length_words(i.isl, i.isl_lengths), traffic.load_words(i.load)
    yield line("simulated load", i, load=load, isl=isl, out=out)
    noted = i.load.kind == "open_loop" and run.goodput_requests_per_s is not None and len(record.runs) == 1
    if noted:
        yield line("as estimated")
    if not i.replicas_stated and i.replicas == 1 and not record.suggestions and both is None:
        yield Line(SPREAD_OUT, " " if noted else "Note", spare=1)
    yield from replica_lines(i.of_layout)
    if both is not None:
        for name, pool in (("Prefill", both.prefill), ("Decode", both.decode)):
            yield line("busy pool", pool)._replace(label=name)
        way = pools.transfer_words(both.kv_transfer)
        yield Line(f"{milliseconds(both.kv_transfer_ms)}, in TTFT: {way}", "Transfer")
    elif len(record.runs) == 1 and run.batch.mean is not None:
        in_flight = i.load.concurrency or run.batch.mean * i.replicas + (run.queue.mean or 0.0)
        yield line("batch of a run", run, in_flight=in_flight)


def figures(served: Mapping[str, Run]) -> Iterator[Figure]:
    """Yield two figures for each policy: the state of one replica over time, and below it the latencies.

    The axis of the latencies is logarithmic because they differ by a factor of a hundred.
    """
    for policy, run in served.items():
        times = [sample.time for sample in run.samples]
        measured = tuple(latencies(run.requests))
        end = max([*times, *(mark.x for series in measured for mark in series.marks)], default=1.0)

        def drawn(name: str, values: Iterable[float], style: int, times: Sequence[float] = times) -> Series:
            return Series(name, tuple(map(Mark, times, values)), style, look="line")

        state = (
            drawn("running", (sample.running for sample in run.samples), 0),
            drawn("queued", (sample.queued for sample in run.samples), 6),
        )
        cache = drawn("cache", (100 * sample.cache for sample in run.samples), 3)
        title = f"{policy}: {run.completed:,} of {run.arrived:,} requests in {run.duration_s:,.4g} s"
        cache_figure = Figure("", "cache held (%)", (cache,), logarithmic="", span=(0, end), top=100)
        yield Figure("", "requests on a replica", state, logarithmic="", title=title, span=(0, end), right=cache_figure)
        yield Figure("s", "TTFT, E2E (s)", measured, logarithmic="y", span=(0, end))


document = partial(Document, sections=sections, rows=rows)
