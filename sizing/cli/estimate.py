"""`llmsize estimate`: from a workload to the fewest GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from sizing.cli.options import EXPLAIN_OPTIONS, FORMAT_OPTIONS, QUIET_OPTIONS, VERIFY_OPTIONS, takes
from sizing.question.fields import QUESTION_OPTIONS

if TYPE_CHECKING:
    from sizing.answers.advice import Suggestion
    from sizing.answers.answer import Outcome
    from sizing.question.question import Question
    from sizing.report.estimate import Estimate, Hopeful
    from sizing.specs.data import Data
    from sizing.specs.workload import Tokens

CONFIRMING_TRIES = 4  # sizes simulated for each suggestion: it must hold, not be the smallest


@takes((*QUESTION_OPTIONS, *FORMAT_OPTIONS, *VERIFY_OPTIONS, *EXPLAIN_OPTIONS, *QUIET_OPTIONS))
def command(
    workload: Annotated[
        str | None, typer.Argument(help="Workload file, or a ready one's name (llmsize workloads).")
    ] = None,
    **values: Any,
) -> None:
    """Find the fewest GPUs that serve a demand within latency limits.

    Exit codes: 0 feasible (with --disaggregate from separate pools), 1 infeasible, 2 bad input.
    """
    from sizing.cli.output import chosen_format, complain, print_text, write
    from sizing.question.ask import question_of
    from sizing.question.fields import options_of
    from sizing.question.question import load_data
    from sizing.question.values import Part
    from sizing.report import estimate as report

    output = Part(lambda: chosen_format(values))
    asked = question_of(workload, options_of(QUESTION_OPTIONS, values), output, pooled=True)
    data = load_data()
    found = estimated(asked, data, values, relaxed=not values["quiet"], explained=values["explain"])
    document, feasible = found.document, found.document.feasible
    if asked.space.pools is not None:
        aggregated = found.outcome if feasible else None
        document = _with_pools(document, to_size(asked, values), data, to_simulate(asked, values), aggregated)
        feasible = document.disaggregated is not None and document.disaggregated.feasible
    if values["quiet"] and document.disaggregated is not None:
        if document.disaggregated.feasible:
            print_text(str(document.disaggregated.gpus))
        else:
            complain(f"infeasible: {document.disaggregated.why}")
    elif values["quiet"]:
        if document.deployment is not None:
            print_text(str(document.deployment.gpus))
        else:
            complain(f"infeasible: {document.limiting.detail}")
    else:
        write(report.document(document), output.value)
    if not feasible:
        raise typer.Exit(1)


class Answered(NamedTuple):
    """A question's document, and the outcome of the search that it is of."""

    document: Estimate
    outcome: Outcome


def estimated(
    asked: Question, data: Data, values: Mapping[str, Any], *, relaxed: bool = True, explained: bool = False
) -> Answered:
    """Answer a question, simulated and on the edge of the error bands as the options say.

    `relaxed` looks for the limit that takes fewer GPUs; `explained` adds how each number came about.
    """
    from sizing.answers import advice
    from sizing.report.estimate import record

    tokens, request = to_simulate(asked, values), to_size(asked, values)
    outcome = answer(request, data, tokens)

    confirm = _confirming(tokens, data)
    feasible = outcome.answer is not None
    searched = (asked.space.gpu_types, asked.space.precisions, data)
    found = record(
        outcome,
        relaxation=advice.relaxation(outcome, *searched, confirm) if feasible and relaxed else None,
        suggestions=() if feasible else advice.suggestions(outcome, *searched, confirm),
        hopeful=_hopeful(asked, data, tokens, outcome if feasible else None) if values["conservative"] else None,
        explained=explained,
    )
    return Answered(found, outcome)


def suggested(outcome: Outcome, asked: Question, data: Data, values: Mapping[str, Any]) -> tuple[Suggestion, ...]:
    """Return the single changes that would make an infeasible question feasible, each searched and confirmed as its answer is."""
    from sizing.answers import advice

    confirm = _confirming(to_simulate(asked, values), data)
    return advice.suggestions(outcome, asked.space.gpu_types, asked.space.precisions, data, confirm)


def _confirming(tokens: Tokens | None, data: Data) -> Callable[[Outcome], Outcome | None]:
    """Return what confirms an outcome by simulation, or takes it as it is where there are no `tokens` to simulate with."""

    def confirm(other: Outcome) -> Outcome | None:
        if tokens is None:
            return other if other.best is not None else None
        tried = simulated(other, tokens, data, tries=CONFIRMING_TRIES)
        return tried if tried.confirmed is not None else None

    return confirm


def to_simulate(asked: Question, values: Mapping[str, Any]) -> Tokens | None:
    """Return the lengths to simulate with, None where the answer is not to be simulated."""
    return None if values["no_verify"] else asked.origin.workload.tokens


def to_size(asked: Question, values: Mapping[str, Any]) -> Question:
    """Return the request to search for: as asked, or on the worse edges of the error bands."""
    from sizing.question.ask import cautious

    return cautious(asked) if values["conservative"] else asked


def _with_pools(
    document: Estimate, question: Question, data: Data, tokens: Tokens | None, aggregated: Outcome | None
) -> Estimate:
    """Return the document with what separate pools take for the same; `aggregated` is None where nothing serves it as one."""
    from sizing.report.estimate import with_pools

    one = aggregated.best if aggregated is not None else None
    return with_pools(document, searched(question, data, tokens), one)


def _hopeful(asked: Question, data: Data, tokens: Tokens | None, cautious: Outcome | None) -> Hopeful:
    """Return the answer as predicted, to compare with; a size found with caution keeps the limits without it too."""
    from sizing.answers.answer import preference
    from sizing.report.estimate import Hopeful

    outcome = answer(asked, data, tokens)
    found = [one.answer for one in (outcome, cautious) if one is not None and one.answer is not None]
    return Hopeful(min(found, key=lambda one: preference(one, asked), default=None))


def answer(question: Question, data: Data, tokens: Tokens | None) -> Outcome:
    """Return what a search finds, its best answer confirmed by simulation unless there are no `tokens` to simulate with."""
    from sizing.answers.search import search

    outcome = search(question, question.space.gpu_types, question.space.precisions, data)
    return outcome if tokens is None else simulated(outcome, tokens, data)


def simulated(outcome: Outcome, tokens: Tokens, data: Data, *, tries: int | None = None) -> Outcome:
    """Return the outcome confirmed by simulation, of as many sizes as usual or `tries`."""
    from sizing.answers.verify import MOST_TRIES, verify  # a run without verification need not load the simulator

    return verify(outcome, tokens, data, tries=tries or MOST_TRIES)


def searched(question: Question, data: Data, tokens: Tokens | None) -> Outcome:
    """What a search of the pools that a question asks for finds, its best answer simulated where there are `tokens`."""
    from sizing.answers import pools

    found = pools.search(question, data)
    return found if tokens is None else simulated(found, tokens, data)
