"""`llmsize whatif`: what each optimisation would change, alone and together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sizing.cli.estimate import WORKLOAD_OPTIONS
from sizing.cli.options import FORMAT_OPTIONS, VERIFY_OPTIONS, takes

if TYPE_CHECKING:
    from sizing.report.whatif import Answered
    from sizing.search import Outcome
    from sizing.specs.workload import Tokens

NOT_TAKEN = ("conservative",)  # sizes are compared as predicted
OPTIONS = tuple(option for option in WORKLOAD_OPTIONS if option.name not in NOT_TAKEN)


@takes((*OPTIONS, *FORMAT_OPTIONS, *VERIFY_OPTIONS))
def command(
    workload: Annotated[
        str | None, typer.Argument(help="Workload file, or a ready one's name (llmsize workloads).")
    ] = None,
    **values: Any,
) -> None:
    """Try each optimisation that applies, alone and together: GPUs, latency and cost before and after, needs and risks.

    Exit codes: 0 feasible, with optimisations or without, 1 infeasible either way, 2 bad input.
    """
    from sizing import whatif
    from sizing.catalog.optimisations import load_facts
    from sizing.cli.collecting import Part
    from sizing.cli.output import chosen_format, write
    from sizing.cli.resolve import Question, question
    from sizing.report.whatif import Answered, build
    from sizing.search import search

    output = Part(lambda: chosen_format(values))
    asked = question(workload, OPTIONS, values, output)
    base = _searched(asked)

    def asking(options: whatif.Options) -> Question:
        return question(workload, OPTIONS, {**values, **options})

    def answer(options: whatif.Options) -> Outcome:
        other = asking(options)
        return search(other.request, other.options, other.precisions, other.data)

    weight_bits, kv_bits = _bits(asked, base)
    trials = [
        (name, trial)
        for name, trial in load_facts().spec.trials.items()
        if whatif.applicable(trial, base, weight_bits, kv_bits)
    ]
    tried = whatif.ranked((whatif.alone(name, trial, answer) for name, trial in trials), base.request)
    best = whatif.combined(base, tried, answer)
    simulated = not values["no_verify"]
    before = _checked(base, asked.asked.workload.tokens) if simulated else Answered(base, False)
    after = Answered(best.outcome, False)
    if simulated and best.names:
        after = _checked(best.outcome, asking(best.options).asked.workload.tokens)
    flags = {option.name: option.flags[0] for option in OPTIONS}
    document = build(asked.asked, before, tried, whatif.confirmed(best, after.outcome), after.verified, flags)
    write(document, output.value)
    if document.base is None and document.best is None:
        raise typer.Exit(1)


def _searched(asked: Any) -> Outcome:
    from sizing.search import search

    return search(asked.request, asked.options, asked.precisions, asked.data)


def _checked(outcome: Outcome, tokens: Tokens) -> Answered:
    """Return an outcome as simulated; one without an answer, or whose sizes all fail, stays the closed form's."""
    from sizing.report.whatif import Answered
    from sizing.verify import verify

    if outcome.best is None:
        return Answered(outcome, False)
    checked = verify(outcome, tokens)
    return Answered(checked.outcome, checked.passed)


def _bits(asked: Any, base: Outcome) -> tuple[float, float]:
    """Return the bits of a weight and of a cached value that the answer has; of the checkpoint where there is none."""
    from sizing import precision

    if base.best is not None:
        return base.best.candidate.plan.weight_bits, base.best.candidate.plan.kv_bits
    quantisation = asked.request.model.quantisation
    formats = asked.data.formats
    weights = asked.precisions[0] or quantisation.precision
    kv = asked.request.kv_precision
    cached = quantisation.kv_precision or asked.request.model.activation_precision if kv == "auto" else kv
    return precision.stored_as(weights, formats).bits, precision.stored_as(cached, formats).bits
