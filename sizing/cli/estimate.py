"""`llmsize estimate`: from a workload to the fewest GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sizing.cli.options import EXPLAIN_OPTIONS, FORMAT_OPTIONS, QUIET_OPTIONS, VERIFY_OPTIONS, takes
from sizing.question.values import QUESTION_OPTIONS

if TYPE_CHECKING:
    from sizing.question.question import Question


@takes((*QUESTION_OPTIONS, *FORMAT_OPTIONS, *VERIFY_OPTIONS, *EXPLAIN_OPTIONS, *QUIET_OPTIONS))
def command(
    workload: Annotated[
        str | None, typer.Argument(help="Workload file, or a ready one's name (llmsize workloads).")
    ] = None,
    measured: Annotated[
        str | None,
        typer.Option("--from", help="CSV of measured rows (llmsize import) to size from, in place of predictions."),
    ] = None,
    **values: Any,
) -> None:
    """Find the fewest GPUs that serve a demand within latency limits.

    Exit codes: 0 feasible (with --disaggregate from separate pools), 1 infeasible, 2 bad input.
    """
    from sizing.answers.estimate import estimate
    from sizing.cli.output import chosen_format, complain, print_text, write
    from sizing.question.ask import question_of
    from sizing.question.question import load_data
    from sizing.question.values import Part, options_of
    from sizing.report.estimate import document, record, shortest

    if measured is not None:
        from sizing.cli.measured import estimate_from

        estimate_from(measured, workload, values)
        return
    output = Part(lambda: chosen_format(values))
    question = question_of(workload, options_of(QUESTION_OPTIONS, values), output, pooled=True)
    outcome = estimate(
        to_size(question, values), load_data(), simulated=not values["no_verify"], relaxed=not values["quiet"]
    )
    found = record(outcome, explained=values["explain"])
    pools = found.disaggregated
    feasible = found.feasible if pools is None else pools.feasible
    if not values["quiet"]:
        write(document(found), output.value)
    elif feasible:
        print_text(shortest(found))
    else:
        complain(f"infeasible: {found.limiting.detail if pools is None else pools.why}")
    if not feasible:
        raise typer.Exit(1)


def to_size(question: Question, values: Mapping[str, Any]) -> Question:
    """The question to search for: as predicted, or for a confidence."""
    from sizing.question.ask import cautious

    return cautious(question, values["confidence"], values["conservative"])
