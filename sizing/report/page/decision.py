"""The decision of a page: the verdict, its figures or the figures of the plan that is asked for, what would change it, and the cost by GPU type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sizing.formats.page import BarChart, Cell, PageVerdict, Tile, Tiles, bar_chart, figure
from sizing.formats.view import Facts, Line, Prose
from sizing.formats.words import milliseconds, money, number, of_limit, percent, plural, rounded_usd
from sizing.report import estimate as answers
from sizing.report import plan
from sizing.report.estimate import Estimate
from sizing.report.page.record import ChangedInput, Report
from sizing.report.parts.figures import a_month
from sizing.report.parts.limiting import limit_words
from sizing.report.parts.screen import PRICE, counted_runs
from sizing.report.plan import reserve_words
from sizing.report.plan_record import PlanReport

FULL = 0.9  # share of a limit above which a figure is near it
LOWER, HIGHER = "20 % lower", "20 % higher"


def verdict(report: Report) -> PageVerdict:
    """The decision in the words of the plan that is asked for, else of the estimate; of what is infeasible also the one change that helps."""
    d, estimate = report.decision, report.estimate
    planned = report.plan is not None and estimate.feasible
    first = next(plan.sections(report.plan) if planned and report.plan else answers.sections(estimate))
    shown = first.lines if isinstance(first, Facts) else ()
    lines = [line.text for line in shown[:1]]
    if d.change is not None:
        then = f"{d.change.gpus} x {d.change.gpu} ({d.change.layout})"
        lines.append(f"Of the smallest changes that help, {d.change.change} takes the fewest GPUs: {then}.")
    elif not estimate.feasible and estimate.disaggregated is None:
        lines.append("No single change that was tried helps.")
    title = first.title.removeprefix("Infeasible: ")
    said = f"Yes: {title}" if d.feasible else f"No: {title[:1].lower()}{title[1:]}"
    return PageVerdict(d.feasible, said, tuple(lines))


def tiles(report: Report) -> Tiles:
    """The figures of the decision."""
    if report.plan is not None and report.plan.gpus is not None and report.estimate.disaggregated is None:
        return Tiles(tuple(_of_plan(report, report.plan)))
    if report.decision.feasible:
        return Tiles(tuple(_served(report)))
    return Tiles(() if report.estimate.disaggregated is not None else tuple(_unserved(report)))


def _served(report: Report) -> Iterator[Tile]:
    """Yield the GPUs, their cost, what each of separate pools serves, the tightest limit, and the sure GPUs, known of one pool alone."""
    d, cost, found = report.decision, report.estimate.cost, report.estimate.disaggregated
    yield Tile("GPUs", figure(report, "/decision/gpus", "{:,}".format), d.gpu or "")
    note = "no price is known" if d.usd_per_year is None else f"{rounded_usd(d.usd_per_year)} a year"
    if found is None and cost is not None and cost.usd_per_gpu_hour is not None:
        note += f" at {money(cost.usd_per_gpu_hour)} a GPU-hour: {price_of(report.estimate)}"
    yield Tile("Cost a month", figure(report, "/decision/usd_per_month", rounded_usd), note)
    for name, pool in () if found is None else (("prefill", found.prefill), ("decode", found.decode)):
        if pool is not None:
            gpus, at = plural(pool.gpus, "GPU"), f"/estimate/disaggregated/{name}/most_requests_per_s"
            most = figure(report, at, number)
            yield Tile(f"Most requests/s of {name}", most, f"{gpus} = {pool.replicas} x {pool.sizes}, {pool.gpu}")
    if found is None:
        yield _binding(report)
    elif d.used is not None:
        yield _tightest(report, "used", "")
    yield from _sure(report)


def _binding(report: Report) -> Tile:
    d, limit = report.decision, report.estimate.limiting
    detail = f"{milliseconds(limit.value_ms)} of {milliseconds(limit.limit_ms)}, {limit.statistic}"
    return _tightest(report, "used", detail if d.used is not None else limit.detail.partition(":")[0])


def _of_plan(report: Report, plan: PlanReport) -> Iterator[Tile]:
    """Yield the figures of a plan: its GPUs with their reserve, the GPUs after growth, the cost, and the sure number."""
    growth = plan.growth
    then = None if growth is None else growth.at_date
    reserve = f"; {reserve_words(plan.workloads[0])}" if len(plan.workloads) == 1 else ""
    types = ", ".join(dict.fromkeys(pool.gpu for pool in plan.pools))
    gpus = figure(report, "/plan/gpus", "{:,}".format)
    yield Tile("GPUs" if then is None else "GPUs now", gpus, f"{types}{reserve}", "" if plan.feasible else "bad")
    cost = "around the clock"
    if growth is not None and then is not None:
        sure = f", {then.gpus_sure:,} to be sure" if (then.gpus_sure or 0) > then.gpus else ""
        note = f"{number(then.times)} times the demand, {plural(then.nodes, 'node')}{sure}"
        day = (growth.until or "").replace("-", "\N{NON-BREAKING HYPHEN}")
        yield Tile(f"GPUs by {day}", figure(report, "/plan/growth/at_date/gpus", "{:,}".format), note)
        if growth.usd_of_last_month is not None:
            cost = f"now; {rounded_usd(growth.usd_of_last_month)} in the last month, {rounded_usd(growth.usd_in_all)} in all until {growth.until}"
    price = price_of(report.estimate)
    note = f"{cost}{price and ': '}{price}" if plan.usd_per_month is not None else "no price is known"
    yield Tile("Cost a month", figure(report, "/plan/usd_per_month", rounded_usd), note)
    yield _binding(report)
    if plan.confidence is not None:
        known = plan.gpus_sure is not None
        sure_of = figure(report, "/plan/gpus_sure", "{:,}".format) if known else Cell("not known")
        evidence = plan.workloads[0].evidence
        why = "" if evidence is None or known else evidence.why_not or ""
        yield Tile(f"GPUs to be {percent(plan.confidence)} sure", sure_of, f"now, reserve included{why and ': '}{why}")


def _sure(report: Report) -> Iterator[Tile]:
    """Yield the GPUs that keep the limits in most similar published runs, or why no number is known."""
    evidence, deployment, confidence = report.estimate.evidence, report.estimate.deployment, report.estimate.confidence
    if evidence is None or deployment is None or confidence is None:
        return
    label = f"GPUs to be {percent(confidence)} sure"
    if deployment.gpus_sure is None:
        yield Tile(label, Cell("not known"), evidence.why_not or "")
        return
    gpus, chance, share = deployment.gpus, "", confidence
    if evidence.chance is not None and deployment.gpus_sure > gpus:
        chance = f"; {gpus:,} {'is' if gpus == 1 else 'are'} enough in {percent(evidence.chance)}"
    elif evidence.chance is not None:
        share = max(confidence, evidence.chance)
    runs = counted_runs(evidence.groups, evidence.own, any_gpu=evidence.any_gpu)
    d, usd = report.decision, ""
    if d.usd_per_month_sure is not None:
        usd = f"{rounded_usd(d.usd_per_month_sure)} a month, {rounded_usd(d.usd_per_year_sure)} a year; "
    note = f"{usd}enough in {percent(share)} of {runs}{chance}"
    yield Tile(label, figure(report, "/estimate/deployment/gpus_sure", "{:,}".format), note)


def _unserved(report: Report) -> Iterator[Tile]:
    yield _tightest(report, "needed", "" if report.decision.used is None else report.estimate.limiting.detail)
    change = report.decision.change
    if change is not None:
        gpus = figure(report, "/decision/change/gpus", "{:,}".format)
        yield Tile("The change that helps", Cell(change.change), style="good")
        yield Tile("GPUs then", gpus, f"{change.gpu}, {change.layout}")


def _tightest(report: Report, takes: str, detail: str) -> Tile:
    single = report.estimate.inputs.osl <= 1
    name, used = limit_words(report.decision.limit, single=single), report.decision.used
    if used is None:
        return Tile("Tightest limit", Cell(name), detail)
    style = "bad" if used > 1 else "tight" if used > FULL else ""
    return Tile(
        f"Tightest limit: {name}",
        figure(report, "/decision/used", of_limit),
        f"of the limit is {takes}{detail and ': '}{detail}",
        style,
    )


def price_of(estimate: Estimate) -> str:
    """The offer and the date of a price, and which of several prices it is, in the words of the assumption; empty without one."""
    source = "" if estimate.cost is None else estimate.cost.price_source or ""
    note = next((a.note for a in estimate.assumptions if a.what == PRICE and a.note), "")
    offer = source.partition(";")[0]
    return f"{offer} ({note})" if offer and note else offer


def changes(report: Report) -> Iterator[BarChart | Prose]:
    """Yield the effect of each input 20 % lower and higher, the largest first; in $ a month, or in GPUs without prices.

    Where no input has an effect, it is said in place of a chart.
    """
    by_input: dict[str, dict[bool, ChangedInput]] = {}
    for one in report.sensitivity:
        by_input.setdefault(one.what, {})[one.share > 0] = one
    month, gpus, gpu = report.decision.usd_per_month, report.decision.gpus, report.decision.gpu
    if gpus is None or gpu is None or not by_input:
        return
    priced = month is not None and all(one.usd_per_month is not None for one in report.sensitivity if one.feasible)

    def effect(one: ChangedInput) -> float | None:
        if not one.feasible:
            return None
        return (one.usd_per_month or 0.0) - (month or 0.0) if priced else float(one.extra_gpus or 0)

    def row(name: str, pair: dict[bool, ChangedInput]) -> tuple[str, Sequence[tuple[str, float]], str]:
        ordered = [pair[key] for key in (False, True) if key in pair]
        bars = [(_said(one, gpu), effect(one) or 0.0) for one in ordered]
        return name, bars, "; ".join(text for text, _ in bars)

    rows = [row(name, pair) for name, pair in by_input.items()]
    refused = [f"{one.what} {_share(one)}" for one in report.sensitivity if not one.feasible]
    rows.sort(key=lambda found: -max(abs(value) for _, value in found[1]))
    now = f"{rounded_usd(month)} a month" if priced and month is not None else plural(gpus, "GPU")
    if not any(value for _, bars, _ in rows for _, value in bars):
        other = f"No {'other ' * bool(refused)}change of an input by 20 % changes the answer, {now}."
        yield Prose((Line(f"Not feasible: {', '.join(refused)}. {other}" if refused else other),))
        return
    yield bar_chart(f"Change from {now} (the line), with one input 20 % lower or higher", rows, (LOWER, HIGHER))


def _share(one: ChangedInput) -> str:
    return f"{one.share * 100:+.0f} %".replace("-", "\N{MINUS SIGN}")


def _said(one: ChangedInput, gpu: str) -> str:
    share = _share(one)
    if not one.feasible or one.gpus is None:
        return f"{share}: not feasible"
    count = plural(one.gpus, "GPU") if one.gpu == gpu else f"{one.gpus} x {one.gpu}"
    usd = "" if one.usd_per_month is None else f", {rounded_usd(one.usd_per_month)} a month"
    return f"{share}: {count}{usd}"


def cost_by_gpu(report: Report) -> Iterator[BarChart]:
    """Yield the cost in $ a month of each GPU type and precision that serves the demand, the cheapest first."""
    found = report.comparison.candidates if report.comparison is not None else ()
    months = ((a_month(one.usd_per_hour), one) for one in found if one.feasible)
    priced = sorted(((month, one) for month, one in months if month is not None), key=lambda each: each[0])
    if len(priced) < 2:
        return
    rows = []
    for month, one in priced:
        usd, name = rounded_usd(month), f"{one.gpu}, {one.weight_precision.upper()}"
        rows.append((name, ((usd, month),), f"{usd} a month, {plural(one.gpus or 0, 'GPU')}"))
    yield bar_chart("$ a month of each GPU type, around the clock", rows)
