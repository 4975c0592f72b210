"""`llmsize curve`: lines of latency against throughput as sections, rows and a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter, methodcaller
from typing import Any

from sizing.answers.points import METRICS, CurvePoint
from sizing.formats.view import (
    NOTHING,
    Document,
    Facts,
    Figure,
    Line,
    Mark,
    Prose,
    Quantity,
    Rows,
    Section,
    Series,
    Table,
    Tick,
    in_words,
    labelled,
    rows_of,
)
from sizing.formats.words import milliseconds, number, percent, plural
from sizing.report.curve.record import MARKS, OF_POINTS, CurveRecord, LineRecord, line_name, shape
from sizing.report.parts import assumptions, bands
from sizing.report.parts.bands import LATENCY_QUANTITIES, REQUESTS_PER_S
from sizing.report.parts.question import lengths, limits_in_words
from sizing.specs.units import Statistics


def document(record: CurveRecord) -> Document[CurveRecord]:
    """The document of a curve."""
    return Document(record, sections, rows)


# --- rows ----------------------------------------------------------------------------------------------------------------

OF_LINE = (
    "origin", "gpu", "weight_precision", "kv_precision", "engine", "engine_version", "tp", "pp", "ep", "dp", "cp", "dcp", "gpus", "source",
)  # fmt: skip
FIGURES = tuple(name for name in CurvePoint._fields if name not in (*OF_POINTS, "limits_met", "row", "x_ms"))


def rows(record: CurveRecord) -> Rows:
    """A row for each point with the labels of its line; a line that does not fit is one row with its reason."""

    def of_line(name: str) -> Quantity:
        return Quantity(name, of=lambda entry: getattr(entry[0], name))

    def of_point(name: str, of: Callable[[CurvePoint], Any] | None = None) -> Quantity:
        read = of or attrgetter(name)
        return Quantity(name, of=lambda entry: None if entry[1] is None else read(entry[1]))

    pools = Quantity("pools", of=lambda entry: None if entry[0].pools is None else shape(entry[0]))
    columns = [*map(of_line, OF_LINE), *([pools] if any(line.pools is not None for line in record.lines) else [])]
    columns += map(of_point, FIGURES)
    columns += [
        of_point(f"{metric}_{statistic}_ms", methodcaller("latency", metric, statistic))
        for metric in METRICS
        for statistic in Statistics._fields[1:]
    ]
    columns += [
        of_point(f"{name}_limit_met", lambda point, name=name: point.limits_met[name])  # type: ignore[misc]
        for name, limit in record.limits.items()
        if limit is not None
    ]
    columns += [*map(of_point, (*MARKS, "row"))]
    reason = Quantity("reason", of=lambda entry: None if entry[1] is not None else entry[0].reason)
    entries = [(line, point) for line in record.lines for point in line.points or (None,)]
    return rows_of(entries, [*columns, reason], {name: record.inputs[name] for name in ("model", "isl", "osl")})


# --- sections ------------------------------------------------------------------------------------------------------------

PER_8 = "requests/s per 8 GPUs"
MOST_REASONS = 6
LOADS = {
    "closed": "closed loop: so many requests are in flight at any time and start together, as benchmark tools run it; TTFT is longer "
    "than under arrivals at a rate, for which estimate sizes (without --closed-loop)",
    "poisson": "Poisson arrivals at the rate that keeps so many in flight on average, as estimate sizes",
}
NO_CLOSED_LOOP = "a closed loop is not simulated over two pools, so all predicted lines are under Poisson arrivals; in flight on pools: over both"
LEGEND = (
    "C chosen, P Pareto set, K knee, F cache full, W more in flight than slots or any stable rate: requests wait; T, I, E over the limit on TTFT, "
    "ITL, E2E (T? where it is not stated). Means; all figures and percentiles: --format csv"
)


def _engine(line: LineRecord) -> str:
    return f"{line.engine} {line.engine_version or ''}".rstrip()


def _names(lines: Sequence[LineRecord], record: CurveRecord) -> list[str]:
    """The name of each line, with its GPU where there are several, and its engine where nothing else distinguishes two
    lines.
    """
    measured = [", measured" if line.origin == "measured" else "" for line in lines]
    short = [f"{line_name(line)}{note}{_on(line, record)}" for line, note in zip(lines, measured, strict=True)]
    return [
        f"{text}, {_engine(line)}" if short.count(text) > 1 else text for text, line in zip(short, lines, strict=True)
    ]


def _on(line: LineRecord, record: CurveRecord) -> str:
    """Write a line's GPU where there are several GPU types."""
    return f" on {line.gpu}" if len({entry.gpu for entry in record.lines}) > 1 else ""


def _points(record: CurveRecord, mark: str) -> list[tuple[LineRecord, CurvePoint]]:
    return [(line, point) for line in record.lines for point in line.points if getattr(point, mark)]


def sections(record: CurveRecord) -> Iterator[Section]:
    """Yield the chosen point, a plot, a table for each line, undrawn lines, Pareto set, knees and full caches."""
    title, *facts = _verdict(record)
    yield Facts((*facts, *_setup(record)), title.text)
    drawn = figure(record)
    if any(series.marks for series in drawn.series):
        yield drawn
    for index, line in enumerate(record.lines):
        if line.points:
            yield _table(record, line, f"/lines/{index}/points")
    if any(line.points for line in record.lines):
        yield Prose((Line(LEGEND, style="dim"),))
    yield Facts(tuple(_refused(record)))
    yield Facts((*_pareto(record), *_knees(record), *_full(record)))
    yield assumptions.assumed(record.assumptions)


def _verdict(record: CurveRecord) -> Iterator[Line]:
    if not record.feasible:
        detail = record.limiting.detail if record.limiting is not None else "no point"
        yield Line(detail[0].upper() + detail[1:])
        return
    ((line, point),) = _points(record, "chosen")
    where, of = ("", "pair of pools") if line.pools is not None else (" on a replica", "replica")
    at = f"{line_name(line)} on {line.gpu} with {point.concurrency:,} in flight{where}"
    yield Line(f"{number(point.requests_per_s_per_8_gpus)} {PER_8}: {at}")
    within = "within the limits" if any(record.limits.values()) else "no limit is set"
    finer = "; a finer --concurrency around it may find a better one" if line.origin == "predicted" else ""
    yield Line(f"The highest throughput per GPU of the points drawn ({line.origin}), {within}{finer}")
    yield Line("; ".join(_latencies(point, record)), "Latency")
    per_gpu = point.requests_per_s_per_gpu or 0.0
    rates = f"{number(point.requests_per_s)} requests/s per {of} of {plural(line.gpus or 0, 'GPU')}, {number(per_gpu)} per GPU"
    tokens = (
        f"{number(point.output_tokens_per_s_per_gpu)} output tokens/s per GPU, "
        f"{number(point.output_tokens_per_s_per_user)} per user"
    )
    if not record.inputs["osl"]:
        tokens = f"{number(per_gpu * record.inputs['isl'])} input tokens/s per GPU"
    yield Line(f"{rates}; {tokens}", "Throughput")
    if point.bands:
        yield _bands(point)


def _latencies(point: CurvePoint, record: CurveRecord) -> Iterator[str]:
    """Yield the means of a point and, where a limit bounds another statistic, that statistic."""
    for metric in METRICS:
        limit = record.limits[metric]
        names = dict.fromkeys(("mean", *((limit.statistic,) if limit is not None else ())))
        stated = [(point.latency(metric, statistic), statistic) for statistic in names]
        words = [f"{milliseconds(value_ms)} {statistic}" for value_ms, statistic in stated if value_ms is not None]
        if words:
            yield f"{metric.upper()} {', '.join(words)}"


def _bands(point: CurvePoint) -> Line:
    """Write the error bands of a point, and the numbers outside their own bands."""
    shown = [quantity for quantity in (*LATENCY_QUANTITIES, REQUESTS_PER_S) if quantity.key in point.bands]
    of = {quantity.heading: (point.bands[quantity.key], getattr(point, quantity.key)) for quantity in shown}
    off = [heading for heading, (band, value) in of.items() if not band.low <= value <= band.high]
    bias = f". {', '.join(off)}: predictions of this kind have been off to one side, by more than the range"
    return bands.words(point.bands, shown, "runs", bias if off else "")


def _setup(record: CurveRecord) -> Iterator[Line]:
    i = record.inputs
    yield Line(f"{i['model']}, {lengths(i)}", "Model")
    limits = [limits_in_words(record.limits)] if any(record.limits.values()) else []
    if assumptions.NO_ITL in record.assumptions:
        limits.append("that on ITL does not apply")
    yield Line(", ".join(limits) or "none", "Limits")
    yield Line(LOADS[i.get("arrivals", "closed")], "Load")
    if i.get("pools") is not None:
        yield Line(NO_CLOSED_LOOP, " ")
        yield Line(f"fixed along a line: {i['pools']['fixed']}", "Pools")


def figure(record: CurveRecord) -> Figure:
    """The lines as a figure; a measured line shares the style of the prediction of its layout."""
    axis = record.x
    lines = [line for line in record.lines if any(map(_has_place, line.points))]
    names, styles = _names(lines, record), _styles(lines)
    chosen = next((point for _, point in _points(record, "chosen")), None)
    return Figure(
        f"{axis.statistic} {axis.metric.upper()} (ms)",
        PER_8,
        tuple(
            Series(name, tuple(map(_mark, filter(_has_place, line.points))), style, hollow=line.origin == "measured")
            for name, style, line in zip(names, styles, lines, strict=True)
        ),
        limit=None if axis.limit_ms is None else Tick(axis.limit_ms, f"limit {milliseconds(axis.limit_ms)}"),
        title=_title(record) if lines else "",
        chosen=(
            f"chosen: {number(chosen.requests_per_s_per_8_gpus)} at {chosen.concurrency:,} in flight" if chosen else ""
        ),
        ringed="Pareto set",
    )


def _has_place(point: CurvePoint) -> bool:
    return bool(point.x_ms) and point.requests_per_s_per_8_gpus is not None


def _mark(point: CurvePoint) -> Mark:
    x, y = point.x_ms or 0.0, point.requests_per_s_per_8_gpus or 0.0
    return Mark(x, y, f"{point.concurrency:,}", chosen=point.chosen, ringed=point.pareto)


def _styles(lines: Sequence[LineRecord]) -> list[int]:
    """The style number of each line, the same for a measured and a predicted line of one layout."""
    numbers: dict[tuple[Any, ...], int] = {}
    times: dict[tuple[Any, ...], int] = {}
    found = []
    for line in lines:
        same = (line.gpu, line.weight_precision, line.tp, line.pp, line.ep, line.dp, line.cp, line.dcp)
        times[line.origin, *same] = nth = times.get((line.origin, *same), 0) + 1
        found.append(numbers.setdefault((*same, nth), len(numbers)))
    return found


def _title(record: CurveRecord) -> str:
    """Write the common properties of all lines: model, precisions, lengths; layouts, GPUs, loads; engines."""
    i, shown = record.inputs, [line for line in record.lines if line.points]
    loads = [point.concurrency for line in shown for point in line.points]
    precisions = "/".join(dict.fromkeys((line.weight_precision or "unstated").upper() for line in shown))
    layouts, gpus, engines = (
        ", ".join(dict.fromkeys(write(line) for line in shown)) for write in (shape, attrgetter("gpu"), _engine)
    )
    return (
        f"{i['model']}, {precisions} weights, ISL {i['isl']:,}, OSL {i['osl']:,}\n"
        f"{layouts} on {gpus}, concurrency {min(loads):,} to {max(loads):,} per replica (beside points)\n{engines}"
    )


def _percent(share: float) -> str:
    return percent(share).removesuffix(" %")


COLUMNS = (
    Quantity("concurrency", "in flight", "{:,}".format),
    *(Quantity(f"{metric}_ms", f"{metric.upper()} ms") for metric in METRICS),
    Quantity("requests_per_s_per_8_gpus", "req/s /8 GPUs"),
    Quantity("output_tokens_per_s_per_gpu", "tok/s /GPU"),
    Quantity("output_tokens_per_s_per_user", "tok/s /user"),
    Quantity("mbu", "MBU %", _percent),
    Quantity("mfu", "MFU %", _percent),
    Quantity("kv_cache_utilisation", "cache %", _percent),
)
SPARE = ("MFU %", "tok/s /user", "MBU %", "tok/s /GPU")


def _table(record: CurveRecord, line: LineRecord, at: str) -> Table:
    """A row for each concurrency, with the statistic of the axis where that is not the mean."""
    axis, columns, spare = record.x, list(COLUMNS), list(SPARE)
    if axis.statistic != "mean":
        columns.insert(4, Quantity("x_ms", f"{axis.statistic} {axis.metric.upper()} ms"))
        spare.insert(2, f"{axis.metric.upper()} ms")
    measured = ", measured" if line.origin == "measured" else ""
    heading = f"{line_name(line)}{measured} on {line.gpu}, {_engine(line)}"
    kept = [column for column in columns if any(column.text(point) not in (NOTHING, "0") for point in line.points)]
    said = in_words("marks", "marks", _marks, nothing="")
    return Table((*kept, said), line.points, at, heading, spare=tuple(spare))


def _marks(point: CurvePoint) -> str | None:
    """Write the marks of a point, a letter each, and the limits that it breaks, where known."""
    letters = {"C": point.chosen, "P": point.pareto, "K": point.knee, "F": point.cache_full, "W": point.beyond_slots}
    over = {False: "", None: "?"}
    broken = "".join(
        f"{metric[0].upper()}{over[met]}"
        for metric, met in point.limits_met.items()
        if met is not True and point.requests_per_s
    )
    return f"{''.join(letter for letter, holds in letters.items() if holds)} {broken}".strip() or None


def _refused(record: CurveRecord) -> Iterator[Line]:
    refused = [f"{line_name(line)}{_on(line, record)}: {line.reason}" for line in record.lines if not line.fits]
    more = [f"and {len(refused) - MOST_REASONS} more: --format csv"] if len(refused) > MOST_REASONS else []
    yield from labelled("Not drawn", [*refused[:MOST_REASONS], *more])


def _pareto(record: CurveRecord) -> Iterator[Line]:
    """Yield the Pareto set, fastest first: throughput at latency."""
    for origin, label in (("measured", "Pareto, measured"), ("predicted", "Pareto set")):
        found = [(line, point) for line, point in _points(record, "pareto") if line.origin == origin]
        words = "; ".join(
            f"{number(point.requests_per_s_per_8_gpus)} at {milliseconds(point.x_ms)} "
            f"({line_name(line)}{_on(line, record)}, {point.concurrency:,})"
            for line, point in sorted(found, key=lambda entry: entry[1].x_ms or 0.0)
        )
        if words:
            yield Line(f"{PER_8} at {record.x.statistic} {record.x.metric.upper()} (line, in flight): {words}", label)


def _knees(record: CurveRecord) -> Iterator[Line]:
    found = [
        f"{line_name(line)}{_on(line, record)} at {point.concurrency:,}" for line, point in _points(record, "knee")
    ]
    if found:
        yield Line("in flight: " + "; ".join(found), "Knees")


def _full(record: CurveRecord) -> Iterator[Line]:
    """Yield the concurrency at which each cache is full, and its capacity."""
    found = []
    for line in record.lines:
        if line.cache_holds is not None:
            first = next((f"from {point.concurrency:,}" for point in line.points if point.cache_full), "at none drawn")
            holds = f"(holds {number(line.cache_holds)}, the engine runs {line.slots:,})"
            found.append(f"{line_name(line)}{_on(line, record)} {first} {holds}")
    if found:
        yield Line("in flight, of mean length: " + "; ".join(found), "Cache full")
