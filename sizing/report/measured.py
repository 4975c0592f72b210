"""Answers from measurements alone: `--from` of `llmsize estimate`, `compare`, `plan`, `cost` and `report`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sizing.answers.curve_lines import CurveLine
from sizing.answers.measured_lines import Measured
from sizing.answers.measured_size import MEASURED_END, UNKNOWN_SHARE, UTILISATION, MeasuredSize, Short, Statistic
from sizing.catalog.profiles import named_gpu
from sizing.formats.page import (
    ABSENT,
    Cell,
    Chapter,
    PageTable,
    PageVerdict,
    Tile,
    Tiles,
    figure,
    page_table,
    render,
)
from sizing.formats.view import (
    Document,
    Facts,
    Line,
    Prose,
    Quantity,
    Rows,
    Section,
    Table,
    filled,
    in_words,
    rows_of,
)
from sizing.formats.words import milliseconds, money, number, percent, plural, rounded_usd
from sizing.model.architecture import Layout
from sizing.planning.growth import Growing
from sizing.planning.measured import MeasuredFleet
from sizing.planning.offers import CostOption
from sizing.question.ask import MeasuredQuestion
from sizing.report.parts import costs, screen, sentences
from sizing.report.parts.figures import a_month
from sizing.report.parts.growth import growth_lines
from sizing.report.parts.layouts import headline
from sizing.report.parts.question import limits_in_ms
from sizing.specs.units import MILLI

MOST_OTHERS = 5
CLOSED, RANDOM = "closed loop", "random"


class MeasuredDeployment(NamedTuple):
    """The answer: GPUs, replicas and the measured layout.

    `rows` were measured with `arrivals` (closed loop or random). `other_gpus` is the count for the other kind of arrivals; it is
    null for rows at random arrivals, and `other_most` the most requests/s of a replica then. `cache_holds` is the number of
    requests of mean length that the KV cache of a replica holds, where its log says so, and `cache_over_predicted` its tokens
    over the predicted ones. `ran_with` is what the rows ran with besides, as drafts, where they say so. `sent` says how arrivals
    at a rate were not random.
    """

    gpu: str
    gpus: int
    replicas: int
    gpus_per_replica: int
    nodes: int | None
    layout: str
    weight_precision: str
    engine: str
    usd_per_hour: float | None
    other_gpus: int | None
    rows: int
    arrivals: str
    cache_holds: float | None
    cache_over_predicted: float | None
    ran_with: str | None = None
    sent: str | None = None
    other_most: float | None = None


class MeasuredLoad(NamedTuple):
    """The load of all replicas and of each replica, the lightest that was measured, and the most of a replica, in `most_unit`."""

    requests_per_s: float
    requests_per_s_per_replica: float
    in_flight_per_replica: float
    lightest_in_flight: float
    most_per_replica: float
    most_unit: str
    binds: str


class MeasuredReserve(NamedTuple):
    """The GPUs of a plan: replicas for the peak, in reserve (failures, maintenance) and in all, and growth if asked for."""

    gpu: str
    layout: str
    base_replicas: int
    reserve_replicas: int
    replicas: int
    gpus: int
    nodes: int
    usd_per_hour: float | None
    growth: Growing | None


class MeasuredAnswer(NamedTuple):
    """The record of `--from` for every command. `latency` has the statistics that the rows state, in ms.

    `plan` is for the layout that needs the fewest GPUs, reserve included; it is null unless asked for. `ways` are the ways to
    pay, empty unless asked for.
    """

    inputs: Mapping[str, Any]
    feasible: bool
    deployment: MeasuredDeployment | None
    load: MeasuredLoad | None
    latency: Mapping[str, Mapping[str, float]]
    alternatives: tuple[MeasuredDeployment, ...]
    limiting: str | None
    sources: tuple[str, ...]
    plan: MeasuredReserve | None = None
    ways: tuple[CostOption, ...] = ()
    schema: str = "llmsize.measured/2"


def record(
    measured: Measured,
    question: MeasuredQuestion,
    sizes: Sequence[MeasuredSize],
    short: Sequence[Short],
    *,
    closed: bool,
    whole: bool = False,
) -> MeasuredAnswer:
    """The record of the `sizes` of measured layouts, the best first; all of them if `whole`.

    `short` are the layouts that keep the limits at no load.
    """
    target = question.target
    limits = limits_in_ms(target.limits)
    inputs = {
        "file": measured.file, "rows": len(measured.rows), "workload": question.workload_name, "model": measured.model,
        "isl": measured.isl, "osl": measured.osl, "demand": target.amount, "demand_unit": target.unit,
        "think_time_s": target.think_time_s, "limits": limits, "max_utilisation": target.max_utilisation,
        "headroom": question.headroom, "arrivals": CLOSED if closed or target.concurrency is not None else RANDOM,
    }  # fmt: skip
    deployments = [_deployment(size, question) for size in sizes]
    best = sizes[0] if sizes else None
    return MeasuredAnswer(
        inputs=inputs,
        feasible=best is not None,
        deployment=deployments[0] if deployments else None,
        load=None if best is None else _load(best),
        latency={} if best is None else _latency(best.load.latencies_s),
        alternatives=tuple(deployments[1 : None if whole else MOST_OTHERS + 1]),
        limiting=None if best is not None else _limiting(short, measured),
        sources=tuple(measured.sources),
    )


def by_cost(answer: MeasuredAnswer) -> MeasuredAnswer:
    """The same answer with the other layouts in the order of their cost, layouts without a price last."""
    known = sorted(answer.alternatives, key=lambda each: (each.usd_per_hour is None, each.usd_per_hour or 0.0))
    return answer._replace(alternatives=tuple(known))


def planned(answer: MeasuredAnswer, fleets: Sequence[MeasuredFleet]) -> MeasuredAnswer:
    """The same answer with the plan of the layout that needs the fewest GPUs, reserve included."""
    if not fleets:
        return answer
    best = fleets[0]
    line, size = best.of.line, best.size
    own = {"layout": _layout(line), "base_replicas": size.base, "reserve_replicas": size.reserve.replicas}
    return answer._replace(plan=filled(MeasuredReserve, best, size, gpu=line.gpu, **own))


def priced(answer: MeasuredAnswer, options: Sequence[CostOption]) -> MeasuredAnswer:
    """The same answer with ways to pay."""
    return answer._replace(ways=tuple(options))


def html(answer: MeasuredAnswer) -> str:
    """The HTML page of an answer from measurements."""
    headline, *others = sections(answer)
    assert isinstance(headline, Prose)
    lines = tuple(line.text for line in headline.lines)
    best = answer.deployment if answer.plan is None else answer.plan
    done = "enough for every limit" if any(answer.inputs["limits"].values()) else "enough for this demand"
    good = headline.title if best is None else f"Yes: {best.gpus:,} x {best.gpu}, {done}"
    lines = lines if best is None else (headline.title, *lines)
    found = [page_table(each) if isinstance(each, Table) else each for each in others]
    title = f"{answer.inputs['model']}, sized from measurements"
    about = f"{plural(answer.inputs['rows'], 'row')} of {answer.inputs['file']}: {', '.join(answer.sources)}"
    shown = tuple(each for each in found if isinstance(each, Prose | Facts | PageTable))
    decided = (PageVerdict(answer.feasible, good, lines), Tiles(tuple(_tiles(answer))))
    return render(title, about, (Chapter("answer", "Answer", (*decided, *shown)),), answer)


def _tiles(answer: MeasuredAnswer) -> Iterator[Tile]:
    """Yield the GPUs, their cost, and the load of a replica. Where a plan is asked for, they are the plan's GPUs and cost."""
    found = answer.deployment if answer.plan is None else answer.plan
    if found is None or answer.load is None:
        return
    at, gpu = "/deployment" if answer.plan is None else "/plan", f"{found.gpu}, {found.layout}"
    reserve = 0 if answer.plan is None else answer.plan.reserve_replicas
    kept = f", {plural(reserve, 'replica')} in reserve" if reserve else ""
    yield Tile("GPUs", figure(answer, f"{at}/gpus", "{:,}".format), f"{gpu}{kept}")
    growth = None if answer.plan is None else answer.plan.growth
    if growth is not None and growth.at_date is not None:
        then = figure(answer, "/plan/growth/at_date/gpus", "{:,}".format)
        yield Tile(f"GPUs by {growth.until}", then, f"{number(growth.at_date.times)} times the demand")
    month = a_month(found.usd_per_hour)
    note = "no price is known" if month is None else f"{money(found.usd_per_hour)} an hour, around the clock"
    yield Tile("Cost a month", Cell(ABSENT if month is None else rounded_usd(month)), note)
    most = figure(answer, "/load/most_per_replica", number)
    yield Tile("At most on a replica", most, f"{answer.load.most_unit}, measured")


def _layout(line: CurveLine) -> str:
    return line.pooled or str(line.layout or Layout())


def _deployment(size: MeasuredSize, question: MeasuredQuestion) -> MeasuredDeployment:
    line = size.line
    known = next((found for found in question.gpu_types if found.id == named_gpu(line.gpu)[0]), None)
    price = None if known is None else known.usd_per_gpu_hour
    each = line.gpus or 1
    return filled(
        MeasuredDeployment,
        size,
        line,
        gpus=size.gpus,
        gpus_per_replica=each,
        nodes=None if known is None else -(-size.gpus // known.gpu.datasheet.node.gpus),
        layout=_layout(line),
        engine=f"{line.engine} {line.engine_version or ''}".strip(),
        usd_per_hour=None if price is None else price * size.gpus,
        other_gpus=None if size.other_replicas is None else size.other_replicas * each,
        rows=len(line.points),
        arrivals=RANDOM if size.curve.random else CLOSED,
    )


def _load(size: MeasuredSize) -> MeasuredLoad:
    lightest, unit = float(size.curve.in_flight[0]), "requests in flight" if size.by_flight else "requests/s"
    of = size.load
    return MeasuredLoad(size.requests_per_s, of.requests_per_s, of.in_flight, lightest, size.most, unit, size.binds)


def _latency(latencies_s: Mapping[Statistic, float]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for (metric, statistic), seconds in latencies_s.items():
        found.setdefault(f"{metric}_ms", {})[statistic] = seconds / MILLI
    return found


def _limiting(short: Sequence[Short], measured: Measured) -> str:
    if not any(point.requests_per_s for line in measured.lines for point in line.points):
        return f"no row of {measured.file} states requests/s, output tokens/s or E2E; measure one of them"
    if not short:
        return f"random arrivals leave the loads of {measured.file} too often; measure heavier ones, or read it as --closed-loop"
    nearest = min(short, key=lambda each: each.reached_s / each.allowed_s)
    metric, statistic = nearest.limit
    reached, allowed = (milliseconds(value / MILLI) for value in (nearest.reached_s, nearest.allowed_s))
    found = f"{metric.upper()} {statistic} is {reached} at the lightest measured load of {nearest.line.gpu}, the limit {allowed}"
    return f"{found}; measure a lighter load, a faster GPU or a larger layout, or loosen the limit"


COLUMNS = (
    Quantity("gpus", "GPUs", number),
    in_words("gpu", "GPU"),
    in_words("layout", "layout"),
    in_words("weight_precision", "weights"),
    in_words("engine", "engine"),
    in_words("ran_with", "ran with", nothing=""),
    Quantity("replicas", "replicas", number),
    Quantity("usd_per_hour", "$/h", money),
)


def rows(answer: MeasuredAnswer) -> Rows:
    """A row for the answer and each alternative."""
    found = [each for each in (answer.deployment, *answer.alternatives) if each is not None]
    return rows_of(found, MeasuredDeployment._fields, {"model": answer.inputs["model"], "feasible": answer.feasible})


def sections(answer: MeasuredAnswer) -> Iterator[Section]:
    """Yield the GPUs, latencies with limits, the demand, the limit on a replica's load, and other layouts."""
    inputs, deployment, load = answer.inputs, answer.deployment, answer.load
    if deployment is None or load is None:
        yield Prose((Line(f"{answer.limiting}"),), "Not feasible on the measured replicas")
        return
    nodes = "" if deployment.nodes is None else f" on {plural(deployment.nodes, 'node')}"
    layout = f"{plural(deployment.replicas, 'replica')} x {deployment.layout}{nodes}"
    size = headline(deployment.gpus, deployment.gpu, layout, deployment.usd_per_hour)
    yield Prose((Line("By measurements alone"),), size)
    stated = screen.latencies(
        lambda name, statistic: answer.latency.get(name, {}).get(statistic), inputs["limits"], binding=load.binds
    )
    yield screen.figures(stated, "measured", banded=False)
    known = sentences.lines("measured.csv", load, deployment, inputs, **_said(inputs, deployment, load))
    yield Facts((*known, *(Line(source, " ") for source in answer.sources[:MOST_OTHERS])))
    if answer.alternatives:
        yield Table(COLUMNS, answer.alternatives, "/alternatives", "Other measured layouts")
    if answer.plan is not None:
        yield Facts(tuple(_plan(answer.plan)), "With reserves and growth")
    if answer.ways:
        yield costs.table(answer.ways, "/ways")


def _plan(plan: MeasuredReserve) -> Iterator[Line]:
    """Yield the GPUs of a plan, and its growth."""
    layout = f"{plural(plan.replicas, 'replica')} x {plan.layout} on {plural(plan.nodes, 'node')}"
    yield Line(headline(plan.gpus, plan.gpu, layout, plan.usd_per_hour), "Plan")
    yield Line(
        f"{plural(plan.base_replicas, 'replica')} for the peak, {plan.reserve_replicas:,} in reserve", "Replicas"
    )
    if plan.growth is not None:
        yield from growth_lines(plan.growth)


READ = {  # how rows are read, by the arrivals of the demand and those of the rows
    (RANDOM, RANDOM): "at random arrivals, as the demand: nothing is converted",
    (RANDOM, CLOSED): "in a closed loop, converted to random arrivals: a queue with the measured rates",
    (CLOSED, CLOSED): "in a closed loop, read as measured",
    (CLOSED, RANDOM): "at random arrivals, read by their mean requests in flight",
}


def _said(inputs: Mapping[str, Any], deployment: MeasuredDeployment, load: MeasuredLoad) -> dict[str, Any]:
    """What the lines of measured.csv say besides the figures of the record, and which of them are said."""
    wanted, measured, share = inputs["arrivals"], deployment.arrivals, inputs["max_utilisation"]
    over, off = deployment.cache_over_predicted, None
    if over is not None:
        apart = percent(abs(over - 1))
        off = "as predicted" if apart == percent(0) else f"{apart} {'more' if over > 1 else 'less'} than predicted"
    return {
        "wanted": wanted,
        "rows_of_file": inputs["rows"],
        "think_s": inputs["think_time_s"] if inputs["demand_unit"] == "users" else None,
        "rate": None if load.most_unit == "requests/s" else load.requests_per_s,
        "other": "random arrivals" if wanted == CLOSED else "a closed loop",
        "of_other": None if wanted == CLOSED else share,
        "reading": READ[wanted, measured],
        "unused": inputs["rows"] - deployment.rows or None,
        "waves": (wanted, measured) == (RANDOM, CLOSED) and load.binds in ("ttft", "e2e"),
        # One request alone is the lightest load that there is.
        "lighter": load.lightest_in_flight > 1 and load.in_flight_per_replica < load.lightest_in_flight,
        "off": off,
        "waits": (deployment.cache_holds or 0.0) < load.in_flight_per_replica,
        "ends": _binds(load.binds, share, wanted, measured, load.most_unit),
    }


def _binds(binds: str, utilisation: float, wanted: str, measured: str, unit: str) -> str:
    if binds == UTILISATION and utilisation < 1:
        return f"{percent(utilisation)} of the highest measured rate"
    if binds not in (UTILISATION, MEASURED_END):
        limit = f"the limit on {binds.upper()}"
        of_a_row = wanted == CLOSED and utilisation < 1 and unit == "requests/s"
        return f"{percent(utilisation)} of the rate of the heaviest row within {limit}" if of_a_row else limit
    if wanted == CLOSED or measured == RANDOM:
        return "the heaviest load that was measured"
    beyond = f"at more, loads above the heaviest that was measured would be met over {percent(UNKNOWN_SHARE)} of the time: measure those"
    return f"random arrivals vary; {beyond}"


document = partial(Document, sections=sections, rows=rows)
