"""Latency against throughput of separate pools: layouts and replicas stay as they are while the load grows.

What is not given of them is taken from the pair that serves the most within the limits on many GPUs: its layouts, and the
ratios of prefill to decode replicas around its own, a line each, so that the best points of all are the frontier over ratios.
Requests come as Poisson arrivals at the rate that keeps so many in flight over both pools by the closed form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from sizing.answers import pools
from sizing.answers.answer import Answer, Outcome, Pool
from sizing.answers.curve import SHARES, Each, Progress, Seen, highest_stable, unknown
from sizing.answers.pools import Asked, fits_node, joined
from sizing.answers.verify import REQUESTS, driven, part_of, verify
from sizing.question.question import Data, Question
from sizing.specs.errors import UntimedError
from sizing.specs.workload import Limits, Tokens

BUDGET = (
    128  # GPUs on which pairs are compared, for each replica that is given: so many that whole replicas round little
)
RATIOS = (
    (8, 1), (6, 1), (5, 1), (4, 1), (3, 1), (2, 1), (3, 2), (1, 1), (2, 3), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (1, 8),
)  # fmt: skip
MOST_LINES = 4  # ratios drawn of a pair of layouts
FULLEST = 0.9  # of the highest rate: the heaviest load where none is asked for; queues grow without end towards 1
# Rates tried, as shares of the highest, from which the one is found that keeps so many in flight.
LIGHTEST, HEAVIEST, RATES_TRIED = 1e-5, 0.999, 96


@dataclass(frozen=True, slots=True)
class PoolLine:
    """Two pools as they were asked for, and the numbers in flight over both that they are put under."""

    asked: Asked
    pair: Answer
    in_flight: tuple[int, ...]


class Unpaired(NamedTuple):
    """Pools of which no pair of layouts can be drawn, and what a search said of them."""

    found: Outcome
    asked: Asked
    precision: str | None


def lines(
    question: Question,
    asked: Asked,
    precision: str | None,
    data: Data,
    in_flight: Sequence[int] | None,
    tokens: Tokens | None,
    seed: int = 0,
) -> list[PoolLine | Unpaired]:
    """Return a line for each ratio of replicas; without numbers `in_flight`, from one to the most that both pools hold.

    With `tokens` the pair is one that a simulation confirms.
    """
    of_budget = question.with_(gpu_budget=BUDGET * max(count or 1 for count in asked.given))
    found = pools.search(of_budget, asked, (precision,), data)
    checked = found if tokens is None else verify(found, tokens, data, asked=asked, seed=seed)
    best = checked.confirmed or found.best
    if best is None:  # points that break a limit are drawn too, those of the pair that comes nearest
        anyhow = pools.search(of_budget.with_(limits=Limits()), asked, (precision,), data)
        best = min(anyhow.answers, key=lambda pair: _alone_s(pair, question), default=None)
    if best is None:
        return [Unpaired(found, asked, precision)]
    drawn = [
        PoolLine(asked, pair, tuple(in_flight or _loads(pair, question))) for pair in _ratios(best, question, asked)
    ]
    return [*drawn] or [Unpaired(found, asked, precision)]


def _alone_s(pair: Answer, question: Question) -> float:
    """Seconds of a request that is alone."""
    return pair.prefill.load.solo_ttft_s + (question.service.osl - 1) * pair.decode.load.solo_itl_s


def _ratios(best: Answer, question: Question, asked: Asked) -> Iterator[Answer]:
    """Yield a pair with its numbers of replicas as given, or in the ratios nearest to its own, those with most prefill first."""
    own = best.prefill.count / best.decode.count
    given = asked.given
    counts = dict.fromkeys((given[0] or one, given[1] or other) for one, other in RATIOS)
    near = sorted(counts, key=lambda pair: abs(math.log(pair[0] / pair[1] / own)))[:MOST_LINES]
    for one, other in sorted(near, key=lambda pair: -pair[0] / pair[1]):
        prefill, decode = replace(best.prefill, count=one, run=None), replace(best.decode, count=other, run=None)
        sized = replace(best, pools=(prefill, decode), run=None)
        try:
            yield joined(sized, question, asked, within_node=fits_node(sized))
        except UntimedError:  # no network between nodes
            continue


def highest_per_s(pair: Answer, prompt_tokens: int) -> float:
    """Requests/s at which one of the pools, or its links, has no time left; no limit asked."""
    assert pair.transfer is not None
    linked_s = float(pair.transfer.seconds(prompt_tokens))
    return min(pool.count * min(pool.load.highest_per_s, pool.replica.layout.dp / linked_s) for pool in pair.pools)


def at_rate(pair: Answer, requests_per_s: float) -> Answer | None:
    """Return the same pools at a rate, None where one of them could not keep up or has too few slots."""

    def at(pool: Pool) -> Pool:
        point = pool.load.at_rate(requests_per_s / pool.count, highest_stable(pool.load))
        return replace(pool, point=point, run=None)

    found = replace(pair, pools=tuple(map(at, pair.pools)), run=None)
    ok = all(bool(pool.point.stable[0]) and float(pool.point.running[0]) <= pool.load.slots for pool in found.pools)
    return found if ok else None


def _held(pair: Answer) -> float:
    """Requests in flight over both pools, by Little's law; those on the way between them too."""
    return pair.requests_per_s * pair.latency_s("e2e")["mean"]


def _loads(pair: Answer, question: Question) -> tuple[int, ...]:
    """Return doublings from one in flight to the most at which queues have an end, and that."""
    highest = highest_per_s(pair, question.service.isl)
    shares = [share for share in reversed(SHARES) if share <= FULLEST]
    heaviest = next((one for share in shares if (one := at_rate(pair, share * highest)) is not None), None)
    most = 1 if heaviest is None else max(1, int(_held(heaviest)))
    return (*(2**power for power in range(most.bit_length()) if 2**power < most), most)


def at_loads(line: PoolLine, question: Question) -> list[Answer | None]:
    """Return a line's pools at each of its loads, None where no stable rate keeps so many in flight."""
    shares = np.geomspace(LIGHTEST, HEAVIEST, RATES_TRIED)
    rates = shares * highest_per_s(line.pair, question.service.isl)
    tried = []
    for rate in rates:
        one = at_rate(line.pair, float(rate))
        if one is None:
            break
        tried.append(_held(one))
    if not tried:
        return [None] * len(line.in_flight)
    held, of = np.log(tried), np.log(rates[: len(tried)])
    return [
        at_rate(line.pair, float(np.exp(np.interp(np.log(n), held, of)))) if held[0] <= np.log(n) <= held[-1] else None
        for n in line.in_flight
    ]


class _Run(NamedTuple):
    """One load of one line."""

    in_flight: int
    pair: Answer | None


def seen(
    found: Sequence[PoolLine],
    question: Question,
    tokens: Tokens | None,
    *,
    seed: int = 0,
    each: Each = map,
    progress: Progress | None = None,
) -> list[list[Seen]]:
    """Return what is seen of every load of every line: simulated with `tokens`, as `verify` does, else of the closed form.

    `each` maps over the loads in order, in other processes if it likes.
    """
    runs = [_Run(*one) for line in found for one in zip(line.in_flight, at_loads(line, question), strict=True)]
    look = _closed_form if tokens is None else partial(_simulated, question=question, tokens=tokens, seed=seed)
    done = []
    for number, one in enumerate(each(look, runs), start=1):
        done.append(one)
        if progress is not None:
            progress(number)
    rest = iter(done)
    return [[next(rest) for _ in line.in_flight] for line in found]


def _closed_form(run: _Run) -> Seen:
    pair = run.pair
    if pair is None:
        return unknown(run.in_flight)
    return Seen(
        in_flight=run.in_flight,
        latencies_s={name: pair.latency_s(name) for name in ("ttft", "itl", "e2e")},
        requests_per_s=pair.requests_per_s,
        decoding=float(pair.decode.point.decoding[0]) * pair.decode.count,
        cache_used=None,
        waiting=None,
        preemptions=0,
    )


def _simulated(run: _Run, question: Question, tokens: Tokens, seed: int) -> Seen:
    pair = run.pair
    if pair is None:
        return unknown(run.in_flight)
    pair = driven(pair, question, tokens, REQUESTS, seed)
    whole, decode = pair.run, pair.decode.run
    assert whole is not None and decode is not None
    if not whole.completed or not whole.stable:
        return unknown(run.in_flight)
    *_, share = part_of(pair.prefill.count, pair.decode.count)
    rate = whole.requests_per_s / share
    after_first_s = whole.latencies_s["e2e"]["mean"] - whole.latencies_s["ttft"]["mean"]
    return Seen(
        in_flight=run.in_flight,
        latencies_s=whole.latencies_s,
        requests_per_s=rate,
        decoding=rate * after_first_s,  # Little's law: of those past their first token
        cache_used=decode.cache_max,
        waiting=whole.queue_mean / share,
        preemptions=whole.preemptions,
    )
