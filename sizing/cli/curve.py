"""`llmsize curve`: throughput against latency for each GPU, precision and layout, with the best point within the limits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from sizing.cli.options import FORMAT_OPTIONS, VERIFY_OPTIONS, WorkloadName, takes
from sizing.cli.output import chosen_format, complain, say_unread, write, write_picture
from sizing.question.options import (
    DEMAND_OPTIONS,
    DISAGGREGATION_OPTIONS,
    LIMIT_OPTIONS,
    MODEL_OPTIONS,
    OPTIMISATION_OPTIONS,
    SERVING_OPTIONS,
    SET_OPTIONS,
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


@takes((*OWN_OPTIONS, *CURVE_OPTIONS, *FORMAT_OPTIONS, *CLOSED_FORM))
def command(workload: WorkloadName = None, **values: Any) -> int:
    """Draw throughput against latency and mark the best point.

    The best point keeps the limits. The Pareto set, knees and full caches are marked too.

    Exit codes: 0 done, 1 no point keeps the limits, 2 bad input.
    """
    from sizing.report.curve.record import record
    from sizing.report.curve.sections import document, figure

    asked = _asking(workload, values)
    found = record(_drawn(asked), asked.question, asked.grid, asked.measured)
    write(document(found), asked.format)
    picture = asked.own.picture
    if picture is not None and (drawn := figure(found)).series:
        write_picture(picture, (drawn,))
    elif picture is not None:
        complain("--plot: no point has both latency and throughput, so there is nothing to draw")
    return 0 if found.feasible else 1


def _drawn(asked: _Asking) -> Curve:
    """Measured lines, then predicted ones, each load simulated or in closed form."""
    from sizing.answers.curve import curve, marked, metric_of
    from sizing.cli.output import Bar
    from sizing.cli.workers import cores, ordered

    lines = () if asked.measured is None else asked.measured.lines
    if asked.question is None or asked.grid is None:
        return marked(lines, asked.limits, asked.own.metric or metric_of(asked.limits, asked.mode))
    with Bar("Simulating") as bar:
        each = partial(ordered, jobs=asked.jobs or cores())
        return curve(asked.question, asked.grid, measured=lines, demanded=asked.demanded, each=each, progress=bar)


class _Own(NamedTuple):
    """The command's own options; None where not stated."""

    tp: tuple[int, ...] | None
    pp: tuple[int, ...] | None
    loads: tuple[int, ...] | None
    closed_loop: bool
    metric: Metric | None
    seed: int
    picture: Path | None


class _Asking(NamedTuple):
    """The lines to draw: predictions of a question on a grid, measured lines, or both; with their `limits` and `mode`.

    `demanded` is the question with a demand, whose answer is one of the lines.
    """

    own: _Own
    format: str
    measured: Measured | None
    question: Question | None
    grid: Grid | None
    limits: Limits
    mode: str
    jobs: int | None
    demanded: Question | None = None


def _asking(workload: str | None, values: Mapping[str, Any]) -> _Asking:
    """Resolve the question. Raises InputError with all faults that it can find."""
    from sizing.question.names import workload_at

    output, own = Part(lambda: chosen_format(values)), Part(lambda: _own(values))
    found = Part(lambda: workload_at(workload) if workload is not None else None)
    measured = Part(lambda: _measured(values, own.value, found.value))
    parts = (output, own, found, measured)
    question = grid = demanded = None
    if not values["measured_only"] and (workload or values["model"] is not None or values["measured"] is None):
        question, grid, demanded = _predicted(found, values, own, measured, parts)
        limits, mode = question.target.limits, question.origin.workload.mode
    else:
        stated = Part(lambda: _limits(values))
        check(*parts, stated, Part(lambda: check_rules(("no predictions",), CURVE_OPTIONS, values)))
        limits, mode = stated.value, values["mode"] or "streaming"
    if measured.value is not None:
        say_unread(measured.value.rows)
    return _Asking(own.value, output.value, measured.value, question, grid, limits, mode, values["jobs"], demanded)


def _own(values: Mapping[str, Any]) -> _Own:
    from sizing.catalog.files import expanded
    from sizing.catalog.measured import IN_FLIGHT
    from sizing.cli.reader import Reader
    from sizing.specs.units import whole_numbers
    from sizing.specs.workload import LATENCIES

    file = values["measured"]
    held = {"no simulation": values["no_verify"], "no measurements": file is None, "one replica of a curve": True}
    read = Reader(values)

    def listed(name: str, most: int) -> tuple[int, ...] | None:
        return read.parsed(name, lambda text: whole_numbers(text, most), LISTS)

    metric = None if values["x"] is None else read.chosen(values["x"], LATENCIES, "--x", "latency")
    read.faults.extend(broken([name for name, holds in held.items() if holds], CURVE_OPTIONS, values))
    found = _Own(
        tp=listed("tp", MOST_PARALLEL),
        pp=listed("pp", MOST_PARALLEL),
        loads=listed("concurrency", int(IN_FLIGHT.most)),
        closed_loop=values["closed_loop"],
        metric=metric,
        seed=read.seed(SEED),
        picture=read.picture(),
    )
    read.distinct({"--plot": found.picture}, {"--measured": None if file is None else expanded(file)})
    read.check()
    return found


def _limits(values: Mapping[str, Any]) -> Limits:
    """The limits of the options. Raises InputError with a fault for each wrong limit."""
    from sizing.catalog import workloads
    from sizing.cli.axes import PLAIN

    flags = {option.field or "": option.flags[0] for option in LIMIT_OPTIONS}
    stated = {option.field or "": values[option.name] for option in LIMIT_OPTIONS if values[option.name] is not None}
    return workloads.override(None, {**PLAIN, **stated}, flags).limits


def _measured(values: Mapping[str, Any], own: _Own, workload: Found[Workload] | None) -> Measured | None:
    """The measured rows that the options select, or the workload without options. None without a file.

    Raises InputError for a file that can't be read, and for rows that make no curve.
    """
    if values["measured"] is None:
        return None
    from sizing.answers.measured_lines import measured
    from sizing.cli.measured import rows_wanted

    gpus = values["gpu"] if values["gpu"] is not None else ",".join(workload.spec.gpu if workload else ())
    wanted = rows_wanted({**values, "gpu": gpus}, workload, {"tp": own.tp, "pp": own.pp})
    if values["gpu"] is None and workload is not None:
        wanted = wanted._replace(stated={**wanted.stated, "gpu": workload.id})
    return measured(values["measured"], wanted)


def _as_measured(measured: Measured, values: Mapping[str, Any], spec: Workload | None) -> dict[str, Any]:
    """Options that make predictions comparable with measurements, unless the options or the workload state them."""
    from sizing.catalog.profiles import load_engine, named_gpu
    from sizing.specs.workload import Precision

    rows = measured.rows
    filled: dict[str, Any] = {}
    if values["gpu"] is None and not (spec is not None and spec.gpu):
        filled["gpu"] = ",".join(dict.fromkeys(named_gpu(row.gpu)[0] for row in rows))
    known = [name for row in rows if (name := row.weight_precision.lower()) in get_args(Precision)]
    if values["precision"] is None and known and not (spec is not None and spec.precision):
        filled["precision"] = ",".join(dict.fromkeys(known))
    if spec is None:
        filled |= {name: values[name] or getattr(measured, name) for name in ("isl", "osl")}
        engines = {row.engine for row in rows}
        if values["engine"] is None and len(engines) == 1:
            engine = Part(lambda: load_engine(engines.pop())[0].id)
            filled |= {} if engine.faults else {"engine": engine.value}
    return filled


def _predicted(
    workload: Part[Found[Workload] | None],
    values: Mapping[str, Any],
    own: Part[_Own],
    measured: Part[Measured | None],
    parts: tuple[Part[Any], ...],
) -> tuple[Question, Grid, Question | None]:
    """The question and grid to predict, and the question with a demand that options state; measurements fill in unstated values."""
    from sizing.answers.curve_lines import Grid
    from sizing.question.ask import SEPARATE_PATH, decodes, separate_pools, with_origin
    from sizing.question.names import look_up
    from sizing.question.options import options_of

    if measured.faults and values["measured"] is not None:  # without them, their values would be reported as missing
        check(*parts)
    spec = None if workload.faults or workload.value is None else workload.value.spec
    known = None if measured.faults else measured.value
    filled = dict(values) if known is None else {**values, **_as_measured(known, values, spec)}
    names = look_up(None if workload.faults else workload.value, options_of(CURVE_OPTIONS, filled), no_model=NO_MODEL)
    asked = Part(lambda: _question(names), names.layers.by_field)
    gpu = Part(lambda: raise_any([NO_GPU] if filled["gpu"] is None and not (spec and spec.gpu) else []))
    pools = Part(lambda: separate_pools(names, (decodes,)), names.layers.at(SEPARATE_PATH))
    arrivals = Part(lambda: _arrivals(own.value, known, pooled=pools.value is not None))
    still = Part(lambda: _check_seed(values, names.workload.value, arrivals.value))
    demanded = Part(lambda: None if asked.faults else _demanded(names, values, arrivals.value))
    check(*parts, gpu, *names.parts, asked, pools, arrivals, still, demanded)
    question = with_origin(asked.value, names, pools.value)
    stated = own.value
    sized = None if demanded.value is None else with_origin(demanded.value, names)
    grid = Grid(
        _layouts(stated, question, known),
        stated.loads or _loads(known),
        stated.loads,
        arrivals.value,
        simulated=not values["no_verify"],
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


def _demanded(names: Names, values: Mapping[str, Any], arrivals: Arrivals) -> Question | None:
    """The question with the demand that options state; None without one. Raises InputError where its load is none of a curve."""
    from sizing.answers.curve_lines import check_demanded
    from sizing.question.ask import resolved

    stated = next((f"--{name}" for name in SIZED_BY if values[name] is not None), None)
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


def _check_seed(values: Mapping[str, Any], workload: Workload, arrivals: Arrivals) -> None:
    """Raise InputError for a seed with a closed loop of equal lengths, which has no random draws."""
    tokens, asked = workload.tokens, workload.optimisations
    drawn = tokens.isl_std or tokens.osl_std or asked.speculative is not None or asked.prefix is not None
    if arrivals == "closed" and not drawn:
        check_rules(("no chance",), CURVE_OPTIONS, values)


def _arrivals(own: _Own, measured: Measured | None, *, pooled: bool) -> Arrivals:
    """The arrivals of loads: steady by default; a closed loop if asked for, or with measured rows of one."""
    if pooled and own.closed_loop:
        raise InputError("a closed loop is not simulated over two pools", field="--closed-loop", remedy="leave it out")
    return "closed" if own.closed_loop or (measured is not None and not measured.random and not pooled) else "poisson"


def _layouts(own: _Own, question: Question, measured: Measured | None) -> Layouts:
    """The sizes to draw: stated, from the workload, from measured rows, or the defaults."""
    from sizing.answers.curve_lines import Layouts, default_grid

    usual = default_grid(question).layouts
    if measured is not None and question.service.serving.tp is None:
        usual = usual._replace(tp=tuple(sorted({line.layout.tp for line in measured.lines if line.layout})))
    return Layouts(own.tp or usual.tp, own.pp or usual.pp)


def _loads(measured: Measured | None) -> tuple[int, ...]:
    from sizing.answers.curve_lines import LOADS

    if measured is None:
        return LOADS
    return tuple(sorted({max(1, round(point.concurrency)) for line in measured.lines for point in line.points}))
