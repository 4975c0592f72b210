"""`llmsize curve` for the terminal: the chosen point, a plot in text, a table a line, Pareto set, knees and full caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sizing.answers.points import CurvePoint
from sizing.formats.charts import LIMIT, MARKS, SPECIAL, Dots, rows
from sizing.formats.text import Block, blocks_of
from sizing.formats.view import Line
from sizing.formats.words import milliseconds, number, percent, plural
from sizing.report.curve import CurveRecord as Curve
from sizing.report.curve import LineRecord, shape, shape_of, weights
from sizing.report.parts.assumptions import NO_ITL, assumed
from sizing.report.parts.question import lengths

PER_8 = "requests/s per 8 GPUs"
MOST_REASONS = 6
BANDED: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("TTFT", "ttft_ms", milliseconds),
    ("ITL", "itl_ms", milliseconds),
    ("requests/s", "requests_per_s", number),
)
LOADS = {
    "closed": "closed loop: so many requests are in flight at any time and start together, as benchmark tools run it; TTFT is longer "
    "than under arrivals at a rate, for which estimate sizes (--arrivals poisson)",
    "poisson": "Poisson arrivals at the rate that keeps so many in flight on average, as estimate sizes",
}
NO_CLOSED_LOOP = "a closed loop is not simulated over two pools, so all predicted lines are under Poisson arrivals; in flight on pools: over both"
RATE, MARKS_OF_POINTS = "req/s /8 GPUs", "marks"
LEGEND = (
    "C chosen, P Pareto set, K knee, F cache full, W more in flight than slots or any stable rate: requests wait; T, I, E over the limit on TTFT, "
    "ITL, E2E (T? where it is not stated). Means; all figures and percentiles: --format csv"
)


def blocks(document: Curve) -> Iterator[Block]:
    """Yield the blocks of a curve."""
    yield Block((*verdict(document), *_setup(document)))
    yield _plot(document)
    several = len({line.gpu for line in document.lines}) > 1
    for line in document.lines:
        if line.points:
            yield Block((Line(heading(line), style="bold"),))
            yield _table(line, document)
    if any(line.points for line in document.lines):
        yield Block((Line(LEGEND, style="dim"),))
    yield _refused(document, several=several)
    yield Block((*_pareto(document), *_knees(document), *_full(document)))
    yield from blocks_of(assumed(document.assumptions, sources=False))


def name(line: LineRecord) -> str:
    """Write what a line is: precision and layout, and whether it was measured."""
    told = f"{weights(line.weight_precision)} {shape(line)}"
    return f"{told}, measured" if line.origin == "measured" else told


def told_apart(lines: Sequence[LineRecord], *, several: bool) -> list[str]:
    """Write what each line is, with its GPU where there are several, and its engine where that alone tells two apart."""
    short = [name(line) + (f" on {line.gpu}" if several else "") for line in lines]
    return [
        f"{text}, {line.engine} {line.engine_version or ''}".rstrip() if short.count(text) > 1 else text
        for text, line in zip(short, lines, strict=True)
    ]


def heading(line: LineRecord) -> str:
    """Write what a line is of, its engine included."""
    return f"{name(line)} on {line.gpu}, {line.engine} {line.engine_version or ''}".rstrip()


def verdict(document: Curve) -> Iterator[Line]:
    """Yield the chosen point, or why there is none."""
    c = document.chosen
    if c is None:
        detail = document.limiting.detail if document.limiting is not None else "no point"
        yield Line(detail[0].upper() + detail[1:], style="bold")
        return
    at = f"{weights(c['weight_precision'])} {shape_of(c)} on {c['gpu']}"
    where, of = ("", "pair of pools") if c["pools"] is not None else (" on a replica", "replica")
    yield Line(
        f"{number(c['requests_per_s_per_8_gpus'])} {PER_8}: {at} with {c['concurrency']:,} in flight{where}",
        style="bold",
    )
    within = "within the limits" if any(document.limits.values()) else "no limit is set"
    kind = "measured" if c["origin"] == "measured" else "predicted"
    finer = "; a finer --concurrency around it may find a better one" if kind == "predicted" else ""
    yield Line(f"The highest throughput per GPU of the points drawn ({kind}), {within}{finer}")
    point = next(point for line in document.lines for point in line.points if point.chosen)
    yield Line("; ".join(_latencies(point, document)), "Latency")
    rates = (
        f"{number(c['requests_per_s'])} requests/s per {of} of {plural(c['gpus'], 'GPU')}, "
        f"{number(c['requests_per_s_per_gpu'])} per GPU"
    )
    tokens = (
        f"{number(c['output_tokens_per_s_per_gpu'])} output tokens/s per GPU, "
        f"{number(c['output_tokens_per_s_per_user'])} per user"
    )
    if not document.inputs["osl"]:
        tokens = f"{number(c['requests_per_s_per_gpu'] * document.inputs['isl'])} input tokens/s per GPU"
    yield Line(f"{rates}; {tokens}", "Throughput")
    yield from _bands(point)


def _latencies(point: CurvePoint, document: Curve) -> Iterator[str]:
    """Yield the means of a point, each with the statistic that its limit bounds, where that is another."""
    for metric in ("ttft", "itl", "e2e"):
        stated = getattr(point.latency_ms, metric)
        limit = document.limits[metric]
        names = dict.fromkeys(("mean", *((limit["statistic"],) if limit is not None else ())))
        told = [f"{milliseconds(getattr(stated, each))} {each}" for each in names if getattr(stated, each) is not None]
        if told:
            yield f"{metric.upper()} {', '.join(told)}"


def _bands(point: CurvePoint) -> Iterator[Line]:
    """Yield the error bands of a point, and which of its numbers lie outside their own."""
    told, off = [], []
    for label, key, write in BANDED:
        band = point.bands.get(key)
        if band is not None:
            told.append(f"{label} {write(band.low)} to {write(band.high)}")
            off += [] if band.low <= getattr(point, key) <= band.high else [label]
    if told:
        bias = f". {', '.join(off)}: predictions of this kind have been off to one side, by more than the range"
        yield Line("; ".join(told) + " (8 in 10 published runs)" + (bias if off else ""), "Error band")


def _setup(document: Curve) -> Iterator[Line]:
    i = document.inputs
    yield Line(f"{i['model']}, {lengths(i)}", "Model")
    limits = [
        f"{name_.upper()} {limit['statistic']} <= {milliseconds(limit['ms'])}"
        for name_, limit in document.limits.items()
        if limit is not None
    ]
    if NO_ITL in document.assumptions:
        limits.append("that on ITL does not apply")
    yield Line(", ".join(limits) or "none", "Limits")
    yield Line(LOADS[i.get("arrivals", "closed")], "Load")
    if i.get("pools") is not None:
        yield Line(NO_CLOSED_LOOP, " ")
        yield Line(f"fixed along a line: {i['pools']['fixed']}", "Pools")


def _plot(document: Curve) -> Block:
    """Draw the lines as text: each by its letter, the limit as a column, the chosen point as a star."""
    shown = [line for line in document.lines if any(drawn(point) for point in line.points)][: len(MARKS)]
    dots = [Dots(*_coordinates(line.points)) for line in shown]
    best = next(((p.x_ms, p.requests_per_s_per_8_gpus) for line in shown for p in line.points if p.chosen), None)
    special = (best[0], best[1]) if best is not None and best[0] is not None and best[1] is not None else None
    axis = document.x
    found = [Line(row) for row in rows(dots, special, axis.limit_ms)]
    if not found:
        return Block()
    several = len({line.gpu for line in document.lines}) > 1
    names = told_apart(shown, several=several)
    keys = "; ".join(f"{mark} {text}" for mark, text in zip(MARKS, names, strict=False))
    told = [f"{SPECIAL} chosen"] * (special is not None) + [f"{LIMIT} limit"] * (axis.limit_ms is not None)
    return Block(
        (
            Line(f"{PER_8} over {axis_label(document)}", style="bold"),
            *found,
            Line("; ".join([keys, *told]), style="dim"),
        )
    )


def axis_label(document: Curve) -> str:
    """Write the latency of the axis with its statistic and unit."""
    return f"{document.x.statistic} {document.x.metric.upper()} (ms)"


def drawn(point: CurvePoint) -> bool:
    """Tell whether a point has both coordinates."""
    return bool(point.x_ms) and point.requests_per_s_per_8_gpus is not None


def _coordinates(points: Sequence[CurvePoint]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    shown = [(p.x_ms, p.requests_per_s_per_8_gpus) for p in points if drawn(p)]
    return tuple(x or 0.0 for x, _ in shown), tuple(y or 0.0 for _, y in shown)


def _table(line: LineRecord, document: Curve) -> Block:
    """One row a concurrency; columns that say nothing of this line are left out, and those that are spare give way."""
    axis, points = document.x, line.points
    limited = f"{axis.statistic} {axis.metric.upper()} ms" if axis.statistic != "mean" else ""
    columns = {
        "in flight": [f"{p.concurrency:,}" for p in points],
        "TTFT ms": [number(p.ttft_ms) for p in points],
        "ITL ms": [number(p.itl_ms) for p in points],
        "E2E ms": [number(p.e2e_ms) for p in points],
        limited: [number(p.x_ms) if limited else "" for p in points],
        RATE: [number(p.requests_per_s_per_8_gpus) for p in points],
        "tok/s /GPU": [number(p.output_tokens_per_s_per_gpu) for p in points],
        "tok/s /user": [number(p.output_tokens_per_s_per_user) for p in points],
        "MBU %": [_percent(p.mbu) for p in points],
        "MFU %": [_percent(p.mfu) for p in points],
        "cache %": [_percent(p.kv_cache_utilisation) for p in points],
        MARKS_OF_POINTS: [marks(p) for p in points],
    }
    told = {title: cells for title, cells in columns.items() if any(cell not in ("", "-", "0") for cell in cells)}
    return Block(
        columns=tuple(told),
        right=tuple(title != MARKS_OF_POINTS for title in told),
        rows=tuple(zip(*told.values(), strict=True)),
        spare=("MFU %", "tok/s /user", *((f"{axis.metric.upper()} ms",) if limited else ()), "MBU %", "tok/s /GPU"),
    )


def _percent(share: float | None) -> str:
    return percent(share).removesuffix(" %")


def marks(point: CurvePoint) -> str:
    """Write what a point is, a letter each, and which limits it breaks; nothing of the latter where nothing is known."""
    told = {"C": point.chosen, "P": point.pareto, "K": point.knee, "F": point.cache_full, "W": point.beyond_slots}
    over = {False: "", None: "?"}
    broken = "".join(
        f"{metric[0].upper()}{over[met]}"
        for metric, met in point.limits_met.items()
        if met is not True and point.requests_per_s
    )
    return f"{''.join(letter for letter, holds in told.items() if holds)} {broken}".strip()


def _refused(document: Curve, *, several: bool) -> Block:
    refused = [line for line in document.lines if not line.fits]
    told = [
        Line(f"{name(line)}{f' on {line.gpu}' if several else ''}: {line.reason}", "Not drawn" if index == 0 else " ")
        for index, line in enumerate(refused[:MOST_REASONS])
    ]
    if len(refused) > MOST_REASONS:
        told.append(Line(f"and {len(refused) - MOST_REASONS} more: --format csv", " "))
    return Block(tuple(told))


def _at(entry: dict[str, Any], *, several: bool = False) -> str:
    where = f" on {entry['gpu']}" if several else ""
    return f"{weights(entry['weight_precision'])} {shape_of(entry)}{where}"


def _pareto(document: Curve) -> Iterator[Line]:
    """Yield the Pareto set, fastest first: throughput at latency."""
    several = len({line.gpu for line in document.lines}) > 1
    for origin in ("measured", "predicted"):
        found = sorted((e for e in document.pareto if e["origin"] == origin), key=lambda e: e["x_ms"])
        if found:
            told = "; ".join(
                f"{number(e['requests_per_s_per_8_gpus'])} at {milliseconds(e['x_ms'])} ({_at(e, several=several)}, "
                f"{e['concurrency']:,})"
                for e in found
            )
            label = "Pareto set" if origin == "predicted" else "Pareto, measured"
            yield Line(
                f"{PER_8} at {document.x.statistic} {document.x.metric.upper()} (line, in flight): {told}", label
            )


def _knees(document: Curve) -> Iterator[Line]:
    several = len({line.gpu for line in document.lines}) > 1
    told = [f"{_at(e, several=several)} at {e['concurrency']:,}" for e in document.knees]
    if told:
        yield Line("in flight: " + "; ".join(told), "Knees")


def _full(document: Curve) -> Iterator[Line]:
    """Yield from where on each cache is full, and what it holds."""
    several = len({line.gpu for line in document.lines}) > 1
    told = [
        f"{_at(e, several=several)} "
        + (f"from {e['concurrency']:,}" if e["concurrency"] is not None else "at none drawn")
        + f" (holds {number(e['cache_holds'])}, the engine runs {e['slots']:,})"
        for e in document.cache_full
    ]
    if told:
        yield Line("in flight, of mean length: " + "; ".join(told), "Cache full")
