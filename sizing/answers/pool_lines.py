"""Lines of separate pools: the load grows, while layouts and replicas of both pools are fixed.

Layouts that are not given come from the pair with the highest rate within the limits on many GPUs. Replicas that are not
given have several ratios of prefill to decode around that pair's ratio, one line each. The best points of all lines are then
the frontier over ratios. Requests are Poisson arrivals, at the rate that keeps a number in flight over both
pools by the closed form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sizing.answers import pools
from sizing.answers.answer import Answer
from sizing.answers.curve_lines import SHARES, CurveLine, Grid, Pair, predicted
from sizing.answers.curve_points import LoadSample, sample_at, sample_of
from sizing.answers.pools import fits_node
from sizing.answers.sizes import VERIFY, part_of
from sizing.answers.verify import driven, verify
from sizing.formats.words import joined
from sizing.question.question import Question, SeparatePools
from sizing.replica.batching import Point
from sizing.replica.capacity import highest_stable, points_at_rates
from sizing.replica.curves import Array
from sizing.specs.errors import UntimedError
from sizing.specs.workload import Limits

BUDGET = 128  # GPUs for comparing pairs, per given replica; many, so that rounding to whole replicas matters little
RATIOS = (
    (8, 1), (6, 1), (5, 1), (4, 1), (3, 1), (2, 1), (3, 2), (1, 1), (2, 3), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (1, 8),
)  # fmt: skip
MOST_LINES = 4  # ratios drawn for a pair of layouts
FULLEST = 0.9  # the heaviest default load, as a share of the highest rate; towards 1 queues grow without end
LIGHTEST = 1e-5  # the lowest rate tried for a number in flight, as a share of the highest rate
HALVINGS = 24  # bisections of the rate for a number in flight
LOAD_CLOSE = 1e-3  # relative precision with which a rate must keep a number in flight


def lines(question: Question, grid: Grid) -> Iterator[CurveLine]:
    """Yield lines of pools without points, for each GPU type (or the types that pools name), precision and replica ratio.

    Where points are simulated, the pair of layouts is one that a simulation confirms, if there is one.
    """
    space = question.space
    assert space.pools is not None
    for asked in space.pools.by_type(space.gpu_types):
        for precision in space.precisions:
            yield from _lines(question, asked, precision, grid)


def _lines(question: Question, asked: SeparatePools, precision: str | None, grid: Grid) -> Iterator[CurveLine]:
    budget = BUDGET * max(count or 1 for count in asked.given)
    of_budget = question.with_(gpu_budget=budget, pools=asked, precisions=(precision,))
    found = pools.search(of_budget)
    checked = verify(found, seed=grid.seed) if grid.simulated else found
    best = checked.answer or found.best
    if best is None:  # draw the pair with the lowest latency, even though it breaks a limit
        anyhow = pools.search(of_budget.with_(limits=Limits()))
        best = min(anyhow.answers, key=lambda pair: _alone_s(pair, question), default=None)
    pairs = [] if best is None else list(_ratios(best, question, asked))
    for pair in pairs:
        parts = tuple(pool.timed for pool in pair.pools)
        drawn = Pair(asked, pair, grid.in_flight_of_pools or _loads(pair, question))
        yield predicted(parts, question, gpus=pair.gpus, pools=drawn)
    if not pairs:
        names = joined(side.gpu_types[0].name for side in (asked.prefill, asked.decode))
        service = question.service
        weights = precision or service.model.quantisation.precision
        engine = (service.engine.title, service.engine_version)
        yield CurveLine("predicted", names, weights, *engine, pools=found)


def _alone_s(pair: Answer, question: Question) -> float:
    """Seconds of a lone request."""
    return pair.prefill.timed.solo_ttft_s + (question.service.osl - 1) * pair.decode.timed.solo_itl_s


def _ratios(best: Answer, question: Question, asked: SeparatePools) -> Iterator[Answer]:
    """Yield the pair with the given numbers of replicas, or in the ratios nearest to its own, most prefill first."""
    own = best.prefill.count / best.decode.count
    given = asked.given
    counts = dict.fromkeys((given[0] or prefills, given[1] or decodes) for prefills, decodes in RATIOS)
    near = sorted(counts, key=lambda pair: abs(math.log(pair[0] / pair[1] / own)))[:MOST_LINES]
    for prefills, decodes in sorted(near, key=lambda pair: -pair[0] / pair[1]):
        counted = zip(best.pools, (prefills, decodes), strict=True)
        sized = replace(best, pools=tuple(replace(pool, count=count, run=None) for pool, count in counted), run=None)
        try:
            yield pools.joined(sized, question, asked, within_node=fits_node(sized))
        except UntimedError:  # no network between nodes
            continue


def _highest_per_s(pair: Answer, prompt_tokens: int) -> float:
    """Requests/s at which one of the pools, or its links, is fully utilised, whatever the limits."""
    assert pair.transfer is not None
    linked_s = float(pair.transfer.seconds(prompt_tokens))
    return min(pool.count * min(pool.timed.highest_per_s, pool.replica.layout.dp / linked_s) for pool in pair.pools)


def _at_rates(pair: Answer, requests_per_s: Array) -> list[Answer | None]:
    """The same pools at each rate; None where one of them is unstable or has too few slots."""
    points = [
        points_at_rates(pool.timed, requests_per_s / pool.count, highest_stable(pool.timed)) for pool in pair.pools
    ]

    def at(points: Sequence[Point]) -> Answer | None:
        pools = [replace(pool, point=point, run=None) for pool, point in zip(pair.pools, points, strict=True)]
        ok = all(pool.point.stable and pool.point.running <= pool.timed.slots for pool in pools)
        return replace(pair, pools=tuple(pools), run=None) if ok else None

    return list(map(at, zip(*points, strict=True)))


def _loads(pair: Answer, question: Question) -> tuple[int, ...]:
    """The default loads: doublings from 1 up to the number in flight at the highest stable load tried, and that number."""
    highest = _highest_per_s(pair, question.service.isl)
    shares = [share for share in reversed(SHARES) if share <= FULLEST]
    heaviest = next((at for at in _at_rates(pair, np.array(shares) * highest) if at is not None), None)
    most = 1 if heaviest is None else max(1, int(heaviest.in_flight))
    return (*(2**power for power in range(most.bit_length()) if 2**power < most), most)


def _at_loads(drawn: Pair, question: Question) -> list[Answer | None]:
    """The pools at each of their loads; None where no stable rate keeps the number in flight."""
    highest = _highest_per_s(drawn.pair, question.service.isl)
    wanted = np.array(drawn.in_flight, dtype=float)
    low, high = (np.full(wanted.size, share * highest) for share in (LIGHTEST, 1.0))
    for _ in range(HALVINGS):
        rates = np.sqrt(low * high)
        over = wanted < [math.inf if at is None else at.in_flight for at in _at_rates(drawn.pair, rates)]
        low, high = np.where(over, low, rates), np.where(over, rates, high)
    reached = zip(_at_rates(drawn.pair, low), drawn.in_flight, strict=True)
    return [at if at is not None and abs(at.in_flight / n - 1) < LOAD_CLOSE else None for at, n in reached]


def closed_form(drawn: Pair, question: Question) -> list[LoadSample]:
    """The closed form at each load."""
    return [
        LoadSample.unknown(n) if pair is None else sample_at(pair, question.service.osl, n)
        for n, pair in zip(drawn.in_flight, _at_loads(drawn, question), strict=True)
    ]


class PairJob(NamedTuple):
    """One load of a pair to simulate as `verify` does; `pair` is None where no stable rate keeps `in_flight`."""

    pair: Answer | None
    in_flight: int
    question: Question
    seed: int

    @property
    def requests(self) -> float:
        """Infinite, so that pairs are simulated before single replicas."""
        return math.inf

    def run(self) -> LoadSample:
        """Simulate the load; a load under which a queue keeps growing has no figures."""
        pair = self.pair
        if pair is None:
            return LoadSample.unknown(self.in_flight)
        pair = driven(pair, self.question, VERIFY.requests, self.seed)
        whole, decode = pair.run, pair.decode.run
        assert whole is not None and decode is not None
        if not whole.completed or not whole.stable:
            return LoadSample.unknown(self.in_flight)
        *_, share = part_of(pair.prefill.count, pair.decode.count)
        return sample_of(whole, self.in_flight, share)._replace(cache_used=decode.cache_max)


def jobs(drawn: Pair, question: Question, grid: Grid) -> list[PairJob]:
    """The simulations of a pair's line."""
    loads = zip(_at_loads(drawn, question), drawn.in_flight, strict=True)
    return [PairJob(pair, n, question, grid.seed) for pair, n in loads]
