"""Measured lines of a curve: rows of a benchmark file at several loads, in the same form as predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import NamedTuple, get_args

from sizing.answers.curve_lines import Arrivals, CurveLine
from sizing.answers.curve_points import CurvePoint, LoadSample, point_of
from sizing.catalog import models
from sizing.catalog.measured import MeasuredRow, load_measured
from sizing.catalog.profiles import GPUS, named_gpu
from sizing.catalog.shelf import only
from sizing.evidence.notes import NoteFacts, facts_of, weights_of
from sizing.evidence.rows import cache_over_predicted, layout_of_row
from sizing.model.architecture import Layout
from sizing.specs.errors import Fault, InputError, nearest, raise_any
from sizing.specs.measurements import Conventions
from sizing.specs.units import MILLI
from sizing.specs.workload import Precision

# How requests arrived in runs of each mode that has a load: from a number of clients, or at a rate.
CLOSED: Mapping[str, Arrivals] = {"closed_loop": "closed"}
EVERY_LOAD: Mapping[str, Arrivals] = {**CLOSED, "open_loop": "poisson"}
MOST_LISTED = 12  # the most values of a file that a fault lists
NOT_STATED: Mapping[str, str] = MappingProxyType({})
SAME_DIGITS = 3  # significant digits in which lengths agree: sources state 4,997.6 where 5,000 was asked for


class Filter(NamedTuple):
    """The rows to take; None or empty takes all. Names of models and GPUs are resolved with the catalogue.

    `stated` has the name of the workload for each value that a workload states in place of an option.
    """

    model: str | None = None
    gpus: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    tp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    isl: float | None = None
    osl: float | None = None
    stated: Mapping[str, str] = NOT_STATED


class Measured(NamedTuple):
    """The rows of one model and shape in a file, and the lines of those whose load is known."""

    file: str
    model: str
    isl: int
    osl: int
    rows: tuple[MeasuredRow, ...]
    lines: tuple[CurveLine, ...]

    @property
    def random(self) -> bool:
        """Whether all rows with a known load ran at a rate, with random arrivals."""
        return all(line.arrivals == "poisson" for line in self.lines)

    @property
    def sources(self) -> dict[str, int]:
        """The number of rows of each source."""
        found: dict[str, int] = {}
        for line in self.lines:
            name = ", ran with ".join(filter(None, (line.source or "not stated", line.ran_with)))
            found[name] = found.get(name, 0) + len(line.points)
        return found


def measured(
    file: str, wanted: Filter, option: str = "--measured", modes: Mapping[str, Arrivals] | None = None
) -> Measured:
    """The rows of `modes` in a file that pass a filter, and their lines; `option` is the option that named the file.

    Without `modes` they are closed loops, or where the file has none, loads at a rate: a curve has one kind of arrivals.

    Raises InputError for a file that can't be read, and where no rows are left. Also for rows of several models or shapes, rows
    whose load is not known, and rows whose GPUs form no layout.
    """
    rows = load_measured(file)
    modes = modes or (CLOSED if any(row.mode in CLOSED for row in rows) else EVERY_LOAD)
    taken = [row for row in rows if row.mode in modes]
    without = [row.id for row in taken if row.mode in CLOSED and row.concurrency is None][:MOST_LISTED]
    raise_any(Fault(f"row {id_}: a closed loop has a concurrency", file, field="concurrency") for id_ in without)
    if not taken:
        allowed = "runs that keep a number of requests in flight, as with --max-concurrency or --concurrency of benchmark tools"
        allowed += "; or that send them at a rate, as with --request-rate" if "open_loop" in modes else ""
        raise InputError(f"holds no rows of mode {' or '.join(modes)}", file=file, field=option, allowed=allowed)
    for name, value_of, accepted in _conditions(wanted):
        held = {value_of(row) for row in taken}
        absent = [asked for asked, values in accepted.items() if held.isdisjoint(values)]
        if absent:
            raise InputError(_none_left(name, absent[0], taken, wanted.stated, one_of_many=len(accepted) > 1))
        taken = [row for row in taken if any(value_of(row) in values for values in accepted.values())]
    shapes = _shapes(taken)
    if len(shapes) > 1:
        listed = [f"{row.model} {row.isl:g}/{row.osl:g}" for row in shapes[:MOST_LISTED]]
        more = f" and {len(shapes) - MOST_LISTED} more" if len(shapes) > MOST_LISTED else ""
        message = f"holds {len(shapes)} models and shapes (ISL/OSL), and a curve is of one: {'; '.join(listed)}{more}"
        raise InputError(message, file=file, field=option, remedy="state one of them, by --model, --isl and --osl")
    isl, osl = (round(sum(float(getattr(row, name)) for row in taken) / len(taken)) for name in ("isl", "osl"))
    return Measured(file, taken[0].model, isl, osl, tuple(taken), _lines(_with_load(taken, file), file))


def _with_load(rows: Sequence[MeasuredRow], file: str) -> list[MeasuredRow]:
    """The rows whose requests in flight are known. Raises InputError if there are none."""
    known = [row for row in rows if row.mode in CLOSED or (row.whole_ms is not None and _served_per_s(row) is not None)]
    if not known:
        allowed = "req_per_s or output_tok_per_s, and e2e_ms or both ttft_ms and itl_ms"
        raise InputError(f"row {rows[0].id}: nothing says how many requests were in flight", file=file, allowed=allowed)
    return known


def _conditions(
    wanted: Filter,
) -> Iterable[tuple[str, Callable[[MeasuredRow], object], dict[str, Sequence[object]]]]:
    """Yield the columns that are asked for, the value of a row, and the accepted values by the text that asks for them."""
    if wanted.model is not None:
        yield "model", lambda row: model_key(row.model), {wanted.model: [model_key(wanted.model)]}
    if wanted.gpus:
        yield "gpu", lambda row: named_gpu(row.gpu)[0], {name: [named_gpu(name)[0]] for name in wanted.gpus}
    if wanted.precisions:
        yield "weight_precision", lambda row: row.weight_precision.lower(), {name: [name] for name in wanted.precisions}
    if wanted.tp:  # of the layouts of a curve, some may be measured
        yield "tp", lambda row: row.tp or 1, {"": wanted.tp}
    if wanted.pp:
        yield "pp", lambda row: row.pp or 1, {"": wanted.pp}
    if wanted.isl is not None:
        yield "isl", lambda row: _rounded(row.isl), {f"{wanted.isl:g}": [_rounded(wanted.isl)]}
    if wanted.osl is not None:
        yield "osl", lambda row: _rounded(row.osl), {f"{wanted.osl:g}": [_rounded(wanted.osl)]}


def _none_left(
    name: str, asked: str, rows: Sequence[MeasuredRow], stated: Mapping[str, str], *, one_of_many: bool
) -> Fault:
    values = {value for row in rows if (value := getattr(row, name)) not in (None, "")}
    held = sorted({f"{_rounded(value):,g}" if isinstance(value, float) else str(value) for value in values})
    named = any(isinstance(value, str) for value in values)  # another number is no misspelt one
    more = f" and {len(held) - MOST_LISTED} more" if len(held) > MOST_LISTED else ""
    option = "--precision" if name == "weight_precision" else f"--{name}"
    return Fault(
        f"{asked} leaves no measured row" if name in stated or one_of_many else "leaves no measured row",
        field=f"workload {stated[name]}, {name}" if name in stated else option,
        allowed=", ".join(held[:MOST_LISTED]) + more if held else "no value at all",
        nearest=nearest(asked, held) if named and name not in stated and not _is_known(asked) else None,
    )


def _is_known(name: str) -> bool:
    """Whether a name of the catalogue was asked for: then no other can have been meant."""
    return model_key(name) in models.SHELF.ids or named_gpu(name)[0] in GPUS.ids


def _rounded(tokens: float) -> float:
    return float(f"{tokens:.{SAME_DIGITS}g}")


def _shapes(rows: Iterable[MeasuredRow]) -> list[MeasuredRow]:
    """The first row of each model and shape. Lengths that a tool draws have means a little apart, and are one shape."""
    found: list[MeasuredRow] = []
    apart = only(Conventions).agreement.lengths
    for row in rows:
        alike = (
            model_key(row.model) == model_key(one.model)
            and abs(row.isl / one.isl - 1) <= apart
            and abs(row.osl / one.osl - 1) <= apart
            for one in found
        )
        if not any(alike):
            found.append(row)
    return found


@cache
def model_key(name: str) -> str:
    """The key of a model: its id in the catalogue, else its name in lower case."""
    try:
        return models.load_model(name).id
    except InputError:
        return name.strip().lower()


def _lines(rows: Iterable[MeasuredRow], file: str) -> tuple[CurveLine, ...]:
    """A line for each GPU type, precision, layout, engine version, source and kind of arrivals, its points by load."""
    found: dict[CurveLine, list[CurvePoint]] = {}
    printed: dict[CurveLine, MeasuredRow] = {}
    faults: list[Fault] = []
    conventions = only(Conventions)
    for row in rows:
        try:
            weights_of(row, get_args(Precision), conventions)
            facts = facts_of(row.notes, conventions.notes)
            layout, gpus, replicas = _replicas_of(row, facts)
        except InputError as error:
            faults += [replace(fault, file=file, message=f"row {row.id}: {fault.message}") for fault in error.faults]
            continue
        line = CurveLine(
            "measured",
            named_gpu(row.gpu)[1],
            row.weight_precision.lower(),
            row.engine,
            row.engine_version or None,
            kv_precision=row.kv_precision.lower() or None,
            layout=layout,
            gpus=gpus,
            source=row.source or None,
            ran_with=facts.ran_with,
            sent=facts.arrivals if row.mode not in CLOSED else None,
            pooled=facts.pools,
            arrivals=EVERY_LOAD[row.mode],
        )
        found.setdefault(line, []).append(_point(row, facts, gpus, replicas))
        if row.kv_cache_tokens is not None:
            printed[line] = row
    raise_any(faults[:MOST_LISTED])
    drawn = []
    for line in sorted(found, key=lambda line: (line.gpu, line.weight_precision, line.gpus or 0, str(line.layout))):
        points = sorted(found[line], key=lambda each: each.concurrency)
        drawn.append(_with_cache(replace(line, points=tuple(points)), printed.get(line), file))
    return tuple(drawn)


def _replicas_of(row: MeasuredRow, facts: NoteFacts) -> tuple[Layout, int, int]:
    """(layout, GPUs of a replica, number of replicas) of a row. Separate pools are one replica of all GPUs of the row."""
    if facts.pools and row.n_gpus:
        return Layout(row.tp or 1, row.pp or 1), row.n_gpus, 1
    layout, replicas = layout_of_row(row, facts)
    return layout, layout.gpus, replicas


def _with_cache(line: CurveLine, row: MeasuredRow | None, file: str) -> CurveLine:
    """The line with the cache that the engine of the row printed; the same without one. Raises InputError for one that cannot be."""
    if row is None or row.kv_cache_tokens is None:
        return line
    try:
        over = cache_over_predicted(row)
    except InputError as error:
        raise InputError(
            [replace(each, file=file, message=f"row {row.id}: {each.message}") for each in error.faults]
        ) from None
    return replace(line, cache_holds=row.kv_cache_tokens / (row.isl + row.osl), cache_over_predicted=over)


def _point(row: MeasuredRow, facts: NoteFacts, gpus: int, replicas: int) -> CurvePoint:
    """The figures of one replica of a row; the row itself counts requests in flight and rates over all its GPUs."""
    rate = _served_per_s(row)
    load = row.concurrency if row.mode in CLOSED else (rate or 0.0) * (row.whole_ms or 0.0) * MILLI
    tokens = row.output_tok_per_s if row.output_tok_per_s is not None else None if rate is None else rate * row.osl
    itl_ms = None if facts.itl_definition == "e2e_per_token" else row.itl_ms  # that definition includes the first token
    latencies_ms = {"ttft": row.ttft_ms, "itl": itl_ms, "e2e": row.e2e_ms}
    statistic = facts.statistic or "mean"  # of all latencies of the row: the mean unless its notes state another
    latencies_s = {name: {statistic: ms * MILLI} for name, ms in latencies_ms.items() if ms is not None}
    for name, percentiles_ms in row.percentiles_ms().items():
        latencies_s[name] = {k: ms * MILLI for k, ms in percentiles_ms.items()} | latencies_s.get(name, {})
    sample = LoadSample(in_flight(load or 1, replicas), latencies_s, None if rate is None else rate / replicas)
    return point_of(sample, gpus, None if tokens is None else tokens / replicas)._replace(row=row.id)


def in_flight(concurrency: float, replicas: int) -> float:
    """Requests in flight on one replica; an int where it is a whole number."""
    each = concurrency / replicas
    return int(each) if each == int(each) else each


def _served_per_s(row: MeasuredRow) -> float | None:
    """Requests/s as stated, from output tokens, or by Little's law for a number of clients; None if none is known."""
    if row.req_per_s is not None:
        return row.req_per_s
    if row.output_tok_per_s is not None:
        return row.output_tok_per_s / row.osl
    clients = row.concurrency if row.mode in CLOSED else None
    return None if clients is None or row.whole_ms is None else clients / (row.whole_ms * MILLI)
