"""`llmsize plan` for people: the answer, its derivation, the development over time, uncertainty, and a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Literal

from sizing.formats.view import (
    Document,
    Facts,
    Figure,
    Line,
    Mark,
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
from sizing.formats.words import between, number, percent, plural, rounded_usd
from sizing.planning.cloud import Cloud
from sizing.planning.fleet import Availability, FleetFigures, Hour
from sizing.planning.growth import Month
from sizing.planning.nodes import Fit
from sizing.planning.uncertainty import COUNTED, MODEL_ERROR, Influence, Ranges
from sizing.report.parts import quantities, screen
from sizing.report.parts.evidence import SureOf
from sizing.report.parts.growth import growth_lines
from sizing.report.parts.question import demand_line, is_by_day, is_limited, not_replayed, replica_lines
from sizing.report.parts.screen import (
    SINGLE,
    assumption_lines,
    first_lines,
    less_margin,
    limits_verdict,
    next_line,
    of_gpus,
    unused,
    verdict,
    would_help,
)
from sizing.report.parts.sentences import line, said
from sizing.report.plan.record import Move, PlanReport, WorkloadPlan
from sizing.specs.demand import HOURS_OF_DAY

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LEAST_WHOLE = 0.1  # of a whole, that is written without decimals
TICK_HOURS = 3  # of the picture
LEAST_MISSING = 1e-7  # per cent, of a probability: what is beyond is lost in sums and in what nodes are known to do


CSV = (
    "of", "name", "gpu", "pool", "hour", "requests_per_s", "mean_requests_per_s", "most_per_replica", "base_replicas",
    "reserve_replicas", "replicas", "gpus", "nodes", "installed_gpus",
)  # fmt: skip


def rows(record: PlanReport) -> Rows:
    """A row for each workload, pool and hour; cells that do not apply are empty."""
    found = [{**each._asdict(), "of": "workload"} for each in record.workloads]
    for row in found:
        row |= {"requests_per_s": row["peak_requests_per_s"], "reserve_replicas": row["reserve"].replicas}
    found += [{**pool._asdict(), "of": "pool", "name": ", ".join(pool.workloads)} for pool in record.pools]
    found += [{**hour._asdict(), "of": "hour"} for hour in record.hours]
    return rows_of(found, CSV)


def sections(record: PlanReport) -> Iterator[Section]:
    """Yield the answer, its derivation, growth, hours and cloud, then moves and draws."""
    if record.gpus is None:
        yield Facts(
            (*labelled("Nearest", record.problems), *would_help(record.suggestions)),
            "Infeasible: no plan meets what is asked",
        )
        return
    yield Facts(tuple(_answer(record)), _headline(record))
    if record.fleet is None:
        workload = record.workloads[0]
        inputs = record.inputs["workloads"][workload.name]
        rows = screen.latencies(screen.by_name(workload.latency), inputs.limits, binding=workload.limit)
        yield screen.figures(rows, banded=False)
        fit = Fit(workload.gpus_per_replica, workload.gpus_per_node)
        grown = (record.growth and not workload.reserve.for_availability and record.growth.at_date) or None
        outlasting = outlasts(workload.reserve.replicas, workload.base_replicas, fit, grown)
        size = (_size(workload), *outlasting)
        facts = [demand_line(inputs, workload.demand), *replica_lines(inputs), *size]
    else:
        yield Table(WORKLOADS, record.workloads, "/workloads")
        facts = list(_of_fleet(record, record.fleet))
    facts += [found for each in record.availability for found in _available(each, record)]
    facts += [] if record.growth is None else growth_lines(record.growth)
    facts += [*_hours(record.hours), *([] if record.cloud is None else _cloud(record.cloud))]
    if record.moves:
        yield from (Facts(tuple(facts)), Table(MOVES, record.moves, "/moves"))
        facts = []
    asked = record.inputs["workloads"].values()
    by_day = record.utilisation_mean is not None or any(is_by_day(each.demand) for each in asked)
    draws = () if record.uncertainty is None else _draws(record.uncertainty)
    yield Facts((*facts, *draws, *assumption_lines(record.assumptions, by_day=by_day), next_line()))


def _headline(record: PlanReport) -> str:
    """GPUs, their load, the reserve of a single workload (a fleet has its reserves in its table), and GPUs after growth."""
    gpus = plan_total(record)
    name = record.inputs.get("fleet") or record.inputs.get("workload") or "the demand"
    verdict = "" if record.feasible else "Over budget: "
    reserve = "" if len(record.workloads) > 1 else f", {reserve_words(record.workloads[0])}"
    growth = record.growth
    grown = (
        "" if growth is None or growth.at_date is None else f"; {plural(growth.at_date.gpus, 'GPU')} by {growth.until}"
    )
    serve = "serves" if record.gpus == 1 else "serve"
    return (
        f"{verdict}{gpus} {serve} {name}: {number(record.peak_requests_per_s)} requests/s at the peak{reserve}{grown}"
    )


def plan_total(record: PlanReport) -> str:
    """Write the GPUs of a plan by type: `10 x H100 SXM 80GB and 4 x L4 24GB`."""
    types = dict.fromkeys(pool.gpu for pool in record.pools)
    sums = {gpu: sum(pool.gpus for pool in record.pools if pool.gpu == gpu) for gpu in types}
    return " and ".join(f"{count:,} x {gpu}" for gpu, count in sums.items())


def reserve_words(workload: WorkloadPlan) -> str:
    """Write the replicas in reserve of all replicas: `1 spare of 5 replicas`, or `no reserve`."""
    reserve, count = workload.reserve, workload.replicas
    return said("reserve of plan", reserve, count=count) if reserve.replicas else "no reserve"


def _answer(record: PlanReport) -> Iterator[Line]:
    """Yield whether the plan holds, the whole nodes that it takes, and its cost."""
    limited = any(is_limited(each.limits) for each in record.inputs["workloads"].values())
    traced = next(filter(None, (not_replayed(workload.demand) for workload in record.workloads)), "")
    holds = limits_verdict(limited, all(workload.verified for workload in record.workloads), traced)
    single = f"; {SINGLE}" if record.replicas == 1 else ""
    down = sum(workload.reserve.replicas for workload in record.workloads) if record.fleet is None else 0
    spare = f"; latencies with {plural(down, 'replica')} down" if down else ""
    budget = next(iter(record.inputs["workloads"].values())).gpu_budget
    left = unused(budget, record.gpus or 0, later=record.growth is not None)
    words = "; ".join(filter(None, (holds + single + spare, left)))
    yield verdict("; ".join(record.problems) or words, good=record.feasible)
    yield from _sure(record, limited)
    nodes = f"{plural(record.nodes or 0, 'whole node')} ({plural(record.installed_gpus or 0, 'GPU')})"
    more = record.nodes_sure is not None and record.nodes_sure > (record.nodes or 0)
    sure = f", {record.nodes_sure:,} to be sure" if more else ""
    yield Line(f"On-premises {nodes}{sure}{_used(record)}")
    if record.usd_per_month is not None:
        yield Line(f"{rounded_usd(record.usd_per_month)} a month, {_how_paid(record)}")


def _sure(record: PlanReport, limited: bool) -> Iterator[Line]:
    """Yield how many GPUs, the reserve included, are sure to do; of a fleet, also for which workloads that is not known."""
    first, gpus = record.workloads[0], record.gpus or 0
    found, by_rate = first.evidence, all(each.demand_unit == "requests/s" for each in record.workloads)
    if len(record.workloads) > 1 and found is not None:
        unknown = [each.name for each in record.workloads if each.gpus_sure is None]
        why = f"no published runs like {', '.join(unknown)}" if unknown else None
        found = found._replace(groups=0 if unknown else found.groups, chance=None, why_not=why, surer=None)
    down = sum(workload.reserve.replicas for workload in record.workloads)
    if down and found is not None:  # what is surer has no reserve
        found = found._replace(surer=None)
    yield from SureOf(gpus, record.gpus_sure, record.confidence, found, limited, by_rate, first.gpu).lines()
    if down and found is not None and found.chance is not None:
        yield Line(f"These shares are with {plural(down, 'replica')} down: the reserve serves nothing in them", spare=3)


def outlasts(reserve: int, base: int, fit: Fit, grown: Month | None = None) -> Iterator[Line]:
    """Yield whether a reserve beside `base` replicas outlasts a failed node, and with which option it would.

    Nothing without a reserve. `grown` is the size at the end of a growth, for which a smaller reserve may do.
    """
    if not reserve:
        return
    lost, enough = fit.replicas_together, fit.outlasting(base)
    node, evenly = f"a failed node takes up to {plural(lost, 'replica')}", "with replicas spread evenly over nodes"
    if reserve < enough:
        even = f", {evenly}" if enough < lost else ""
        yield Line(f"{node}: --spare {enough} outlasts it{even}", "Reserve")
        return
    even = f" {evenly}" if reserve < lost else ""
    yield Line(f"{node}: the others keep the limits{even}", "Reserve", spare=2)
    if grown is not None and (later := fit.outlasting(grown.replicas - reserve)) < reserve:
        yield Line(f"in {grown.month} --spare {later} outlasts a failed node too, {evenly}", "Reserve")


def _used(record: PlanReport) -> str:
    """Write how much of the requests/s that the GPUs serve within the limits the load takes, at the peak and on average."""
    gpus = record.gpus or 0
    of = f" of the most requests/s that {of_gpus(gpus)} {'serves' if gpus == 1 else 'serve'}"
    shares = ((record.utilisation_peak, "at the peak"), (record.utilisation_mean, "on average"))
    said = [f"{_share(share)}{{}} {when}" for share, when in shares if share is not None]
    return f"; the load is {', '.join(said)}".format(of, "") if said else ""


def _how_paid(record: PlanReport) -> str:
    """How the GPUs of the monthly cost are rented: by the GPU, or in whole instances of a provider."""
    cloud = record.cloud
    if cloud is None or cloud.provider is None:
        return "if rented on demand around the clock"
    whole = " and ".join(
        f"{plural(mix.peak_instances, 'whole instance')} of {plural(mix.gpus_per_instance, 'GPU')} ({mix.sku})"
        for mix in cloud.mixes
        if mix.peak_instances is not None and mix.gpus_per_instance is not None
    )
    if not record.hours:
        return f"on demand around the clock: {whole}"
    return f"following the load, with a reserved base: {whole} at the peak"


def _share(value: float) -> str:
    """A share as a percentage, with two digits where it is small: 0.3 %."""
    return f"{number(value * 100, 2)} %" if value < LEAST_WHOLE else percent(value)


def _size(workload: WorkloadPlan) -> Line:
    """The derivation of one workload's size, rounded up once to replicas and once to nodes."""
    reserve, times = workload.reserve, 1 + workload.headroom
    by_target = reserve.for_availability > reserve.spare
    own = {
        "needed": workload.demand_at_peak * times / workload.most_per_replica,
        "times": times,
        "less": less_margin(workload.most_per_replica, workload.margin, "within the limits"),
        "availability": reserve.for_availability if by_target else 0,
        "spare": 0 if by_target else reserve.spare,
        "maintenance": reserve.maintenance,
    }
    return line("size of plan", workload, **own)


_count = "{:,}".format
WORKLOADS = (
    in_words("name", "workload alone"),
    quantities.GPU,
    in_words("layout", "layout", lambda workload: str(workload.sizes)),
    quantities.WEIGHTS._replace(write=str.upper),
    Quantity("peak_requests_per_s", "peak req/s"),
    Quantity("base_replicas", "replicas", _count),
    Quantity("reserve.replicas", "reserve", _count, attrgetter("reserve.replicas")),
    quantities.GPUS._replace(write=_count),
)


def _of_fleet(record: PlanReport, fleet: FleetFigures) -> Iterator[Line]:
    saved = fleet.sum_of_peaks_gpus - fleet.peak_of_sums_gpus
    shared = sum(pool.reserve_gpus_apart - pool.reserve_gpus for pool in record.pools)
    yield line("pooled", fleet, saved=saved, shared=shared, by_hours=saved - shared)
    yield from (line("pool", pool) for pool in record.pools)


def _available(availability: Availability, record: PlanReport) -> Iterator[Line]:
    """The chance that enough replicas are up, by itself and by node: of the failures asked about first."""
    chances = {
        "replica": (availability.achieved, "where each fails by itself"),
        "node": (availability.achieved_by_node, "where a node takes all its replicas with it"),
    }
    first = record.inputs["failures"]
    ordered = (chances[first], *(each for name, each in chances.items() if name != first))
    ways = [f"{_nines(chance, availability.node_availability)} {where}" for chance, where in ordered]
    target = None if availability.target is None else availability.target * 100
    of = {"name": record.fleet and availability.workload, "several": availability.replicas_for_failures > 1}
    yield line("available", availability, ways=ways, target_percent=target, **of)


def _nines(chance: float, node_availability: float) -> str:
    """A probability to the second digit of its complement: 99.85 %; it is certain only on nodes that never fail."""
    if node_availability >= 1:
        return "100 %"
    missing = (1 - chance) * 100
    if missing < LEAST_MISSING:
        return f"more than {100 - LEAST_MISSING:.7f} %"
    digits = max(0, math.ceil(round(math.log10(9.5 / missing), 9)))
    return f"{chance * 100:.{digits}f} %"


def _hours(hours: Sequence[Hour]) -> Iterator[Line]:
    """The lowest and the highest size over the hours of a day or a week, where it changes."""
    if hours:
        gpus = [hour.gpus for hour in hours]
        busiest = max(hours, key=lambda hour: hour.gpus).hour
        span = between(min(gpus), max(gpus), "{:,.0f}".format)
        yield line("hours", span=span, count=len(hours), busiest=busiest)


def _cloud(cloud: Cloud) -> Iterator[Line]:
    yield line("cloud", cloud)._replace(label="Cloud" if cloud.provider is None else f"Cloud {cloud.provider}")
    if cloud.scale_up:
        yield line("scale-up", max(cloud.scale_up, key=lambda up: up.total_s))
    yield from (line("mix", mix) for mix in cloud.mixes)


def _change(move: Move) -> str | None:
    if move.usd_per_month is None or move.usd_per_month_now is None:
        return None
    more = move.usd_per_month - move.usd_per_month_now
    return f"{'+' if more >= 0 else '-'}{rounded_usd(abs(more))}"


MOVES = (
    in_words("workload", "moved"),
    in_words("gpu_to", "to GPU"),
    in_words("detail", "then"),
    Quantity("workload_gpus", "its GPUs", _count, shown="always"),
    Quantity("gpus", "all GPUs", _count, shown="always"),
    Quantity("nodes", "all nodes", _count, shown="always"),
    Quantity("usd_per_month", "$/month", str, _change, shown="always"),
)


def _draws(ranges: Ranges) -> Iterator[Line]:
    """GPUs and cost over the draws, and the inputs that move them."""
    yield line("draws", ranges, gpus=tuple(ranges.gpus))
    if ranges.usd_per_month is not None:
        yield line("cost of draws", usd_per_month=tuple(ranges.usd_per_month))
    moving = [each for each in ranges.influences if each.rank_correlation]
    moves = first_lines("Matters most", [_moves_it(each) for each in moving], "input")
    yield from (each._replace(spare=8 * bool(at)) for at, each in enumerate(moves))


def _moves_it(influence: Influence) -> str:
    """Say which way an input moves the result, and how strictly."""
    more, less = ("more", "fewer") if influence.of == COUNTED else ("higher", "lower")
    then, strict = more if influence.rank_correlation > 0 else less, abs(influence.rank_correlation)
    return said("influence", influence, is_error=influence.input.endswith(MODEL_ERROR), then=then, strict=strict)


def figures(record: PlanReport) -> tuple[Figure, Figure]:
    """Load and capacity over the hours; without a profile the load is the same all day."""
    hours = record.hours or _flat(record)
    end = len(hours)
    days = [Tick(HOURS_OF_DAY / 2 * half, DAYS[half // 2] if half % 2 else "") for half in range(2 * len(DAYS) + 1)]
    day = [Tick(hour, f"{hour}") for hour in range(0, HOURS_OF_DAY + 1, TICK_HOURS)]
    ticks = tuple(day if end == HOURS_OF_DAY else days)

    def steps(name: str, values: Sequence[float], look: Literal["steps", "area"] = "steps") -> Series:
        style = 0 if look == "area" else 1
        return Series(name, tuple(map(Mark, range(end + 1), [*values, values[-1]])), style, look=look)

    def level(name: str, value: float) -> Series:
        return Series(name, (Mark(0, value), Mark(end, value)), look="line")

    gpus = [hour.gpus for hour in hours]
    mean, installed = sum(gpus) / end, record.installed_gpus or 0
    load = steps("load", [hour.requests_per_s or 0.0 for hour in hours], "area")
    served = [hour.capacity_requests_per_s for hour in hours if hour.capacity_requests_per_s is not None]
    known = len(served) == end  # of a single workload
    name = record.inputs.get("fleet") or record.inputs.get("workload") or record.workloads[0].name
    upper = Figure(
        "",
        "requests/s",
        (load, steps("replicas that follow the load serve", served)) if known else (load,),
        guides=(level("all replicas serve", max(served)),) if known else (),
        logarithmic="",
        title=f"Load and capacity of {name}",
        span=(0, end),
        x_ticks=ticks,
    )
    lower = upper._replace(
        x_name="hour of the day" if end == HOURS_OF_DAY else "day of the week",
        y_name="GPUs",
        series=(steps("GPUs that follow the load", gpus),),
        guides=(level(f"their mean, {mean:,.1f}", mean), level(f"whole nodes for the peak, {installed:,}", installed)),
        title="",
    )
    return upper, lower


def _flat(record: PlanReport) -> tuple[Hour, ...]:
    """The constant load and size of a workload without a profile, as a day."""
    workload = record.workloads[0]
    known = len(record.workloads) == 1 and workload.demand_unit == "requests/s"
    served = workload.replicas * workload.most_per_replica if known else None
    hour = Hour(0, record.peak_requests_per_s, record.replicas or 0, record.gpus or 0, served)
    return tuple(hour._replace(hour=index) for index in range(HOURS_OF_DAY))


document = partial(Document, sections=sections, rows=rows)
