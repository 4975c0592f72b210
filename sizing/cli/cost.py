"""`llmsize cost`: what a sized service costs with own servers, rented GPUs or an API, and from which load on each pays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sizing.cli.estimate import WORKLOAD_OPTIONS
from sizing.cli.options import COST_OPTIONS, FORMAT_OPTIONS, VERIFY_OPTIONS, takes

if TYPE_CHECKING:
    from sizing.cli.priced import Prices
    from sizing.cli.resolve import Prepared
    from sizing.report.cost import GpuAnswer
    from sizing.report.documents_cost import CostReport


@takes((*WORKLOAD_OPTIONS, *COST_OPTIONS, *FORMAT_OPTIONS, *VERIFY_OPTIONS))
def command(
    workload: Annotated[
        str | None, typer.Argument(help="Workload file, or a ready one's name (llmsize workloads).")
    ] = None,
    **values: Any,
) -> None:
    """Compare own servers, rented GPUs and an API: $ a year, per 1,000 requests and per million tokens, and break-even.

    Exit codes: 0 feasible, 1 infeasible, 2 bad input.
    """
    from sizing.cli.collecting import Part
    from sizing.cli.output import chosen_format, complain, picture_form, write, write_file
    from sizing.cli.priced import ask
    from sizing.cli.reading import Reader
    from sizing.cli.resolve import question

    output = Part(lambda: chosen_format(values))

    def read_picture() -> Any:
        read = Reader(values, [])
        found = read.picture()
        read.check()
        return found

    plot, prices = Part(read_picture), Part(lambda: ask(values))
    asked = question(workload, WORKLOAD_OPTIONS, values, output, plot, prices)
    document = _costed(asked, prices.value, values)
    write(document, output.value)
    if plot.value is not None and document.options:
        from sizing.report.plot_cost import draw

        write_file(plot.value, "--plot", draw(document, picture_form(plot.value)))
    elif plot.value is not None:
        complain("--plot: nothing is drawn, as nothing meets the demand")
    if not document.feasible:
        raise typer.Exit(1)


def _costed(asked: Prepared, prices: Prices, values: dict[str, Any]) -> CostReport:
    """Size each type of GPU by itself and return what the ways to serve cost; types without the prices asked for are left out.

    Raises InputError before sizing any where no type is left.
    """
    from sizing.catalog.servers import load_defaults
    from sizing.cli.collecting import Part, check
    from sizing.cli.priced import priced
    from sizing.report.cost import Asking, build
    from sizing.specs.errors import Fault, InputError

    if not asked.asked.workload.gpu:
        raise InputError(
            Fault("is needed: money is of one type of GPU", field="--gpu", allowed="a name (llmsize gpus), or several")
        )
    offered = [Part(lambda option=option: priced(prices, option)) for option in asked.options]  # type: ignore[misc]
    if all(part.faults for part in offered):
        check(*offered[:1])
    problems = [
        f"{option.name} is left out: {fault.message}"
        for option, part in zip(asked.options, offered, strict=True)
        for fault in part.faults
    ]
    answers, questions = [], []
    for option, part in zip(asked.options, offered, strict=True):
        if not part.faults:
            alone = asked._replace(options=(option,), asked=asked.asked._replace(options=(option,)))
            answers.append(_answer(alone, part.value, values))
            questions.append(alone)
    problems += [text for answer in answers if (text := _problem(answer)) is not None]
    helps: tuple[str, ...] = ()
    if all(answer.best is None for answer in answers):
        helps = _helps(*min(zip(answers, questions, strict=True), key=lambda pair: _short(pair[0])), values)
    return build(Asking(tuple(answers), prices.api, prices.split, load_defaults().spec), problems, helps)


def _short(answer: GpuAnswer) -> float:
    """Return how far a type of GPU is from an answer, by its nearest miss; what only a budget or a simulation turned down is near."""
    from sizing.answers.advice import nearest_miss

    miss = None if answer.outcome.best is not None else nearest_miss(answer.outcome)
    return 0.0 if miss is None else miss.shortfall


def _helps(answer: GpuAnswer, asked: Prepared, values: dict[str, Any]) -> tuple[str, ...]:
    """Return the single changes that would let a type of GPU meet the demand, in words."""
    from sizing.cli.estimate import suggested
    from sizing.report.limiting import unmet

    return unmet(answer.outcome, suggested(answer.outcome, asked, values)).suggestions


def _answer(asked: Prepared, priced: Any, values: dict[str, Any]) -> GpuAnswer:
    """Return what the search finds on one type of GPU, confirmed by simulation: as `llmsize estimate` does."""
    from sizing.cli.estimate import answer, to_simulate, to_size
    from sizing.report.cost import GpuAnswer

    outcome = answer(to_size(asked, values), asked, to_simulate(asked, values))
    return GpuAnswer(asked.asked, outcome, priced)


def _problem(answer: GpuAnswer) -> str | None:
    """Say what is in the way on a type of GPU; None where nothing is."""
    from sizing.report.limiting import unmet

    if answer.best is not None:
        return None
    name, detail = answer.asked.options[0].name, unmet(answer.outcome, ()).detail
    return detail if name in detail else f"{name}: {detail}"
