"""Latency against throughput under Poisson arrivals: a layout's replica at one rate after another, as an answer to a rate is sized.

`curve` asks by requests in flight; here the steps are shares of the highest stable rate, simulated as `verify` simulates an answer,
so that the answer's own load is a point of its line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from sizing import steady_state
from sizing.load import Load, Most
from sizing.request import Request
from sizing.search import Evaluated
from sizing.specs.workload import Limits, Tokens
from sizing.verify import limits_of, simulated

SHARES = (
    0.05,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    0.95,
)  # of the highest stable rate; queues have no end at 1
LATENCIES = ("ttft", "itl", "e2e")


class AtRate(NamedTuple):
    """One replica at a rate: `size` holds its operating point, `share` is of the highest stable rate."""

    size: Evaluated
    share: float
    feasible: bool


def highest_stable(load: Load) -> Most:
    """Return what a replica serves with all slots taken, or where prefill alone fills the time, whatever the latencies."""
    rate = load.highest_per_s
    return Most(rate, rate, steady_state.decoding_limit(load.service, load.slots), "utilisation")


def line(best: Evaluated, request: Request, tokens: Tokens | None) -> Iterator[AtRate]:
    """Yield one replica of a layout at ascending rates, simulated with `tokens`, of the closed form without.

    Rates at which the queue keeps growing are left out: their latencies depend on how long one looks.
    """
    most = highest_stable(best.load)
    for share in SHARES:
        rate = share * most.requests_per_s
        size = replace(best, replicas=1, point=best.load.at_rate(rate, most), served=None)
        if not bool(size.point.stable[0]) or float(size.point.running[0]) > best.load.slots:
            continue
        if tokens is not None:
            size = replace(size, served=simulated(size, request, tokens))
        if size.served is None or size.served.stable:
            yield AtRate(size, share, keeps(size, limits_of(best, request)))


def own_point(best: Evaluated, request: Request) -> AtRate:
    """Return one replica of an answer at its share of the demand."""
    share = best.requests_per_s / best.replicas / highest_stable(best.load).requests_per_s
    return AtRate(best, share, keeps(best, limits_of(best, request)))


def keeps(size: Evaluated, limits: Limits) -> bool:
    """Tell whether a size keeps each limit on the statistic that it bounds."""
    for name in LATENCIES:
        limit = getattr(limits, name)
        if limit is not None and size.latency_s(name)[limit.statistic] > limit.seconds:
            return False
    return True
