"""`llmsize simulate` for the terminal: one run in full, several side by side, in real time or in ticks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sizing.formats.text import Block, blocks_of
from sizing.formats.view import Line
from sizing.formats.words import milliseconds, number, percent, plural, stated
from sizing.report import table_pools
from sizing.report.documents_simulation import SimulatedRun, SimulationReport, TickFigures, TickReport
from sizing.report.parts.assumptions import NO_ITL, NO_ITL_LINE, assumed
from sizing.report.parts.bands import run_words
from sizing.report.parts.memory import memory_line
from sizing.report.parts.question import setup
from sizing.report.timeline_text import LEGEND, bands
from sizing.specs.workload import GENERATE

NOT_CONVERGED = "not converged: the queue kept growing, so latencies depend on how long the run was"
WASTED = "wasted: slots empty while requests waited"
TICK_NOTES = (
    "Mean TTFT of requests with a first token, mean E2E of those done, in ticks",
    f"Rates in 1,000 ticks; {WASTED}",
)
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
ARRIVALS = {"even": "evenly spaced", "poisson": "Poisson", "gamma": "gamma"}


def blocks(document: SimulationReport | TickReport) -> Iterator[Block]:
    """Yield the blocks of a simulation."""
    if isinstance(document, TickReport):
        yield from _ticks(document)
        return
    if document.reason is not None:
        yield from _infeasible(document)
    elif len(document.runs) == 1:
        yield Block(tuple(_answer(document, document.runs[0])))
        yield _latencies(document)
        yield Block((*_asked(document), *_of_run(document)))
    else:
        yield from _side_by_side(document)
        yield Block(tuple(_asked(document)))
    yield from blocks_of(assumed(document.assumptions, sources=False))


def _infeasible(document: SimulationReport) -> Iterator[Block]:
    reason = document.reason or ""
    yield Block((Line(reason[0].upper() + reason[1:], style="bold"), *_asked(document)))
    lines = [memory_line(document.memory)]
    lines += [Line(text, "What would help" if n == 0 else " ") for n, text in enumerate(document.suggestions)]
    yield Block(tuple(lines))


def _tokens(document: SimulationReport, run: SimulatedRun) -> str:
    """Write the tokens that come out; of a task that gives none those that go in."""
    i = document.inputs
    if i["task"] == GENERATE:
        return f"{number(run.output_tokens_per_s)} output tokens/s"
    return f"{number((run.requests_per_s or 0.0) * i['isl'])} input tokens/s"


def _answer(document: SimulationReport, run: SimulatedRun) -> Iterator[Line]:
    i = document.inputs
    source = f"{i['gpus']} x {i['gpu']}, {plural(i['replicas'], 'replica')}"
    if document.disaggregated is not None:
        source = table_pools.simulated(document.disaggregated)
    yield Line(
        f"{number(run.requests_per_s)} requests/s ({number(run.requests_per_s_per_gpu)} per GPU), "
        f"{_tokens(document, run)} from {source}",
        style="bold",
    )
    refused = f", {run.refused:,} refused (too long for the cache or the model)" if run.refused else ""
    yield Line(
        f"{run.completed:,} of {run.arrived:,} requests served in {milliseconds((run.duration_s or 0.0) * 1000)}{refused}"
    )
    if not run.stable:
        yield Line(f"Unstable, latencies {NOT_CONVERGED}", style="bold")
    for suggestion in document.suggestions:
        yield Line(suggestion)
    for name in run.missed:
        yield Line(_miss(document, run, name), style="bold")
    kept = [name for name in ("ttft", "itl", "e2e") if document.inputs["limits"].get(f"{name}_ms")]
    if kept and not run.missed and run.completed:
        yield Line(f"Limits kept: {', '.join(_limit(document, name) for name in kept)}")
    if NO_ITL in document.assumptions:
        yield NO_ITL_LINE


def _of_run(document: SimulationReport) -> Iterator[Line]:
    """Return the state over time, of each pool where prefill and decode are separate."""
    pools = document.disaggregated
    return _state(document.runs[0], document.inputs["replicas"]) if pools is None else table_pools.states(pools)


def _miss(document: SimulationReport, run: SimulatedRun, name: str) -> str:
    limit = document.inputs["limits"][f"{name}_ms"]
    value = getattr(getattr(run, f"{name}_ms"), limit["statistic"])
    statistic = f"{name.upper()} {limit['statistic']} {milliseconds(value)}"
    return f"Limit missed: {statistic}, limit {milliseconds(limit['ms'])}"


def _limit(document: SimulationReport, name: str) -> str:
    limit = document.inputs["limits"][f"{name}_ms"]
    return f"{name.upper()} {limit['statistic']} {milliseconds(limit['ms'])}"


def _latencies(document: SimulationReport) -> Block:
    (run,) = document.runs
    rows = tuple(
        (label, *(milliseconds(value) for value in spread))
        for label, spread in (("TTFT", run.ttft_ms), ("ITL", run.itl_ms), ("E2E", run.e2e_ms))
        if spread.mean is not None
    )
    heading = "latency" if run.stable else "not converged"
    right = (False, *[True] * len(STATISTICS))
    return Block((run_words(document.bands),), (heading, *STATISTICS), right, rows)


def _asked(document: SimulationReport) -> Iterator[Line]:
    """The six labels (model, precision, ISL, OSL, concurrency, TP), the engine and the load."""
    i = document.inputs
    model, engine, *optimised = setup(i)
    yield model
    running = ""
    if len(document.runs) == 1 and document.runs[0].batch.mean is not None:
        run = document.runs[0]
        pools = document.disaggregated
        in_flight = _in_flight(run, i) if pools is None else table_pools.in_flight(pools)
        running = f", concurrency {number(in_flight)}"
        if i["replicas"] > 1 and document.disaggregated is None:
            running += f" ({number(_in_flight(run, i) / i['replicas'])} per replica)"
    elif i["load"]["concurrency"] is not None:
        running = f", concurrency {i['load']['concurrency']:,}"
    out = f"OSL {_length(i, 'osl')}" if i["task"] == GENERATE else i["task"]
    yield Line(f"ISL {_length(i, 'isl')}, {out}{running}", "Workload")
    yield Line(_load(i), "Load")
    yield engine
    yield from optimised
    policies = ", ".join("the engine's own" if name == "engine" else name for name in i["policies"])
    window = f", batches of {i['batch_size']:,} or after {i['batch_window_s']:g} s" if "batch_size" in i else ""
    each = f" on each of {i['dp']} attention groups" if i["dp"] > 1 else ""
    routing = f", {i['routing']} routing" if i["routing"] else ""
    yield Line(f"{policies}; up to {i['slots']:,} at once{window}{each}{routing}", "Policy")


def _in_flight(run: SimulatedRun, inputs: dict[str, Any]) -> float:
    """Requests in flight on average, running and queued, over all replicas."""
    running = (run.batch.mean or 0.0) * inputs["replicas"]
    return float(inputs["load"]["concurrency"] or running + (run.queue.mean or 0.0))


def _length(inputs: dict[str, Any], name: str) -> str:
    mean, drawn = number(inputs[name], 4), inputs[f"{name}_lengths"]
    if drawn is None:
        return f"{mean} on average"
    if drawn["shape"] == "uniform":
        return f"{drawn['low_share'] * drawn['mean']:,.0f} to {drawn['mean']:,} (uniform{_drawn(drawn)})"
    return f"{mean} ({drawn['shape']}, std {number(drawn['std'])}{_drawn(drawn)})" if drawn["std"] else mean


def _drawn(lengths: dict[str, Any]) -> str:
    """Say what the lengths that were sent are on average; nothing was sent where nothing fits."""
    return "" if lengths["drawn_mean"] is None else f", mean drawn {number(lengths['drawn_mean'], 4)}"


def _load(inputs: dict[str, Any]) -> str:
    load = inputs["load"]
    text = "requests" if load["requests"] is None else f"{load['requests']:,} requests"
    if load["kind"] == "trace":
        text += f" of {load['trace']}"
    elif load["kind"] == "open_loop":
        shape = f" of shape {load['burstiness']:g}" if load["burstiness"] is not None else ""
        text += f" at {number(load['requests_per_s'])}/s, {ARRIVALS[load['arrivals']]} arrivals{shape}"
    elif load["kind"] == "closed_loop":
        text += f", {load['concurrency']:,} in flight (closed loop)"
    else:
        text += ", all at once"
    if inputs["prefix_hit"]:
        text += f", {percent(inputs['prefix_hit'])} of prompts cached"
    return text + f", seed {inputs['seed']}" + (f", until {inputs['limit_s']:g} s" if inputs["limit_s"] else "")


def _state(run: SimulatedRun, replicas: int) -> Iterator[Line]:
    everywhere, each = (" in all", " a replica") if replicas > 1 else ("", "")
    preempted = plural(run.preemptions or 0, "preemption")
    yield Line(
        f"running {number(run.batch.mean)} (at most {number(run.batch.max)}) a replica, queued {_rounded(run.queue.mean)}"
        f"{everywhere} (at most {number(run.queue.max)}{each}, {number(run.queue.end)}{everywhere} at the end)",
        "Requests",
    )
    yield Line(
        f"cache {percent(run.kv_utilisation.mean)} full (at most {percent(run.kv_utilisation.max)}), {preempted}; GPU busy "
        f"{percent(run.gpu_utilisation)} of the time; slots empty while requests waited {percent(run.wasted_slot_share)}",
        "Use",
    )
    if run.goodput_requests_per_s is not None:
        share = run.goodput_requests_per_s / run.requests_per_s if run.requests_per_s else None
        yield Line(
            f"{number(run.goodput_requests_per_s)} requests/s meet every limit ({percent(share)} of those served)",
            "Goodput",
        )


def _rounded(value: float | None) -> str:
    """Write a mean that may be next to nothing, which two decimals tell."""
    return "0" if value is not None and value < 0.005 else number(value)


def _side_by_side(document: SimulationReport) -> Iterator[Block]:
    """Two rows a policy: rates and mean latencies, where what is wrong is marked and told below; then use."""
    columns = ("policy", "requests/s", "tokens/s", "TTFT", "ITL", "E2E", "note")
    rows = tuple(
        (
            run.policy,
            number(run.requests_per_s),
            number(run.output_tokens_per_s),
            *(milliseconds(spread.mean) for spread in (run.ttft_ms, run.itl_ms, run.e2e_ms)),
            _marks(run),
        )
        for run in document.runs
    )
    i = document.inputs
    title = Line(f"Mean latencies; {i['gpus']} x {i['gpu']}, {plural(i['replicas'], 'replica')}", style="dim")
    kept = len(columns) if any(row[-1] for row in rows) else len(columns) - 1
    right = (False, *[True] * 5, False)
    yield Block((title, *_notes(document)), columns[:kept], right[:kept], tuple(row[:kept] for row in rows))
    used = tuple(
        (
            run.policy,
            percent(run.gpu_utilisation),
            percent(run.wasted_slot_share),
            number(run.batch.mean),
            _rounded(run.queue.mean),
            percent(run.kv_utilisation.mean),
        )
        for run in document.runs
    )
    uses = ("policy", "GPU busy", "wasted", "running", "queued", "cache")
    yield Block((Line(WASTED, style="dim"),), uses, (False, *[True] * 5), used)


def _marks(run: SimulatedRun) -> str:
    return ("*" if not run.stable else "") + ("!" if run.missed else "") + ("x" if run.refused else "")


def _notes(document: SimulationReport) -> Iterator[Line]:
    for run in document.runs:
        for name in run.missed:
            yield Line(f"! {run.policy}: {_miss(document, run, name)}")
        if run.refused:
            yield Line(
                f"x {run.policy}: {plural(run.refused, 'request')} refused (too long for the cache or the model)"
            )
    if any(not run.stable for run in document.runs):
        yield Line(f"* {NOT_CONVERGED}")
    if NO_ITL in document.assumptions:
        yield NO_ITL_LINE
    for suggestion in document.suggestions:
        yield Line(suggestion)
    banded = [n for n in range(len(document.runs)) if any(path.startswith(f"runs.{n}.") for path in document.bands)]
    for index in banded:
        line = run_words(document.bands, f"runs.{index}.")
        yield line._replace(text=f"{document.runs[index].policy}: {line.text}")
    if not banded:
        yield run_words({})


def _ticks(document: TickReport) -> Iterator[Block]:
    i = document.inputs
    columns = ("policy", "done", "end", "TTFT", "E2E", "ITL")
    yield Block(columns=columns, right=(False, *[True] * 5), rows=tuple(map(_tick_latencies, document.runs)))
    columns = ("policy", "requests/1k", "tokens/1k", "queued at end", "busy", "wasted")
    yield Block(
        tuple(Line(text, style="dim") for text in TICK_NOTES),
        columns,
        (False, *[True] * 5),
        tuple(map(_tick_use, document.runs)),
    )
    spread = f", std {i['osl_std']:g}" if i["osl_std"] else ""
    if i["osl_drawn_mean"] is not None:
        spread += f" (mean drawn {number(i['osl_drawn_mean'], 4)})"
    chunks = f" in {plural(i['prefill_chunks'], 'chunk')}" if i["prefill_chunks"] > 1 else ""
    if i["prefill"] < i["prefill_chunks"]:
        chunks += " (no step is shorter than 1)"
    window = f"; batches of {i['batch_size']:,} or after {i['batch_window']:g} ticks" if "batch_size" in i else ""
    until = f", to the first step that ends at tick {i['limit']:g} or later" if i["limit"] is not None else ""
    yield Block(
        (
            Line(
                f"{plural(i['slots'], 'slot')}, prefill {i['prefill']:g} ticks{chunks}, ITL {i['itl']:g}{window}",
                "Engine",
            ),
            Line(f"OSL {i['osl_mean']:g}{spread}; {_tick_load(i)}, seed {i['seed']}{until}", "Workload"),
        )
    )
    for run in document.runs:
        if run.timeline:
            name = (Line(run.policy, style="bold"),) if len(document.runs) > 1 else ()
            yield Block((*name, *map(Line, bands(run.timeline))))
    drawn = any(run.timeline for run in document.runs)
    yield Block((Line(LEGEND if drawn else "The timeline is too long for text; --plot FILE draws it", style="dim"),))


def _tick_latencies(run: TickFigures) -> tuple[str, ...]:
    means = (f"{value:,.2f}" if value is not None else "-" for value in (run.mean_ttft, run.mean_e2e, run.mean_itl))
    return (run.policy, f"{run.completed:,}", stated(run.end_tick, 12), *means)


def _tick_use(run: TickFigures) -> tuple[str, ...]:
    rates = (f"{value:,.1f}" for value in (run.requests_per_1k_ticks, run.tokens_per_1k_ticks))
    shares = (percent(run.gpu_utilisation), percent(run.wasted_slot_share))
    return (run.policy, *rates, f"{run.queue_end:,}", *shares)


def _tick_load(inputs: dict[str, Any]) -> str:
    sent = f"{inputs['requests']:,} requests" if inputs["requests"] is not None else "requests"
    if inputs["concurrency"] is not None:
        return f"{sent}, {inputs['concurrency']:,} in flight"
    return f"{sent} at {inputs['rate']:g} per tick" if inputs["rate"] is not None else f"{sent} at tick 0"
