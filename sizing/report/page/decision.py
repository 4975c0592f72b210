"""The decision of a page: the verdict, the figures of the answer or the plan, what would change it, and the cost by GPU type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from sizing.formats.page import ABSENT, BarChart, Cell, PageVerdict, Tile, Tiles, bar_chart, figure
from sizing.formats.sentences import rows, sentence, written
from sizing.formats.view import Facts, Line, Prose
from sizing.formats.words import plural, rounded_usd
from sizing.report import estimate as answers
from sizing.report.estimate import Estimate
from sizing.report.page.record import ChangedInput, Report
from sizing.report.parts.figures import a_month
from sizing.report.parts.limits import limit_words
from sizing.report.parts.screen import PRICE
from sizing.report.plan.sections import reserve_words
from sizing.report.plan.sections import sections as plan_sections

FULL = 0.9  # share of a limit above which a figure is near it
LOWER, HIGHER = "20 % lower", "20 % higher"
TILES = "tiles.csv"


def verdict(report: Report) -> PageVerdict:
    """The decision in the words of the plan where one is asked for, else of the estimate.

    An infeasible one also has the single change that helps.
    """
    d, estimate = report.decision, report.estimate
    planned = report.plan is not None and estimate.feasible
    first = next(plan_sections(report.plan) if planned and report.plan else answers.sections(estimate))
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
    """The figures of the decision that are known, by the rows of tiles.csv: of the plan, of the answer, or of what lacks."""
    estimate, found, pools = report.estimate, report.plan, report.estimate.disaggregated is not None
    of = "plan" if found is not None and found.gpus is not None and not pools else "served"
    if of == "served" and not report.decision.feasible:
        if pools:
            return Tiles(())
        of = "unserved"
    evidence = estimate.evidence if found is None or not found.workloads else found.workloads[0].evidence
    growth = None if found is None else found.growth
    then, until = (None, None) if growth is None else (growth.at_date, growth.until)
    sure = estimate.deployment and estimate.deployment.gpus_sure if found is None else found.gpus_sure
    own = {
        "price": "" if pools else price_of(estimate),
        "limit": limit_words(report.decision.limit, single=estimate.inputs.single_result),
        "capacity": "" if of == "unserved" else estimate.limiting.detail.partition(":")[0],
        "types": ", ".join(dict.fromkeys(pool.gpu for pool in found.pools)) if found is not None else "",
        "reserve": reserve_words(found.workloads[0]) if found is not None and len(found.workloads) == 1 else "",
        "day": (until or "").replace("-", "\N{NON-BREAKING HYPHEN}"),
        "sure_then": None if then is None or (then.gpus_sure or 0) <= then.gpus else then.gpus_sure,
        "unsure": evidence is not None
        and estimate.confidence is not None
        and sure is None
        and not pools
        and (of == "plan" or evidence.why_not is not None),
        "why_not": None if evidence is None else evidence.why_not,
    }
    made = (_tile(report, row, own) for key, row in rows(Path(__file__).with_name(TILES)).items() if key.startswith(of))
    return Tiles(tuple(tile for tile in made if tile.value.text not in ("", ABSENT)))


def _tile(report: Report, row: Mapping[str, str], own: Mapping[str, object]) -> Tile:
    """The figure of a row; empty or absent where it is not known."""
    note, used = sentence(row["note"], report, **own), report.decision.used or 0.0
    value = Cell(sentence(row["text"], report, **own))
    if row["pointer"]:
        value = figure(report, row["pointer"], lambda value: written(value, row["form"]))
    style = "bad" if used > 1 else "tight" if used > FULL else ""
    over = "" if report.plan is None or report.plan.feasible else "bad"
    of = {"/decision/used": style, "/plan/gpus": over}.get(row["pointer"], "good" * (row["key"] == "unserved change"))
    return Tile(sentence(row["label"], report, **own), value, note, of)


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
    d, found = report.decision, report.sensitivity
    month, gpus, gpu = d.usd_per_month, d.gpus, d.gpu
    if gpus is None or gpu is None or not found:
        return
    priced = month is not None and all(one.usd_per_month is not None for one in found if one.feasible)

    def bar(one: ChangedInput) -> tuple[str, float]:
        effect = (one.usd_per_month or 0.0) - (month or 0.0) if priced else float(one.extra_gpus or 0)
        return _said(one, gpu), effect if one.feasible else 0.0

    by_input = {what: [bar(one) for one in found if one.what == what] for what in dict.fromkeys(o.what for o in found)}
    bars = [(what, each, "; ".join(text for text, _ in each)) for what, each in by_input.items()]
    bars.sort(key=lambda row: -max(abs(value) for _, value in row[1]))
    now = f"{rounded_usd(month)} a month" if priced else plural(gpus, "GPU")
    if any(value for _, each, _ in bars for _, value in each):
        yield bar_chart(f"Change from {now} (the line), with one input 20 % lower or higher", bars, (LOWER, HIGHER))
        return
    refused = [f"{one.what} {_share(one)}" for one in found if not one.feasible] or None
    said = "[Not feasible: {refused}. ]No [{refused?}other ]change of an input by 20 % changes the answer, {now}."
    yield Prose((Line(sentence(said, refused=refused, now=now)),))


def _share(one: ChangedInput) -> str:
    return f"{one.share * 100:+.0f} %".replace("-", "\N{MINUS SIGN}")


def _said(one: ChangedInput, gpu: str) -> str:
    if not one.feasible or one.gpus is None:
        return f"{_share(one)}: not feasible"
    count = plural(one.gpus, "GPU") if one.gpu == gpu else f"{one.gpus} x {one.gpu}"
    return sentence("{share}: {count}[, {usd_per_month:$3} a month]", one, share=_share(one), count=count)


def cost_by_gpu(report: Report) -> Iterator[BarChart]:
    """Yield the cost in $ a month of each GPU type and precision that serves the demand, the cheapest first."""
    found = report.comparison.candidates if report.comparison is not None else ()
    months = [(a_month(one.usd_per_hour), one) for one in found if one.feasible and one.usd_per_hour is not None]
    priced = sorted(months, key=lambda each: each[0] or 0.0)
    if len(priced) > 1:
        bars = []
        for month, one in priced:
            usd, name = rounded_usd(month), f"{one.gpu}, {one.weight_precision.upper()}"
            bars.append((name, ((usd, month or 0.0),), f"{usd} a month, {plural(one.gpus or 0, 'GPU')}"))
        yield bar_chart("$ a month of each GPU type, around the clock", bars)
