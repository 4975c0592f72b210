"""`llmsize whatif`: what each optimisation would change, alone and together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sizing.cli import estimate
from sizing.cli.options import FORMAT_OPTIONS, VERIFY_OPTIONS, takes
from sizing.question.fields import QUESTION_OPTIONS

if TYPE_CHECKING:
    from sizing.answers.answer import Answer
    from sizing.answers.whatif import Answered, Options, Solved
    from sizing.question.question import Question

NOT_TAKEN = ("conservative",)  # sizes are compared as predicted
OPTIONS = tuple(option for option in QUESTION_OPTIONS if option.name not in NOT_TAKEN)


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
    from sizing.answers import whatif
    from sizing.catalog.shelf import only
    from sizing.cli.output import chosen_format, write
    from sizing.question.ask import question_of
    from sizing.question.fields import options_of
    from sizing.question.values import Part
    from sizing.report.whatif import document, record
    from sizing.specs.facts import OptimisationFacts

    output = Part(lambda: chosen_format(values))
    asked = question_of(workload, options_of(OPTIONS, values), output, pooled=True)
    base = _solved(asked).best

    def asking(options: Options) -> Question:
        return question_of(workload, options_of(OPTIONS, {**values, **options}), pooled=True)

    def solve(options: Options) -> Solved:
        return _solved(asking(options))

    weight_bits, kv_bits = _bits(asked, base)
    trials = [
        (name, trial)
        for name, trial in only(OptimisationFacts).trials.items()
        if whatif.applicable(trial, asked, weight_bits, kv_bits)
    ]
    tried = whatif.ranked((whatif.alone(name, trial, solve) for name, trial in trials), asked)
    best = whatif.combined(base, tried, asked, solve)
    simulated = not values["no_verify"]
    before = _checked(asked) if simulated else whatif.Answered(base, False)
    after = _checked(asking(best.options)) if simulated and best.names else whatif.Answered(best.best, False)
    flags = {option.name: option.flags[0] for option in OPTIONS}
    found = record(asked, whatif.Trials(base, before, tried, best, after), flags)
    write(document(found), output.value)
    if found.base is None and found.best is None:
        raise typer.Exit(1)


def _solved(asked: Question) -> Solved:
    """Return what the closed form answers, of separate pools where they are asked for."""
    from sizing.answers.whatif import Solved, solved
    from sizing.question.question import load_data

    if asked.space.pools is None:
        from sizing.answers.search import search

        return solved(search(asked, asked.space.gpu_types, asked.space.precisions, load_data()))
    from sizing.cli.estimate import searched
    from sizing.report.parts.pools import why_not

    found = searched(asked, load_data(), None)
    return Solved(found.best, None if found.best is not None else why_not(found))


def _checked(asked: Question) -> Answered:
    """Return the answer as simulated; without one there is none, and where all sizes fail the last one stays."""
    from sizing.answers.whatif import Answered
    from sizing.question.question import load_data

    tokens = asked.origin.workload.tokens
    if asked.space.pools is None:
        outcome = estimate.answer(asked, load_data(), tokens)
    else:
        from sizing.cli.estimate import searched

        outcome = searched(asked, load_data(), tokens)
    return Answered(outcome.best, outcome.verified is True)


def _bits(asked: Question, base: Answer | None) -> tuple[float, float]:
    """Return the bits of a weight and of a cached value that the answer has; of the checkpoint where there is none."""
    from sizing.model import precision
    from sizing.question.question import load_data

    if base is not None:
        plan = base.pools[0].replica.plan
        return plan.weight_bits, plan.kv_bits
    quantisation = asked.service.model.quantisation
    formats = load_data().formats
    weights = asked.space.precisions[0] or quantisation.precision
    kv = asked.service.kv_precision
    cached = quantisation.kv_precision or asked.service.model.activation_precision if kv == "auto" else kv
    return precision.stored_as(weights, formats).bits, precision.stored_as(cached, formats).bits
