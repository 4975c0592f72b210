"""Where the scheduler reduces to a queue that theory solves, it must give theory's numbers.

Waiting times of one run are compared twice: exactly with the recursion that defines the queue, for the very same arrivals,
and with the formula of its mean, to what a run of that length can tell.
"""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from engine_builders import StubClock, run_open, store, stub_replica
from numpy.typing import NDArray

from sizing.engine.requests import Lengths, Requests
from sizing.engine.rules import SchedulerRules, with_policy
from sizing.engine.ticks import TickClock

# Erlang C, probability of waiting with c servers at an offered load of a: published values, (c, a, C).
ERLANG_C = [(2, 1.0, 0.333333), (10, 8.0, 0.409180), (16, 12.8, 0.304884), (100, 90.0, 0.216940)]
# What the mean wait of 60,000 requests tells: the queue forgets in some S/(c(1-sqrt(a/c))^2), of which the run has
# thousands at c = 2 but under 200 at c = 100.
MEAN_TOLERANCE = {2: 0.05, 10: 0.15, 16: 0.15, 100: 0.40}
SERVICE_TICKS = 500.0  # so long that geometric service and whole ticks are exponential and continuous to 0.2 %


def waits(requests: Requests) -> NDArray[np.float64]:
    return np.array(requests.admitted) - np.array(requests.arrival)


def erlang_c(servers: int, offered: float) -> float:
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def md1(utilisation: float, count: int, seed: int = 1) -> Requests:
    """Prompts only, one at a time, each 1 long: a single server with constant service."""
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / utilisation, count)).tolist()
    requests = store(arrivals, [1] * count, [1] * count)
    run_open(stub_replica(requests, StubClock(prefill=1.0), SchedulerRules(slots=1)))
    return requests


@pytest.mark.parametrize("utilisation", [0.2, 0.5, 0.8, 0.95])
def test_prompts_alone_on_one_slot_follow_lindley_s_recursion(utilisation: float) -> None:
    requests = md1(utilisation, 3000)
    wait, expected = 0.0, []
    for gap in np.diff(requests.arrival, prepend=requests.arrival[0]):
        wait = max(0.0, wait + 1.0 - gap) if expected else 0.0
        expected.append(wait)
    assert waits(requests) == pytest.approx(np.array(expected), abs=1e-6)


@pytest.mark.parametrize(
    ("utilisation", "mean", "tolerance"),
    # Pollaczek-Khinchine, constant service 1: rho/(2(1-rho)). Three standard deviations of a mean over 150,000
    # correlated waits: about 3*sqrt(4/(150000*(1-rho)^2))*... 2 % at 0.5, 6 % at 0.8.
    [(0.2, 0.125, 0.02), (0.5, 0.5, 0.02), (0.8, 2.0, 0.06)],
)
def test_mean_wait_is_that_of_m_d_1(utilisation: float, mean: float, tolerance: float) -> None:
    assert waits(md1(utilisation, 150_000)).mean() == pytest.approx(mean, rel=tolerance)


def many_servers(servers: int, offered: float, count: int, seed: int = 2) -> Requests:
    """Every step takes a tick whatever it holds, so a request keeps its slot for OSL ticks: c parallel servers."""
    rng = np.random.default_rng(seed)
    osl = rng.geometric(1 / SERVICE_TICKS, count)
    arrivals = np.floor(np.cumsum(rng.exponential(SERVICE_TICKS / offered, count)))
    requests = store(arrivals.tolist(), [1] * count, osl.tolist())
    run_open(stub_replica(requests, StubClock(1.0, 1.0), SchedulerRules(slots=servers)))
    return requests


def kiefer_wolfowitz(requests: Requests, servers: int) -> NDArray[np.float64]:
    """Waits first come, first served: each takes the server that is free first."""
    free = [0.0] * servers
    found = []
    for arrival, osl in zip(requests.arrival, requests.osl, strict=True):
        start = max(arrival, free[0])
        heapq.heapreplace(free, start + osl)
        found.append(start - arrival)
    return np.array(found)


@pytest.mark.parametrize(("servers", "offered", "waiting"), ERLANG_C)
def test_slots_are_parallel_servers(servers: int, offered: float, waiting: float) -> None:
    requests = many_servers(servers, offered, 4000)
    assert np.array_equal(waits(requests), kiefer_wolfowitz(requests, servers))


@pytest.mark.parametrize(("servers", "offered", "waiting"), ERLANG_C)
def test_waiting_is_erlang_c(servers: int, offered: float, waiting: float) -> None:
    """P(wait) = C and Wq = C*S/(c - a)."""
    assert erlang_c(servers, offered) == pytest.approx(waiting, abs=1e-6)
    waited = waits(many_servers(servers, offered, 60_000))
    # Ends and arrivals fall on the same tick once in some hundred; such a wait of zero is none.
    assert (waited > 0).mean() == pytest.approx(waiting, abs=0.03)
    assert waited.mean() == pytest.approx(waiting * SERVICE_TICKS / (servers - offered), rel=MEAN_TOLERANCE[servers])


def test_without_a_limit_of_slots_nobody_waits() -> None:
    requests = many_servers(5000, 50.0, 20_000)
    assert waits(requests).max() == 0.0
    # M/M/inf: Poisson in number, mean a: Little's law over the middle of the run.
    held = np.array(requests.finished) - np.array(requests.arrival)
    assert held.sum() / requests.arrival[-1] == pytest.approx(50.0, rel=0.03)


def test_static_batching_waits_for_the_longest_of_each_batch() -> None:
    """Full batches of 8 exponential lengths last H_8 = 2.717857 means: the course's efficiency bound 1/H_8 = 0.368."""
    count = 8 * 2000
    osl = np.random.default_rng(4).geometric(1 / SERVICE_TICKS, count)
    requests = store([0.0] * count, [1] * count, osl.tolist())
    rules = with_policy(SchedulerRules(slots=8), "static", ticks=True)
    done = run_open(stub_replica(requests, StubClock(1.0, 1.0), rules))
    efficiency = osl.sum() / (8 * done.ended)
    assert efficiency == pytest.approx(1 / 2.717857, rel=0.02)
    assert done.ended == sum(int(osl[i : i + 8].max()) for i in range(0, count, 8))


def test_a_closed_population_on_one_tick_clock_is_bounded_by_its_bottleneck() -> None:
    """One prompt of 2 ticks at a time and 3 decode ticks on c slots: at most 1/2 a tick from prefill, c/5 from slots."""
    for slots, expected in ((1, 1 / 5), (2, 2 / 5), (4, 1 / 2)):
        requests = store([0.0] * 600, [1] * 600, [4] * 600)
        rules = SchedulerRules(slots=slots, units_per_request=1.0, budget=1.0)
        replica = stub_replica(requests, TickClock(2.0, 1.0, 2), rules)
        replica.units = lambda _: 2.0
        done = run_open(replica)
        assert 600 / done.ended == pytest.approx(expected, rel=0.01)


def test_spread_lengths_keep_their_mean_however_few() -> None:
    """Ten lengths from 0.8 to 1.0 of 1,000: 810, 830 ... 990 in some order, 900 on average; two of 0 to 400: 100 and 300."""
    lengths = Lengths(1000, shape="spread", low_share=0.8)
    drawn = lengths.draw(10, np.random.default_rng(5))
    assert sorted(drawn) == list(range(810, 1000, 20))
    assert list(drawn) != sorted(drawn)
    assert sorted(Lengths(400, shape="spread", low_share=0.0).draw(2, np.random.default_rng(0))) == [100, 300]


def test_exponential_lengths_spread_as_far_as_their_mean() -> None:
    drawn = Lengths(200, shape="exponential").draw(1000, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(200, rel=0.01) and drawn.std() == pytest.approx(200, rel=0.02)
    assert drawn.min() == 1 and np.median(drawn) == pytest.approx(200 * np.log(2), rel=0.01)
