"""`llmsize curve`: lines of latency against throughput as sections, rows and a figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from sizing.answers.curve_points import CurvePoint
from sizing.formats.view import (
    Document,
    Facts,
    Figure,
    Line,
    Mark,
    Rows,
    Section,
    Series,
    Table,
    Tick,
    fields,
    in_words,
    labelled,
    rows_of,
)
from sizing.formats.words import milliseconds, number, percent, plural
from sizing.report.curve.record import MARKS, OF_POINTS, CurveRecord, LineRecord, SizedFor, in_flight, line_name, shape
from sizing.report.parts import screen
from sizing.report.parts.quantities import LATENCY_QUANTITIES, REQUESTS_PER_S
from sizing.report.parts.question import is_limited, lengths, people_words
from sizing.report.parts.screen import LimitRow
from sizing.specs.bands import ErrorBand
from sizing.specs.units import Statistics
from sizing.specs.workload import GENERATE, LATENCIES

# --- rows ----------------------------------------------------------------------------------------------------------------

OF_LINE = (
    "origin", "gpu", "weight_precision", "kv_precision", "engine", "engine_version", "tp", "pp", "ep", "dp", "cp", "dcp", "gpus", "source",
)  # fmt: skip
FIGURES = tuple(name for name in CurvePoint._fields if name not in (*OF_POINTS, "limits_met", "row", "x_ms"))


def rows(record: CurveRecord) -> Rows:
    """A row for each point with the labels of its line; a line that does not fit is one row with its reason."""
    limits = {f"{name}_limit_met": name for name, limit in record.limits.items() if limit is not None}
    latencies = {
        f"{name}_{statistic}_ms": (name, statistic) for name in LATENCIES for statistic in Statistics._fields[1:]
    }

    def row(line: LineRecord, point: CurvePoint | None) -> dict[str, object]:
        found = {**dict(fields(line)), "pools": None if line.pools is None else shape(line)}
        if point is None:
            return found
        found |= point._asdict() | {column: point.latency(*of) for column, of in latencies.items()}
        return found | {column: point.limits_met[name] for column, name in limits.items()}

    pools = ("pools",) if any(line.pools is not None for line in record.lines) else ()
    columns = (*OF_LINE, *pools, *FIGURES, *latencies, *limits, *MARKS, "row", "reason")
    entries = [row(line, point) for line in record.lines for point in line.points or (None,)]
    return rows_of(entries, columns, {name: record.inputs[name] for name in ("model", "isl", "osl")})


# --- sections ------------------------------------------------------------------------------------------------------------

PER_8 = "requests/s per 8 GPUs"
FINER = 8  # suggested loads between the last point within the limits and the first beyond them
LEAST_ROWS, MOST_ROWS = 2, 9  # points of a line in a table
MOST_ENDS = 3  # points of a Pareto set on a screen: the fastest, a middle one, the most throughput
LOADS = {
    "closed": "a closed loop, as benchmarks run: TTFT is longer than in estimate",
    "pools": "random arrivals at a steady rate; a closed loop is not simulated over two pools",
    "poisson": "random arrivals, as in estimate; --closed-loop draws a benchmark's",
}


def _engine(line: LineRecord) -> str:
    return f"{line.engine} {line.engine_version or ''}".rstrip()


def _names(lines: Sequence[LineRecord], record: CurveRecord) -> list[str]:
    """The name of each line. It has the GPU if there are several, and the engine if two lines are otherwise alike."""
    measured = [", measured" if line.origin == "measured" else "" for line in lines]
    short = [f"{line_name(line)}{note}{_on(line, record)}" for line, note in zip(lines, measured, strict=True)]
    return [
        f"{text}, {_engine(line)}" if short.count(text) > 1 else text for text, line in zip(short, lines, strict=True)
    ]


def _on(line: LineRecord, record: CurveRecord) -> str:
    """Write a line's GPU if there are several GPU types."""
    return f" on {line.gpu}" if len({entry.gpu for entry in record.lines}) > 1 else ""


def _points(record: CurveRecord, mark: str) -> list[tuple[LineRecord, CurvePoint]]:
    return [(line, point) for line in record.lines for point in line.points if getattr(point, mark)]


def sections(record: CurveRecord) -> Iterator[Section]:
    """Yield the chosen point with its figures, a plot, and the Pareto set; or why no point is feasible."""
    yield _verdict(record)
    for line, point in _points(record, "chosen"):
        yield screen.figures(_judged(line, point, record), line.origin, banded=line.origin == "predicted")
    table = _points_table(record)
    if table is not None:
        yield table
    drawn = figure(record)
    if any(series.marks for series in drawn.series):
        yield drawn._replace(spare=table is not None)
    between = tuple(_between(record))
    refused = [f"{line_name(line)}{_on(line, record)}: {line.reason}" for line in record.lines if not line.fits]
    facts = [
        *_setup(record),
        *_pools(record),
        *_pareto(record),
        *screen.first_lines("Not drawn", refused, "line", 1),
    ]
    shows = screen.NEXT.replace("shows", "draws the curve and shows") if table is not None else screen.NEXT
    after = screen.next_line("; ".join((*between, shows)), *between)
    yield Facts((*facts, *screen.assumption_lines(record.assumptions), after))


def _verdict(record: CurveRecord) -> Facts:
    if not record.feasible:
        detail = record.limiting.detail if record.limiting is not None else "no point"
        return Facts((screen.verdict(detail[0].upper() + detail[1:], good=False),))
    ((line, point),) = _points(record, "chosen")
    where = "" if line.pools is not None else " a replica"
    within = "Every limit is kept" if is_limited(record.limits) else "No limit is set"
    if _is_sized(record, line):
        assert record.sized is not None
        return _of_demand(record.sized, line, point, within)
    at = f"{line_name(line)} on {line.gpu}, {in_flight(point)} in flight{where}"
    drawn = "at any demand" if record.inputs.get("heaviest") else "of all drawn points"
    return Facts(
        (screen.verdict(f"{within}; best throughput per GPU {drawn} ({line.origin})", good=True),),
        f"{at}: {number(point.requests_per_s_per_8_gpus)} {PER_8}",
    )


def _of_demand(sized: SizedFor, line: LineRecord, point: CurvePoint, within: str) -> Facts:
    """The answer to a demand, as llmsize estimate gives it, and the load of each replica."""
    d, gpus, replicas = sized.demand, sized.gpus or 0, sized.replicas or 0
    stated = people_words(d) or f"{number(d.requests_per_s)} requests/s"
    if d.daily_active_users is not None:
        stated = f"{d.daily_active_users:,.10g} daily active users"
    said = f"{within}; the answer of llmsize estimate for {stated}, {in_flight(point)} in flight a replica"
    headline = f"{gpus:,} x {line.gpu} = {plural(replicas, 'replica')} x {shape(line)}"
    return Facts((screen.verdict(said, good=True),), headline)


def _judged(line: LineRecord, point: CurvePoint, record: CurveRecord) -> Iterator[LimitRow]:
    """Yield the latencies and the rate of the chosen point."""
    limits = {f"{metric}_ms": record.limits[metric] for metric in LATENCIES}
    yield from screen.latencies(
        lambda name, statistic: point.latency(name.removesuffix("_ms"), statistic),
        limits,
        lambda name, statistic: _band(point, name, statistic),
    )
    of = f"requests/s of {plural(line.gpus or 0, 'GPU')}"
    yield screen.rate(of, point.requests_per_s, band=point.bands.get(REQUESTS_PER_S.key))


def _band(point: CurvePoint, name: str, statistic: str) -> ErrorBand | None:
    """The error band of a statistic. Percentiles are off by the same share as the mean, as in every other answer."""
    band, metric = point.bands.get(name), name.removesuffix("_ms")
    mean, value = point.latency(metric, "mean"), point.latency(metric, statistic)
    if band is None or not mean or value is None:
        return None
    return ErrorBand(value * band.low / mean, value * band.high / mean, band.n)


def _points_table(record: CurveRecord) -> Table | None:
    """The points of the chosen line by load, with the knee and the missed limits; None without a choice among several."""
    line = next((line for line, _ in _points(record, "chosen")), None)
    if line is None or len(line.points) < LEAST_ROWS:
        return None
    shown = _few([point for point in line.points if point.requests_per_s is not None])
    limits = record.limits
    latencies = [
        each._replace(
            heading=f"{each.heading} {statistic}",
            of=partial(CurvePoint.latency, metric=each.key.removesuffix("_ms"), statistic=statistic),
        )
        for each in LATENCY_QUANTITIES
        for at in (limits[each.key.removesuffix("_ms")],)
        for statistic in ("mean" if at is None else at.statistic,)
    ]
    columns = (
        in_words("concurrency", "in flight", in_flight)._replace(is_number=True),
        *latencies,
        REQUESTS_PER_S._replace(heading=f"requests/s of {plural(line.gpus or 0, 'GPU')}"),
        in_words("mark", "", partial(_marked, demanded=_is_sized(record, line), most=_most(line))),
    )
    return Table(columns, shown)


def _is_sized(record: CurveRecord, chosen: LineRecord) -> bool:
    """Whether the chosen point is the load of the answer to a demand."""
    return record.sized is not None and record.sized.gpus is not None and chosen.origin == "predicted"


def _most(line: LineRecord) -> float:
    """The requests in flight of the heaviest load that is allowed; infinite where it is not drawn."""
    return next((point.concurrency for point in line.points if point.heaviest), math.inf)


def _marked(point: CurvePoint, demanded: bool, most: float) -> str:
    """Write what a point is: the choice, the knee, above the `most` that is allowed, or beyond which limits."""
    missed = [name.upper() for name, met in point.limits_met.items() if met is False]
    of_demand = demanded and point.chosen
    marks = ["the demand"] if of_demand else []
    if (point.chosen or point.heaviest) and not of_demand:
        marks = ["the most allowed" if point.limits_met or point.heaviest else "the most"]
    elif point.concurrency > most and not missed:
        marks = ["above the most allowed"]
    return "; ".join([*marks, *(["knee"] if point.knee else []), *([f"misses {', '.join(missed)}"] if missed else [])])


def _few(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """The points that a screen has room for: the first, the choice, the knee, the first beyond a limit, and some between."""
    beyond = next((point for point in points if False in point.limits_met.values()), points[-1])
    kept = [p for p in points if p in (points[0], beyond) or p.chosen or p.knee or p.heaviest]
    others = [point for point in points if point not in kept]
    room = max(0, MOST_ROWS - len(kept))
    kept += others if len(others) <= room else [others[at * len(others) // room] for at in range(room)]
    return sorted(kept, key=attrgetter("concurrency"))


def _setup(record: CurveRecord) -> Iterator[Line]:
    i = record.inputs
    model = f"{i['model']}, {lengths(i['isl'], i['osl'], i.get('task', ''))}"
    yield Line(f"{model}, {i['engine_title']} {i['engine_version']}" if "engine" in i else model, "Model", spare=5)
    in_pools = i.get("pools") is not None
    yield Line(LOADS["pools" if in_pools else i.get("arrivals", "closed")], "Load", spare=3)
    chosen = [line for line, _ in _points(record, "chosen")]
    if any(point.feasible and point.concurrency > _most(line) for line in chosen for point in line.points):
        longer = "; longer runs decide near a limit" * i["simulated"]
        share = f"{percent(i['max_utilisation'])} of the highest stable rate"
        yield Line(f"at most {share} and the engine's slots{longer}", "Allowed")
    for at in (in_flight(point) for line in chosen for point in line.points if point.knee):
        yield Line(f"at {at} in flight: beyond it, latency grows much faster than throughput", "Knee", spare=4)
    if in_pools:
        yield Line(f"fixed along a line: {i['pools']['fixed']}", "Pools", spare=2)


def figure(record: CurveRecord) -> Figure:
    """The lines as a figure. A measured line has the style of the predicted line of its layout."""
    axis = record.x
    lines = [line for line in record.lines if any(map(_has_place, line.points))]
    names, styles = _names(lines, record), _styles(lines)
    best, chosen = next(iter(_points(record, "chosen")), (None, None))

    def marks(line: LineRecord) -> tuple[Mark, ...]:
        """The points of a line; only the chosen line has labels with the loads."""
        named = line is best or len(lines) == 1
        return tuple(_mark(point, named=named) for point in line.points if _has_place(point))

    return Figure(
        f"{axis.statistic} {axis.metric.upper() if record.inputs.get('task', GENERATE) == GENERATE else 'latency'} (ms)",
        PER_8,
        tuple(
            Series(name, marks(line), style, hollow=line.origin == "measured")
            for name, style, line in zip(names, styles, lines, strict=True)
        ),
        limit=None if axis.limit_ms is None else Tick(axis.limit_ms, f"limit {milliseconds(axis.limit_ms)}"),
        title=_title(record) if lines else "",
        chosen=(
            f"chosen: {number(chosen.requests_per_s_per_8_gpus)} at {in_flight(chosen)} in flight" if chosen else ""
        ),
        ringed="Pareto set",
    )


def _has_place(point: CurvePoint) -> bool:
    return bool(point.x_ms) and point.requests_per_s_per_8_gpus is not None


def _mark(point: CurvePoint, *, named: bool) -> Mark:
    x, y = point.x_ms or 0.0, point.requests_per_s_per_8_gpus or 0.0
    return Mark(x, y, f"{in_flight(point)}" if named else "", chosen=point.chosen, ringed=point.pareto)


def _styles(lines: Sequence[LineRecord]) -> list[int]:
    """The style number of each line, the same for a measured and a predicted line of one layout."""
    numbers: dict[tuple[Any, ...], int] = {}
    times: dict[tuple[Any, ...], int] = {}
    found = []
    for line in lines:
        same = (line.gpu, line.weight_precision, line.sizes)
        times[line.origin, *same] = nth = times.get((line.origin, *same), 0) + 1
        found.append(numbers.setdefault((*same, nth), len(numbers)))
    return found


def _title(record: CurveRecord) -> str:
    """Write the common properties of all lines: model, precisions, lengths; layouts, GPUs, loads; engines."""
    i, shown = record.inputs, [line for line in record.lines if line.points]
    loads = [point.concurrency for line in shown for point in line.points if _has_place(point)]
    precisions = "/".join(dict.fromkeys((line.weight_precision or "unstated").upper() for line in shown))
    layouts, gpus, engines = (
        ", ".join(dict.fromkeys(write(line) for line in shown)) for write in (shape, attrgetter("gpu"), _engine)
    )
    return (
        f"{i['model']}, {precisions} weights, ISL {i['isl']:,}, OSL {i['osl']:,}\n"
        f"{layouts} on {gpus}, concurrency {min(loads):,} to {max(loads):,} per replica (beside points)\n{engines}"
    )


def _pools(record: CurveRecord) -> Iterator[Line]:
    """Yield the most that separate pools carry, where one engine for both is the choice."""
    points = [
        (line, point) for line in record.lines if line.pools is not None for point in line.points if point.feasible
    ]
    if points and all(line.pools is None for line, _ in _points(record, "chosen")):
        line, point = max(points, key=lambda each: each[1].requests_per_s_per_8_gpus or 0.0)
        most = f"at most {number(point.requests_per_s_per_8_gpus)} {PER_8}"
        yield Line(f"{most}: {shape(line)}{_on(line, record)}", "Pools", spare=7)


def _pareto(record: CurveRecord) -> Iterator[Line]:
    """Yield the Pareto set, fastest first: throughput at latency."""
    for origin, label in (("measured", "Pareto, measured"), ("predicted", "Pareto set")):
        found = [(line, point) for line, point in _points(record, "pareto") if line.origin == origin]
        words = [
            f"{number(point.requests_per_s_per_8_gpus)} {PER_8} at {milliseconds(point.x_ms)} "
            f"({shape(line)}{_on(line, record)}, {in_flight(point)} in flight)"
            for line, point in sorted(found, key=lambda entry: entry[1].x_ms or 0.0)
        ]
        ends = words if len(words) <= MOST_ENDS else (words[0], words[len(words) // 2], words[-1])
        if len(ends) < len(words):
            ends = (f"{len(ends)} of {plural(len(words), 'point')}: {ends[0]}", *ends[1:])
        yield from labelled(label, ends, spare=1)


def _between(record: CurveRecord) -> Iterator[str]:
    """Yield loads to try, unless the heaviest within the limits is drawn: those from the chosen point to the next that breaks one."""
    if record.inputs.get("heaviest"):
        return
    for line, point in _points(record, "chosen"):
        heavier = [each for each in line.points if each.concurrency > point.concurrency and not each.feasible]
        above = min(heavier, key=lambda each: each.concurrency, default=None)
        if above is None or above.concurrency - point.concurrency <= 1 or line.origin == "measured":
            continue
        step = max(1, (above.concurrency - point.concurrency) // FINER)
        yield f"--concurrency {point.concurrency}..{above.concurrency}:{step}: loads between"


document = partial(Document, sections=sections, rows=rows)
