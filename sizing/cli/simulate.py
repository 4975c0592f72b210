"""`llmsize simulate`: a load through the engine's scheduler in real time. `--ticks` is in cli/ticks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

from sizing.cli.options import FORMAT_OPTIONS, SIMULATION_OPTIONS, SimulateOptions, WorkloadName, takes
from sizing.question.options import (
    DEMAND_OPTIONS,
    DISAGGREGATION_OPTIONS,
    LIMIT_OPTIONS,
    MODEL_OPTIONS,
    OPTIMISATION_OPTIONS,
    SERVING_OPTIONS,
    SET_OPTIONS,
    GivenOptions,
    broken,
    check_rules,
    group,
    named,
    of_layout,
    of_service,
    with_help,
    without,
)
from sizing.specs.errors import Fault, InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sizing.answers.simulate import Arriving, Driving, Scenario
    from sizing.catalog.models import FoundModel
    from sizing.cli.reader import OutputFiles, Reader
    from sizing.model.architecture import Layout
    from sizing.question.names import Names
    from sizing.question.question import Question, SeparatePools
    from sizing.specs.errors import Part
    from sizing.specs.workload import Workload

AT_ONCE = "at-once"
ARRIVALS = ("even", "poisson", "gamma:SHAPE", AT_ONCE)
SHAPES: tuple[Literal["lognormal", "normal"], ...] = ("lognormal", "normal")
LEAST_BURSTINESS, MOST_BURSTINESS = 0.01, 1000.0  # gamma shapes: almost all at once, and almost evenly spaced
NOUNS = {"isl": "prompt", "osl": "output"}

CLOSED_LOOP = named(DEMAND_OPTIONS, "closed_loop")
# The number of GPUs is --replicas times the layout, not a budget. --requests without a load replaces a mode.
SHARED = (
    *MODEL_OPTIONS,
    *without(DEMAND_OPTIONS, "gpus", "mode", "closed_loop", "documents", "within"),
    *SERVING_OPTIONS,
    *OPTIMISATION_OPTIONS,
    *DISAGGREGATION_OPTIONS,
    *SET_OPTIONS,
)
OPTIONS = (
    *with_help(SHARED, "one layout", "simulate"),
    *with_help(LIMIT_OPTIONS, "simulate"),
    *SIMULATION_OPTIONS,
)


@takes((*OPTIONS, *FORMAT_OPTIONS))
def command(given: GivenOptions, workload: WorkloadName = None) -> int:
    """Simulate the engine under a load, request by request.

    It measures throughput, percentiles of latency, queue and cache. Several policies are compared side by side.

    Exit codes: 0 done; 1 the queue grows, requests are refused, a limit is missed or a request does not fit; 2 bad input.
    """
    from sizing.cli.output import chosen_format
    from sizing.cli.reader import output_files
    from sizing.question.options import options_of
    from sizing.specs.errors import Part

    own = given.read(SimulateOptions)
    if own.trace is None and own.arrivals is None and not own.ticks:
        from sizing.catalog.workloads import trace_to_replay
        from sizing.question.names import readable

        file, options = readable(workload), Part(lambda: options_of(given))
        replaced = file is None or options.faults or options.value.of("demand")
        given = given.with_(trace=None if file is None or replaced else trace_to_replay(file))
        own = given.read(SimulateOptions)
    inputs = {"--trace": own.trace, "--model": own.model, "--gpu": own.gpu, "the workload": workload}
    output = Part(lambda: chosen_format(given))
    files = Part(lambda: output_files(own.plot, own.requests_out, "--requests-out", inputs))
    return 0 if (_ticks if own.ticks else _real_time)(workload, given, output, files) else 1


def _real_time(workload: str | None, given: GivenOptions, output: Part[str], files: Part[OutputFiles]) -> bool:
    from sizing.answers.simulate import simulate
    from sizing.cli.output import Bar, complain, write, write_file, write_picture
    from sizing.report.simulate import document, figures, record

    sized, note = as_estimated(workload, given)
    scenario = scenario_of(workload, sized, output, files)
    if note:
        complain(note)
    runs = simulate(scenario, Bar)
    found = record(scenario, runs)
    write(document(found), output.value)
    if runs.served:
        requests = {name: run.requests for name, run in runs.served.items()}
        write_file(files.value.rows, "--requests-out", lambda: _requests_csv(requests, "s"))
        write_picture(files.value.plot, lambda: figures(runs.served))
    return found.passed


def _ticks(workload: str | None, given: GivenOptions, output: Part[str], files: Part[OutputFiles]) -> bool:
    from sizing.cli import ticks
    from sizing.cli.output import write, write_file, write_picture
    from sizing.report.ticks import document, figures, record
    from sizing.specs.errors import Part, check

    question = Part(lambda: ticks.asked(workload, given, given.read(SimulateOptions)))
    check(output, files, question)
    asked = question.value
    results = ticks.run(asked)
    write(document(record(asked, results)), output.value)
    requests = {name: result.requests for name, result in results.items()}
    write_file(files.value.rows, "--requests-out", lambda: _requests_csv(requests, "tick"))
    write_picture(files.value.plot, lambda: figures(results))
    return True


def _requests_csv(runs: Mapping[str, Any], unit: str) -> str:
    from sizing.report.parts.traffic import requests_csv

    return requests_csv(runs, unit)


def as_estimated(workload: str | None, given: GivenOptions) -> tuple[GivenOptions, str]:
    """The options with the layout and replicas of `llmsize estimate` for the demand, and a note that says so.

    Of a stated layout, estimate gives the replicas; where replicas are stated, or estimate has no answer, the options stay as
    they are. Faults of the question are reported later, with those of the other options.
    """
    stated = ("replicas", "concurrency", "trace", "disaggregate")
    if _is_at_once(given.read(SimulateOptions).arrivals) or given.any_of(stated):
        return given, ""
    from sizing.answers.simulate import estimated_size
    from sizing.question.ask import question_of
    from sizing.question.options import options_of
    from sizing.specs.errors import Part

    found = Part(lambda: question_of(workload, options_of(given)))
    size = None if found.faults else estimated_size(found.value)
    if size is None:
        return given, ""
    missing = "number of replicas" if size.has_layout else "layout"
    note = f"no {missing} is stated: {size.replicas:,} x {size.layout}, as llmsize estimate sizes it"
    return given.with_(**size.unstated, replicas=size.replicas), note


def scenario_of(workload: str | None, given: GivenOptions, *parts: Part[Any]) -> Scenario:
    """The scenario of the options.

    Raises InputError with all faults that it can find, including those of `parts`.
    """
    from sizing.answers.simulate import Trace, scenario
    from sizing.question.ask import PLACEHOLDER_TOKENS, SEPARATE_PATH, layout_of, separate_pools, with_origin
    from sizing.question.names import look_up
    from sizing.question.options import options_of
    from sizing.specs.errors import Part, check

    own, driving = given.read(SimulateOptions), Part(lambda: _driving(given))
    read_rows = Part(lambda: _rows(own.trace, driving))
    traced = own.trace is not None
    wrong = group("OF_LOADS OF_LENGTHS") if traced else ()  # invalid here and already reported, as is a limit in ticks
    unitless = ("itl",) if _in_ticks(own.itl) else ()
    of_demand = (option.name for option in SHARED if (option.field or "").startswith("demand."))
    said = [name for name in of_demand if given.any_of([name])]
    loads = given.without((*wrong, *unitless)).with_(closed_loop=said == ["concurrency"] and not traced)
    stated = options_of(loads._replace(fields=(*OPTIONS, *CLOSED_LOOP)))
    names = look_up(workload, stated, single=True, tokens=PLACEHOLDER_TOKENS if traced else None)
    add_place = names.layers.by_field
    pools = Part(lambda: separate_pools(names, ()), names.layers.at(SEPARATE_PATH))
    against = Part(lambda: _check_pools(given, driving.value) if pools.value is not None else None)
    serving = Part(lambda: names.workload.value.serving)
    of_pool = Part(lambda: serving.value if pools.value is None else pools.value.decode.serving(serving.value))
    layout = Part(lambda: layout_of(of_pool.value), add_place)
    rows = Part(lambda: _results_alone(read_rows.value, names.model.value))
    question = Part(lambda: _question(names, layout.value, driving.value, rows.value), add_place)
    idle = Part(lambda: _check_idle(given, names, driving.value, pools.value))
    of_model = Part(lambda: tuple(_of_model(question.value, layout.value, pools.value, traced=traced)))
    unused = Part(lambda: check_rules(of_model.value, given))
    check(*parts, driving, rows, *names.parts, pools, against, layout, question, idle, unused)
    asked = with_origin(question.value, names, pools.value)
    trace = None if own.trace is None or rows.value is None else Trace(own.trace, rows.value)
    return scenario(asked, driving.value, trace=trace, placed=add_place)


def _driving(given: GivenOptions) -> Driving:
    """Read the options. Raises InputError for each option that is wrong, contradicts another or is in ticks."""
    from sizing.answers.simulate import OWN, WINDOW_S, Arriving, Driving
    from sizing.cli.reader import MOST, Reader
    from sizing.engine.rules import POLICIES
    from sizing.engine.run import ROUTINGS
    from sizing.specs.optimisations import MOST_REPLICAS
    from sizing.specs.units import parse_duration_s

    own = given.read(SimulateOptions)
    with Reader(_form_faults(given, own)) as read:
        window = read.parsed(own.batch_window, "--batch-window", parse_duration_s)
        shape = read.chosen(own.length_shape or SHAPES[0], SHAPES, "--length-shape", "shape of lengths")
        routing = read.chosen(own.routing or ROUTINGS[0], ROUTINGS, "--routing", "routing")
        return Driving(
            policies=read.policies(own.policy, (OWN, *POLICIES), OWN),
            stated_replicas=read.whole(own.replicas, "--replicas", most=MOST_REPLICAS),
            slots=read.whole(own.slots, "--slots"),
            batch_size=read.whole(own.batch_size, "--batch-size"),
            batch_window_s=WINDOW_S if window is None else window,
            arriving=Arriving("poisson") if own.arrivals is None else _arriving(own.arrivals.strip().lower(), read),
            requests=read.whole(own.requests, "--requests"),
            isl_std=read.number(own.isl_std, "--isl-std", most=MOST),
            osl_std=read.number(own.osl_std, "--osl-std", most=MOST),
            length_shape=shape or SHAPES[0],
            length_ratio=read.number(own.length_ratio, "--length-ratio", most=1.0),
            routing=routing or ROUTINGS[0],
            seed=read.seed(own.seed, Driving().seed),
            limit_s=read.parsed(own.limit, "--limit", _seconds),
        )


def _form_faults(given: GivenOptions, own: SimulateOptions) -> list[Fault]:
    """The faults of options for ticks, of contradictory options, and of values in ticks."""
    holding = {
        "lengths are spread": given.any_of(("isl_std", "osl_std", "length_shape")),
        "all at once": _is_at_once(own.arrivals),
        "requests in flight": own.concurrency is not None,
    }
    faults = broken(("real time",), given)
    faults += broken(("a trace",) if own.trace is not None else (), given)
    if _in_ticks(own.itl):
        message = f"{own.itl!r} is a latency limit without its unit"
        faults.append(Fault(message, field="--itl", allowed="30ms, p99:50ms; ticks of a decode step with --ticks"))
    return faults + broken((name for name, holds in holding.items() if holds), given)


def _arriving(text: str, read: Reader) -> Arriving:
    from sizing.answers.simulate import Arriving

    kind, _, shape = text.partition(":")
    if kind == "gamma" and _is_number(shape):
        if LEAST_BURSTINESS <= float(shape) <= MOST_BURSTINESS:
            return Arriving("gamma", float(shape))
        allowed = f"gamma:SHAPE from {LEAST_BURSTINESS:g} to {MOST_BURSTINESS:,.0f}"
        read.fault(f"{text!r} is out of range", "--arrivals", allowed)
        return Arriving("gamma")
    if text in ("even", "poisson"):
        return Arriving(cast(Literal["even", "poisson"], text))
    if text != AT_ONCE:
        read.chosen(text, ARRIVALS, "--arrivals", "kind of arrivals")
    return Arriving(None)


def _is_at_once(arrivals: str | None) -> bool:
    return arrivals is not None and arrivals.strip().lower() == AT_ONCE


def _in_ticks(itl: str | None) -> bool:
    """Whether --itl has no unit, as it has none in ticks."""
    return itl is not None and _is_number(itl)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _seconds(text: str) -> float:
    """Read a limit of the run: a duration, or a number of seconds."""
    from sizing.specs.units import parse_duration_s

    return parse_duration_s(f"{text}s" if _is_number(text) else text)


def _rows(trace: str | None, driving: Part[Driving]) -> NDArray[Any] | None:
    """The rows of a trace; all rows if the number to send is unknown."""
    from sizing.catalog.files import expanded
    from sizing.catalog.traces import load_trace

    if trace is None:
        return None
    if not trace.strip():
        raise InputError("names no file", field="--trace", allowed="a CSV or JSON-lines file")
    return load_trace(expanded(trace), most=None if driving.faults else driving.value.requests)


def _results_alone(trace: NDArray[Any] | None, model: FoundModel) -> NDArray[Any] | None:
    """The rows of a trace for the model's task: a pooling task has one result instead of output tokens."""
    import numpy as np

    from sizing.specs.workload import RESULTS

    if trace is None or not model.spec.pooled:
        return trace
    return np.column_stack((trace[:, :2], np.full(len(trace), RESULTS)))


def _question(names: Names, layout: Layout, driving: Driving, trace: NDArray[Any] | None) -> Question:
    """The question. The longest sequence of a trace must fit unless another length is stated."""
    from sizing.answers.simulate import check_lengths
    from sizing.question.ask import resolved

    asked, traced = names.workload.value, trace is not None
    check_lengths(asked, driving, traced=traced)
    if trace is not None and asked.serving.max_model_len is None:
        longest = min(int((trace[:, 1] + trace[:, 2]).max()), names.model.value.spec.max_position)
        serving = asked.serving.model_copy(update={"max_model_len": longest})
        asked = asked.model_copy(update={"serving": serving})
    caches, gpus = driving.replicas * layout.dp, driving.replicas * layout.gpus
    return resolved(names, asked, gpu_budget=gpus, caches=caches, traced=traced)


def _check_pools(given: GivenOptions, driving: Driving) -> None:
    """Raise InputError for options that contradict the simulation of two pools."""
    from sizing.answers.simulate import OWN

    own = () if driving.policies == (OWN,) else ("policies of pools",)
    check_rules(("replicas of pools", *own, "slots of pools"), given)


def _check_idle(given: GivenOptions, names: Names, driving: Driving, pools: SeparatePools | None) -> None:
    """Raise InputError with a fault for each option without effect, and for lengths that are spread too far."""
    from sizing.cli.reader import Reader

    asked, found, traced = names.workload.value, names.found.value, given.any_of(["trace"])
    with Reader(broken(_idle_situations(asked, driving, pools, traced=traced), given)) as read:
        stds = {name: getattr(driving, f"{name}_std") or getattr(asked.tokens, f"{name}_std") for name in NOUNS}
        if traced:
            return
        if driving.length_ratio is None and not any(stds.values()):
            read.faults += broken(("equal lengths",), given)
        for name, std in stds.items():
            read.spread(f"--{name}-std", getattr(driving, f"{name}_std"), getattr(asked.tokens, name))
            cut = std is not None and driving.length_ratio is None
            # Values in a file may have no effect, but --isl may make them invalid.
            replaced = found is not None and getattr(found.spec.tokens, f"{name}_max") is not None
            if not cut and not replaced:
                read.faults += broken((f"equal {name}",), given)


def _of_model(question: Question, layout: Layout, pools: SeparatePools | None, *, traced: bool) -> Iterator[str]:
    """Yield the situations of the model, its layout and its answers that leave options without effect."""
    yield from of_service(question.service)
    if pools is None:
        yield from of_layout(layout)
    tokens = question.origin.workload.tokens
    if tokens.osl == 1 and not tokens.osl_std and not traced:
        yield "one token out"


def _draws(workload: Workload, driving: Driving, *, closed: bool, traced: bool) -> bool:
    """Whether a run has random draws: lengths, arrivals, the router, drafts, or turns of a conversation."""
    tokens, optimised = workload.tokens, workload.optimisations
    if optimised.speculative is not None or (optimised.prefix is not None and (optimised.prefix.turns or 1) > 1):
        return True
    lengths = (driving.isl_std, driving.osl_std, driving.length_ratio, tokens.isl_std, tokens.osl_std)
    spread = not traced and any(length is not None for length in lengths)
    comes_at_random = not (closed or traced) and driving.arriving.kind in ("poisson", "gamma")
    routed = driving.replicas > 1 and driving.routing in ("random", "power-of-two")
    return spread or comes_at_random or (routed and not closed)


def _idle_situations(
    workload: Workload, driving: Driving, pools: SeparatePools | None, *, traced: bool
) -> Iterator[str]:
    """Yield the situations of a load that leave options without effect."""
    from sizing.question.demand import OF_YEAR

    if "dynamic" not in driving.policies:
        yield "no dynamic batches"
    demand, at_once = workload.demand, driving.arriving.kind is None
    kind = demand.kind if demand is not None and not traced and not at_once else None
    closed = kind is not None and demand is not None and bool(demand.closed_loop)
    if kind in (*OF_YEAR, "mean_requests_per_s"):  # like users, these have a peak derived from the mean
        yield "a mean rate"
    elif kind != "daily_active_users":
        yield "no users"
    if not traced and not at_once and (demand is None or closed):
        yield "no rate"
    if not _draws(workload, driving, closed=closed or demand is None, traced=traced):
        yield "no chance"
    routed = [driving.replicas] if pools is None else [p.pool.replicas or 1 for p in (pools.prefill, pools.decode)]
    if closed:
        yield "a closed loop"
    elif max(routed) == 1:
        yield "one replica"
