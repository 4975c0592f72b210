"""`llmsize plan` for the terminal: the answer in words, how it came about, then what comes over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sizing.formats.text import Block, blocks_of
from sizing.formats.view import Line, labelled
from sizing.formats.words import milliseconds, money, number, plural, rounded_usd, stated
from sizing.report import table_plan_sure, table_plan_time
from sizing.report.parts.assumptions import assumed
from sizing.report.parts.layouts import layout
from sizing.report.parts.question import steps_line
from sizing.report.plan import PlanReport, PoolPlan, WorkloadPlan
from sizing.report.table_plan_time import share

NO_HELP = ("no single change that was tried",)


def blocks(document: PlanReport) -> Iterator[Block]:
    """Yield the blocks of a plan."""
    if document.gpus is None:
        yield Block((Line("Infeasible: no plan meets what is asked", style="bold"),))
        yield Block((*labelled("Nearest", document.problems), *labelled("Would help", document.suggestions or NO_HELP)))
        return
    yield Block(tuple(_answer(document)))
    if document.fleet is None:
        yield Block(tuple(_of_one(document, document.workloads[0])))
    else:
        yield _workloads(document.workloads)
        yield Block(tuple(_of_fleet(document)))
    by_node = document.inputs["failures"] == "node"
    single = document.fleet is None
    yield Block(
        tuple(
            line
            for one in document.availability
            for line in table_plan_sure.available(one, single=single, by_node=by_node)
        )
    )
    yield from table_plan_time.blocks(document)
    yield from table_plan_sure.moves(document.moves)
    if document.uncertainty is not None:
        yield from table_plan_sure.uncertainty(document.uncertainty)
    yield from blocks_of(assumed(document.assumptions, sources=False))


def _answer(document: PlanReport) -> Iterator[Line]:
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
        text += (
            f"; the mean load is {share(document.utilisation_mean)} of what the GPUs asked for serve within the limits"
        )
    yield Line(text)
    if document.usd_per_month is not None:
        yield Line(f"{rounded_usd(document.usd_per_month)} a month, {_how_paid(document)}")


def _how_paid(document: PlanReport) -> str:
    """Write how the GPUs of the month's cost are rented: by the GPU, or in whole instances of a provider's."""
    cloud = document.cloud
    if cloud is None or cloud.provider is None:
        return "if rented on demand around the clock"
    whole = " and ".join(
        f"{plural(mix.peak_instances, 'whole instance')} of {plural(mix.gpus_per_instance, 'GPU')} ({mix.sku})"
        for mix in cloud.mixes
        if mix.peak_instances is not None and mix.gpus_per_instance is not None
    )
    if not document.hours:
        return f"on demand around the clock: {whole}"
    return f"following the load, with a reserved base: {whole} at the peak"


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


def _of_one(document: PlanReport, one: WorkloadPlan) -> Iterator[Line]:
    """How the size of one workload came about, rounded up once to replicas and once to nodes."""
    yield Line(f"{one.model}, {one.weight_precision.upper()} weights, {layout(one)}", "Model")
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
            layout(one),
            number(one.peak_requests_per_s),
            f"{one.base_replicas:,}",
            f"{one.reserve.replicas:,}",
            f"{one.gpus:,}",
        )
        for one in found
    )
    columns = ("workload alone", "GPU", "layout", "peak req/s", "replicas", "reserve", "GPUs")
    return Block(columns=columns, right=(False, False, False, True, True, True, True), rows=rows)


def _of_fleet(document: PlanReport) -> Iterator[Line]:
    fleet = document.fleet
    assert fleet is not None
    if fleet.sum_of_peaks_requests_per_s is not None:
        yield Line(
            f"sum of the peaks {number(fleet.sum_of_peaks_requests_per_s)} requests/s, peak of the sum "
            f"{number(fleet.peak_of_sums_requests_per_s)}",
            "Together",
        )
    yield Line(
        f"{plural(fleet.sum_of_peaks_gpus, 'GPU')} with each sized for its own peak, {fleet.peak_of_sums_gpus:,} as pooled "
        f"({_fewer(document)})",
        "GPUs",
    )
    for pool in document.pools:
        reserve = ""
        if pool.reserve_gpus:
            for_all = " for all of them together" if len(pool.workloads) > 1 else ""
            reserve = f", {plural(pool.reserve_gpus, 'GPU')} of them in reserve{for_all}"
        yield Line(
            f"{pool.gpus:,} x {pool.gpu} = {plural(pool.nodes, 'node')} of {pool.gpus_per_node} for "
            f"{', '.join(pool.workloads)} ({pool.pool}){reserve}",
            "Pool",
        )
    for one in document.workloads:
        told = steps_line(one.demand, always=True)
        if told is not None:
            yield told._replace(text=f"{one.name}: {told.text}")
        elif one.demand["kind"] is not None:
            yield Line(f"{one.name}: {number(one.demand_at_peak)} {one.demand_unit} (as stated)", "Demand")


def _fewer(document: PlanReport) -> str:
    """Write what pooling saves, and of what: a reserve that is shared stands in for one workload at a time."""
    saved = sum(pool.gpus_sum_of_peaks - pool.gpus for pool in document.pools)
    of_reserve = sum(pool.reserve_gpus_apart - pool.reserve_gpus for pool in document.pools)
    if not of_reserve:
        return f"{saved:,} fewer"
    return (
        f"{saved:,} fewer: {saved - of_reserve:,} as peaks come at different hours, {of_reserve:,} as the reserve is one for "
        "all, which stands in for one workload at a time"
    )
