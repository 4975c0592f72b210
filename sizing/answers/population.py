"""The rate at which a simulated deployment serves the users or the requests in flight of a demand.

By Little's law they are the rate times E2E, plus those who think. E2E follows from the rate and grows with it, steeply near
the highest stable rate. So the rate is looked for between one at which there are too few and one at which there are too many.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from sizing.answers.answer import Answer, Pool
from sizing.answers.sizes import RULES
from sizing.replica.capacity import highest_stable, point_at_rate
from sizing.specs.workload import Target

WITHIN = math.log1p(RULES.population_within)


def serves_population(found: Answer, target: Target) -> bool:
    """Whether a simulated answer serves the users or requests in flight of the demand; True where the demand has neither."""
    if target.population is None:
        return True
    assert found.run is not None
    return found.run.stable and abs(_beyond(found, target)) <= WITHIN


def at_population(first: Answer, target: Target, drive: Callable[[Answer], Answer]) -> Answer:
    """The answer, simulated by `drive` at the rate that serves the population; else the nearest of the rates tried.

    The first step follows the slope of the closed form, and the next ones that of the last two runs. A queue may seem to grow by
    chance, so that such a run counts by its E2E too; where it has the population, a lower rate is tried.
    """
    low, high, slope = -math.inf, math.inf, _closed_slope(first.pool, target)
    tried = [drive(first)]
    before: tuple[float, float] | None = None
    while not serves_population(found := tried[-1], target) and len(tried) < RULES.population_rounds:
        at, beyond = math.log(found.pool.point.requests_per_s), _beyond(found, target)
        if beyond == math.inf:
            break
        if before is not None:
            slope = max(1.0, (beyond - before[1]) / (at - before[0]))
        before = at, beyond
        beyond = 2 * WITHIN if abs(beyond) <= WITHIN else beyond
        low, high = (low, at) if beyond > 0 else (at, high)
        aim = at - beyond / slope
        pool = _at_rate(found.pool, math.exp(aim if low < aim < high else (low + high) / 2))
        if pool.point.requests_per_s == found.pool.point.requests_per_s:  # no higher rate is stable
            break
        tried.append(drive(replace(found, pools=(pool,), run=None)))
    return min(tried, key=lambda each: (not serves_population(each, target), abs(_beyond(each, target))))


def _beyond(found: Answer, target: Target) -> float:
    """The logarithm of the population that a simulated answer serves, over the one asked for; infinite where none was answered."""
    run = found.run
    assert run is not None and target.population is not None
    if not run.latencies_s["e2e"]:
        return math.inf
    return math.log(target.population_of(found.requests_per_s, run.latencies_s["e2e"]["mean"]) / target.population)


def _closed_slope(pool: Pool, target: Target) -> float:
    """How fast the population grows with the rate by the closed form, both in logarithms; at least 1."""
    lighter = _at_rate(pool, pool.point.requests_per_s * RULES.less_load)
    one, less = (
        target.population_of(each.point.requests_per_s, each.closed_s("e2e")["mean"]) for each in (pool, lighter)
    )
    rates = pool.point.requests_per_s / lighter.point.requests_per_s
    return max(1.0, math.log(one / less) / math.log(rates)) if rates > 1 else 1.0


def _at_rate(pool: Pool, requests_per_s: float) -> Pool:
    """The pool at a rate of each replica, which may exceed its capacity within the limits but not its highest stable rate."""
    most = pool.capacity if requests_per_s <= pool.capacity.requests_per_s else highest_stable(pool.load)
    return replace(pool, point=point_at_rate(pool.load, requests_per_s, most))
