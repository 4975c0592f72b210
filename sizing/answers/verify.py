"""Check answers by simulation: the closed form's size under the demand, and the next size where that one fails.

Of equal replicas that serve whole requests, one is simulated with its share of the demand: a random router turns Poisson
arrivals into Poisson arrivals at each replica. The replicas of separate pools are simulated together; of large pools, a part
in nearly the same ratio. The steady state is measured, without the start and the end of the run. Headroom and the margin of a
confidence raise the load of the simulation, and the limits stay as they are (`under_reserve_load`).

Where a short run ends near a limit, or its TTFT is not known to a tenth, a longer run decides. Where chance may still decide,
runs with other arrivals are added until the result is significant, or there are enough requests; what chance still leaves open
then does not hold. A request of few tokens has one of few ITLs, by the prompts that came between, so that its percentile jumps
past any tolerance: only the test decides there. The test uses batch means of the share of requests beyond the limit, with the
arrival rates of the batches as a control variate. The goal: of 100 confirmed answers, at most one misses a limit by more than 2 %
in a run ten times as long. `tests/benchmarks/verified.py` measures this.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from sizing.answers.answer import Answer, Order, Outcome, Pool, Rank, SimulatedSizes, preference, shape_of
from sizing.answers.search import at_load, at_share, with_extras_found
from sizing.answers.sizes import (
    VERIFY,
    SizeVerdict,
    TriedSizes,
    at_population,
    batch_used,
    corrected,
    part_of,
    serves_population,
)
from sizing.engine.deployment import deployment_of
from sizing.engine.requests import Lengths
from sizing.engine.run import Routing
from sizing.engine.simulation import ROUNDS, Run, Traffic, simulate
from sizing.question.question import Question
from sizing.replica.timing import Timed
from sizing.specs.demand import ROUNDING_SLACK
from sizing.specs.units import PERCENTILES
from sizing.specs.workload import Limit, Limits, Metric, Statistic, Tokens

RUNS_KEPT = 32  # as many as a question and its looser limits take


def verify(
    outcome: Outcome,
    *,
    seed: int = 0,
    tries: int = VERIFY.most_tries,
    order: Order = preference,
    shows: bool = True,
) -> Outcome:
    """The outcome with the best size that the simulator confirms, else with the nearest size tried (`passed` False).

    With `shows`, a size that was confirmed under headroom or margin is simulated under the demand too.

    Layouts are tried in the `order` of the best size that each may still reach, so that the first settled layout is the best
    of all. A layout that fails is tried again at a larger size, or at less load where only a GPU budget is given. There are
    `tries` simulations for each GPU type. If the first `tries` confirm nothing, the shapes of layouts take turns.
    """
    question = outcome.question
    left = [_Turn.of(TriedSizes.of(answer, question), order) for answer in outcome.answers]
    types = {turn.sizes.first.decode.replica.gpu_type.id for turn in left}
    done, nearest, turns = 0, None, Counter[object]()
    while left and done < tries * len(types):
        any_kept = any(turn.sizes.confirmed is not None for turn in left)
        if done >= tries and any_kept:
            break
        turn = min(left, key=lambda each: (turns[each.shape] if done >= tries else 0, each.rank))
        if turn.sizes.settled:
            break
        done, turns[turn.shape] = done + 1, turns[turn.shape] + 1
        verdict = _verdict(turn.sizes.next, turn.sizes.so_far, question, seed)
        if not verdict.kept:
            nearest = verdict if nearest is None or verdict.worst_ratio < nearest.worst_ratio else nearest
        if not turn.sizes.judge(verdict):
            left.remove(turn)
        turn.rank = order(turn.sizes.reachable, question)
    chosen, found = _found(outcome, left, nearest, order)
    if chosen is None:
        return outcome
    first = simulated_for_display(chosen, question, seed=seed) if shows or not chosen.kept else chosen.corrected
    found = replace(found, answers=(first, *found.answers), simulation=SimulatedSizes(done, chosen.kept))
    return found if first.separate else with_extras_found(found)


@dataclass(slots=True)
class _Turn:
    """The sizes of one layout, its rank in the order of layouts, and its shape on its GPU type."""

    sizes: TriedSizes
    rank: Rank
    shape: object

    @classmethod
    def of(cls, sizes: TriedSizes, order: Order) -> _Turn:
        replicas = [pool.replica for pool in sizes.first.pools]
        shape = tuple((of.gpu_type.id, of.plan.weight_format, shape_of(of.layout)) for of in replicas)
        return cls(sizes, order(sizes.first, sizes.question), shape)


def under_reserve_load(size: Answer, question: Question) -> tuple[Answer, Question]:
    """A size under the load by which it is judged, and the question with that demand.

    This is the demand times headroom and margin: a size is sure where it keeps the plain limits under it. Without a demand, the
    load that the margin divided is restored. Sizes without headroom and margin, and separate pools, are unchanged.
    """
    target = question.target
    if size.separate or (target.offline and target.amount is None):
        return size, question
    times = (1 + question.rules.headroom) * size.pool.margin
    if times == 1:
        return size, question
    if target.amount is None:
        return Answer((at_share(size.pool, times),)), question
    amounts = {
        "requests_per_s": target.requests_per_s and target.requests_per_s * times,
        "concurrency": target.concurrency and math.ceil(target.concurrency * times - ROUNDING_SLACK),
        "population": target.population and target.population * times,
    }
    asked = question.with_(**amounts, headroom=0.0)
    return Answer((at_load(size.pool, size.pool.count, asked),)), asked


def verdict_on(size: Answer, question: Question, *, seed: int = 0) -> SizeVerdict:
    """The verdict of a simulation on a size that is long enough to decide."""
    load, asked = under_reserve_load(size, question)
    return _verdict(size, simulated(load, asked, seed=seed), question, seed)


def _verdict(size: Answer, so_far: Answer | None, question: Question, seed: int) -> SizeVerdict:
    """The verdict of a short simulation, or of a long one that continues the run `so_far`.

    Separate pools get a long simulation at once, because their sizes are tried only once.
    """
    (load, asked), limits = under_reserve_load(size, question), question.target.limits
    thorough = size.separate or so_far is not None
    measured = simulated(so_far or load, asked, seed=seed, most=VERIFY.longest if thorough else VERIFY.longer)
    assert measured.run is not None
    errors = VERIFY.sure_to_hold if thorough else VERIFY.sure_enough
    served, used = serves_population(measured, asked.target), batch_used(measured, asked.target)
    kept = served and used <= 1 and meets(measured.run, limits, errors)
    decided = thorough or is_decided(measured.run, question)
    answer = corrected(measured, asked)
    if load is not size:
        share = 1.0 if question.target.amount is not None else 1 / size.pool.margin
        answer = replace(size, pools=(replace(size.pool, capacity=answer.pool.capacity.times(share)),))
    worst = max(used, worst_ratio(measured.run, limits)) if served else math.inf
    return SizeVerdict(kept, worst, decided, measured, answer)


def simulated_for_display(verdict: SizeVerdict, question: Question, *, seed: int = 0) -> Answer:
    """The size of a verdict with its simulation under the demand itself; of a size that fails, under the load that it fails.

    A size that was confirmed under a heavier load may miss a limit by chance; it is then shown under the heavier load.
    """
    size = verdict.corrected
    if size.run is not None:
        return size
    under = simulated(size, question, seed=seed) if verdict.kept else verdict.measured
    kept = under.run is not None and meets(under.run, question.target.limits)
    kept = kept and serves_population(under, question.target) and batch_used(under, question.target) <= 1
    return under if verdict.kept and kept else replace(size, run=verdict.measured.run)


def worst_ratio(run: Run, limits: Limits, *, steady: bool = True) -> float:
    """The largest ratio of a latency to its limit; 1 where no latency has one, infinite where requests were refused.

    A growing queue also makes it infinite: always in a `steady` load, else only where no latency has a limit.
    """
    ratios = limits.used(run.latencies_s.__getitem__).values()
    grows = not run.stable and (steady or not ratios)
    return math.inf if grows or run.refused or not run.completed else max(ratios, default=1.0)


def _found(
    outcome: Outcome, left: list[_Turn], nearest: SizeVerdict | None, order: Order
) -> tuple[SizeVerdict | None, Outcome]:
    """The verdict on the best confirmed size, else on the nearest one; the outcome with the other layouts."""
    question = outcome.question
    confirmed = [(verdict, turn) for turn in left if (verdict := turn.sizes.found) is not None]
    chosen, best = min(confirmed, key=lambda found: order(found[0].corrected, question), default=(nearest, None))
    others = sorted((turn for turn in left if turn is not best), key=lambda turn: turn.rank)
    rest = [turn.sizes.reachable for turn in others]
    if best is None and chosen is not None:  # the nearest layout may still be among those waiting for their next size
        rest = [answer for answer in rest if answer.pools[-1].replica is not chosen.corrected.pools[-1].replica]
    return chosen, replace(outcome, answers=tuple(rest))


# --- a size, simulated -----------------------------------------------------------------------------------------------


def simulated(answer: Answer, question: Question, *, seed: int = 0, most: int = VERIFY.longest) -> Answer:
    """The answer with its simulation under the demand, which continues an earlier run of it.

    Where chance may decide on a limit, requests are added until it does not, or up to `most` times the first run.
    """
    found = answer
    if found.run is None:
        found = _served(answer, question, VERIFY.requests, seed)
        assert found.run is not None
        enough = _is_whole(question) or is_enough(found.run, question.target.limits)
        if enough and serves_population(found, question.target):
            return found
        found = _longer(found, question, seed)
    while (run := found.run) and not is_decided(run, question) and run.completed < most * VERIFY.requests:
        found = _longer(found, question, seed)
    if run is None or not run.stable or serves_population(found, question.target):
        return found
    return _served(found, question, run.completed, seed)  # near the highest rate, E2E is known after many requests only


def _served(answer: Answer, question: Question, requests: int, seed: int) -> Answer:
    """The answer with a simulation of about `requests` requests, at the rate that serves the population of a demand."""
    drive = partial(driven, question=question, requests=requests, seed=seed)
    return drive(answer) if question.target.population is None else at_population(answer, question.target, drive)


def _longer(answer: Answer, question: Question, seed: int) -> Answer:
    """The answer with its run extended by other arrivals."""
    assert answer.run is not None
    again = driven(answer, question, VERIFY.longer * VERIFY.requests, seed + answer.run.completed).run
    assert again is not None
    run = answer.run.continued(again)
    pools = (replace(pool, run=part) for pool, part in zip(answer.pools, run.parts or (None,), strict=True))
    return replace(answer, pools=tuple(pools), run=run)


def is_decided(run: Run, question: Question) -> bool:
    """Whether a run decides on the limits beyond chance; a whole load always does."""
    return _is_whole(question) or is_sure(run, question.target.limits)


def _is_whole(question: Question) -> bool:
    """Whether one run has the whole load: a closed loop, or a batch of documents."""
    return question.target.concurrency is not None or question.target.within_s is not None


def driven(answer: Answer, question: Question, requests: int, seed: int) -> Answer:
    """The answer with a simulation of about `requests` requests.

    Of large separate pools only a part is simulated, with its share of the load (`part_of`).
    """
    if not answer.separate:
        return replace(answer, run=_replica_driven(answer.pool, question, requests, seed))
    prefill, decode = answer.pools
    *counts, share = part_of(prefill.count, decode.count)
    traffic = _traffic(question, seed)
    rate = answer.requests_per_s * share
    if (documents := question.target.documents) is not None:
        traffic = _batch(traffic, documents * share, VERIFY.rounds_of_pools * counts[1] * decode.timed.slots)
    else:
        in_flight = rate * answer.closed_s("e2e")["mean"]
        traffic = steady(traffic, rate, in_flight, max(float(prefill.timed.batching.chunks), 1.0), requests)
    before, after = (deployment_of(pool.timed, count) for pool, count in zip(answer.pools, counts, strict=True))
    routing: Routing = "random" if documents is None else "round-robin"  # a batch is handed out evenly
    run = simulate(replace(after, prefill=before, transfer=answer.transfer), traffic, routing=routing)
    if documents is not None:  # whose waits at both pools are no times of a request
        run = replace(run, latencies_s=run.latencies_s | {"ttft": {}, "e2e": {}})
    pools = tuple(replace(pool, run=part) for pool, part in zip(answer.pools, run.parts, strict=True))
    return replace(answer, pools=pools, run=run)


def _traffic(question: Question, seed: int) -> Traffic:
    isl, osl = lengths_of(question.origin.workload.tokens)
    return Traffic(isl, osl, 0, longest=question.service.max_model_len, seed=seed)


def _batch(traffic: Traffic, documents: float, most: int) -> Traffic:
    """Documents that are all offered at once, at most `most` of a long batch."""
    return replace(traffic, count=min(math.ceil(documents - ROUNDING_SLACK), most))


def _replica_driven(pool: Pool, question: Question, requests: int, seed: int) -> Run:
    """Simulate one replica that serves whole requests, under its share of the demand."""
    traffic = _traffic(question, seed)
    if question.target.offline and question.target.amount is None:
        full = pool.timed.slots  # every slot is refilled at once
        return _run_of(pool.timed, replace(traffic, in_flight=full, count=ROUNDS * full))
    if question.target.concurrency is not None:
        share = max(1, -(-question.target.concurrency // pool.count))
        return _run_of(pool.timed, replace(traffic, in_flight=share, count=ROUNDS * share))
    rate, target = pool.requests_per_s / pool.count, question.target
    if target.documents is not None:
        return _run_of(
            pool.timed, _batch(traffic, target.documents / pool.count, ROUNDS * pool.timed.slots)
        ).from_admission
    in_flight = rate * pool.closed_s("e2e")["mean"]
    if target.population is not None:  # at every rate tried, so that runs of two rates are as long
        in_flight = max(in_flight, target.population / pool.count - rate * target.think_time_s)
    traffic = steady(traffic, rate, in_flight, float(pool.timed.batching.chunks), requests)
    return _run_of(pool.timed, traffic, "round-robin")


@lru_cache(maxsize=RUNS_KEPT)
def _run_of(timed: Timed, traffic: Traffic, routing: Routing = "random") -> Run:
    """The run of one replica. It does not depend on the limits, so that a size tried under several limits is simulated once."""
    return simulate(deployment_of(timed), traffic, routing=routing)


def lengths_of(tokens: Tokens) -> tuple[Lengths, Lengths]:
    """Length distributions of prompt and output: fixed, or lognormal where a spread is stated."""
    return (
        turns_of(tokens) or _lengths(tokens.isl, tokens.isl_std, tokens.isl_max),
        _lengths(tokens.osl, tokens.osl_std, tokens.osl_max),
    )


def turns_of(tokens: Tokens) -> Lengths | None:
    """The distribution of prompts that are turns of conversations, or None without turns."""
    return Lengths(tokens.isl, shape="turns", among=tokens.prompts) if tokens.prompts else None


def _lengths(mean: float, std: float | None, longest: int | None) -> Lengths:
    return Lengths(mean, std, "lognormal", longest=longest) if std else Lengths(mean)


def is_enough(run: Run, limits: Limits) -> bool:
    """Whether a short run decides on the limits, and its TTFT is known well enough to show where it keeps them."""
    if not is_clear(run, limits):
        return False
    if not run.stable or run.refused or _is_missed(run, limits.stated):
        return True
    ttft_s = run.latencies_s["ttft"]
    shown: tuple[Statistic, ...] = ("mean", "p95")
    figures = [Limit(statistic=name, seconds=ttft_s[name]) for name in shown if ttft_s]
    return all(_excess(run, "ttft", figure, 1.0, 1 + VERIFY.known) <= 0 for figure in figures)


def is_clear(run: Run, limits: Limits) -> bool:
    """Whether a short run already decides on the limits: it is far from each limit, or far beyond one."""
    asked = limits.stated
    far = {name: limit for name, limit in asked.items() if not _is_close(run.latencies_s[name], limit)}
    return _is_missed(run, far) or (far == asked and is_sure(run, limits))


def _is_close(found: dict[str, float], limit: Limit) -> bool:
    close: float = getattr(VERIFY.close, limit.statistic)
    return bool(found) and abs(found[limit.statistic] / limit.seconds - 1) < close


def is_sure(run: Run, limits: Limits) -> bool:
    """Whether more requests would hardly change the verdict on the limits, apart from misses by at most `missed`."""
    asked = limits.stated
    if not run.stable or run.refused or _is_missed(run, asked):
        return True
    return all(
        _excess(run, *each, 0.0) <= 0 and _excess(run, *each, VERIFY.sure_to_hold, 1 + VERIFY.missed) <= 0
        for each in asked.items()
    )


def _is_missed(run: Run, limits: Mapping[Metric, Limit]) -> bool:
    return any(_excess(run, *each, -VERIFY.sure_to_miss) > 0 for each in limits.items())


def _excess(run: Run, name: str, limit: Limit, errors: float, factor: float = 1.0) -> float:
    """How far a run is beyond a limit, plus `errors` standard errors of that figure. Up to 0, the run keeps the limit.

    For a limit on a mean, the figure is in seconds: the mean less `factor` times the limit. For a limit on a percentile, it is
    a share: of requests beyond `factor` times the limit, less the share that may be beyond it (0.05 for p95).
    """
    values_s, bound_s = run.measured_s.get(name), limit.seconds * factor
    if values_s is None or not values_s.size:
        return -math.inf
    if limit.statistic == "mean":
        return float(values_s.mean()) + errors * _error(values_s, run.measured_s["gap"]) - bound_s
    beyond, allowed = (values_s > bound_s).astype(float), 1 - PERCENTILES[limit.statistic]
    share = float(beyond.mean())
    if errors:
        # Long waits are rare and come in clusters. Where few were seen, the share follows an exponential tail, and the
        # correlation of requests is estimated from their latencies up to the bound.
        rare = max(share, allowed ** max(1.0, bound_s / run.latencies_s[name][limit.statistic]))
        clipped_s = np.minimum(values_s, bound_s)
        spread_s = float(clipped_s.std())
        unlike = _error(clipped_s) / spread_s if spread_s > 0 else 0.0
        share += errors * max(_error(beyond), math.sqrt(rare * (1 - rare)) * max(unlike, beyond.size**-0.5))
    return share - allowed


def _error(tested: NDArray[np.float64], gaps: NDArray[np.float64] | None = None) -> float:
    """The standard error of the mean of `tested`, which has a value for each request in order of arrival.

    Requests that follow each other are alike, so the error comes from the means of batches of requests. Batches in which more
    requests arrive are slower. The run as a whole has the exact rate, so this part of the spread is no error of its mean: the
    regression on the `gaps` between arrivals (a control variate) removes it.
    """
    batches = min(VERIFY.batches, tested.size)
    if batches <= 2:
        return 0.0
    means = [
        [batch.mean() for batch in np.array_split(of, batches)] for of in (tested, tested if gaps is None else gaps)
    ]
    (own, shared), (_, of_rates) = np.cov(means)
    if gaps is not None and of_rates > 0:
        own = max(0.0, own - shared**2 / of_rates) * (batches - 1) / (batches - 2)
    return math.sqrt(own / batches)


def steady(
    traffic: Traffic, rate_per_s: float, in_flight: float, chunks: float, requests: int = VERIFY.requests
) -> Traffic:
    """Poisson arrivals at `rate_per_s`, enough to measure the steady state with about `in_flight` requests in flight.

    A prompt takes `chunks` steps. Requests of the warm-up and the cool-down are not measured.
    """
    measured = max(VERIFY.fewest_requests, VERIFY.measured * in_flight, min(requests, VERIFY.most_chunks / chunks))
    warm_up, cool_down = (math.ceil(share * in_flight) for share in (VERIFY.warm_up, VERIFY.cool_down))
    count = warm_up + math.ceil(measured) + cool_down
    return replace(traffic, count=count, rate_per_s=rate_per_s, warm_up=warm_up, cool_down=cool_down, exact_rate=True)


def meets(run: Run, limits: Limits, errors: float = VERIFY.sure_to_hold) -> bool:
    """Whether a run was stable, served all requests, and kept each limit in the statistic that the limit bounds.

    A limit that is larger by the share `missed` must be kept with `errors` standard errors to spare.
    """
    if not run.stable or run.refused or not run.completed:
        return False
    return all(
        not (found := run.latencies_s[name])
        or (found[limit.statistic] <= limit.seconds and _excess(run, name, limit, errors, 1 + VERIFY.missed) <= 0)
        for name, limit in limits.stated.items()
    )
