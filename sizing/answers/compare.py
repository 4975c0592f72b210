"""One demand on several GPU types and weight precisions, each with the best answer of its own search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sizing.answers.advice import ADVICE
from sizing.answers.answer import Answer, Hints, Mapper, Outcome, Progress, objective_key
from sizing.answers.confidence import evenly, has_odds
from sizing.answers.estimate import answer, at_usual_limits, in_fp8, surely_answered, with_cheaper
from sizing.answers.sure_size import surer_outcome
from sizing.catalog import shelf
from sizing.question.question import Question
from sizing.specs.workload import Aim, Defaults

MOST_CONFIRMED = 10  # candidates to simulate: as many as fit on a screen


def compare(
    question: Question,
    *,
    sort: Aim | None = None,
    simulated: bool = True,
    each: Mapper = map,
    progress: Progress | None = None,
) -> list[Outcome]:
    """The outcome of every candidate with its best answer, best first; the ten best by `sort` are simulated where `simulated`.

    The sure sizes of these ten are simulated too; all other sure sizes are by the closed form. If a pipeline layout costs less
    than the answer of one of the ten, it is the second answer of that outcome.

    `sort` defaults to the question's objective. Without a GPU budget, answers with more GPUs than the default limit of a
    comparison are rejected, unless all answers exceed it.

    >>> from sizing import ask
    >>> found = compare(ask("chat", gpu=["h100-sxm", "h200-sxm"]), simulated=False)
    >>> [(outcome.question.space.gpu_types[0].id, outcome.best.gpus) for outcome in found]
    [('h100-sxm', 8), ('h200-sxm', 8)]
    """
    by = sort or question.rules.objective
    candidates = candidates_of(question)
    found = [_closed(candidate) for candidate in candidates]
    if question.rules.gpu_budget is None:
        found = _sensible(found, shelf.only(Defaults).most_gpus_compared)
    done = 0
    while simulated:
        best = _best(found, by)
        left = [number for number in best if not found[number].simulation.tries and found[number].best is not None]
        if not left:
            break
        left.sort(key=lambda number: -found[number].answers[0].gpus)  # large answers take longest: they start first
        work = partial(answer, simulated=True, finds_sure=False)
        for number, outcome in zip(left, each(work, [candidates[number] for number in left]), strict=True):
            found[number], done = outcome, done + 1
            if progress is not None:
                progress(done, max(done, len(best)))
    _find_sure(candidates, found, _best(found, by), each)
    first, *others = shown = _best(found, by)
    for number in shown:
        found[number] = _with_less(found[number])
    surer = surer_outcome(found[first], [found[number] for number in others], by)
    usual, fp8 = at_usual_limits(found[first], question), in_fp8(found[first], candidates[first])
    by_runs = found[first].by_runs._replace(cheaper_when_sure=surer)
    found[first] = replace(found[first], by_runs=by_runs, hints=Hints(usual=usual, in_fp8=fp8))
    return sorted(found, key=lambda outcome: place(outcome.answer, by))


def most_served(question: Question, *, simulated: bool = True) -> Outcome:
    """The most that the GPUs of a question without a demand serve as one pool: the demand to compare for where they are replaced.

    >>> from sizing import ask
    >>> now = most_served(ask(model="llama-3.1-8b", isl=1000, osl=200, gpu="l40s", gpus=4), simulated=False)
    >>> now.best.gpus, round(now.best.requests_per_s)
    (4, 21)
    """
    return answer(question.with_(pools=None), simulated=simulated)


def _best(outcomes: list[Outcome], by: Aim) -> list[int]:
    return sorted(range(len(outcomes)), key=lambda number: place(outcomes[number].answer, by))[:MOST_CONFIRMED]


def _with_less(outcome: Outcome) -> Outcome:
    """The outcome with the cheapest pipeline layout that fills nodes and costs less than its answer, sized for the same odds.

    Layouts within the question's reach are left out: the search that found the answer tried them.
    """
    best, asked = outcome.answer, outcome.question
    if best is None or best.separate:
        return outcome
    if has_odds(outcome):
        asked = evenly(asked)
    wide = with_cheaper(outcome, asked)
    layouts = ((each, each.pool.replica.layout) for each in wide.answers[1:] if each.gpus < best.gpus)
    less = [each for each, layout in layouts if layout.pp > 1 and ADVICE.fills_nodes(layout.gpus)]
    return replace(wide, answers=(best, *less[:1]))


def _sensible(outcomes: list[Outcome], most: int) -> list[Outcome]:
    """The outcomes without answers of more than `most` GPUs, unless all answers exceed it."""

    def judged(outcome: Outcome) -> Outcome:
        best = outcome.best
        if best is None or best.separate or best.gpus <= most:
            return outcome
        replica, left_out = best.pool.replica, f"a comparison leaves out more than {most:,}"
        detail = f"takes {best.gpus:,} GPUs; {left_out} (estimate -g {replica.gpu_type.id} does not)"
        return replace(outcome, answers=(), refusals=(replica.rejected("gpu_budget", detail, best.gpus / most - 1),))

    sizes = [outcome.best.gpus for outcome in outcomes if outcome.best is not None]
    return outcomes if min(sizes, default=0) > most else list(map(judged, outcomes))


def candidates_of(question: Question) -> list[Question]:
    """A question for each GPU type and precision, and for each pair of pools; one pair where both pools name their types."""
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


def _closed(question: Question) -> Outcome:
    outcome = answer(question, simulated=False)
    return outcome if outcome.answer is None else replace(outcome, answers=outcome.answers[:1])


def _find_sure(candidates: Sequence[Question], outcomes: list[Outcome], best: Sequence[int], each: Mapper) -> None:
    """Give simulated outcomes their sure sizes: of the `best` by simulation, so that no time goes into the others."""
    simulated = [
        number for number, outcome in enumerate(outcomes) if outcome.simulation.tries and outcome.answer is not None
    ]
    ways: tuple[tuple[Mapper, bool], ...] = ((each, True), (map, False))
    for way, by_simulation in ways:
        numbers = [number for number in simulated if (number in best) == by_simulation]
        work = partial(surely_answered, simulated=by_simulation)
        tasks = [(candidates[number], outcomes[number]) for number in numbers]
        for number, outcome in zip(numbers, way(work, tasks), strict=True):
            outcomes[number] = replace(outcome, answers=outcome.answers[:1])


def place(answer: Answer | None, sort: Aim) -> tuple[float, ...]:
    """Sort key of a candidate: GPUs, $ per hour or watts, then the other quantities; infeasible candidates come last.

    By cost, candidates without a price come after all with a price.
    """
    return (1.0,) if answer is None else (0.0, *objective_key(answer, sort))
