"""`llmsize report`: the decision and its basis as chapters of one page, from the sections of other commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sizing import __version__
from sizing.formats import page
from sizing.formats.details import KINDS
from sizing.formats.page import (
    BarChart,
    Cell,
    Chapter,
    Drawings,
    Numbered,
    PageColumn,
    PageTable,
    PageVerdict,
    Shares,
    Tiles,
    page_table,
)
from sizing.formats.view import Assumption, Facts, Line, Prose, Section, Table, Text
from sizing.formats.words import percent, plural, stated
from sizing.model.memory import MemoryUse
from sizing.report import cost
from sizing.report import estimate as answers
from sizing.report.compare import Compare, notes, raised
from sizing.report.estimate import Estimate
from sizing.report.page.decision import changes, cost_by_gpu, price_of, tiles, verdict
from sizing.report.page.drawings import CURVE_NOTE, RATE_NOTE, drawings
from sizing.report.page.record import Report
from sizing.report.page.tables import columns
from sizing.report.parts import quantities, screen
from sizing.report.parts.evidence import is_own
from sizing.report.parts.question import demand_line, limits_in_words, replica_lines
from sizing.report.plan.sections import sections as plan_sections
from sizing.specs.bands import of_runs

MOST_LAYOUTS, MOST_REJECTED = 12, 20
MEETING = "Other layouts that meet the demand (closed form, means)"
COMMANDS = "Next"  # the label of commands, which only a terminal shows


def html(report: Report) -> str:
    """The page as HTML. Raises InputError if jinja2 is missing."""
    priced = "" if report.estimate.disaggregated is not None else price_of(report.estimate)
    about = f"{report.written}, llmsize {__version__}" + (f"; price: {priced}" if priced else "")
    return page.render(report.title, about, list(chapters(report)), report)


def chapters(report: Report) -> Iterator[Chapter]:
    """Yield the decision, what would change it, other GPU types, plan and cost, curves, memory, layouts, assumptions, commands."""
    estimate = report.estimate
    yield Chapter("answer", "Decision", tuple(_answer(report)), style="" if report.decision.feasible else "no")
    yield from _changes(report)
    yield from _comparison(report)
    if report.plan is not None:
        shown = tuple(_shown(plan_sections(report.plan), "Sizes and latencies of the plan"))
        yield Chapter("plan", "Plan of capacity", shown, "Plan", "wide")
    if report.cost is not None:
        shown = tuple(_shown(cost.sections(report.cost), "Cost of each way to pay"))
        yield Chapter("cost", "Ways to pay", shown, "Cost", "wide")
    drawn = tuple(drawings(report))
    if drawn:
        note = Prose((Line(RATE_NOTE if report.rates else CURVE_NOTE),))
        yield Chapter("curves", "Throughput against latency", (note, Drawings(drawn)), "Curves")
    yield Chapter("question", "What was asked, and figures", tuple(_figures(report)), "Figures")
    one_pool = estimate.disaggregated is None
    if one_pool and estimate.memory is not None:
        yield Chapter("memory", "Memory of one GPU", tuple(_memory(report, estimate.memory)), "Memory")
    own = quantities.of_task(columns("alternatives"), estimate.inputs.task)
    meeting = Table(own, estimate.alternatives, "/estimate/alternatives", MEETING)
    refused = Table(columns("rejected"), estimate.rejected, "/estimate/rejected", "Layouts that do not")
    others = tuple(
        page_table(table, most=most, noun="layouts", folded=True)
        for table, most in ((meeting, MOST_LAYOUTS), (refused, MOST_REJECTED))
        if one_pool and table.records
    )
    if others:
        yield Chapter("layouts", "Other layouts", others, style="wide")
    yield Chapter("assumptions", "Assumptions", tuple(_assumptions(report)), style="source")
    commands = [Text(report.command, f"This page, with llmsize {__version__}:")]
    simulated = estimate.simulate_command
    if simulated is not None:
        commands.append(Text(simulated, "The answer's own load, driven through its deployment:"))
    yield Chapter("repeat", "Repeat it", tuple(commands))


def _changes(report: Report) -> Iterator[Chapter]:
    if not report.sensitivity:
        return
    how = "each simulated like the answer" if report.simulated else "closed form, not simulated, like the answer"
    how += "; without the plan's reserve and growth" * (report.plan is not None)
    table = page_table(
        Table(columns("changes"), report.sensitivity, "/sensitivity", f"One input changed at a time ({how})")
    )
    sections: tuple[BarChart | PageTable | Prose | Facts, ...] = (*changes(report), table)
    if not any(one.feasible for one in report.sensitivity):
        sections = (Prose((Line("No limit, length or demand makes this feasible by a change of 20 % alone."),)),)
    prices = None if report.comparison is None else report.comparison.prices
    if prices is not None and any(one.feasible for one in report.sensitivity):
        sections = (*sections, Facts(tuple(prices.turning())))
    yield Chapter("sensitivity", "What would change the answer", sections, "What would change it", "wide")


def _comparison(report: Report) -> Iterator[Chapter]:
    if report.comparison is None:
        return
    how = "each simulated" if report.simulated else "closed form"
    title = f"The best layout of each ({how}), means of latencies"
    table = page_table(Table(columns("candidates"), report.comparison.candidates, "/comparison/candidates", title))
    known = Facts(tuple(_of_comparison(report.comparison)))
    said = (known,) if known.lines else ()
    yield Chapter("comparison", "Comparison of GPU types", (*cost_by_gpu(report), table, *said), "Comparison", "wide")


def _of_comparison(compare: Compare) -> Iterator[Line]:
    """Yield what makes counts and prices of GPU types less comparable than the table looks."""
    served = [each for each in compare.candidates if each.feasible]
    yield from raised(served)
    yield from notes(compare, served)
    if compare.prices is not None:
        yield compare.prices.line()


def _shown(sections: Iterable[Section], caption: str) -> Iterator[Facts | Prose | Text | PageTable]:
    """Yield the sections of another command without its next commands. A table without a title gets the `caption`."""
    for section in sections:
        if isinstance(section, Table):
            if section.records:
                yield page_table(section._replace(at="", title=section.title or caption))
        elif isinstance(section, (Facts, Prose)):
            lines = tuple(line for line in section.lines if line.label != COMMANDS and not line.of_screen)
            if lines or section.title:
                yield section._replace(lines=lines)
        elif isinstance(section, Text):
            yield section


def _answer(report: Report) -> Iterator[PageVerdict | Tiles | Facts | Prose | Text | PageTable]:
    """Yield the verdict, its figures, and the lines that a terminal shows below the headline."""
    yield verdict(report)
    yield tiles(report)
    first, *others = answers.sections(report.estimate)
    if isinstance(first, Facts) and len(first.lines) > 1:
        yield first._replace(lines=first.lines[1:], title="")  # how sure it is; the verdict is above
    banded = report.estimate.disaggregated is None
    ranges = f", with the range of 8 in 10 {_runs(report)}," if banded else ""
    yield from _shown(others, f"Predictions{ranges} and the limits")


def _runs(report: Report) -> str:
    return of_runs(is_own(report.estimate.evidence))


def _figures(report: Report) -> Iterator[Facts | PageTable]:
    """Yield the question, latencies, and figures of load, throughput and cost; of both pools where they are separate."""
    estimate = report.estimate
    yield Facts(tuple(_asked(estimate)))
    both = estimate.disaggregated
    if both is not None and both.prefill is not None and both.decode is not None:
        named = (("prefill", both.prefill), ("decode", both.decode))
        pools = {f"{name}: {pool.sizes}, {pool.gpu}": f"/estimate/disaggregated/{name}" for name, pool in named}
        yield page.figures_table(
            report, "Both pools, means of latencies", pools, [each.key for each in columns("pools")]
        )
    if both is not None or estimate.latency is None:
        return
    own = quantities.of_task(quantities.LATENCY_QUANTITIES, estimate.inputs.task)
    latencies = {each.heading: f"/estimate/latency/{each.key}" for each in own}
    yield page.figures_table(report, "Latency under load", latencies)
    bands = {each.heading: f"latency.{each.key}.mean" for each in own}
    known = {name: f"/estimate/bands/{path}" for name, path in bands.items() if path in estimate.bands}
    if known:
        yield page.figures_table(report, f"Range of the mean in 8 of 10 {_runs(report)}", known)
    for name in ("deployment", "load", "throughput", "utilisation", "cost"):
        yield page.figures_table(report, name.capitalize(), {"value": f"/estimate/{name}"})


def _asked(estimate: Estimate) -> Iterator[Line]:
    """Yield the resolved question: the replica, the demand, limits and rules."""
    i, budget = estimate.inputs, estimate.inputs.gpu_budget
    yield from replica_lines(i)
    yield Line(i.model_id, "Model")
    yield demand_line(i)
    if (i.isl_max, i.osl_max) != (i.isl, i.osl):
        yield Line(f"ISL {i.isl_max:,}, OSL {i.osl_max:,}", "Longest")
    yield Line(limits_in_words(i.limits, single=i.single_result), "Limits")
    yield Line(", ".join(i.gpus_considered), "GPU types considered")
    rules = f"{i.mode}; objective: {screen.OBJECTIVES[i.objective]}; at most {percent(i.max_utilisation)} of the stable rate"
    yield Line(rules if budget is None else f"{rules}; at most {plural(budget, 'GPU')}", "Rules")


def _memory(report: Report, memory: MemoryUse) -> Iterator[Shares | Prose | PageTable]:
    """Yield the memory of one GPU of the tightest rank, as a bar and as a table."""
    bar = page.shares(screen.memory_bar(memory, report.estimate.inputs.optimisations))
    yield bar
    if bar.end is not None:
        yield Prose((Line("The dashed line is where the memory ends."),))
    yield page.figures_table(
        report,
        "Memory of one GPU, tightest rank",
        {"value": "/estimate/memory"},
        [each.key for each in columns("memory")],
    )


def _assumptions(report: Report) -> Iterator[Prose | PageTable | Numbered]:
    """Yield the assumptions, the least certain first, each with the number of its source."""
    found = sorted(enumerate(report.estimate.assumptions), key=lambda each: KINDS.index(each[1].kind))
    each_once = dict.fromkeys(assumption.source for _, assumption in found if assumption.source)
    sources = {source: n for n, source in enumerate(each_once, 1)}

    def row(at: int, assumption: Assumption) -> tuple[Cell, ...]:
        pointer = None if isinstance(assumption.value, str) else f"/estimate/assumptions/{at}/value"
        value = Cell(f"{stated(assumption.value)} {assumption.unit}".rstrip(), pointer)
        source = sources.get(assumption.source)
        cited = Cell("") if source is None else Cell(f"[{source}]", target=f"source-{source}")
        return Cell(assumption.what), value, Cell(assumption.kind), cited

    yield Prose((Line(ASSUMED),))
    heads = tuple(PageColumn(name, False) for name in ("what", "value", "known", "source"))
    yield PageTable("Inputs by how they are known", heads, tuple(row(*assumption) for assumption in found))
    yield Numbered("Sources", tuple((f"source-{at}", text) for text, at in sources.items()))


ASSUMED = "Each input that the answer rests on: assumed, derived, taken from a datasheet or measured, with its source."
