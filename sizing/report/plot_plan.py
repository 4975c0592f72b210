"""A plan as a picture: load and capacity over the hours, and the GPUs that follow them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sizing.formats.pictures import BLACK, BLUE, GREEN, VERMILLION, figure, rendered
from sizing.planning.fleet import Hour
from sizing.report.plan.record import PlanReport
from sizing.report.plan.sections import DAYS
from sizing.specs.demand import HOURS_OF_DAY
from sizing.specs.units import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_INCHES, LOAD_INCHES, GPUS_INCHES = 10.0, 2.8, 2.0
TICK_HOURS = 3


def draw(document: PlanReport, form: str) -> bytes:
    """Draw a plan as svg, png or pdf; without a profile its load is the same all day. Raises InputError without matplotlib."""
    hours = document.hours or _flat(document)
    drawn, (upper, lower) = figure(WIDTH_INCHES, [LOAD_INCHES, GPUS_INCHES])
    edges = [*range(len(hours)), len(hours)]
    _load(upper, hours, edges)
    _gpus(lower, hours, edges, document)
    for axis in (upper, lower):
        axis.set_xlim(0, len(hours))
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", linewidth=0.4, alpha=0.5)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, ncols=3)
        _hour_ticks(axis, len(hours))
    drawn.suptitle(f"Load and capacity of {printable(_name(document))}", x=0.01, ha="left")
    return rendered(drawn, form)


def _name(document: PlanReport) -> str:
    return str(document.inputs.get("fleet") or document.inputs.get("workload") or document.workloads[0].name)


def _flat(document: PlanReport) -> tuple[Hour, ...]:
    """Return a day of the same load and size."""
    one = document.workloads[0]
    known = len(document.workloads) == 1 and one.demand_unit == "requests/s"
    served = one.replicas * one.most_per_replica if known else None
    hour = Hour(0, document.peak_requests_per_s, document.replicas or 0, document.gpus or 0, served)
    return tuple(hour._replace(hour=index) for index in range(HOURS_OF_DAY))


def _load(axis: Axes, hours: Sequence[Hour], edges: list[int]) -> None:
    """Requests/s asked for, and of a single workload what the replicas of each hour serve."""
    rates = [hour.requests_per_s or 0.0 for hour in hours]
    axis.stairs(rates, edges, fill=True, color=BLUE, alpha=0.35, label="load")
    axis.stairs(rates, edges, color=BLUE, linewidth=1.2)
    served = [hour.capacity_requests_per_s for hour in hours if hour.capacity_requests_per_s is not None]
    if len(served) == len(hours):
        label = "replicas that follow the load serve"
        axis.stairs(served, edges, color=VERMILLION, linewidth=1.6, linestyle="--", label=label, baseline=None)
        axis.axhline(max(served), color=BLACK, linewidth=1.0, linestyle=":", label="all replicas serve")
    axis.set_ylabel("requests/s")


def _gpus(axis: Axes, hours: Sequence[Hour], edges: list[int], document: PlanReport) -> None:
    """GPUs that follow the load, their mean, and those of whole nodes for the peak."""
    from matplotlib.ticker import MaxNLocator

    gpus = [hour.gpus for hour in hours]
    label = "GPUs that follow the load"
    axis.stairs(gpus, edges, color=VERMILLION, linewidth=1.6, linestyle="--", label=label, baseline=None)
    mean = sum(gpus) / len(gpus)
    axis.axhline(mean, color=GREEN, linewidth=1.2, linestyle="-.", label=f"their mean, {mean:,.1f}")
    installed = document.installed_gpus or 0
    axis.axhline(installed, color=BLACK, linewidth=1.0, linestyle=":", label=f"whole nodes for the peak, {installed:,}")
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylabel("GPUs")
    axis.set_xlabel("hour of the day" if len(hours) == HOURS_OF_DAY else "day of the week")


def _hour_ticks(axis: Axes, hours: int) -> None:
    if hours == HOURS_OF_DAY:
        axis.set_xticks(range(0, hours + 1, TICK_HOURS))
        return
    axis.set_xticks(range(0, hours + 1, HOURS_OF_DAY), labels=[])
    axis.set_xticks([day * HOURS_OF_DAY + HOURS_OF_DAY / 2 for day in range(len(DAYS))], labels=DAYS, minor=True)
    axis.tick_params(axis="x", which="minor", length=0)
