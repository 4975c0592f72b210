"""`llmsize estimate`: from a workload to the fewest GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sizing.cli.options import (
    DEMAND_OPTIONS,
    EXPLAIN_OPTIONS,
    FORMAT_OPTIONS,
    LIMIT_OPTIONS,
    MODEL_OPTIONS,
    PLANNING_OPTIONS,
    QUIET_OPTIONS,
    SERVING_OPTIONS,
    VERIFY_OPTIONS,
    takes,
)

if TYPE_CHECKING:
    from sizing.search import Outcome
    from sizing.specs.workload import Tokens
    from sizing.verify import Verified

CONFIRMING_TRIES = 4  # sizes simulated for each suggestion: it must hold, not be the smallest
WORKLOAD_OPTIONS = (*MODEL_OPTIONS, *DEMAND_OPTIONS, *LIMIT_OPTIONS, *SERVING_OPTIONS, *PLANNING_OPTIONS)


@takes((*WORKLOAD_OPTIONS, *FORMAT_OPTIONS, *VERIFY_OPTIONS, *EXPLAIN_OPTIONS, *QUIET_OPTIONS))
def command(
    workload: Annotated[
        str | None, typer.Argument(help="Workload file, or a ready one's name (llmsize workloads).")
    ] = None,
    **values: Any,
) -> None:
    """Find the fewest GPUs that serve a demand within latency limits.

    Exit codes: 0 feasible, 1 infeasible, 2 bad input.
    """
    from sizing import advice
    from sizing.cli.collecting import Part
    from sizing.cli.output import chosen_format, complain, print_text, write
    from sizing.cli.resolve import question
    from sizing.report.estimate import build, within_budget
    from sizing.search import search

    output = Part(lambda: chosen_format(values))
    asked = question(workload, WORKLOAD_OPTIONS, values, output)
    tokens = asked.asked.workload.tokens
    outcome = search(asked.request, asked.options, asked.precisions, asked.data)
    checked = None if values["no_verify"] else _checked(outcome, tokens)
    if checked is not None:
        outcome = checked.outcome

    def confirm(other: Outcome) -> Outcome | None:
        if values["no_verify"]:
            return other if other.best is not None else None
        tried = _checked(other, tokens, tries=CONFIRMING_TRIES)
        return tried.outcome if tried is not None and tried.passed else None

    feasible = within_budget(outcome) and (checked is None or checked.passed)
    searched = (asked.options, asked.precisions, asked.data)
    suggestions = () if feasible else advice.suggestions(outcome, *searched, confirm)
    document = build(
        outcome,
        asked.asked,
        relaxation=advice.relaxation(outcome, *searched, confirm) if feasible and not values["quiet"] else None,
        suggestions=suggestions,
        checked=checked,
        explained=values["explain"],
    )
    if values["quiet"]:
        if document.deployment is not None:
            print_text(str(document.deployment.gpus))
        else:
            complain(f"infeasible: {document.limiting.detail}")
    else:
        write(document, output.value)
    if not feasible:
        raise typer.Exit(1)


def _checked(outcome: Outcome, tokens: Tokens, **limit: int) -> Verified | None:
    """Return the outcome confirmed by simulation; None where there is none to confirm."""
    from sizing.verify import verify  # a run without verification need not load the simulator

    return None if outcome.best is None else verify(outcome, tokens, **limit)
