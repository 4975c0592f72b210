"""The record of `llmsize curve`: lines with their points, the points that matter, inputs and assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from sizing.answers.answer import Outcome
from sizing.answers.curve import Curve, CurveAxis
from sizing.answers.curve_lines import CurveLine, Grid, Origin, Pair
from sizing.answers.curve_points import CurvePoint
from sizing.answers.measured_lines import Measured
from sizing.engine.simulation import ROUNDS
from sizing.formats.view import Assumption, fields, filled, plain, taken
from sizing.formats.words import milliseconds
from sizing.model.architecture import Layout
from sizing.question.question import Question
from sizing.report.parts import assumptions
from sizing.report.parts.quantities import NoSizes
from sizing.report.parts.question import DemandInputs, LimitsInMs, conversation, demand, limits_in_ms, of_service
from sizing.specs.units import MILLI
from sizing.specs.workload import LATENCIES

if TYPE_CHECKING:  # loaded where separate pools are drawn
    from sizing.report.parts.pools import PoolShapes

MARKS = ("pareto", "knee", "chosen")
# Fields of a point that `chosen`, `pareto` and `knees` leave out.
OF_POINTS = (*MARKS, "heaviest", "bands", "latency_ms")
WHOLE = 10  # from so many requests in flight, fractions are not written
OF_LINES = ("points", "reason", "fits")


class LineRecord(NamedTuple):
    """A layout of one GPU type and weight precision, with its points by concurrency. `gpus` are the GPUs of one replica.

    `slots` is the number of requests that the engine runs at once. `cache_holds` is the number of requests of mean length that
    fit its KV cache. A line that does not fit has a `reason` and no points. A measured line has a `source`; its weight precision
    is empty if not stated. With separate `pools`, the GPUs and the concurrency are those of both pools together, and the layout,
    `slots` and `cache_holds` are null. The MBU, MFU and cache use of its points are those of the decode pool.
    """

    origin: Origin
    gpu: str
    weight_precision: str
    kv_precision: str | None
    sizes: Layout | NoSizes
    gpus: int | None
    engine: str
    engine_version: str | None
    fits: bool
    reason: str | None
    slots: int | None
    slots_bound: str | None
    cache_holds: float | None
    source: str | None
    points: tuple[CurvePoint, ...]
    pools: PoolShapes | None


class CurveLimiting(NamedTuple):
    """Why no point is feasible: the limit that the nearest point breaks, null if nothing fits or is stated.

    `nearest` is that point with the keys of its line. An `excess` of 0.1 means 10 % over the limit.
    """

    limit: str | None
    detail: str
    excess: float | None
    nearest: dict[str, Any] | None


class SizedFor(NamedTuple):
    """A demand, and the GPUs and replicas of its answer, as `llmsize estimate` finds it; null without one."""

    demand: DemandInputs
    gpus: int | None
    replicas: int | None


UNSERVED = CurveLimiting(
    None, "no layout serves the demand within the limits: llmsize estimate says what would help", None, None
)


class CurveRecord(NamedTuple):
    """The record of `llmsize curve`; `chosen`, `pareto` and `knees` are points with the keys of their line.

    If there are measured lines, `chosen` is one of their points: a measurement outranks every prediction. `pareto` has a set for
    measured and one for predicted lines. With a demand (`sized`), `chosen` is the load of each replica of its answer.
    `cache_full` has the first point of each line at which the KV cache is full.
    """

    inputs: dict[str, Any]
    x: CurveAxis
    limits: LimitsInMs
    feasible: bool
    limiting: CurveLimiting | None
    chosen: dict[str, Any] | None
    lines: tuple[LineRecord, ...]
    pareto: tuple[dict[str, Any], ...]
    knees: tuple[dict[str, Any], ...]
    cache_full: tuple[dict[str, Any], ...]
    assumptions: tuple[Assumption, ...]
    sized: SizedFor | None = None
    schema: str = "llmsize.curve/1"


def record(
    curve: Curve,
    question: Question | None,
    grid: Grid | None = None,
    measured: Measured | None = None,
) -> CurveRecord:
    """The record of a curve with predicted lines on a grid, `measured` lines, or both."""
    lines = tuple(_line(line) for line in curve.lines)
    chosen = next(iter(_flat(lines, "chosen")), None)
    unserved = curve.sized is not None and curve.sized.answer is None
    feasible = chosen is not None and not unserved
    held = [line for line in lines if line.cache_holds is not None]
    full = ((line, (point.concurrency for point in line.points if point.cache_full)) for line in held)
    return CurveRecord(
        inputs=_inputs(curve, question, grid, measured),
        x=curve.axis,
        limits={name.removesuffix("_ms"): limit for name, limit in limits_in_ms(curve.limits).items()},
        feasible=feasible,
        limiting=None if feasible else UNSERVED if unserved else _limiting(curve, lines),
        chosen=chosen,
        lines=lines,
        pareto=_flat(lines, "pareto"),
        knees=_flat(lines, "knee"),
        cache_full=tuple({**_labels(line), "concurrency": next(at, None)} for line, at in full),
        assumptions=tuple(dict.fromkeys(_rests_on(curve, question, grid, measured))),
        sized=None if curve.sized is None else _sized(curve.sized),
    )


def _sized(outcome: Outcome) -> SizedFor:
    best, asked = outcome.answer, demand(outcome.question)
    return SizedFor(asked, None, None) if best is None else SizedFor(asked, best.gpus, best.pool.count)


def _line(line: CurveLine) -> LineRecord:
    reason, shapes = line.reason, None
    if line.pools is not None:
        from sizing.report.parts import pools

        if isinstance(line.pools, Pair):
            shapes = pools.shapes(line.pools.pair)
        else:
            reason = pools.why_not(line.pools)
    return filled(
        LineRecord,
        line,
        sizes=NoSizes() if line.layout is None else line.layout,
        fits=line.origin == "measured" or bool(line.parts),
        reason=reason,
        slots=None if line.timed is None else line.timed.slots,
        slots_bound=None if line.timed is None else line.timed.slots_bound,
        pools=shapes,
    )


def _labels(line: LineRecord) -> dict[str, Any]:
    """The labels of a line's points."""
    return {name: value for name, value in fields(line) if name not in OF_LINES}


def _with_labels(line: LineRecord, point: CurvePoint) -> dict[str, Any]:
    return _labels(line) | {name: plain(value) for name, value in point._asdict().items() if name not in OF_POINTS}


def _flat(lines: tuple[LineRecord, ...], mark: str) -> tuple[dict[str, Any], ...]:
    return tuple(_with_labels(line, point) for line in lines for point in line.points if getattr(point, mark))


def _limiting(curve: Curve, lines: tuple[LineRecord, ...]) -> CurveLimiting:
    """Why no point is feasible: nothing fits, no point has the limited figure, or the nearest point breaks a limit."""
    points = [point for _, point in curve.points if point.requests_per_s is not None]
    if not points:
        refused = next((line for line in lines if line.reason), None)
        if refused is None:
            return CurveLimiting(None, "no point has a throughput", None, None)
        at = f"{refused.gpu} {line_name(refused)}"
        return CurveLimiting(None, f"no layout fits; {at}: {refused.reason}", None, None)
    near = curve.nearest
    if near is None:
        unstated = [name for name in LATENCIES if any(point.limits_met.get(name, True) is None for point in points)]
        names = ", ".join(f"{getattr(curve.limits, name).statistic} {name.upper()}" for name in unstated)
        return CurveLimiting(None, f"no point states all that the limits bound: {names}", None, None)
    limit, point, line = getattr(curve.limits, near.limit), near.point, lines[curve.lines.index(near.line)]
    detail = (
        f"no point keeps {limit.statistic} {near.limit.upper()} <= {milliseconds(limit.seconds / MILLI)}; the nearest is "
        f"{line_name(line)} on {line.gpu} with {in_flight(point)} in flight: "
        f"{milliseconds(point.latency(near.limit, limit.statistic))}"
    )
    return CurveLimiting(near.limit, detail, near.excess, _with_labels(line, point))


def weights(precision: str) -> str:
    """Write a weight precision, or that it is not stated."""
    return precision.upper() or "weights not stated,"


def in_flight(point: CurvePoint) -> str:
    """Write the requests in flight of a point, a whole number from 10 upwards."""
    return f"{point.concurrency:,.0f}" if point.concurrency >= WHOLE else f"{point.concurrency:,.3g}"


def shape(line: LineRecord) -> str:
    """Write the layout of a line: that of a replica, or of both pools."""
    if line.pools is not None:
        from sizing.report.parts.pools import shape_words

        return shape_words(line.pools)
    return str(line.sizes)


def line_name(line: LineRecord) -> str:
    """Write the precision and layout of a line."""
    return f"{weights(line.weight_precision)} {shape(line)}"


def _inputs(curve: Curve, question: Question | None, grid: Grid | None, measured: Measured | None) -> dict[str, Any]:
    """The resolved inputs of the predictions, or of the measured lines if there are no predictions."""
    of_file = None
    if measured is not None:
        shape_ = {"model": measured.model, "isl": measured.isl, "osl": measured.osl}
        of_file = {"file": measured.file, "rows": len(measured.rows), **shape_, "sources": list(measured.sources)}
        if question is None:
            sent = {"arrivals": "poisson"} if measured.random else {}
            return {**shape_, **sent, "measured": of_file}
    assert question is not None and grid is not None
    service, origin, tokens = question.service, question.origin, question.origin.workload.tokens
    singles = [line for line in curve.lines if line.origin == "predicted" and line.pools is None]
    turns = conversation(question, placed=False)
    return {
        "workload": origin.workload_name,
        **of_service(service),
        "model_id": origin.model_id,
        "gpus": [gpu_type.name for gpu_type in question.space.gpu_types],
        "weight_precisions": list(dict.fromkeys(line.weight_precision for line in singles)),
        "kv_precision": service.cache_precision,
        "isl_max": tokens.isl_max or service.isl,
        "osl_max": tokens.osl_max or service.osl,
        "isl_std": tokens.isl_std,
        "osl_std": tokens.osl_std,
        "mode": origin.workload.mode,
        "tp": list(grid.layouts.tp),
        "pp": list(grid.layouts.pp),
        "serving": service.serving.model_dump(exclude={"tp", "pp"}),
        **({} if turns is None else {"conversation": turns}),
        "concurrency": list(grid.in_flight),
        "heaviest": grid.heaviest,
        "max_utilisation": question.target.max_utilisation if grid.heaviest else None,
        "arrivals": grid.arrivals,
        "simulated": grid.simulated,
        "rounds": ROUNDS if grid.simulated and grid.arrivals == "closed" else None,
        "seed": grid.seed if grid.simulated else None,
        "pools": None if question.space.pools is None else _inputs_of_pools(curve),
        "measured": of_file,
    }


def _inputs_of_pools(curve: Curve) -> dict[str, Any]:
    """The fixed inputs of lines of pools, and the loads in requests in flight over both pools."""
    loads = [list(line.pools.in_flight) for line in curve.lines if isinstance(line.pools, Pair)]
    return {"fixed": _fixed().value, "concurrency": loads}


def _fixed() -> Assumption:
    """The inputs that do not change along a line of pools."""
    from sizing.answers.pool_lines import BUDGET, MOST_LINES

    fixed = (
        "layouts and replicas of both pools. Those that --disaggregate leaves open are of the pair that serves the most within the "
        f"limits on {BUDGET} GPUs (the fastest alone where none keeps them): its layouts, and the {MOST_LINES} ratios of prefill "
        "to decode replicas nearest to its own"
    )
    return taken("fixed along a line of pools", fixed, "both pools under Poisson arrivals")


def _rests_on(
    curve: Curve, question: Question | None, grid: Grid | None, measured: Measured | None
) -> Iterator[Assumption]:
    """Yield the assumptions and sources of the chosen line (else the first that fits) and of the loads."""
    if measured is not None:
        for source, rows in measured.sources.items():
            kind = "points at random arrivals" if measured.random else "points of a closed loop"
            yield Assumption(kind, rows, "rows", "measured", source)
    if question is None or grid is None:
        return
    yield from assumptions.of_model(question, question.origin.notes)
    yield _driven(grid)
    yield from assumptions.of_limits(question)
    lines = [curve.chosen[0]] if curve.chosen is not None else []
    line = next((line for line in (*lines, *curve.lines) if line.parts), None)
    if line is None:
        return
    for part in line.parts:
        yield from assumptions.of_replica(question, part.replica, part.kernels)
    if isinstance(line.pools, Pair):
        from sizing.report.parts import pools

        yield _fixed()
        yield from pools.assumptions(line.pools.asked.facts)


def _driven(grid: Grid) -> Assumption:
    """The arrivals of a grid's loads."""
    if grid.arrivals == "poisson":
        simulated = "simulated through the engine's scheduler, in the steady state"
        how = simulated if grid.simulated else "in closed form (--no-verify)"
        what = "the rate that keeps so many in flight on average; nothing is said where no stable rate does"
        return taken("load", what, f"Poisson arrivals, {how}")
    if not grid.simulated:
        what = "all requests start together, have equal lengths and stay grouped; nothing is said beyond the slots"
        return taken("load", what, "closed loop in closed form (--no-verify)")
    what = f"an end brings the next request; each place is filled {ROUNDS} times"
    return taken("load", what, "closed loop, simulated through the engine's scheduler")
