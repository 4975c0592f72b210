"""`llmsize report`: the answer and its explanation on one page, from sections that other commands have too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sizing import __version__
from sizing.answers.points import METRICS, CurvePoint, Metric
from sizing.formats import page
from sizing.formats.details import KINDS
from sizing.formats.page import Cell, Chapter, Column, Drawings, Numbered, PageTable, Shares, figure, page_table, shares
from sizing.formats.view import (
    Assumption,
    Facts,
    Figure,
    Line,
    Mark,
    Prose,
    Quantity,
    Series,
    Table,
    Text,
    Tick,
    in_words,
)
from sizing.formats.words import gib, milliseconds, money, number, percent, stated
from sizing.report import estimate as answers
from sizing.report.compare_record import CompareCandidate
from sizing.report.curve.record import LineRecord, shape
from sizing.report.curve.sections import PER_8
from sizing.report.estimate import Estimate
from sizing.report.page_record import ChangedInput, RateLine, RatePoint, Report
from sizing.report.parts import bands
from sizing.report.parts.figures import MemoryFigures
from sizing.report.parts.layouts import layout
from sizing.report.parts.limiting import limit_words
from sizing.report.parts.question import LimitInMs, lengths, limits_in_words, optimised
from sizing.specs.workload import Limits

MOST_LAYOUTS, MOST_REJECTED = 12, 20


def html(report: Report) -> str:
    """The page as HTML. Raises InputError where jinja2 is missing."""
    return page.render(report.title, list(chapters(report)), report)


def chapters(report: Report) -> Iterator[Chapter]:
    """Yield the answer, its memory, curves, a comparison, sensitivities, other layouts, assumptions, commands."""
    estimate = report.estimate
    yield Chapter("answer", "Answer", tuple(_answer(report)), style="" if estimate.feasible else "no")
    if estimate.memory is not None:
        yield Chapter("memory", "Memory of one GPU", tuple(_memory(report, estimate.memory)), "Memory")
    drawings = tuple(_drawings(report))
    if drawings:
        note = Prose((Line(RATE_NOTE if report.rates else CURVE_NOTE),))
        yield Chapter("curves", "Throughput against latency", (note, Drawings(drawings)), "Curves")
    if report.comparison is not None:
        title = (
            f"The best layout of each ({'each simulated' if report.simulated else 'closed form'}), means of latencies"
        )
        candidates = page_table(Table(CANDIDATES, report.comparison.candidates, "/comparison/candidates", title))
        yield Chapter("comparison", "Comparison of GPU types", (candidates,), "Comparison", "wide")
    if report.sensitivity:
        how = "each simulated like the answer" if report.simulated else "closed form, not simulated, like the answer"
        changes = Table(CHANGES, report.sensitivity, "/sensitivity", f"One input changed at a time ({how})")
        yield Chapter(
            "sensitivity", "What would change the answer", (page_table(changes),), "What would change it", "wide"
        )
    others = tuple(
        page_table(Table(columns, records, f"/estimate/{name}", title), most=most, noun="layouts", folded=True)
        for columns, records, name, title, most in (
            (ALTERNATIVES, estimate.alternatives, "alternatives", MEETING, MOST_LAYOUTS),
            (REJECTED, estimate.rejected, "rejected", "Layouts that do not", MOST_REJECTED),
        )
        if records
    )
    if others:
        yield Chapter("layouts", "Other layouts", others, style="wide")
    yield Chapter("assumptions", "Assumptions", tuple(_assumptions(report)), style="source")
    commands = [Text(report.command, f"This page, with llmsize {__version__}:")]
    if estimate.simulate_command is not None:
        commands.append(Text(estimate.simulate_command, "The answer's own load, driven through its deployment:"))
    yield Chapter("repeat", "Repeat it", tuple(commands))


def _answer(report: Report) -> Iterator[Prose | Facts | PageTable]:
    """Yield the answer in the words of the terminal, the question, and the figures."""
    estimate = report.estimate
    answer, limit = answers.answer(estimate), Line(estimate.limiting.detail, "What limits it")
    more = (limit,) if estimate.feasible else answers.nearest(estimate).lines
    yield Prose((*answer.lines, *more, *optimised(estimate.inputs)), answer.title)
    yield Facts(tuple(_asked(estimate)), "What was asked")
    if estimate.latency is not None:
        columns = ("latency", *STATISTICS, "limit", "band of the mean, low", "high", "runs")
        rows = tuple(_latency(report, quantity) for quantity in bands.LATENCY_QUANTITIES)
        title = "Latency under load, with the range of 8 in 10 published runs of the kind"
        yield PageTable(title, tuple(Column(name, name != "latency") for name in columns), rows)
        shown = FIGURES if estimate.inputs["osl"] else OF_INPUTS
        heads = (Column("figure", False), Column("value"), Column("unit", False))
        found = tuple(
            (Cell(name), figure(report, f"/estimate{at}", write), Cell(unit)) for name, at, write, unit in shown
        )
        yield PageTable("Load, throughput, cost", heads, found)


def _asked(estimate: Estimate) -> Iterator[Line]:
    """Yield the resolved question: the six labels, demand, limits and rules."""
    i, d = estimate.inputs, estimate.deployment
    yield Line(f"{i['model']} ({i['model_id']})", "Model")
    yield Line(f"{i['weight_precision'].upper()}, {i['kv_precision'].upper()}", "Weights, KV cache")
    longest = f" on average, {i['isl_max']:,} and {i['osl_max']:,} at the longest"
    spread = (i["isl_max"], i["osl_max"]) != (i["isl"], i["osl"])
    yield Line(f"{lengths(i)}{' tokens' if i['osl'] else ''}{longest if spread else ''}", "Lengths")
    yield Line(_demand(estimate), "Demand")
    yield Line(limits_in_words(i["limits"]), "Limits")
    yield Line(f"{i['engine_title']} {i['engine_version']}", "Engine")
    if d is not None:
        yield Line(layout(d), "Layout of a replica")
    yield Line(", ".join(i["gpus_considered"]), "GPU types considered")
    rules = f"{i['mode']}, objective {i['objective']}, at most {percent(i['max_utilisation'])} of the stable rate"
    yield Line(rules, "Rules")
    yield from optimised(i)


def _demand(estimate: Estimate) -> str:
    demand, budget = estimate.inputs["demand"], estimate.inputs["gpu_budget"]
    said = [
        f"{number(demand[key])} {noun}"
        for key, noun in (
            ("daily_active_users", "daily active users"),
            ("concurrency", "requests in flight"),
            ("requests_per_s", "requests/s at the peak"),
        )
        if demand[key] is not None
    ]
    if budget is not None:
        said.append(f"at most {budget:,} GPUs")
    return ", ".join(said) or "as much as can be served"


STATISTICS = ("mean", "p50", "p95", "p99")


def _latency(report: Report, quantity: Quantity) -> tuple[Cell, ...]:
    """A latency with its statistics, limit and error band."""
    key, estimate = quantity.key, report.estimate
    statistics = (figure(report, f"/estimate/latency/{key}/{one}", quantity.write) for one in STATISTICS)
    limit, limited = Cell("none"), estimate.inputs["limits"][key]
    if limited is not None:
        limit = figure(
            report, f"/estimate/inputs/limits/{key}/ms", lambda ms: f"{quantity.write(ms)} ({limited.statistic})"
        )
    band = f"latency.{key}.mean"
    edges: tuple[Cell, ...] = (Cell(page.ABSENT), Cell(page.ABSENT), Cell("0"))
    if band in estimate.bands:
        shown = (("low", quantity.write), ("high", quantity.write), ("n", "{:,}".format))
        edges = tuple(figure(report, f"/estimate/bands/{band}/{end}", write) for end, write in shown)
    return (Cell(quantity.heading), *statistics, limit, *edges)


FIGURES = (
    ("GPUs", "/deployment/gpus", "{:,}".format, "GPUs"),
    ("replicas", "/deployment/replicas", "{:,}".format, "replicas"),
    ("rate served", "/load/requests_per_s", number, "requests/s"),
    ("most within the limits", "/load/max_requests_per_s", number, "requests/s"),
    ("headroom", "/load/headroom", percent, "of the demand"),
    ("in flight", "/load/concurrency", number, "requests"),
    ("rate of a GPU", "/throughput/requests_per_s_per_gpu", number, "requests/s"),
    ("output", "/throughput/output_tokens_per_s", number, "tokens/s"),
    ("output with prompts", "/throughput/total_tokens_per_s", number, "tokens/s"),
    ("MFU of a prefill step", "/utilisation/prefill_mfu", percent, "of the dense peak"),
    ("MBU of a decode step", "/utilisation/decode_mbu", percent, "of the bandwidth"),
    ("price", "/cost/usd_per_hour", money, "an hour"),
    ("price of a GPU", "/cost/usd_per_gpu_hour", money, "an hour"),
    ("price of output", "/cost/usd_per_million_output_tokens", money, "a million tokens"),
    ("power", "/cost/power_w", number, "W (TDP)"),
    ("energy of output", "/cost/kwh_per_million_output_tokens", number, "kWh a million tokens"),
)
# For tasks without output tokens.
OF_INPUTS = tuple(
    (name.replace("output", "input"), pointer.replace("output_tokens", "input_tokens"), write, unit)
    for name, pointer, write, unit in FIGURES
    if "total_tokens" not in pointer and "decode" not in pointer
)


PARTS = (
    ("weights_gib", "weights"),
    ("activation_gib", "activation (peak of a step)"),
    ("non_torch_gib", "framework"),
    ("cuda_graphs_gib", "CUDA graphs"),
    ("kv_cache_gib", "KV cache pool"),
)


def _memory(report: Report, memory: MemoryFigures) -> Iterator[Shares | Prose | PageTable]:
    """Yield the memory of one GPU of the tightest rank, as a bar and as a table."""
    parts = [(name, getattr(memory, field)) for field, name in PARTS]
    free = memory.visible_gib - sum(size for _, size in parts)
    drawn = [*parts, ("left free", free)] if free > 0 else parts
    yield shares("Memory of one GPU", drawn, memory.visible_gib, lambda size: f"{gib(size)} GiB")
    if free < 0:
        yield Prose((Line("The dashed line is where the GPU's memory ends."),))

    def row(field: str, name: str) -> tuple[Cell, ...]:
        share = getattr(memory, field) / memory.visible_gib
        return Cell(name), figure(report, f"/estimate/memory/{field}", gib), Cell(percent(share))

    graphs = f", {'inside' if memory.cuda_graphs_in_budget else 'on top of'} the budget"
    shown = [(field, name + graphs * (field == "cuda_graphs_gib")) for field, name in PARTS]
    shown += [("budget_gib", "budget of the engine"), ("visible_gib", "visible to CUDA")]
    note = (
        f"The pool holds {memory.kv_cache_tokens:,} tokens a replica, {memory.max_concurrency:,.0f} sequences of "
        f"{memory.max_model_len:,} tokens."
    )
    if not memory.fits:
        note = f"One sequence of {memory.max_model_len:,} tokens needs {gib(memory.deficit_gib)} GiB more."
    heads = (Column("part", False), Column("GiB"), Column("of visible"))
    yield PageTable("Memory of one GPU, tightest rank", heads, tuple(row(*part) for part in shown), note)


COMMON = (Quantity("requests_per_s_per_8_gpus", PER_8), Quantity("requests_per_s_per_gpu", "requests/s a GPU"))
CURVE_COLUMNS = (
    Quantity("concurrency", "in flight on a replica", "{:,}".format),
    *(Quantity(f"{metric}_ms", metric.upper(), milliseconds) for metric in METRICS),
    *COMMON,
    Quantity("output_tokens_per_s_per_user", "tokens/s a user"),
    Quantity("kv_cache_utilisation", "cache used", percent),
)
RATE_COLUMNS = (
    Quantity("requests_per_s_per_replica", "requests/s a replica"),
    Quantity("share_of_stable", "of the stable rate", percent),
    Quantity("in_flight", "in flight on a replica"),
    *(Quantity(f"{metric}_ms/mean", metric.upper(), milliseconds) for metric in METRICS),
    *COMMON,
)
RATE_NOTE = (
    "A line is a layout, a point a rate of Poisson arrivals at one replica; up and to the left is better. The dashed "
    "vertical line is the limit, a ring marks the load of the answer. The rates are shares of the highest stable one."
)
CURVE_NOTE = (
    "A line is a layout, a point a number of requests in flight on one replica, all started together; up and to the left is "
    "better. The dashed vertical line is the limit, a ring marks the most throughput within the limits."
)


def first_metric(limits: Limits, mode: str) -> Metric:
    """The latency that the best point is marked by: the first limited one, else the default of the mode."""
    return _metrics({name: getattr(limits, name) for name in METRICS}, mode)[0]


def _metrics(limits: Mapping[str, object], mode: str) -> tuple[Metric, ...]:
    """The latencies to draw: the limited ones, else the default of the mode."""
    limited = tuple(name for name in METRICS if limits[name] is not None)
    return limited or ("ttft" if mode == "streaming" else "e2e",)


def _drawings(report: Report) -> Iterator[tuple[Figure, PageTable]]:
    """Yield a chart for each latency to draw, each with the table of its points."""
    inputs = report.estimate.inputs
    limits: dict[str, LimitInMs | None] = {name: inputs["limits"][f"{name}_ms"] for name in METRICS}
    if inputs["osl"] <= 1:
        limits["itl"] = None
    for metric in _metrics(limits, inputs["mode"]):
        limit = limits[metric]
        statistic = limit.statistic if limit is not None else "mean"
        series = tuple(Series(_name(line), tuple(_marks(line, metric, statistic))) for line in _lines(report))
        if any(one.marks for one in series):
            yield (
                Figure(
                    f"{metric.upper()}, {statistic} (ms)",
                    PER_8,
                    series,
                    limit=None if limit is None else Tick(limit.ms, f"limit {milliseconds(limit.ms)}"),
                    title=f"{metric.upper()} ({statistic}) against throughput",
                ),
                _points(report, metric, statistic),
            )


def _lines(report: Report) -> Sequence[LineRecord | RateLine]:
    if report.curve is None:
        return report.rates
    lines: tuple[LineRecord, ...] = report.curve.lines
    return lines


def _name(line: LineRecord | RateLine) -> str:
    runs = shape(line) if isinstance(line, LineRecord) else layout(line)
    return ", ".join(part for part in (line.gpu, (line.weight_precision or "").upper(), runs) if part)


def _marks(line: LineRecord | RateLine, metric: Metric, statistic: str) -> Iterator[Mark]:
    for point in line.points:
        if isinstance(point, CurvePoint):
            x, load = point.latency(metric, statistic), f"{point.concurrency:,} in flight"
        else:
            x = getattr(getattr(point, f"{metric}_ms"), statistic)
            load = f"{number(point.requests_per_s_per_replica)} requests/s a replica"
        y = point.requests_per_s_per_8_gpus
        if not x or y is None:
            continue
        broken = "" if point.feasible else "; a limit is broken"
        latency = f"{metric.upper()} {statistic} {milliseconds(x)}"
        text = f"{_name(line)}: {load}, {latency}, {number(y)} {PER_8}{broken}"
        yield Mark(x, y, text=text, chosen=_is_marked(point))


def _is_marked(point: CurvePoint | RatePoint) -> bool:
    return point.chosen if isinstance(point, CurvePoint) else point.is_answer


def _points(report: Report, metric: Metric, statistic: str) -> PageTable:
    rates = report.curve is None
    shown, root = (RATE_COLUMNS, "/rates") if rates else (CURVE_COLUMNS, "/curve/lines")
    at = f"{metric}_ms/{statistic}" if rates else f"latency_ms/{metric}/{statistic}"
    mark, how = "the answer" if rates else "chosen", "simulated" if report.simulated else "closed form"

    def verdict(point: CurvePoint | RatePoint) -> str:
        return ("yes" if point.feasible else "no") + (f", {mark}" if _is_marked(point) else "")

    def of_line(index: int, line: LineRecord | RateLine) -> PageTable:
        columns = (
            in_words("layout", "layout", lambda _: _name(line)),
            Quantity(at, f"{metric.upper()} {statistic}", milliseconds),
            *shown,
            in_words("feasible", "limits kept", verdict),
        )
        title = f"Points of the curves ({how}), {metric.upper()} {statistic} on the axis; latencies without a statistic are means"
        return page_table(Table(columns, line.points, f"{root}/{index}/points", title))

    tables = [of_line(index, line) for index, line in enumerate(_lines(report))]
    return tables[0]._replace(rows=tuple(row for table in tables for row in table.rows))


def _layout(c: CompareCandidate) -> str | None:
    return None if c.replicas is None else f"{c.replicas} x {layout(c)}"


def _limit(c: CompareCandidate) -> str:
    if c.reason is not None:
        return c.reason
    return limit_words(c.limit) + (" limit" if f"{c.limit}_ms" in c.limited else "")


CANDIDATES = (
    in_words("gpu", "GPU", lambda c: f"{c.gpu}, {c.weight_precision.upper()}"),
    in_words("layout", "layout", _layout),
    bands.GPUS._replace(write="{:,}".format),
    bands.USD_PER_HOUR,
    bands.USD_PER_MILLION_OUTPUT_TOKENS._replace(heading="$ a million output tokens", write=money),
    bands.POWER_W._replace(heading="W"),
    *bands.LATENCY_QUANTITIES,
    bands.HEADROOM,
    in_words("limit", "what limits it", _limit),
)


def _changed(one: ChangedInput) -> str:
    return milliseconds(one.value) if one.unit == "ms" else f"{number(one.value)} {one.unit}"


def _then(one: ChangedInput) -> str | None:
    return f"{one.gpu}, {(one.weight_precision or '').upper()}, {one.layout}" if one.feasible else one.reason


COUNTED = bands.GPUS._replace(write="{:,}".format)
CHANGES = (
    in_words("what", "input"),
    Quantity("share", "change", lambda share: f"{share * 100:+.0f} %"),
    Quantity("value", "to", str, _changed),
    COUNTED,
    Quantity("extra_gpus", "more GPUs", "{:+,}".format),
    bands.REQUESTS_PER_S,
    bands.USD_PER_HOUR,
    in_words("layout", "then", _then),
)
MEETING = "Other layouts that meet the demand (closed form, means)"
GPU = in_words("gpu", "GPU", lambda one: f"{one.gpu}, {one.weight_precision.upper()}")
ALTERNATIVES = (
    GPU,
    in_words("layout", "layout", lambda one: f"{one.replicas} x {layout(one)}"),
    COUNTED,
    bands.REQUESTS_PER_S_PER_GPU._replace(heading="requests/s a GPU"),
    bands.TTFT,
    bands.ITL,
    bands.USD_PER_HOUR,
    bands.POWER_W._replace(heading="W"),
)
REJECTED = (GPU, in_words("layout", "layout", layout), in_words("reason", "reason"), in_words("detail", "detail"))


def _assumptions(report: Report) -> Iterator[Prose | PageTable | Numbered]:
    """Yield the assumptions, the least certain first, each with the number of its source."""
    found = [
        (at, assumption)
        for kind in KINDS
        for at, assumption in enumerate(report.estimate.assumptions)
        if assumption.kind == kind
    ]
    sources = {
        source: n
        for n, source in enumerate(dict.fromkeys(assumption.source for _, assumption in found if assumption.source), 1)
    }

    def row(at: int, assumption: Assumption) -> tuple[Cell, ...]:
        pointer = None if isinstance(assumption.value, str) else f"/estimate/assumptions/{at}/value"
        value = Cell(f"{stated(assumption.value)} {assumption.unit}".rstrip(), pointer)
        source = sources.get(assumption.source)
        cited = Cell("") if source is None else Cell(f"[{source}]", target=f"source-{source}")
        return Cell(assumption.kind), Cell(assumption.what), value, cited

    yield Prose((Line(ASSUMED),))
    heads = tuple(Column(name, False) for name in ("known", "what", "value", "source"))
    yield PageTable("Inputs by how they are known", heads, tuple(row(*assumption) for assumption in found))
    yield Numbered("Sources", tuple((f"source-{at}", text) for text, at in sources.items()))


ASSUMED = "Each input that the answer rests on: assumed, derived, taken from a datasheet or measured, with its source."
