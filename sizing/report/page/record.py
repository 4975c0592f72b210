"""The record of `llmsize report`."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

from sizing.answers.answer import Answer, Outcome, Suggestion
from sizing.answers.brief import ReportBasis
from sizing.answers.curve_lines import LineByRate
from sizing.answers.whatif import Effect
from sizing.formats.view import filled
from sizing.model.architecture import Layout
from sizing.report import compare, estimate
from sizing.report.compare import Compare
from sizing.report.cost import CostReport
from sizing.report.curve import record as curve_record
from sizing.report.curve.record import CurveRecord
from sizing.report.estimate import Estimate
from sizing.report.parts.figures import a_month
from sizing.report.parts.layouts import figures_by_name
from sizing.report.parts.pools import UNSERVED, limit_and_reason
from sizing.report.plan.record import PlanReport
from sizing.specs.units import MONTHS_PER_YEAR, Statistics
from sizing.specs.workload import LATENCIES


class ChangedInput(NamedTuple):
    """One input changed by `share` to `value`, and the new answer, sized like the original. Null without an answer."""

    what: str
    share: float
    value: float
    unit: str
    feasible: bool
    gpu: str | None
    weight_precision: str | None
    gpus: int | None
    extra_gpus: int | None
    layout: str | None
    requests_per_s: float | None
    usd_per_hour: float | None
    usd_per_month: float | None
    reason: str | None


def changed_input(effect: Effect, now: Answer | None) -> ChangedInput:
    """The record of an input's effect on the answer; `now` is the answer without the change."""
    change, outcome = effect
    best = None if outcome is None else outcome.answer
    nothing: dict[str, object] = dict.fromkeys(ChangedInput._fields)  # without an answer
    changed = nothing if best is None or outcome is None else figures_by_name(best, outcome.question)
    return filled(
        ChangedInput,
        change,
        changed,
        feasible=best is not None,
        extra_gpus=best.gpus - now.gpus if best and now else None,
        reason=change.reason if outcome is None else limit_and_reason(outcome)[1] if best is None else None,
    )


class RatePoint(NamedTuple):
    """One replica under Poisson arrivals at a rate. `share_of_stable` is the rate divided by the highest stable rate.

    `is_answer` marks the load of the answer's replicas.
    """

    requests_per_s_per_replica: float | None
    requests_per_s_per_gpu: float | None
    requests_per_s_per_8_gpus: float | None
    share_of_stable: float
    in_flight: float
    ttft_ms: Statistics
    itl_ms: Statistics
    e2e_ms: Statistics
    feasible: bool
    is_answer: bool


class RateLine(NamedTuple):
    """A layout with its points by rate; `gpus` are the GPUs of one replica."""

    gpu: str
    weight_precision: str
    sizes: Layout
    gpus: int
    points: tuple[RatePoint, ...]


class Decision(NamedTuple):
    """The answer, of separate pools where they are asked for, in a few figures. It is feasible if the plan that is asked for is, too. Money is around the clock, null without an answer or a price; `sure`, it is of the sure GPUs.

    `used` is the binding latency divided by its limit, null if no latency binds. `change` is for an infeasible question: the
    single change that helps with the fewest GPUs, of each limit its tightest value that helps; null if none was found.
    """

    feasible: bool
    gpus: int | None
    usd_per_month: float | None
    usd_per_year: float | None
    limit: str
    used: float | None
    change: Suggestion | None
    usd_per_month_sure: float | None = None
    usd_per_year_sure: float | None = None
    gpu: str | None = None


class Report(NamedTuple):
    """The record of `llmsize report`, `written` on a day. `simulated` says whether a simulation confirmed each size in it.

    `rates` are latencies by rate, for a demand with Poisson arrivals. `curve` is the record of the `curve` command, for a demand
    of requests in flight and for offline work. `comparison` is the record of `compare`, null for a single candidate or without a
    demand. `plan` and `cost` are the records of their commands, null if not asked for.
    """

    title: str
    command: str
    written: str
    simulated: bool
    decision: Decision
    estimate: Estimate
    sensitivity: tuple[ChangedInput, ...]
    rates: tuple[RateLine, ...]
    curve: CurveRecord | None
    comparison: Compare | None
    plan: PlanReport | None = None
    cost: CostReport | None = None
    schema: str = "llmsize.report/1"


def record(
    brief: ReportBasis, command: str, written: date, *, plan: PlanReport | None = None, cost: CostReport | None = None
) -> Report:
    """The record of a brief; `command` repeats it."""
    question, answered, loaded = brief.question, estimate.record(brief.outcome), brief.loaded
    decision = _decision(answered, brief.outcome)
    if plan is not None and not plan.feasible:
        decision = decision._replace(feasible=False)
    now = (brief.outcome.one_pool if question.space.pools is None else None) or brief.outcome
    i = answered.inputs
    return Report(
        title=f"GPU sizing of {i.workload or i.model}",
        command=command,
        written=written.isoformat(),
        simulated=brief.simulated,
        decision=decision,
        estimate=answered,
        sensitivity=tuple(changed_input(effect, now.answer) for effect in brief.effects),
        rates=tuple(map(rate_line, brief.rates)),
        curve=None if loaded is None else curve_record.record(loaded.curve, loaded.question, loaded.grid),
        comparison=compare.record(brief.compared, question, question.rules.objective) if brief.compared else None,
        plan=plan,
        cost=cost,
    )


def _decision(answered: Estimate, outcome: Outcome) -> Decision:
    """The decision on an estimate of one pool or of separate pools."""
    helps = [change for change in outcome.hints.suggestions if not answered.feasible and not change.looser]
    month = None if answered.cost is None else a_month(answered.cost.usd_per_hour)
    surely = outcome.by_runs.sure_answer
    sure = None if surely is None or surely.usd_per_hour is None else a_month(surely.usd_per_hour)
    limit, used = _tightest(answered)
    best = outcome.answer
    return Decision(
        feasible=answered.feasible,
        gpus=None if best is None else best.gpus,
        usd_per_month=month,
        usd_per_year=None if month is None else month * MONTHS_PER_YEAR,
        limit=limit,
        used=used,
        change=min(helps, key=lambda change: change.gpus, default=None),
        usd_per_month_sure=sure,
        usd_per_year_sure=None if sure is None else sure * MONTHS_PER_YEAR,
        gpu=None if best is None else " + ".join(dict.fromkeys(pool.replica.gpu_type.name for pool in best.pools)),
    )


def _tightest(answered: Estimate) -> tuple[str, float | None]:
    """The binding limit and the share of it that is used.

    Of separate pools it is the limit with the largest share; without an answer it is `pools`.
    """
    limiting, found = answered.limiting, answered.disaggregated
    if found is None:
        value, limit = limiting.value_ms, limiting.limit_ms
        return limiting.limit, None if value is None or limit is None else value / limit
    used = {
        name.removesuffix("_ms"): getattr(statistics, limit.statistic) / limit.ms
        for name, limit in answered.inputs.limits.items()
        if limit is not None and (statistics := getattr(found, name)) is not None
    }
    return max(used.items(), key=lambda each: each[1], default=(UNSERVED, None))


def rate_line(found: LineByRate) -> RateLine:
    """The record of a line by rate. Its chosen point is the load of the answer."""
    line, layout = found.line, found.line.layout
    assert layout is not None and line.gpus is not None
    points = [
        filled(
            RatePoint,
            point,
            requests_per_s_per_replica=point.requests_per_s,
            share_of_stable=share,
            in_flight=point.concurrency,
            **{f"{name}_ms": getattr(point.latency_ms, name) for name in LATENCIES},
            is_answer=point.chosen,
        )
        for share, point in zip(found.shares, line.points, strict=True)
    ]
    return filled(RateLine, line, sizes=layout, points=tuple(points))
