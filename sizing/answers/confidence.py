"""The confident size of a layout: the size at which a given share of similar published runs would keep the limits.

Each run gives the
error of a prediction: of TTFT, ITL and E2E against the limits, and of throughput against the rate. For each run, the closed
form gives the capacity of a replica with these errors; the loads of a layout are evaluated once for all runs. The margin of a
run is the predicted capacity divided by this capacity. The margin of a confidence covers that share of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sizing.answers.answer import Answer, ConfidentAnswer, Outcome, spent
from sizing.formats.words import percent
from sizing.model.extras import NOTHING
from sizing.question.question import Question
from sizing.replica.capacity import loads_of
from sizing.replica.points import Array, Points
from sizing.replica.timing import Timed
from sizing.specs.bands import EVEN, USUAL, Confidence, ConfidentSize, PublishedRuns, SimilarRuns, of_runs
from sizing.specs.data import Data
from sizing.specs.demand import ROUNDING_SLACK, replicas_for
from sizing.specs.workload import Target

NONE_SIMILAR = "no published runs like this"
OWN_RUNS = "too few own runs; their error band says how far off a prediction may be"
MOST_MARGIN = 10.0  # beyond it, the limit is so near to a lone request's latency that more GPUs do not help


class Margins(NamedTuple):
    """The margins of published runs in ascending order, the share of runs up to each, and the number of groups."""

    groups: int
    of_runs: Array
    share: Array
    own: bool = False
    any_gpu: bool = False

    def of(self, confidence: float) -> float:
        """The margin, at least 1, with which the share `confidence` of runs keeps the limits; infinite above `MOST_MARGIN`."""
        place = min(int(np.searchsorted(self.share, confidence - ROUNDING_SLACK)), self.of_runs.size - 1)
        margin = max(1.0, float(self.of_runs[place]))
        return margin if margin <= MOST_MARGIN else math.inf


def confident_sizes(answers: Sequence[tuple[Answer, Question]], runs: PublishedRuns | None) -> list[ConfidentSize]:
    """The confident sizes of the layouts of answers, and the confidence of each answer's own number of GPUs (`chance`)."""
    known = {
        number: (answer.pool.load, question)
        for number, (answer, question) in enumerate(answers)
        if question.target.amount is not None and not answer.separate
    }
    found = dict(zip(known, margins(list(known.values()), runs), strict=True))
    return [_confident_size(*each, found.get(number)) for number, each in enumerate(answers)]


def _confident_size(answer: Answer, question: Question, found: Margins | str | None) -> ConfidentSize:
    asked, demand = question.target.confidence, question.target.amount
    confidence = USUAL if asked is None else asked.share
    if demand is None:
        return ConfidentSize(None, confidence, 0, None, "no demand to size for")
    if found is None:
        return ConfidentSize(None, confidence, 0, None, "no published runs of separate pools")
    if isinstance(found, str):
        return ConfidentSize(None, confidence, 0, None, found)
    pool = answer.pool
    demand *= 1 + question.rules.headroom
    most = pool.capacity.amount
    kept = demand * found.of_runs <= most * pool.count * (1 + ROUNDING_SLACK)
    chance, margin = float(found.share[kept].max(initial=0.0)), found.of(confidence)
    if math.isinf(margin):
        missing = f"over {percent(1 - confidence)} of them miss {asked_of(question)}"
        why = f"{missing} even with {MOST_MARGIN:g} times as many"
        return ConfidentSize(None, confidence, found.groups, chance, why, found.own, any_gpu=found.any_gpu)
    count = max(pool.count, replicas_for(demand * margin, most))
    return ConfidentSize(
        count * pool.replica.layout.gpus, confidence, found.groups, chance, None, found.own, margin, found.any_gpu
    )


def asked_of(question: Question) -> str:
    """Write what the runs must keep: the limits, or the demand where there are no limits."""
    return "the limits" if question.target.limits.stated else "the demand"


def margins(asked: Sequence[tuple[Timed, Question]], runs: PublishedRuns | None) -> list[Margins | str]:
    """For each layout and its question the margins of published runs, or why they are unknown.

    Layouts whose questions differ only in the amount of the demand are evaluated in one batch.
    """
    found: list[Margins | str] = []
    alike: dict[Target, list[tuple[int, SimilarRuns]]] = {}
    for number, (load, question) in enumerate(asked):
        of_class = _similar_runs(load, question, runs)
        found.append(of_class if isinstance(of_class, str) else "")
        if not isinstance(of_class, str):
            alike.setdefault(question.target.unsized, []).append((number, of_class))
    for target, entries in alike.items():
        loads = loads_of([asked[number][0] for number, _ in entries], target)
        for (number, of_class), (served, points) in zip(entries, loads, strict=True):
            found[number] = _margins(of_class, target, served, points)
    return found


def _margins(found: SimilarRuns, target: Target, served: Array, points: Points) -> Margins:
    by_runs, predicted = np.full(len(found.weights), served[-1]), float(served[-1])
    for name, limit in target.limits.stated.items() if not target.offline else ():
        seconds = np.maximum.accumulate(getattr(points, f"{name}_s")[limit.statistic])
        of_limit, as_predicted = (
            np.interp(limit.seconds / times, seconds, served, left=0.0) for times in (found.of(name), 1.0)
        )
        by_runs, predicted = np.minimum(by_runs, of_limit), min(predicted, float(as_predicted))
    predicted = max(predicted, float(served[0]))
    if target.population is not None:
        in_flight = np.maximum.accumulate(points.in_flight)  # at each load, whatever the E2E of a run
        thinking = by_runs * target.think_time_s / found.of("throughput")
        by_runs = np.interp(by_runs, served, in_flight, left=0.0) + thinking
        predicted = float(np.interp(predicted, served, in_flight)) + predicted * target.think_time_s
    elif target.concurrency is None:
        by_runs = by_runs / found.of("throughput")
    with np.errstate(divide="ignore"):
        asked = np.where(by_runs > 0, predicted / by_runs, np.inf)
    order = np.argsort(asked)
    share = np.cumsum(found.weights[order]) / found.weights.sum()
    return Margins(found.groups, asked[order], share, found.own, found.any_gpu)


def _similar_runs(load: Timed, question: Question, runs: PublishedRuns | None) -> SimilarRuns | str:
    """The published runs similar to a layout, or why there are none."""
    if question.service.model.pooled:
        return "no published runs of models that do not generate"
    if question.service.extras != NOTHING:
        return "no published runs with these optimisations"
    situation = question.service.situation(load.replica.gpu_type.gpu)
    found = None if runs is None else runs.like(situation, question.target.decisive)
    return found or (OWN_RUNS if situation.own else NONE_SIMILAR)


def margin_of(layouts: Sequence[tuple[Timed, Question]]) -> list[float | str]:
    """For each layout the margin for the confidence asked for, 1 without one; or why it is unknown or none is large enough."""
    asked = [question.target.confidence for _, question in layouts]
    cautious = [layout for layout, of in zip(layouts, asked, strict=True) if of is not None]
    runs = next((of.runs for of in asked if of is not None), None)
    found = iter(margins(cautious, runs))
    return [
        1.0 if of is None else _margin(of, question, next(found))
        for of, (_, question) in zip(asked, layouts, strict=True)
    ]


def _margin(asked: Confidence, question: Question, found: Margins | str) -> float | str:
    if isinstance(found, str):
        return f"not known: {found}"
    margin = found.of(asked.share)
    if math.isfinite(margin):
        return margin
    runs = f"{of_runs(found.own, any_gpu=found.any_gpu)} ({found.groups}{'' if found.own else ' groups'})"
    return f"no load keeps {asked_of(question)} in {asked.share:.0%} of {runs}"


def with_odds(
    questions: Sequence[Question], data: Data, answered: Callable[[Sequence[Question]], list[Outcome]]
) -> list[Outcome]:
    """The outcomes of `answered` with their confident sizes, and with at least even odds.

    Where fewer than half of the similar published runs would keep demand and limits, `answered` runs again with a confidence
    of 50 %.
    """
    found = answered(questions)
    said = _surely(found, data)
    odd = [number for number, outcome in enumerate(said) if _chance(outcome) < EVEN]
    if data.runs is not None and odd:
        even = answered([evenly(questions[number], data) for number in odd])
        as_predicted = [
            replace(each, question=each.question.with_(confidence=None), even=True, predicted=found[number].answer)
            for number, each in zip(odd, even, strict=True)
        ]
        for number, outcome in zip(odd, _surely(as_predicted, data), strict=True):
            said[number] = outcome
    return said


def _chance(outcome: Outcome) -> float:
    """The share of similar published runs that keep the limits; 1 if too few runs are similar."""
    return 1.0 if outcome.sure is None or outcome.sure.chance is None else outcome.sure.chance


def has_odds(outcome: Outcome) -> bool:
    """Whether published runs give the probability that a plain prediction keeps its limits."""
    asked, said = outcome.question.target.confidence, outcome.sure
    return asked is None and said is not None and said.chance is not None


def evenly(question: Question, data: Data) -> Question:
    """The question with a confidence of 50 %."""
    assert data.runs is not None
    return question.with_(confidence=Confidence(EVEN, data.runs))


def _surely(found: Sequence[Outcome], data: Data) -> list[Outcome]:
    """The outcomes with the confident size of their answers, and of another answer whose confident size is cheaper."""
    sizes = iter(
        confident_sizes([(each.answer, each.question) for each in found if each.answer is not None], data.runs)
    )
    known = [None if each.answer is None else next(sizes) for each in found]
    asked = [(each, each.answers[1:], own) for each, own in zip(found, known, strict=True)]
    return [
        each if own is None else replace(each, sure=own, surer=surer)
        for each, own, surer in zip(found, known, cheaper_answers(asked, data), strict=True)
    ]


def cheaper_answers(
    asked: Sequence[tuple[Outcome, Sequence[Answer], ConfidentSize | None]], data: Data
) -> list[ConfidentAnswer | None]:
    """For each outcome, the one of some other answers with the cheapest confident size.

    None where the confident size of the outcome's own answer costs no more.
    """
    cheaper = [_cheaper(outcome, others, own) for outcome, others, own in asked]
    flat = [(each, outcome.question) for (outcome, _, _), some in zip(asked, cheaper, strict=True) for each in some]
    sizes = iter(confident_sizes(flat, data.runs))
    found: list[ConfidentAnswer | None] = []
    for (outcome, _, own), some in zip(asked, cheaper, strict=True):
        known = [ConfidentAnswer(each, next(sizes)) for each in some]
        best = min(known, key=lambda each: _surely_spent(outcome, each.answer, each.sure), default=None)
        least = math.inf if own is None else _surely_spent(outcome, outcome.answers[0], own)
        found.append(best if best is not None and _surely_spent(outcome, best.answer, best.sure) < least else None)
    return found


def _surely_spent(outcome: Outcome, of: Answer, known: ConfidentSize) -> float:
    return math.inf if known.gpus is None else spent(of, outcome.question.rules.objective) * known.gpus / of.gpus


def _cheaper(outcome: Outcome, others: Sequence[Answer], own: ConfidentSize | None) -> list[Answer]:
    """The answers of `others` that cost less than the confident size of the outcome's own: a confident size is no smaller."""
    question = outcome.question
    if own is None or question.target.confidence is not None:
        return []
    most = _surely_spent(outcome, outcome.answers[0], own)
    return [each for each in others if spent(each, question.rules.objective) < most]
