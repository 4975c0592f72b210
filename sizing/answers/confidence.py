"""The margin of a confidence, and what published runs say of a size: how many GPUs are sure, and the chance of fewer.

Each run gives the error of a prediction: of TTFT, ITL and E2E against the limits, and of throughput against the rate. For each
run, the closed form gives the capacity of a replica with these errors; the loads of a layout are evaluated once for all runs.
The margin of a run is the predicted capacity divided by this capacity. The margin of a confidence covers that share of the runs.

A size is sure where it keeps the plain limits under the demand times the margin. `sure_size.sure_answers` finds the sure size of every
command; `verify.under_reserve_load` gives the load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from sizing.answers.answer import Answer, Outcome, Pool, is_alike
from sizing.catalog import shelf
from sizing.catalog.runs import SimilarRuns, published
from sizing.formats.words import percent
from sizing.model.extras import NOTHING
from sizing.question.question import Question, think_time_of
from sizing.replica.batching import Points
from sizing.replica.capacity import loads_of
from sizing.replica.curves import Array
from sizing.replica.timing import Timed
from sizing.specs.bands import (
    EVEN,
    TIMES,
    USUAL,
    Band,
    BandMetric,
    Bands,
    ConfidentSize,
    PublishedRuns,
    Situation,
    find,
    of_runs,
)
from sizing.specs.demand import ROUNDING_SLACK
from sizing.specs.workload import LATENCIES, Target

NONE_CONFIRMED = "a simulation confirms no size of it"
MOST_MARGIN = 10.0  # beyond it, the limit is so near to a lone request's latency that more GPUs do not help


class Unknown(NamedTuple):
    """Why published runs say nothing of a layout."""

    why: str


NONE_SIMILAR = Unknown("no published runs like this")
NONE_SEPARATE = Unknown("no published runs of separate pools")
NO_DEMAND = Unknown("no demand to size for")
OWN_RUNS = Unknown("too few own runs; their error band says how far off a prediction may be")


class Margins(NamedTuple):
    """The margins of published `runs` in ascending order, and the share of runs up to each."""

    runs: SimilarRuns
    of_runs: Array
    share: Array
    by: NDArray[np.int64]  # the index in `TIMES` of the quantity that sets the margin of a run
    times: Array  # that quantity, measured over predicted
    order: NDArray[np.int64]  # the index of the run in `runs`

    def place(self, share: float) -> int:
        """The place of the run up to which a share of the runs lies."""
        return min(int(np.searchsorted(self.share, share - ROUNDING_SLACK)), self.of_runs.size - 1)

    def of(self, confidence: float) -> float:
        """The margin, at least 1, with which the share `confidence` of runs keeps the limits; infinite above `MOST_MARGIN`."""
        margin = max(1.0, float(self.of_runs[self.place(confidence)]))
        return margin if margin <= MOST_MARGIN else math.inf

    def kept(self, demand: float, capacity: float) -> NDArray[np.bool_]:
        """The runs in which the predicted `capacity` suffices for a demand."""
        return demand * self.of_runs <= capacity * (1 + ROUNDING_SLACK)


class SizeAtOdds(NamedTuple):
    """A size with its question, and the sure size for the question's confidence (90 % without one); None where none is known.

    A size found at `even` odds is sized for a confidence of 50 %.
    """

    answer: Answer
    question: Question
    sure_answer: Answer | None = None
    even: bool = False

    @property
    def confidence(self) -> float:
        """The share of published runs that must keep the limits."""
        asked = self.question.target.confidence
        return USUAL if asked is None else asked

    @property
    def is_sure(self) -> bool:
        """Whether the size is at least the sure size of its own layout."""
        if self.sure_answer is None:
            return False
        return is_alike(self.answer, self.sure_answer) and self.answer.gpus >= self.sure_answer.gpus

    @property
    def simulated_confidence(self) -> float:
        """The confidence that the size itself was simulated for."""
        return self.confidence if self.is_sure else EVEN if self.even else 0.0


def odds_of(said: Sequence[SizeAtOdds]) -> list[ConfidentSize]:
    """What published runs say of sizes: the sure GPUs, and the `chance` that the GPUs of each keep demand and limits."""
    known = {
        number: (each.answer.pool.timed, each.question)
        for number, each in enumerate(said)
        if each.question.target.amount is not None and not each.answer.separate
    }
    found = dict(zip(known, margins(list(known.values())), strict=True))
    return [_odds_of(each, found.get(number, NONE_SEPARATE)) for number, each in enumerate(said)]


def _odds_of(said: SizeAtOdds, margins: Margins | Unknown) -> ConfidentSize:
    question, confidence = said.question, said.confidence
    if question.target.amount is None:
        margins = NO_DEMAND
    if isinstance(margins, Unknown):
        return ConfidentSize(None, confidence, 0, None, margins.why)
    margin, pool = margins.of(confidence), said.answer.pool
    kept = margins.kept(
        (question.target.amount or 0.0) * (1 + question.rules.headroom), pool.capacity.amount * pool.count
    )
    if said.sure_answer is not None:  # the sure size is simulated, and the capacity is an estimate
        kept = kept | (margins.of_runs <= margin) if said.is_sure else kept & (margins.of_runs < margin)
    chance, why = float(margins.share[kept].max(initial=0.0)), None
    if said.answer.run is not None:  # a size that was simulated for a confidence has it
        slow = np.diff(margins.share, prepend=0.0)[kept & ~_kept_as_simulated(said, margins)].sum()
        chance = max(chance - float(slow), min(chance, said.simulated_confidence)) if slow else chance
    if said.sure_answer is None:
        missing = f"over {percent(1 - confidence)} of them miss {asked_of(question)}"
        why = f"{missing} even with {MOST_MARGIN:g} times as many" if math.isinf(margin) else NONE_CONFIRMED
    gpus, place = None if said.sure_answer is None else said.sure_answer.gpus, margins.place(confidence)
    known = _size(gpus, confidence, margins.runs, chance)
    return known._replace(why_not=why, by=TIMES[margins.by[place]], times=float(margins.times[place]))


def _size(gpus: int | None, confidence: float, runs: SimilarRuns, chance: float) -> ConfidentSize:
    return ConfidentSize(gpus, confidence, runs.groups, chance, own=runs.own, any_gpu=runs.any_gpu)


def odds_of_rate(outcome: Outcome) -> ConfidentSize:
    """What published runs say of the rate that the given GPUs of an answer serve, and the loads that they serve with the confidence.

    The number of users has a margin of its own: answers that are slower than predicted make users ask less.
    """
    best, plain, asked = outcome.answers[0], outcome.question, outcome.question.target.confidence
    confidence, question = USUAL if asked is None else asked, plain.with_(requests_per_s=best.requests_per_s)
    found = NONE_SEPARATE if best.separate else margins([(best.pool.timed, question)])[0]
    if isinstance(found, Unknown):
        return ConfidentSize(None, confidence, 0, None, found.why)
    pool, e2e_s = best.pool, best.latency_s("e2e")["mean"]
    rate = best.requests_per_s * pool.margin  # the margin has divided the rate already
    kept = found.kept(best.requests_per_s, rate) & _kept_as_simulated(SizeAtOdds(best, question), found)
    size = _size(None, confidence, found.runs, float(found.share[kept].max(initial=0.0)))
    if math.isinf(margin := found.of(confidence)):
        return size
    size = size._replace(requests_per_s_sure=rate / margin)
    if plain.target.offline or plain.service.model.pooled:
        return size
    think_s = think_time_of(plain.origin.workload)
    of_people = plain.with_(population=1.0, think_time_s=think_s)
    (by_users,) = margins([(pool.timed, of_people)])
    most = rate * (e2e_s + think_s)
    users = None if isinstance(by_users, Unknown) else by_users.of(confidence)
    return size if users is None or math.isinf(users) else size._replace(users_sure=math.floor(most / users))


def asked_of(question: Question) -> str:
    """Write what the runs must keep: the limits, or the demand where there are no limits."""
    return "the limits" if question.target.limits.stated else "the demand"


_KNOWN: WeakKeyDictionary[Timed, dict[tuple[Target, PublishedRuns], Margins | Unknown]] = WeakKeyDictionary()


def margins(asked: Sequence[tuple[Timed, Question]]) -> list[Margins | Unknown]:
    """For each layout and its question the margins of published runs, or why they are unknown.

    Layouts whose questions differ only in the amount of the demand are evaluated in one batch, each once: its margins are kept
    as long as the layout.
    """
    runs = shelf.only(PublishedRuns)
    known = [(_KNOWN.setdefault(load, {}), (question.target.unsized, runs)) for load, question in asked]
    alike: dict[Target, dict[Timed, SimilarRuns]] = {}
    for (of, key), (load, question) in zip(known, asked, strict=True):
        if key not in of:
            of_class = _similar_runs(load, question)
            if isinstance(of_class, Unknown):
                of[key] = of_class
            else:
                alike.setdefault(key[0], {})[load] = of_class
    for target, entries in alike.items():
        if target.population is None and (
            target.offline or not target.limits.stated
        ):  # only the rate: of any load the same
            loads: list[tuple[Array, Points | None]] = [(np.ones(1), None)] * len(entries)
        else:
            loads = list(loads_of(list(entries), target))
        for (load, of_class), (served, points) in zip(entries.items(), loads, strict=True):
            _KNOWN[load][target, runs] = _margins(of_class, target, served, points)
    return [of[key] for of, key in known]


def _margins(runs: SimilarRuns, target: Target, served: Array, points: Points | None) -> Margins:
    by_runs, predicted = np.full(len(runs.weights), served[-1]), float(served[-1])
    by, longer = np.full(by_runs.size, TIMES.index("throughput")), runs.of("throughput")
    for name, limit in target.limits.stated.items() if points is not None and not target.offline else ():
        seconds = np.maximum.accumulate(getattr(points, f"{name}_s")[limit.statistic])
        of_limit, as_predicted = (
            np.interp(limit.seconds / times, seconds, served, left=0.0) for times in (runs.of(name), 1.0)
        )
        binds = of_limit < by_runs
        by, longer = np.where(binds, TIMES.index(name), by), np.where(binds, runs.of(name), longer)
        by_runs, predicted = np.minimum(by_runs, of_limit), min(predicted, float(as_predicted))
    predicted = max(predicted, float(served[0]))
    if target.population is not None and points is not None:
        in_flight = np.maximum.accumulate(points.in_flight)  # at each load, whatever the E2E of a run
        thinking = by_runs * target.think_time_s / runs.of("throughput")
        by_runs = np.interp(by_runs, served, in_flight, left=0.0) + thinking
        predicted = float(np.interp(predicted, served, in_flight)) + predicted * target.think_time_s
    elif target.concurrency is None:
        by_runs = by_runs / runs.of("throughput")
    with np.errstate(divide="ignore"):
        asked = np.where(by_runs > 0, predicted / by_runs, np.inf)
    order = np.argsort(asked)
    share = np.cumsum(runs.weights[order]) / runs.weights.sum()
    ordered = asked[order], share, by.astype(np.int64)[order], longer[order], order
    return Margins(runs, *ordered)


def likely(answer: Answer, question: Question) -> tuple[Band, ...]:
    """The range of measured over predicted of each quantity of an answer, by the runs that its sure size is by; empty without any.

    Each run's errors are taken at the demand, or without one at the rate that the answer serves: a slower run has more requests
    in flight at the same rate. 8 in 10 runs of groups left out lie within a range. That of throughput is of the most within the
    limits, so that it ends below the demand exactly where fewer than 9 in 10 runs keep the limits.
    """
    if question.target.amount is None and not question.target.offline:
        question = question.with_(requests_per_s=answer.requests_per_s)
    target = question.target
    found = NONE_SIMILAR if target.amount is None or answer.separate else _similar_runs(answer.pool.timed, question)
    if isinstance(found, Unknown) or found.own:
        return ()
    ((served, points),) = loads_of([answer.pool.timed], target.unsized)
    margins_ = _margins(found, target, served, points)
    fast, slow = found._replace(weights=found.weights[margins_.order]).ends(margins_.of_runs, "throughput")
    ends = {"throughput": (max(1 / MOST_MARGIN, 1 / slow), max(1 / MOST_MARGIN, 1 / fast))}
    ends |= {
        name: found.ends(of, name) for name, of in _of_latencies(answer.pool, target, found, (served, points)).items()
    }
    own_class = question.service.situation(answer.pool.replica.gpu_type.gpu).named()
    if found.any_gpu:
        del own_class["architecture"]
    of_runs_: dict[str, Any] = {**own_class, "n": len(found.weights), "groups": found.groups}
    each = ((metric, *ends[metric]) for metric in TIMES if metric in ends)
    return tuple(Band(metric=metric, low=min(1.0, low), high=max(1.0, high), **of_runs_) for metric, low, high in each)


def _of_latencies(
    pool: Pool, target: Target, runs: SimilarRuns, loads: tuple[Array, Points]
) -> dict[BandMetric, NDArray[np.float64]]:
    """By latency: the latency of each run divided by the predicted one. Latencies that a run does not state are left out.

    The statistic is that of the limit; without a limit it is the mean.
    """
    _, points = loads
    factors: dict[BandMetric, NDArray[np.float64]] = {}
    for name in LATENCIES if not target.offline else ():
        limit = target.limits.stated.get(name)
        seconds = np.maximum.accumulate(getattr(points, f"{name}_s")["mean" if limit is None else limit.statistic])
        if not np.isnan(times := runs.of(name)).any():
            at = np.append(_loads_of_runs(pool, target, runs, loads), pool.point.requests_per_s)
            *each, own = np.interp(at, points.requests_per_s, seconds)
            if own > 0:
                factors[name] = np.array(each) * times / own
    return factors


def _kept_as_simulated(said: SizeAtOdds, margins: Margins) -> NDArray[np.bool_]:
    """Whether each run, in the order of its margin, keeps the limits: its factor times the simulated latency.

    All runs keep them if the answer was not simulated.
    The range of a latency lies around the simulated figure, so a share of runs must not say more than the range does.
    """
    kept = np.ones(margins.of_runs.size, dtype=bool)
    answer, target = said.answer, said.question.target
    if answer.run is None or target.offline or not target.limits.stated:
        return kept
    ((served, points),) = loads_of([answer.pool.timed], target.unsized)
    factors = _of_latencies(answer.pool, target, margins.runs, (served, points))
    for name, limit in target.limits.stated.items():
        if name in factors:
            seconds = answer.latency_s(name)[limit.statistic] * factors[name]
            kept &= (seconds <= limit.seconds * (1 + ROUNDING_SLACK))[margins.order]
    return kept


def least_of(ttft_ms: float | None, itl_ms: float | None, alone: Situation) -> dict[BandMetric, float]:
    """The low end of the range of a lone request's latencies, of its class `alone`."""
    lone: dict[BandMetric, float | None] = {"ttft": ttft_ms, "itl": itl_ms}
    bands = {metric: find(shelf.only(Bands).bands, metric, alone) for metric in lone}
    return {
        metric: value * band.low
        for metric, value in lone.items()
        if value is not None and (band := bands[metric]) is not None
    }


def _loads_of_runs(pool: Pool, target: Target, runs: SimilarRuns, loads: tuple[Array, Points]) -> Array:
    """The predicted requests/s of a replica at the load that each run has under the demand."""
    (served, points), rate = loads, pool.point.requests_per_s
    if target.concurrency is not None:
        return np.full(runs.weights.size, rate)
    if target.population is None or target.think_time_s <= 0:
        return rate * runs.of("throughput") if target.population is None else np.full(runs.weights.size, rate)
    people = target.population / pool.count
    with_thinkers = points.in_flight + np.outer(1 / runs.of("throughput"), served) * target.think_time_s
    return np.array([np.interp(people, np.maximum.accumulate(one), served) for one in with_thinkers])


def _similar_runs(timed: Timed, question: Question) -> SimilarRuns | Unknown:
    """The published runs similar to a layout, or why there are none."""
    if question.service.model.pooled:
        return Unknown("no published runs of models that do not generate")
    if question.service.extras != NOTHING:
        return Unknown("no published runs with these optimisations")
    situation = question.service.situation(timed.replica.gpu_type.gpu)
    found = published().like(situation, question.target.decisive)
    return found or (OWN_RUNS if situation.own else NONE_SIMILAR)


def margin_of(layouts: Sequence[tuple[Timed, Question]]) -> list[float | Unknown]:
    """For each layout the margin for the confidence asked for, 1 without one; or why it is unknown or none is large enough."""
    cautious = {n: each for n, each in enumerate(layouts) if each[1].target.confidence is not None}
    found = dict(zip(cautious, margins(list(cautious.values())), strict=True))
    return [_margin(found[n], question) if n in found else 1.0 for n, (_, question) in enumerate(layouts)]


def _margin(margins: Margins | Unknown, question: Question) -> float | Unknown:
    confidence = question.target.confidence
    assert confidence is not None
    if isinstance(margins, Unknown):
        return Unknown(f"not known: {margins.why}")
    margin, runs = margins.of(confidence), margins.runs
    if math.isfinite(margin):
        return margin
    words = f"{of_runs(runs.own, any_gpu=runs.any_gpu)} ({runs.groups}{'' if runs.own else ' groups'})"
    return Unknown(f"no load keeps {asked_of(question)} in {confidence:.0%} of {words}")


def has_odds(outcome: Outcome) -> bool:
    """Whether published runs give the probability that a plain prediction keeps its limits."""
    target, said = outcome.question.target, outcome.by_runs.odds
    return target.confidence is None and target.amount is not None and said is not None and said.chance is not None


def evenly(question: Question) -> Question:
    """The question with a confidence of 50 %."""
    return question.with_(confidence=EVEN)
