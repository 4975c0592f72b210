"""`llmsize curve`: throughput against latency for each GPU, precision and layout, with the best point within the limits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from sizing.cli.options import FORMAT_OPTIONS, VERIFY_OPTIONS, WorkloadName, takes
from sizing.cli.output import chosen_format, say_unread, write, write_picture
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
    named,
    option_table,
    with_help,
    without,
)
from sizing.specs.errors import Fault, InputError, Part, check, raise_any

if TYPE_CHECKING:  # loaded when the command runs
    from pathlib import Path

    from sizing.answers.curve import Curve
    from sizing.answers.curve_lines import Arrivals, Grid, Layouts
    from sizing.answers.measured_lines import Measured
    from sizing.catalog.shelf import Found
    from sizing.question.names import Names
    from sizing.question.question import Question
    from sizing.specs.workload import Limits, Metric, Workload

LISTED_SIZES = ("tp", "pp")  # sizes that take lists here
ALL_KEPT = "a curve's loads each leave other room between turns; it takes every history as kept"
SIZED_BY = ("rps", "users", "dau")  # a demand whose answer is drawn; --concurrency states the loads of a curve
OF_DEMAND = ("isl", "osl", "isl_max", "osl_max", "mode", *SIZED_BY)
OWN_OPTIONS = option_table("curve")
CURVE_OPTIONS = (
    *with_help(MODEL_OPTIONS, "curve"),
    *with_help(named(DEMAND_OPTIONS, *OF_DEMAND), "curve"),
    *LIMIT_OPTIONS,
    *without(SERVING_OPTIONS, *LISTED_SIZES),
    *OPTIMISATION_OPTIONS,
    *DISAGGREGATION_OPTIONS,
    *SET_OPTIONS,
)
CLOSED_FORM = with_help(VERIFY_OPTIONS, "curve")
MOST_PARALLEL = 4096
LISTS = "1,2,4; 1..8; doublings 1..512x2; steps 10..100:10"
SEED = 0
OF_MODEL, OF_GPU = "a workload file or name, --model, or --measured", "names with commas (llmsize gpus), a path, or all"
NO_MODEL = Fault("no workload, no model and no measurements", field="--model", allowed=OF_MODEL)
NO_GPU = Fault("is needed: each GPU type is a line", field="--gpu", allowed=OF_GPU)


class CurveOptions(NamedTuple):
    """The options of the command itself, and those of the question that measured rows may state or that choose the lines."""

    tp: str | None
    pp: str | None
    concurrency: str | None
    closed_loop: bool
    x: str | None
    measured: str | None
    measured_only: bool
    plot: str | None
    seed: int | None
    jobs: int | None
    no_verify: bool
    mode: str | None


@takes((*OWN_OPTIONS, *CURVE_OPTIONS, *FORMAT_OPTIONS, *CLOSED_FORM))
def command(given: GivenOptions, workload: WorkloadName = None) -> int:
    """Draw throughput against latency and mark the best point.

    The best point keeps the limits. The Pareto set, knees and full caches are marked too.

    Exit codes: 0 done, 1 no point keeps the limits, 2 bad input.
    """
    from sizing.report.curve.record import record
    from sizing.report.curve.sections import document, figure

    asked = _request(workload, given)
    found = record(_drawn(asked), asked.question, asked.grid, asked.measured)
    write(document(found), asked.format)
    nothing = "--plot: no point has both latency and throughput, so there is nothing to draw"
    write_picture(asked.drawing.picture, lambda: [drawn] if (drawn := figure(found)).series else [], nothing)
    return 0 if found.feasible else 1


def _drawn(asked: CurveRequest) -> Curve:
    """Measured lines, then predicted ones, each load simulated or in closed form."""
    from sizing.answers.curve import curve, marked, metric_of
    from sizing.cli.output import Bar
    from sizing.cli.workers import cores, ordered

    lines = () if asked.measured is None else asked.measured.lines
    if asked.question is None or asked.grid is None:
        return marked(lines, asked.limits, asked.drawing.metric or metric_of(asked.limits, asked.mode))
    with Bar("Simulating") as bar:
        each = partial(ordered, jobs=asked.jobs or cores())
        return curve(asked.question, asked.grid, measured=lines, demanded=asked.demanded, each=each, progress=bar)


class Drawing(NamedTuple):
    """What to draw: the command's own options as they are read; None where not stated."""

    tp: tuple[int, ...] | None
    pp: tuple[int, ...] | None
    loads: tuple[int, ...] | None
    closed_loop: bool
    metric: Metric | None
    seed: int
    picture: Path | None


class CurveRequest(NamedTuple):
    """The lines to draw: predictions of a question on a grid, measured lines, or both; with their `limits` and `mode`.

    `demanded` is the question with a demand, whose answer is one of the lines.
    """

    drawing: Drawing
    format: str
    measured: Measured | None
    question: Question | None
    grid: Grid | None
    limits: Limits
    mode: str
    jobs: int | None
    demanded: Question | None = None


def _request(workload: str | None, given: GivenOptions) -> CurveRequest:
    """Resolve the question. Raises InputError with all faults that it can find."""
    from sizing.question.names import workload_at

    own, output, drawing = given.read(CurveOptions), Part(lambda: chosen_format(given)), Part(lambda: _drawing(given))
    found = Part(lambda: workload_at(workload) if workload is not None else None)
    measured = Part(lambda: _measured(given, drawing.value, found.value))
    parts = (output, drawing, found, measured)
    mode: str
    question = grid = demanded = None
    if not own.measured_only and (workload or given.any_of(["model"]) or own.measured is None):
        question, grid, demanded = _predicted(found, given, drawing, measured, parts)
        limits, mode = question.target.limits, question.origin.workload.mode
    else:
        stated = Part(lambda: _limits(given))
        check(*parts, stated, Part(lambda: check_rules(("no predictions",), given)))
        limits, mode = stated.value, own.mode or "streaming"
    if measured.value is not None:
        say_unread(measured.value.rows)
    return CurveRequest(drawing.value, output.value, measured.value, question, grid, limits, mode, own.jobs, demanded)


def _drawing(given: GivenOptions) -> Drawing:
    from sizing.catalog.measured import IN_FLIGHT
    from sizing.cli.reader import Reader
    from sizing.specs.units import whole_numbers
    from sizing.specs.workload import LATENCIES

    own = given.read(CurveOptions)
    held = {"no simulation": own.no_verify, "no measurements": own.measured is None, "one replica of a curve": True}

    def listed(text: str | None, option: str, most: int) -> tuple[int, ...] | None:
        return read.parsed(text, option, lambda text: whole_numbers(text, most), LISTS)

    with Reader() as read:
        metric = None if own.x is None else read.chosen(own.x, LATENCIES, "--x", "latency")
        read.faults.extend(broken([name for name, holds in held.items() if holds], given))
        found = Drawing(
            tp=listed(own.tp, "--tp", MOST_PARALLEL),
            pp=listed(own.pp, "--pp", MOST_PARALLEL),
            loads=listed(own.concurrency, "--concurrency", int(IN_FLIGHT.most)),
            closed_loop=own.closed_loop,
            metric=metric,
            seed=read.seed(own.seed, SEED),
            picture=read.picture(own.plot),
        )
        read.distinct({"--plot": found.picture}, {"--measured": own.measured})
    return found


def _limits(given: GivenOptions) -> Limits:
    """The limits of the options. Raises InputError with a fault for each wrong limit."""
    from sizing.catalog import workloads
    from sizing.cli.axes import PLAIN

    flags = {option.field or "": option.flags[0] for option in LIMIT_OPTIONS}
    values = {option.field or "": given.values[option.name] for option in LIMIT_OPTIONS}
    stated = {field: value for field, value in values.items() if value is not None}
    return workloads.override(None, {**PLAIN, **stated}, flags).limits


def _measured(given: GivenOptions, drawing: Drawing, workload: Found[Workload] | None) -> Measured | None:
    """The measured rows that the options select, or the workload without options. None without a file.

    Raises InputError for a file that can't be read, and for rows that make no curve.
    """
    from sizing.answers.measured_lines import measured
    from sizing.cli.measured import RowOptions, rows_wanted

    file, own = given.read(CurveOptions).measured, given.read(RowOptions)
    if file is None:
        return None
    gpus = own.gpu if own.gpu is not None else ",".join(workload.spec.gpu if workload else ())
    wanted = rows_wanted(own._replace(gpu=gpus), workload, drawing.tp or (), drawing.pp or ())
    if own.gpu is None and workload is not None:
        wanted = wanted._replace(stated={**wanted.stated, "gpu": workload.id})
    return measured(file, wanted)


def _as_measured(measured: Measured, given: GivenOptions, spec: Workload | None) -> dict[str, Any]:
    """Options that make predictions comparable with measurements, unless the options or the workload state them."""
    from sizing.catalog.profiles import load_engine, named_gpu
    from sizing.cli.measured import RowOptions
    from sizing.specs.workload import Precision

    own, rows = given.read(RowOptions), measured.rows
    filled: dict[str, Any] = {}
    if own.gpu is None and not (spec is not None and spec.gpu):
        filled["gpu"] = ",".join(dict.fromkeys(named_gpu(row.gpu)[0] for row in rows))
    known = [name for row in rows if (name := row.weight_precision.lower()) in get_args(Precision)]
    if own.precision is None and known and not (spec is not None and spec.precision):
        filled["precision"] = ",".join(dict.fromkeys(known))
    if spec is None:
        filled |= {"isl": own.isl or measured.isl, "osl": own.osl or measured.osl}
        engines = {row.engine for row in rows}
        if not given.any_of(["engine"]) and len(engines) == 1:
            engine = Part(lambda: load_engine(engines.pop())[0].id)
            filled |= {} if engine.faults else {"engine": engine.value}
    return filled


def _predicted(
    workload: Part[Found[Workload] | None],
    given: GivenOptions,
    drawing: Part[Drawing],
    measured: Part[Measured | None],
    parts: tuple[Part[Any], ...],
) -> tuple[Question, Grid, Question | None]:
    """The question and grid to predict, and the question with a demand that options state; measurements fill in unstated values."""
    from sizing.answers.curve_lines import Grid
    from sizing.question.ask import SEPARATE_PATH, decodes, separate_pools, with_origin
    from sizing.question.names import look_up
    from sizing.question.options import options_of

    own = given.read(CurveOptions)
    if measured.faults and own.measured is not None:  # without them, their values would be reported as missing
        check(*parts)
    spec = None if workload.faults or workload.value is None else workload.value.spec
    known = None if measured.faults else measured.value
    filled = given if known is None else given.with_(**_as_measured(known, given, spec))
    options = options_of(filled._replace(fields=CURVE_OPTIONS))
    names = look_up(None if workload.faults else workload.value, options, no_model=NO_MODEL)
    asked = Part(lambda: _question(names), names.layers.by_field)
    gpu = Part(lambda: raise_any([NO_GPU] if not filled.any_of(["gpu"]) and not (spec and spec.gpu) else []))
    pools = Part(lambda: separate_pools(names, (decodes,)), names.layers.at(SEPARATE_PATH))
    arrivals = Part(lambda: _arrivals(drawing.value, known, pooled=pools.value is not None))
    still = Part(lambda: _check_seed(given, names.workload.value, arrivals.value))
    demanded = Part(lambda: None if asked.faults else _demanded(names, given, arrivals.value))
    check(*parts, gpu, *names.parts, asked, pools, arrivals, still, demanded)
    question = with_origin(asked.value, names, pools.value)
    stated = drawing.value
    sized = None if demanded.value is None else with_origin(demanded.value, names)
    grid = Grid(
        _layouts(stated, question, known),
        stated.loads or _loads(known),
        stated.loads,
        arrivals.value,
        simulated=not own.no_verify,
        seed=stated.seed,
        metric=stated.metric,
        heaviest=stated.loads is None and known is None and arrivals.value == "poisson",
    )
    return question, grid, sized


def _question(names: Names) -> Question:
    """The question without its demand, because the loads of a curve are those of one replica or pair."""
    from sizing.question.ask import resolved

    workload = names.workload.value.model_copy(update={"demand": None})
    prefix = workload.optimisations.prefix
    if prefix is not None and prefix.think_time_s is not None:
        raise InputError(ALL_KEPT, field="optimisations.prefix.think_time_s", allowed="estimate, simulate")
    return resolved(names, workload, gpu_budget=1).with_(gpu_budget=None)


def _demanded(names: Names, given: GivenOptions, arrivals: Arrivals) -> Question | None:
    """The question with the demand that options state; None without one. Raises InputError where its load is none of a curve."""
    from sizing.answers.curve_lines import check_demanded
    from sizing.question.ask import resolved

    stated = next((f"--{name}" for name in SIZED_BY if given.any_of([name])), None)
    if stated is None:
        return None
    workload = names.workload.value
    check_demanded(arrivals, pooled=workload.optimisations.disaggregate is not None, field=stated)
    asked = resolved(names, workload, gpu_budget=None)
    if asked.service.extras.cached.think_time_s is not None:
        raise InputError(
            f"think between turns, and {ALL_KEPT}", field=stated, remedy="use --rps; or estimate, simulate"
        )
    return asked


def _check_seed(given: GivenOptions, workload: Workload, arrivals: Arrivals) -> None:
    """Raise InputError for a seed with a closed loop of equal lengths, which has no random draws."""
    tokens, asked = workload.tokens, workload.optimisations
    drawn = tokens.isl_std or tokens.osl_std or asked.speculative is not None or asked.prefix is not None
    if arrivals == "closed" and not drawn:
        check_rules(("no chance",), given)


def _arrivals(drawing: Drawing, measured: Measured | None, *, pooled: bool) -> Arrivals:
    """The arrivals of loads: steady by default; a closed loop if asked for, or with measured rows of one."""
    if pooled and drawing.closed_loop:
        raise InputError("a closed loop is not simulated over two pools", field="--closed-loop", remedy="leave it out")
    held = measured is not None and not measured.random and not pooled
    return "closed" if drawing.closed_loop or held else "poisson"


def _layouts(drawing: Drawing, question: Question, measured: Measured | None) -> Layouts:
    """The sizes to draw: stated, from the workload, from measured rows, or the defaults."""
    from sizing.answers.curve_lines import Layouts, default_grid

    usual = default_grid(question).layouts
    if measured is not None and question.service.serving.tp is None:
        usual = usual._replace(tp=tuple(sorted({line.layout.tp for line in measured.lines if line.layout})))
    return Layouts(drawing.tp or usual.tp, drawing.pp or usual.pp)


def _loads(measured: Measured | None) -> tuple[int, ...]:
    from sizing.answers.curve_lines import LOADS

    if measured is None:
        return LOADS
    return tuple(sorted({max(1, round(point.concurrency)) for line in measured.lines for point in line.points}))
