"""What a plan says over time, for the terminal: growth by the month, hours of the profile, and a cloud that follows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sizing.formats.text import Block
from sizing.formats.view import Line
from sizing.formats.words import money, number, percent, plural, rounded_usd
from sizing.planning.cloud import Cloud
from sizing.planning.fleet import Hour
from sizing.planning.growth import Growing, Month
from sizing.report.plan import PlanReport
from sizing.specs.demand import HOURS_OF_DAY

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MOST_MONTHS_SHOWN = 12
LEAST_WHOLE = 0.1  # of a whole, that is written without decimals


def blocks(document: PlanReport) -> Iterator[Block]:
    """Yield growth, hours and the cloud, each where there is one."""
    if document.growth is not None:
        yield Block(tuple(_growth(document.growth, document)))
    if document.hours:
        yield _day(document.hours) if len(document.hours) == HOURS_OF_DAY else _week(document.hours)
    if document.cloud is not None:
        yield Block(tuple(_cloud(document.cloud)))


def share(value: float) -> str:
    """Write a share as a percentage, with two digits where it is small: 0.3 %."""
    return f"{number(value * 100, 2)} %" if value < LEAST_WHOLE else percent(value)


def _growth(growth: Growing, document: PlanReport) -> Iterator[Line]:
    yield Line(
        f"{growth.per_month * 100:g} % a month from {growth.start}: {plural(document.gpus or 0, 'GPU')} in "
        f"{plural(document.nodes or 0, 'node')} today",
        "Growth",
    )
    if growth.at_date is not None:
        at = growth.at_date
        yield Line(f"{growth.until}: {number(at.times)} times the demand, {_held(at)}", " ")
    if growth.next_node is None:
        yield Line("no node is due in twenty years", "Next node")
    else:
        yield Line(
            f"due in {growth.next_node.month}, by whose end the demand takes {_held(growth.next_node)}", "Next node"
        )
    later = growth.additions[1:]
    if later:
        shown = ", ".join(f"{month.month} {month.nodes:,}" for month in later[:MOST_MONTHS_SHOWN])
        rest = f" and {len(later) - MOST_MONTHS_SHOWN} more" if len(later) > MOST_MONTHS_SHOWN else ""
        yield Line(f"nodes by month: {shown}{rest}", " ")


def _held(month: Month) -> str:
    return f"{plural(month.gpus, 'GPU')} in {plural(month.nodes, 'node')}"


def _day(hours: Sequence[Hour]) -> Block:
    """Hours with equal sizes one after the other share a row."""
    rows: list[tuple[str, ...]] = []
    start = 0
    for index, hour in enumerate(hours):
        last = index + 1 == len(hours) or (hours[index + 1].replicas, hours[index + 1].gpus) != (
            hour.replicas,
            hour.gpus,
        )
        if last:
            some = hours[start : index + 1]
            rows.append((f"{some[0].hour}-{some[-1].hour + 1} h", *_span(some)))
            start = index + 1
    return Block(columns=("hours", "requests/s", "replicas", "GPUs"), right=(False, True, True, True), rows=tuple(rows))


def _week(hours: Sequence[Hour]) -> Block:
    rows = []
    for day, name in enumerate(DAYS):
        rows.append((name, *_span(hours[day * HOURS_OF_DAY : (day + 1) * HOURS_OF_DAY])))
    return Block(columns=("day", "requests/s", "replicas", "GPUs"), right=(False, True, True, True), rows=tuple(rows))


def _span(hours: Sequence[Hour]) -> tuple[str, str, str]:
    rates = [hour.requests_per_s for hour in hours if hour.requests_per_s is not None]
    rate = "-" if not rates else _ends(number(min(rates)), number(max(rates)))
    replicas, gpus = [hour.replicas for hour in hours], [hour.gpus for hour in hours]
    return rate, _ends(f"{min(replicas):,}", f"{max(replicas):,}"), _ends(f"{min(gpus):,}", f"{max(gpus):,}")


def _ends(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _cloud(cloud: Cloud) -> Iterator[Line]:
    paid = " paid for" if cloud.provider is not None else ""
    text = f"{plural(cloud.peak_gpus, 'GPU')}{paid} at the peak, {number(cloud.mean_gpus)} on average"
    if cloud.utilisation_mean is not None:
        text += f", the mean load {share(cloud.utilisation_mean)} of what they serve within the limits"
    yield Line(
        f"{text}; {number(cloud.gpu_hours_per_day, 4)} GPU-hours a day, {number(cloud.gpu_hours_per_month, 4)} a month",
        "Cloud" if cloud.provider is None else f"Cloud {cloud.provider}",
    )
    for up in cloud.scale_up:
        parts = f"node {number(up.node_start_s)} s, {number(up.weights_gb)} GB of weights {number(up.load_s)} s, engine {number(up.engine_start_s)} s"
        yield Line(f"{up.workload}: {number(up.total_s)} s until a new replica serves ({parts})", "Scale-up")
    if cloud.share_of_requests_at_risk is not None:
        yield Line(
            f"{cloud.share_of_requests_at_risk * 100:.2g} % of requests come above what is up while replicas load; none where scaling begins that much "
            "earlier",
            "At risk",
        )
    for mix in cloud.mixes:
        spot = f", {number(mix.spot_gpu_hours_per_month)} GPU-hours spot at {money(mix.spot_usd_per_gpu_hour)}"
        yield Line(
            f"{mix.gpu}: {plural(mix.reserved_gpus, 'GPU')} reserved at {money(mix.reserved_usd_per_gpu_hour)}/h, "
            f"{number(mix.on_demand_gpu_hours_per_month)} GPU-hours a month on demand at "
            f"{money(mix.on_demand_usd_per_gpu_hour)}{spot if mix.spot_usd_per_gpu_hour is not None else ''}: "
            f"{rounded_usd(mix.usd_per_month)} a month; all on demand {rounded_usd(mix.usd_per_month_all_on_demand)}, the peak always on "
            f"{rounded_usd(mix.usd_per_month_peak_always_on)}",
            "Mix",
        )
        yield Line("; ".join(dict.fromkeys(mix.sources)), "Prices", style="dim")
