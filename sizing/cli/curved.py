"""From options to what `curve` draws: rows of measurements, a request with its lines, loads, limits and axis."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sizing.answers.curve import ARRIVALS, Arrivals, Layouts, lines
from sizing.catalog import workloads
from sizing.catalog.measured import IN_FLIGHT
from sizing.catalog.paths import expanded
from sizing.catalog.shelf import Found
from sizing.cli import curve_beside as beside
from sizing.cli.collecting import Part, check
from sizing.cli.named import Named, named
from sizing.cli.options import Opt
from sizing.cli.output import chosen_format
from sizing.cli.ranges import whole_numbers
from sizing.cli.reading import Reader, is_given
from sizing.cli.resolve import asked_of, data, request_of
from sizing.question.question import Data, Question
from sizing.report.curve import METRICS
from sizing.report.curve_inputs import Drawn, Measured
from sizing.report.documents_curve import Metric
from sizing.report.parts.question import Asked
from sizing.specs.errors import Fault, InputError
from sizing.specs.units import parse_limit
from sizing.specs.workload import Limit, Limits, Workload

if TYPE_CHECKING:  # what sizes pools is loaded where they are asked for
    from sizing.answers.pool_curve import PoolLine, Unpaired
    from sizing.answers.pools import Asked as Pools

TP, PP, LOADS = (1, 2, 4, 8), (1,), "1..512"
MOST_PARALLEL = 4096
SEED = 0
OF_ROWS = (
    "model",
    "gpu",
    "precision",
    "isl",
    "osl",
    "mode",
    "ttft",
    "itl",
    "e2e",
)  # filters of rows, and what judges them
NO_MODEL = Fault(
    "no workload, no model and no measurements",
    field="--model",
    allowed="a workload file or name, --model, or --measured",
)
NO_GPU = Fault(
    "is needed: each GPU type is a line", field="--gpu", allowed="names with commas (llmsize gpus), a path, or all"
)


class Asking(NamedTuple):
    """What to draw, by which limits to judge it, and where to write it."""

    drawn: Drawn | None
    measured: Measured | None
    limits: Limits
    metric: Metric
    format: str
    picture: Path | None
    jobs: int


class _Own(NamedTuple):
    """What the command's own options say; None where they are silent."""

    tp: tuple[int, ...] | None
    pp: tuple[int, ...] | None
    loads: tuple[int, ...] | None
    arrivals: Arrivals | None
    metric: Metric | None
    seed: int
    picture: Path | None


def ask(workload: str | None, options: tuple[Opt, ...], values: Mapping[str, Any]) -> Asking:
    """Resolve what is asked. Raises InputError with all faults that can be known."""
    output, own = Part(lambda: chosen_format(values)), Part(lambda: _own(values))
    found = Part(lambda: workloads.load_workload(workload) if workload is not None else None)
    measured = Part(lambda: beside.measured(values, own.value.tp or (), own.value.pp or (), _spec(found)))
    predicts = not values["measured_only"] and (
        workload is not None or values["model"] is not None or values["measured"] is None
    )
    if not predicts:
        limits, idle = Part(lambda: _limits(values)), Part(lambda: _check_idle(options, values))
        check(output, own, found, measured, limits, idle)
        metric = own.value.metric or _metric(limits.value, values["mode"] or "streaming")
        return Asking(None, measured.value, limits.value, metric, output.value, own.value.picture, 1)
    drawn = _drawn(found, options, values, own, measured, output)
    request = drawn.question
    limits_ = (
        request.target.limits if request.service.osl > 1 else request.target.limits.model_copy(update={"itl": None})
    )
    metric = own.value.metric or _metric(limits_, drawn.asked.workload.mode)
    jobs = values["jobs"] or os.cpu_count() or 1
    return Asking(drawn, measured.value, limits_, metric, output.value, own.value.picture, jobs)


def _own(values: Mapping[str, Any]) -> _Own:
    read = Reader(values, [])

    def listed(name: str, most: int) -> tuple[int, ...] | None:
        if values[name] is None:
            return None
        try:
            return whole_numbers(values[name], most)
        except ValueError as error:
            read.fault(str(error), f"--{name}", "1,2,4; doublings 1..512; steps 10..100:10")
            return None

    arrivals = None if values["arrivals"] is None else read.chosen(values["arrivals"], ARRIVALS, "--arrivals", "load")
    metric = None if values["x"] is None else read.chosen(values["x"], METRICS, "--x", "latency")
    file = values["measured"]
    if values["seed"] is not None and values["no_verify"]:
        read.fault("has no meaning without simulation", "--seed", "without --no-verify")
    if values["measured_only"] and file is None:
        read.fault("has no meaning without measurements", "--measured-only", "with --measured FILE.csv")
    found = _Own(
        tp=listed("tp", MOST_PARALLEL),
        pp=listed("pp", MOST_PARALLEL),
        loads=listed("concurrency", int(IN_FLIGHT.most)),
        arrivals=next((known for known in ARRIVALS if known == arrivals), None),
        metric=next((known for known in METRICS if known == metric), None),
        seed=read.seed(SEED),
        picture=read.picture(),
    )
    read.distinct({"--plot": found.picture}, {"--measured": None if file is None else expanded(file)})
    read.check()
    return found


def _check_idle(options: tuple[Opt, ...], values: Mapping[str, Any]) -> None:
    """Raise InputError for options that say how to predict, where nothing is predicted."""
    read = Reader(values, [])
    why, allowed = "where nothing is predicted", "with a workload or --model, without --measured-only"
    read.idle((option.name for option in options if option.name not in OF_ROWS), options, why, allowed)
    for name in ("concurrency", "arrivals", "seed", "jobs", "no_verify"):
        if is_given(values[name]):
            read.fault(f"has no meaning {why}", f"--{name.replace('_', '-')}", allowed)
    read.check()


def _limits(values: Mapping[str, Any]) -> Limits:
    """Return the limits that options state. Raises InputError with a fault for each that is wrong."""
    found: dict[str, Limit] = {}
    faults = []
    for name in METRICS:
        if values[name] is not None:
            try:
                statistic, seconds = parse_limit(values[name])
                found[name] = Limit.model_validate({"statistic": statistic, "seconds": seconds})
            except ValueError as error:
                faults.append(Fault(str(error), field=f"--{name}"))
    if faults:
        raise InputError(faults)
    return Limits(**found)


def _metric(limits: Limits, mode: str) -> Metric:
    """Return the latency to draw against: E2E of whole answers; of streams TTFT, or ITL where it alone is limited."""
    if mode.strip().lower() != "streaming":
        return "e2e"
    if limits.ttft is None and limits.itl is not None:
        return "itl"
    return "e2e" if limits.ttft is None and limits.e2e is not None else "ttft"


def _drawn(
    found: Part[Found[Workload] | None],
    options: tuple[Opt, ...],
    values: Mapping[str, Any],
    own: Part[_Own],
    measured: Part[Measured | None],
    output: Part[str],
) -> Drawn:
    """Return the lines to predict; beside measurements, what is not stated is as they have it."""
    if measured.faults and values["measured"] is not None:  # it would fill in what then seems to be missing
        check(output, own, found, measured)
    known, spec = None if measured.faults else measured.value, _spec(found)
    filled = dict(values) if known is None else {**values, **beside.as_measured(known.benchmark, values, spec)}
    names = named(None if found.faults else found.value, options, filled, no_model=NO_MODEL)
    read = data()
    request = Part(lambda: _request(names, read), names.origin.by_field)
    gpu = Part(lambda: _check_gpu(filled, spec))
    pools = Part(lambda: _pools(names), names.origin.at(("optimisations", "disaggregate")))
    arrivals = Part(lambda: _arrivals(own.value, pooled=pools.value is not None))
    check(output, own, found, measured, gpu, *names.parts, request, pools, arrivals)
    # The loads of a curve are those of one replica, or one pair of pools, whatever comes to all.
    undemanded = request.value.with_(gpu_budget=None)
    layouts = _layouts(own.value, undemanded, known)
    asked = asked_of(names, read, undemanded.service.extras)
    return Drawn(
        asked=asked,
        question=undemanded,
        found=tuple(lines(undemanded, asked.options, asked.precisions, layouts, read)),
        layouts=layouts,
        in_flight=own.value.loads or _loads(known),
        arrivals=arrivals.value,
        simulated=not values["no_verify"],
        seed=own.value.seed,
        pools=tuple(_pool_lines(pools.value, asked, undemanded, read, own.value, simulated=not values["no_verify"])),
    )


def _request(names: Named, read: Data) -> Question:
    """Return the request without its demand: the loads of a curve are those of one replica, whatever comes to all."""
    prefix = names.workload.value.optimisations.prefix
    if prefix is not None and prefix.think_time_s is not None:
        raise InputError(
            Fault(
                "a curve's loads each leave other room between turns; it takes every history as kept",
                field="optimisations.prefix.think_time_s",
                allowed="estimate, simulate",
            )
        )
    return request_of(names, read, gpu_budget=1, demanded=False)


def _pools(names: Named) -> Pools | None:
    """Return what is asked of separate pools; what draws them is loaded only where they are asked for."""
    if names.workload.value.optimisations.disaggregate is None:
        return None
    from sizing.cli import pools

    return pools.asked_of(names, (pools.decodes,))


def _arrivals(own: _Own, *, pooled: bool) -> Arrivals:
    """Return how loads arrive; beside pools as at pools, which no closed loop is simulated over."""
    if pooled and own.arrivals == "closed":
        raise InputError(Fault("a closed loop is not simulated over two pools", field="--arrivals", allowed="poisson"))
    return own.arrivals or ("poisson" if pooled else "closed")


def _pool_lines(
    pools: Pools | None, asked: Asked, question: Question, read: Data, own: _Own, *, simulated: bool
) -> Iterator[PoolLine | Unpaired]:
    """Yield lines of pools for each GPU type, or the types that they name, and each precision."""
    if pools is None:
        return
    from sizing.answers import pool_curve
    from sizing.answers.pools import by_type

    for one in by_type(pools, asked.options):
        for precision in asked.precisions:
            tokens = asked.workload.tokens if simulated else None
            yield from pool_curve.lines(question, one, precision, read, own.loads, tokens, own.seed)


def _spec(found: Part[Found[Workload] | None]) -> Workload | None:
    """Return the workload's file, None where there is none, or none that can be read: that is a fault of its own."""
    return None if found.faults or found.value is None else found.value.spec


def _check_gpu(values: Mapping[str, Any], spec: Workload | None) -> None:
    if values["gpu"] is None and not (spec is not None and spec.gpu):
        raise InputError(NO_GPU)


def _layouts(own: _Own, question: Question, known: Measured | None) -> Layouts:
    """Return the sizes to draw: as asked, as the workload states, as was measured, or the usual ones."""
    serving = question.service.serving
    as_measured = TP if known is None else tuple(sorted({line.tp for line in known.lines if line.tp is not None}))
    tp = own.tp or ((serving.tp,) if serving.tp is not None else as_measured)
    pp = own.pp or ((serving.pp,) if serving.pp is not None else PP)
    return Layouts(tp, pp)


def _loads(known: Measured | None) -> tuple[int, ...]:
    if known is None:
        return whole_numbers(LOADS, int(IN_FLIGHT.most))
    return tuple(sorted({max(1, round(point.concurrency)) for line in known.lines for point in line.points}))
