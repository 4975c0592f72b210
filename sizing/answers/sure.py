"""How many GPUs are sure to do: those with which a share of the published runs like a question would keep its limits.

Every run says how far off a prediction may be: its TTFT, ITL and E2E against the limits, its throughput against the rate. With
each of them the closed form says anew how much a replica serves; the loads of one layout are evaluated once for all runs. What
it is predicted to serve, over what it serves by a run, is the margin that the run asks for; the margin of a confidence is that
of so large a share of the runs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sizing.answers.answer import Answer
from sizing.model.extras import NOTHING
from sizing.question.question import Question
from sizing.replica.capacity import bounded, loads_of
from sizing.replica.points import Array
from sizing.replica.timing import Timed
from sizing.specs.bands import Sure
from sizing.specs.demand import ROUNDING_SLACK, replicas_for
from sizing.specs.runs import USUAL, Alike, PublishedRuns

NONE_ALIKE = "no published runs like this"
MOST_MARGIN = 10.0  # beyond it a limit is so near to what a lone request takes that GPUs do not help


class Margins(NamedTuple):
    """The margins that published runs ask for, ascending, and the share of the runs up to each; of so many groups."""

    groups: int
    of_runs: Array
    share: Array

    def of(self, confidence: float) -> float:
        """The margin with which a share of the runs keeps the limits, at least 1; infinite where no sensible one does."""
        place = min(int(np.searchsorted(self.share, confidence - ROUNDING_SLACK)), self.of_runs.size - 1)
        margin = max(1.0, float(self.of_runs[place]))
        return margin if margin <= MOST_MARGIN else math.inf


def sure(answer: Answer, question: Question, runs: PublishedRuns | None) -> Sure:
    """The GPUs of an answer's layout that are sure to do, and the chance that the answer's own do."""
    asked, target = question.target.confidence, question.target
    confidence = USUAL if asked is None else asked.share
    demand = target.amount if target.population is None else answer.requests_per_s
    if demand is None:
        return Sure(None, confidence, 0, None, "no demand to size for")
    if answer.separate:
        return Sure(None, confidence, 0, None, "no published runs of separate pools")
    pool = answer.pool
    found = margins(pool.load, question, runs)
    if isinstance(found, str):
        return Sure(None, confidence, 0, None, found)
    demand *= 1 + question.rules.headroom
    most = pool.capacity.amount if target.population is None else pool.capacity.requests_per_s
    kept = demand * found.of_runs <= most * pool.count * (1 + ROUNDING_SLACK)
    chance, margin = float(found.share[kept].max(initial=0.0)), found.of(confidence)
    if math.isinf(margin):
        kept_not = f"do not keep {asked_of(question)} in {confidence:.0%} of published runs like this"
        why = f"{MOST_MARGIN:g} times as many {kept_not}"
        return Sure(None, confidence, found.groups, chance, why)
    count = max(pool.count, replicas_for(demand * margin, most))
    return Sure(count * pool.replica.layout.gpus, confidence, found.groups, chance)


def asked_of(question: Question) -> str:
    """Write what runs are to keep: the limits; without any the demand."""
    return "the limits" if bounded(question.target.limits) else "the demand"


def margins(load: Timed, question: Question, runs: PublishedRuns | None) -> Margins | str:
    """The margins that published runs ask of a layout, or why nothing is known of it."""
    found = _alike(load, question, runs)
    if isinstance(found, str):
        return found
    served, points = loads_of(load, question.target)
    by_runs, predicted = np.full(len(found.weights), served[-1]), float(served[-1])
    for name, limit in bounded(question.target.limits).items() if not question.target.offline else ():
        seconds = np.maximum.accumulate(getattr(points, f"{name}_s")[limit.statistic])
        of_limit, as_predicted = (
            np.interp(limit.seconds / times, seconds, served, left=0.0) for times in (found.of(name), 1.0)
        )
        by_runs, predicted = np.minimum(by_runs, of_limit), min(predicted, float(as_predicted))
    if question.target.concurrency is None:
        by_runs = by_runs / found.of("throughput")
    with np.errstate(divide="ignore"):
        asked = np.where(by_runs > 0, max(predicted, served[0]) / by_runs, np.inf)
    order = np.argsort(asked)
    share = np.cumsum(found.weights[order]) / found.weights.sum()
    return Margins(found.groups, asked[order], share)


def _alike(load: Timed, question: Question, runs: PublishedRuns | None) -> Alike | str:
    """The published runs like a layout, or why there are none."""
    if question.service.model.pooled:
        return "no published runs of models that do not generate"
    if question.service.extras != NOTHING:
        return "no published runs with these optimisations"
    situation = question.service.situation(load.replica.gpu_type.gpu)
    found = None if runs is None else runs.like(situation, question.target.decisive)
    return NONE_ALIKE if found is None else found
