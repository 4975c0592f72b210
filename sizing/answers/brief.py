"""The basis of a decision: the answer to a question, the effect of changed inputs, latency by load, other GPU types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

from sizing.answers.answer import Mapper, Outcome, Progress, unwatched
from sizing.answers.compare import candidates_of, compare
from sizing.answers.curve import Curve, evaluated, marked
from sizing.answers.curve_lines import Grid, Layouts, LineByRate, by_rate, line_of
from sizing.answers.curve_points import applying, metrics_of
from sizing.answers.estimate import estimate
from sizing.answers.whatif import Effect, effects
from sizing.question.question import Question
from sizing.specs.workload import LATENCIES

MOST_LINES = 6  # lines of a chart: as many as there are colours and markers
LOADS = tuple(2**power for power in range(9))  # requests in flight on one replica
SEED = 0
Watch = Callable[[str], AbstractContextManager[Progress | None]]  # takes the name of a long-running part


class ClosedLoopCurve(NamedTuple):
    """The closed-loop curve of the best layouts, with its question and grid."""

    curve: Curve
    question: Question
    grid: Grid


class ReportBasis(NamedTuple):
    """The answer to a question and the basis of a decision on it; all sizes are `simulated`, or none."""

    question: Question
    simulated: bool
    outcome: Outcome
    effects: tuple[Effect, ...]  # of changed inputs
    rates: tuple[LineByRate, ...]  # by arrival rate; none of separate pools
    loaded: ClosedLoopCurve | None  # in place of `rates`, for a closed loop
    compared: tuple[Outcome, ...]  # the best of each GPU type and precision, if there are several and a demand


def brief(question: Question, *, simulated: bool = True, each: Mapper = map, watch: Watch = unwatched) -> ReportBasis:
    """Answer a question, and compute the effects, curves and comparison for a decision in the same way."""
    outcome = estimate(question, simulated=simulated)
    with watch("Changing inputs") as progress:
        changed = tuple(effects(question, outcome.answer, simulated=simulated, progress=progress))
    closed, one = is_closed(question), outcome.one_pool or outcome
    compared, rated = _compared(question, simulated, each, watch), question.space.pools is None and not closed
    return ReportBasis(
        question=question,
        simulated=simulated,
        outcome=outcome,
        effects=changed,
        rates=tuple(_rates(one, compared, question, simulated, watch)) if rated else (),
        loaded=_loaded(one, question, simulated, each, watch) if closed else None,
        compared=compared,
    )


def is_closed(question: Question) -> bool:
    """Whether the demand is a closed loop: requests in flight, or offline work with every slot kept full."""
    target = question.target
    return target.concurrency is not None or (target.offline and target.amount is None)


def _compared(question: Question, simulated: bool, each: Mapper, watch: Watch) -> tuple[Outcome, ...]:
    demanded = question.target.amount is not None
    if not demanded or len(candidates_of(question)) < 2:
        return ()
    with watch("Comparing") as progress:
        return tuple(compare(question, simulated=simulated, each=each, progress=progress))


def _rates(
    outcome: Outcome, compared: Sequence[Outcome], question: Question, simulated: bool, watch: Watch
) -> Iterator[LineByRate]:
    """Yield a line by rate for the best layout of each GPU type and precision; the answer's line includes its own load.

    These are the answer and the layouts that a comparison has, where there is one.
    """
    confirmed = [each.answer for each in compared if each.answer is not None]
    firsts = (*outcome.answers[:1], *confirmed) if confirmed else outcome.answers
    answers = replace(outcome, answers=tuple(firsts)).best_of_each()[:MOST_LINES]
    with watch("Simulating") as progress:
        for done, answer in enumerate(answers, start=1):
            yield by_rate(answer, question, simulates=simulated, is_answer=answer is outcome.answer)
            if progress is not None:
                progress(done, len(answers))


def _loaded(
    outcome: Outcome, question: Question, simulated: bool, each: Mapper, watch: Watch
) -> ClosedLoopCurve | None:
    """The closed-loop curve of the best layout of each GPU type and precision; None without any layout."""
    asked = question.with_(requests_per_s=None, concurrency=None, gpu_budget=None, confidence=None)
    lines = (line_of(answer, asked) for answer in outcome.best_of_each()[:MOST_LINES])
    found = [line for line in lines if line is not None]
    if not found:
        return None
    layouts = [line.layout for line in found if line.layout is not None]
    sizes: Any = (tuple(sorted({getattr(layout, name) for layout in layouts})) for name in Layouts._fields)
    grid = Grid(Layouts(*sizes), LOADS, arrivals="closed", simulated=simulated, seed=SEED)
    with watch("Simulating") as progress:
        drawn = evaluated(found, asked, grid, each=each, progress=progress)
    limits, mode = applying(asked), question.origin.workload.mode
    first = metrics_of({name: getattr(limits, name) for name in LATENCIES}, mode)[0]
    return ClosedLoopCurve(marked(drawn, limits, first), asked, grid)
