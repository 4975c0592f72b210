"""One demand on several GPU types and weight precisions: each at its best, as a search of its own finds it, in order."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sizing.answers.answer import Answer, Each, Outcome, Progress, objective_key
from sizing.answers.estimate import answer
from sizing.question.question import Question, load_data
from sizing.specs.data import Data
from sizing.specs.workload import Objective


def compare(
    question: Question,
    data: Data | None = None,
    *,
    simulated: bool = True,
    each: Each = map,
    progress: Progress | None = None,
) -> list[Outcome]:
    """What is found of every candidate, each with its first answer alone.

    >>> from sizing import ask
    >>> found = compare(ask("chat", gpu=["h100-sxm", "h200-sxm"]), simulated=False)
    >>> [(outcome.question.space.gpu_types[0].id, outcome.best.gpus) for outcome in found]
    [('h100-sxm', 10), ('h200-sxm', 8)]
    """
    data, candidates = data or load_data(), candidates_of(question)
    found = []
    for outcome in each(partial(_first, data=data, simulated=simulated), candidates):
        found.append(outcome)
        if progress is not None:
            progress(len(found), len(candidates))
    return found


def candidates_of(question: Question) -> list[Question]:
    """The question of each GPU type and precision, and of each pair of pools, once where these name their own types."""
    space = question.space
    found = [
        question.with_(gpu_types=(gpu_type,), precisions=(precision,), pools=None)
        for gpu_type in space.gpu_types
        for precision in space.precisions
    ]
    found += [
        question.with_(gpu_types=pools.prefill.gpu_types[:1], precisions=(precision,), pools=pools)
        for pools in (space.pools.by_type(space.gpu_types) if space.pools is not None else ())
        for precision in space.precisions
    ]
    return found


def _first(question: Question, data: Data, simulated: bool) -> Outcome:
    outcome = answer(question, data, simulated=simulated)
    return replace(outcome, answers=outcome.answers[:1])


def place(answer: Answer | None, sort: Objective) -> tuple[float, ...]:
    """The place of a candidate in the order: by GPUs, $ an hour or watts, then by the others; what is infeasible last.

    Where cost decides, those without a price come after all that have one.
    """
    return (1.0,) if answer is None else (0.0, *objective_key(answer, sort))
