"""`llmsize plan` for the terminal: the answer in words, how it came about, then what comes over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sizing.report import table_plan_time
from sizing.report.documents_plan import Availability, Move, Plan, PoolPlan, Uncertainty, WorkloadPlan
from sizing.report.footnotes import assumed
from sizing.report.lines import Block, Line, milliseconds, money, number, percent, plural, rounded_usd, stated
from sizing.report.table_demand import steps_line
from sizing.report.table_layouts import layout


def blocks(document: Plan) -> Iterator[Block]:
    """Yield the blocks of a plan."""
    if document.gpus is None:
        yield Block((Line("Infeasible: no plan, as no layout meets the demand within the limits", style="bold"),))
        nearest = tuple(Line(text, "Nearest" if index == 0 else " ") for index, text in enumerate(document.problems))
        yield Block((*nearest, Line("llmsize estimate of the same workload says which changes would help", "Help")))
        return
    yield Block(tuple(_answer(document)))
    if document.fleet is None:
        yield Block(tuple(_of_one(document, document.workloads[0])))
    else:
        yield _workloads(document.workloads)
        yield Block(tuple(_of_fleet(document)))
    yield Block(tuple(line for one in document.availability for line in _available(one, single=document.fleet is None)))
    yield from table_plan_time.blocks(document)
    yield from _moves(document.moves)
    if document.uncertainty is not None:
        yield from _uncertainty(document.uncertainty)
    yield assumed(document.assumptions, sources=False)


def _answer(document: Plan) -> Iterator[Line]:
    """The answer in words: GPUs, what they serve, with which reserve; nodes and money."""
    gpus = " and ".join(_by_type(document.pools))
    name = document.inputs.get("fleet") or document.inputs.get("workload")
    served = f" serve {name}" if name else " serve the demand"
    peak = f"{number(document.peak_requests_per_s)} requests/s at the peak"
    verdict = "" if document.feasible else "Over budget: "
    yield Line(f"{verdict}{gpus}{served}: {peak}{_reserved(document.workloads)}", style="bold")
    for problem in document.problems:
        yield Line(problem)
    in_nodes = f"{plural(document.nodes or 0, 'whole node')} ({plural(document.installed_gpus or 0, 'GPU')})"
    text = f"On-premises {in_nodes}"
    if document.utilisation_mean is not None:
        text += f"; the mean load keeps {percent(document.utilisation_mean)} of the GPUs asked for busy"
    yield Line(text)
    if document.usd_per_month is not None:
        follows = document.inputs["cloud"] is not None
        how = "following the load, with a reserved base" if follows else "if rented around the clock"
        yield Line(f"{rounded_usd(document.usd_per_month)} a month, {how}")


def _by_type(pools: Sequence[PoolPlan]) -> Iterator[str]:
    for gpu in dict.fromkeys(pool.gpu for pool in pools):
        yield f"{sum(pool.gpus for pool in pools if pool.gpu == gpu):,} x {gpu}"


def _reserved(workloads: Sequence[WorkloadPlan]) -> str:
    """Write the reserve of a single workload; those of a fleet stand in its table."""
    if len(workloads) > 1:
        return ""
    reserve = workloads[0].reserve
    if not reserve.replicas:
        return ", no reserve"
    failures = max(reserve.spare, reserve.for_availability)
    parts = [f"{failures:,} spare"] if failures else []
    if reserve.maintenance:
        parts.append(f"{reserve.maintenance:,} for maintenance")
    return f", {' and '.join(parts)} of {plural(workloads[0].replicas, 'replica')}"


def _of_one(document: Plan, one: WorkloadPlan) -> Iterator[Line]:
    """How the size of one workload came about, rounded up once to replicas and once to nodes."""
    yield Line(
        f"{one.model}, {one.weight_precision.upper()} weights, {layout(one.tp, one.pp, one.ep, one.dp)}", "Model"
    )
    told = steps_line(one.demand, always=True)
    if told is not None:
        yield told
    yield Line(_size(one), "Size")
    held = (
        f"{plural(one.replicas_per_node, 'replica')} a node"
        if one.replicas_per_node
        else "a replica spans several nodes"
    )
    yield Line(
        f"{plural(one.gpus, 'GPU')} = {plural(one.nodes, 'node')} of {one.gpus_per_node} GPUs, {held}, rounded up to whole nodes",
        "Nodes",
    )
    users = document.users
    if users is not None and (users.stated or document.inputs["workloads"][one.name]["mode"] != "offline"):
        said = "daily active users" if users.stated else "daily active users would make this peak"
        yield Line(
            f"{number(users.daily_active_users, 4)} {said} ({users.requests_per_user_per_day:g} requests each a day, "
            f"{users.active_hours:g} h window, peak {stated(users.peak_to_mean)} x mean)",
            "Users",
        )
    if one.usd_per_gpu_hour is not None:
        yield Line(f"{money(one.usd_per_gpu_hour)} per GPU-hour: {one.price_source}", "Price")
    checked = {True: "confirmed by simulation", None: "not simulated (--no-verify)", False: "not confirmed"}[
        one.verified
    ]
    times = (("TTFT", one.latency.ttft_ms), ("ITL", one.latency.itl_ms), ("E2E", one.latency.e2e_ms))
    told_ms = [
        f"{name} {milliseconds(spread.mean)} (p95 {milliseconds(spread.p95)})" for name, spread in times if spread.mean
    ]
    yield Line(f"{', '.join(told_ms)} on the replicas for the peak", "Latency")
    yield Line(f"the peak's {plural(one.base_replicas, 'replica')} {checked}, as by llmsize estimate", "Checked")


def _size(one: WorkloadPlan) -> str:
    needed = one.demand_at_peak * (1 + one.headroom) / one.most_per_replica
    headroom = f" x {1 + one.headroom:g}" if one.headroom else ""
    unit = one.demand_unit
    text = (
        f"{number(one.demand_at_peak, 4)} {unit}{headroom} / {number(one.most_per_replica, 4)} a replica = "
        f"{needed:,.2f}, rounded up to {plural(one.base_replicas, 'replica')}"
    )
    reserve = one.reserve
    if reserve.for_availability > reserve.spare:
        text += f" + {reserve.for_availability} for availability"
    elif reserve.spare:
        text += f" + {reserve.spare} spare"
    if reserve.maintenance:
        text += f" + {reserve.maintenance} for maintenance"
    return f"{text} = {one.replicas:,} x {plural(one.gpus_per_replica, 'GPU')} = {plural(one.gpus, 'GPU')}"


def _workloads(found: Sequence[WorkloadPlan]) -> Block:
    rows = tuple(
        (
            one.name,
            one.gpu,
            layout(one.tp, one.pp, one.ep, one.dp),
            number(one.peak_requests_per_s),
            f"{one.base_replicas:,}",
            f"{one.reserve.replicas:,}",
            f"{one.gpus:,}",
        )
        for one in found
    )
    columns = ("workload", "GPU", "layout", "peak req/s", "replicas", "reserve", "GPUs")
    return Block(columns=columns, right=(False, False, False, True, True, True, True), rows=rows)


def _of_fleet(document: Plan) -> Iterator[Line]:
    fleet = document.fleet
    assert fleet is not None
    if fleet.sum_of_peaks_requests_per_s is not None:
        yield Line(
            f"sum of the peaks {number(fleet.sum_of_peaks_requests_per_s)} requests/s, peak of the sum "
            f"{number(fleet.peak_of_sums_requests_per_s)}",
            "Together",
        )
    saved = fleet.sum_of_peaks_gpus - fleet.peak_of_sums_gpus
    yield Line(
        f"{plural(fleet.sum_of_peaks_gpus, 'GPU')} with each sized for its own peak, {fleet.peak_of_sums_gpus:,} as pooled "
        f"({saved:,} fewer)",
        "GPUs",
    )
    for pool in document.pools:
        yield Line(
            f"{pool.gpus:,} x {pool.gpu} = {plural(pool.nodes, 'node')} of {pool.gpus_per_node} for "
            f"{', '.join(pool.workloads)} ({pool.pool})",
            "Pool",
        )
    for one in document.workloads:
        told = steps_line(one.demand, always=True)
        if told is not None:
            yield told._replace(text=f"{one.name}: {told.text}")


def _available(one: Availability, *, single: bool) -> Iterator[Line]:
    name = "" if single else f"{one.workload}: "
    target = f", target {_nines(one.target)}" if one.target is not None else ""
    yield Line(
        f"{name}{_nines(one.achieved)} of the time at least {one.replicas_needed:,} of {one.replicas_for_failures:,} replicas "
        f"are up, each by itself with nodes of {_nines(one.node_availability)}{target}",
        "Availability",
    )
    if one.achieved_by_node < one.achieved:
        more = ""
        if one.replicas_for_target_by_node is not None and one.replicas_for_target_by_node > one.replicas_for_failures:
            more = f"; {one.replicas_for_target_by_node:,} replicas keep the target then (--failures node)"
        yield Line(f"{_nines(one.achieved_by_node)} where a node takes all its replicas with it{more}", " ")


def _nines(share: float) -> str:
    """Write a probability to the second digit of what is missing: 99.85 %."""
    if share >= 1:
        return "100 %"
    digits = 0
    while digits < 9 and (1 - share) * 100 * 10**digits < 9.5:
        digits += 1
    return f"{share * 100:.{digits}f} %"


def _moves(moves: Sequence[Move]) -> Iterator[Block]:
    rows = []
    for move in moves:
        change = "-"
        if move.usd_per_month is not None and move.usd_per_month_now is not None:
            sign = "+" if move.usd_per_month >= move.usd_per_month_now else "-"
            change = f"{sign}{rounded_usd(abs(move.usd_per_month - move.usd_per_month_now))}"
        rows.append(
            (
                move.workload,
                move.gpu_to,
                move.detail,
                *("-" if value is None else f"{value:,}" for value in (move.workload_gpus, move.gpus, move.nodes)),
                change,
            )
        )
    yield Block(
        columns=("moved", "to GPU", "then", "its GPUs", "all GPUs", "all nodes", "$ a month"),
        right=(False, False, False, True, True, True, True),
        rows=tuple(rows),
    )


def _uncertainty(found: Uncertainty) -> Iterator[Block]:
    lines = [
        Line(
            f"{found.gpus.p10:,.0f}, {found.gpus.p50:,.0f} and {found.gpus.p90:,.0f} at P10, P50 and P90 of {found.draws:,} draws "
            f"(seed {found.seed})",
            "GPUs",
        )
    ]
    if found.usd_per_month is not None:
        usd = found.usd_per_month
        lines.append(
            Line(
                f"{rounded_usd(usd.p10)}, {rounded_usd(usd.p50)} and {rounded_usd(usd.p90)} a month around the clock",
                "Cost",
            )
        )
    for index, one in enumerate(found.influences):
        lines.append(
            Line(
                f"{one.input}: rank correlation {one.rank_correlation:+.2f} with {one.of} ({one.distribution})",
                "Matters most" if index == 0 else " ",
            )
        )
    if found.certain:
        lines.append(Line("; ".join(found.certain), "Held certain"))
    yield Block(tuple(lines))
