"""Measured lines of a curve: the closed-loop rows of a benchmark file, under the same keys as predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from sizing.catalog import gpus, models, shelf
from sizing.catalog.measured import MeasuredRow
from sizing.evidence.notes import NoteFacts, facts_of
from sizing.evidence.rows import layout_of
from sizing.model.architecture import Layout
from sizing.report.curve_predicted import GPUS_COMPARED, per_gpus
from sizing.report.documents_curve import CurveLine, CurvePoint, Percentiles
from sizing.report.parts.figures import Statistics
from sizing.specs.errors import Fault, InputError

MODE = "closed_loop"
MOST_LISTED = 12  # of what a file holds, in a fault that asks to choose
SAME_DIGITS = 3  # of lengths: sources state what they measured, 4,997.6 where 5,000 was asked for


class Filter(NamedTuple):
    """Which rows to take; None or empty takes all. Names of models and GPUs count as what the catalogue knows them by."""

    model: str | None = None
    gpus: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    tp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    isl: float | None = None
    osl: float | None = None


class Benchmark(NamedTuple):
    """The rows of one model and shape: what the lines are of, and the rows."""

    model: str
    isl: int
    osl: int
    rows: tuple[MeasuredRow, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the rows are from, each once."""
        return tuple(dict.fromkeys(row.source or "not stated" for row in self.rows))


class _Shape(NamedTuple):
    model: str
    isl: float
    osl: float


class _LineKey(NamedTuple):
    gpu: str
    weight_precision: str
    kv_precision: str
    layout: Layout
    engine: str
    engine_version: str
    source: str


def select(rows: Iterable[MeasuredRow], file: str, wanted: Filter) -> Benchmark:
    """Return the closed-loop rows that a filter takes, all of one model and shape.

    Raises InputError where there are none, or where rows of several models or shapes are left.
    """
    closed = [row for row in rows if row.mode == MODE and row.concurrency is not None]
    if not closed:
        raise InputError(Fault(f"holds no rows of mode {MODE} with a concurrency", file, field="--measured"))
    taken = closed
    for option, name, accepts in _conditions(wanted):
        kept = [row for row in taken if accepts(row)]
        if not kept:
            raise InputError(_none_left(option, name, taken))
        taken = kept
    shapes = dict.fromkeys(_shape(row) for row in taken)
    if len(shapes) > 1:
        first = {shape: next(row for row in taken if _shape(row) == shape) for shape in list(shapes)[:MOST_LISTED]}
        listed = [f"{shape.model} {row.isl:g}/{row.osl:g}" for shape, row in first.items()]
        more = f" and {len(shapes) - MOST_LISTED} more" if len(shapes) > MOST_LISTED else ""
        raise InputError(
            Fault(
                f"holds {len(shapes)} models and shapes (ISL/OSL), and a curve is of one: {'; '.join(listed)}{more}",
                file,
                field="--measured",
                allowed="one of them, by --model, --isl and --osl",
            )
        )
    return Benchmark(taken[0].model, round(_mean(taken, "isl")), round(_mean(taken, "osl")), tuple(taken))


def _conditions(wanted: Filter) -> Iterable[tuple[str, str, Callable[[MeasuredRow], bool]]]:
    """Yield the conditions that are set: the option, the column, and what a row must say."""
    if wanted.model is not None:
        model = model_key(wanted.model)
        yield "--model", "model", lambda row: model_key(row.model) == model
    if wanted.gpus:
        names = {gpu_key(name) for name in wanted.gpus}
        yield "--gpu", "gpu", lambda row: gpu_key(row.gpu) in names
    if wanted.precisions:
        yield "--precision", "weight_precision", lambda row: row.weight_precision.lower() in wanted.precisions
    if wanted.tp:
        yield "--tp", "tp", lambda row: (row.tp or 1) in wanted.tp
    if wanted.pp:
        yield "--pp", "pp", lambda row: (row.pp or 1) in wanted.pp
    for name, value in (("isl", wanted.isl), ("osl", wanted.osl)):
        if value is not None:
            yield f"--{name}", name, _same(name, value)


def _same(name: str, value: float) -> Callable[[MeasuredRow], bool]:
    return lambda row: _rounded(getattr(row, name)) == _rounded(value)


def _none_left(option: str, name: str, rows: Sequence[MeasuredRow]) -> Fault:
    values = {value for row in rows if (value := getattr(row, name)) not in (None, "")}
    held = sorted({f"{value:g}" if isinstance(value, float) else str(value) for value in values})
    more = f" and {len(held) - MOST_LISTED} more" if len(held) > MOST_LISTED else ""
    return Fault(
        "leaves no measured row",
        field=option,
        allowed=", ".join(held[:MOST_LISTED]) + more if held else "no value at all",
    )


def _rounded(tokens: float) -> float:
    return float(f"{tokens:.{SAME_DIGITS}g}")


def _shape(row: MeasuredRow) -> _Shape:
    return _Shape(row.model, _rounded(row.isl), _rounded(row.osl))


def _mean(rows: Sequence[MeasuredRow], name: str) -> float:
    return sum(float(getattr(row, name)) for row in rows) / len(rows)


@cache
def model_key(name: str) -> str:
    """Return what a model is known by: its id in the catalogue, else its name in lower case."""
    try:
        return models.load_model(name).id
    except InputError:
        return name.strip().lower()


@cache
def gpu_key(name: str) -> str:
    """Return what a GPU type is known by: its profile's id, else its name in lower case."""
    try:
        return gpus.load_gpu(name).id
    except InputError:
        return name.strip().lower()


@cache
def gpu_name(name: str) -> str:
    """Return the name of a GPU type's profile, else the name as written."""
    try:
        return gpus.load_gpu(name).spec.name
    except InputError:
        return name


def lines(benchmark: Benchmark, file: str) -> tuple[CurveLine, ...]:
    """Return a line for each GPU type, precision, layout, engine version and source, its points by concurrency.

    Raises InputError for rows whose GPUs are no layout.
    """
    found: dict[_LineKey, list[CurvePoint]] = {}
    faults: list[Fault] = []
    rules = shelf.load_conventions().spec.notes
    for row in benchmark.rows:
        try:
            facts = facts_of(row.notes, rules)
            layout, replicas = layout_of(row, facts)
        except InputError as error:
            faults += [replace(fault, file=file, message=f"row {row.id}: {fault.message}") for fault in error.faults]
            continue
        key = _LineKey(
            gpu_name(row.gpu),
            row.weight_precision.lower(),
            row.kv_precision.lower(),
            layout,
            row.engine,
            row.engine_version,
            row.source,
        )
        found.setdefault(key, []).append(_point(row, facts, layout, replicas))
    if faults:
        raise InputError(faults)
    ordered = sorted(found, key=lambda key: (key.gpu, key.weight_precision, key.layout.gpus, str(key.layout)))
    return tuple(_line(key, found[key]) for key in ordered)


def _line(key: _LineKey, points: Sequence[CurvePoint]) -> CurveLine:
    layout = key.layout
    return CurveLine(
        origin="measured",
        gpu=key.gpu,
        weight_precision=key.weight_precision,
        kv_precision=key.kv_precision or None,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        cp=layout.cp,
        dcp=layout.dcp,
        gpus=layout.gpus,
        engine=key.engine,
        engine_version=key.engine_version or None,
        fits=True,
        reason=None,
        slots=None,
        slots_bound=None,
        cache_holds=None,
        source=key.source or None,
        points=tuple(sorted(points, key=lambda one: one.concurrency)),
    )


def _point(row: MeasuredRow, facts: NoteFacts, layout: Layout, replicas: int) -> CurvePoint:
    """Return a row's figures of one replica: a row counts requests in flight and rates over all its GPUs."""
    rate = row.req_per_s if row.req_per_s is not None else _per_request(row)
    each = None if rate is None else rate / replicas
    itl_ms = None if facts.itl_definition == "e2e_per_token" else row.itl_ms  # that one counts the first token in
    latencies = {
        "ttft": _statistics(row.ttft_ms, facts, row.ttft_p99_ms),
        "itl": _statistics(itl_ms, facts),
        "e2e": _statistics(row.e2e_ms, facts),
    }
    tokens = row.output_tok_per_s if row.output_tok_per_s is not None else None if rate is None else rate * row.osl
    gpus_ = layout.gpus * replicas
    return CurvePoint(
        concurrency=in_flight(row.concurrency or 1, replicas),
        ttft_ms=latencies["ttft"].mean,
        itl_ms=latencies["itl"].mean,
        e2e_ms=latencies["e2e"].mean,
        x_ms=None,
        requests_per_s=each,
        requests_per_s_per_gpu=per_gpus(each, layout.gpus, 1),
        requests_per_s_per_8_gpus=per_gpus(each, layout.gpus, GPUS_COMPARED),
        output_tokens_per_s_per_gpu=None if tokens is None else tokens / gpus_,
        output_tokens_per_s_per_user=None if tokens is None else tokens / (row.concurrency or 1),
        mbu=None,
        mfu=None,
        kv_cache_utilisation=None,
        memory_used_gib=None,
        waiting=None,
        beyond_slots=None,
        cache_full=None,
        limits_met={},
        feasible=True,
        latency_ms=Percentiles(**latencies),
        bands={},
        row=row.id,
    )


def in_flight(concurrency: float, replicas: int) -> float:
    """Return the requests in flight on one replica, a whole number where it is one."""
    each = concurrency / replicas
    return int(each) if each == int(each) else each


def _per_request(row: MeasuredRow) -> float | None:
    return None if row.output_tok_per_s is None else row.output_tok_per_s / row.osl


def _statistics(value_ms: float | None, facts: NoteFacts, p99_ms: float | None = None) -> Statistics:
    """Return a latency in the statistic that the source states: the mean unless its notes say another."""
    stated: Mapping[str, float | None] = {"p99": p99_ms, facts.statistic or "mean": value_ms}
    return Statistics(*(stated.get(name) for name in Statistics._fields))
