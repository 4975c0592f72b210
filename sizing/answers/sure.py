"""How many GPUs are sure to do: those with which a share of the published runs like a question would keep its limits.

Every run says how far off a prediction may be: its TTFT, ITL and E2E against the limits, its throughput against the rate. With
each of them the closed form is asked anew how much a replica serves; the loads of one layout are evaluated once for all runs.
"""

from __future__ import annotations

import math

import numpy as np

from sizing.answers.answer import Answer
from sizing.model.extras import NOTHING
from sizing.question.question import Question, situation_of
from sizing.replica.capacity import bounded, loads_of
from sizing.replica.points import Array
from sizing.specs.bands import Sure, region
from sizing.specs.demand import ROUNDING_SLACK
from sizing.specs.runs import Alike, PublishedRuns
from sizing.specs.workload import Limit

USUAL = 0.9  # 9 of 10 published runs of the kind


def sure(answer: Answer, question: Question, runs: PublishedRuns | None, confidence: float = USUAL) -> Sure:
    """The GPUs of an answer's layout that keep demand and limits in a share `confidence` of published runs."""
    demand = question.target.concurrency or question.target.requests_per_s
    if demand is None:
        return Sure(None, confidence, 0, None, "no demand to size for")
    found = alike(answer, question, runs)
    if isinstance(found, str):
        return Sure(None, confidence, 0, None, found)
    pool = answer.pool
    needed = replicas_needed(answer, question, found)
    order = np.argsort(needed)
    share = np.cumsum(found.weights[order]) / found.weights.sum()
    enough = needed[order][min(int(np.searchsorted(share, confidence - 1e-9)), order.size - 1)]
    chance = found.share(needed <= pool.count)
    if not math.isfinite(enough):
        return Sure(
            None,
            confidence,
            found.groups,
            chance,
            f"no number of GPUs is, in {confidence:.0%} of published runs like this",
        )
    count = max(pool.count, int(enough))
    return Sure(count * pool.replica.layout.gpus, confidence, found.groups, chance)


def alike(answer: Answer, question: Question, runs: PublishedRuns | None) -> Alike | str:
    """The published runs like an answer, or why there are none."""
    if answer.separate:
        return "no published runs of separate pools"
    pool = answer.pool
    if question.service.extras != NOTHING or question.service.model.pooled:
        return (
            "no published runs with these optimisations"
            if not question.service.model.pooled
            else "no published runs of such models"
        )
    situation = situation_of(question, pool.replica.gpu_type.gpu, region(pool.point.running))
    found = None if runs is None else runs.like(situation, needed_times(question))
    return "no published runs like this" if found is None else found


def needed_times(question: Question) -> tuple[str, ...]:
    """The times that decide whether a run keeps a question's limits and its rate."""
    rate = () if question.target.concurrency is not None else ("throughput",)
    return (*_limits(question), *rate)


def replicas_needed(answer: Answer, question: Question, found: Alike) -> Array:
    """The replicas that the demand takes by each of the published runs; infinite where no load keeps the limits."""
    target, amounts = question.target, amounts_of(answer, question, found)
    demand = (target.concurrency or target.requests_per_s or 0.0) * (1 + question.rules.headroom)
    with np.errstate(divide="ignore"):
        needed: Array = np.ceil(np.where(amounts > 0, demand / amounts, np.inf) - ROUNDING_SLACK)
    return np.maximum(needed, 1.0)


def amounts_of(answer: Answer, question: Question, found: Alike) -> Array:
    """What a replica serves within the limits by each run: what it is predicted to serve, times what the run makes of it."""
    pool, target = answer.pool, question.target
    served, points = loads_of(pool.load, target)
    most, predicted = np.full(len(found.weights), served[-1]), served[-1]
    for name, limit in _limits(question).items():
        seconds = np.maximum.accumulate(getattr(points, f"{name}_s")[limit.statistic])
        by_runs, as_predicted = (
            np.interp(limit.seconds / times, seconds, served, left=0.0) for times in (found.of(name), 1.0)
        )
        most, predicted = np.minimum(most, by_runs), min(predicted, float(as_predicted))
    if target.concurrency is None:
        most = most / found.of("throughput")
    amounts: Array = most * (pool.capacity.amount / predicted) if predicted > 0 else np.zeros_like(most)
    return amounts


def _limits(question: Question) -> dict[str, Limit]:
    """The limits that a size must keep; offline work has none."""
    return {} if question.target.offline else bounded(question.target.limits)
