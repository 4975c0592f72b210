"""Measured load curves: open-loop figures against queues with known answers, and the course's own points."""

from __future__ import annotations

import numpy as np
import pytest
from places import DATA

from sizing.answers.load_curve import LoadCurve, closed_loop, heaviest_measured, highest_rate, load_curve, open_loop
from sizing.answers.measured import Filter, measured


def curve(in_flight: list[float], rates: list[float], ttft_s: list[float] | None = None) -> LoadCurve:
    """A curve with the mean E2E that Little's law gives for a closed loop."""
    loads, speed = np.array(in_flight, dtype=float), np.array(rates, dtype=float)
    latencies = {("e2e", "mean"): loads / speed}
    if ttft_s is not None:
        latencies["ttft", "mean"] = np.array(ttft_s)
    return LoadCurve(loads, speed, latencies)


def test_a_server_that_shares_its_rate_is_an_m_m_1_queue() -> None:
    # The same rate at every load: mean time in the system is 1 / (service rate - arrival rate).
    flat = curve([1, 1000], [10.0, 10.0])
    for rate in (1.0, 5.0, 8.0, 9.0):
        load = open_loop(flat, rate)
        assert load is not None
        assert load.latencies_s["e2e", "mean"] == pytest.approx(1 / (10 - rate), rel=1e-6)


def test_servers_in_parallel_are_an_m_m_c_queue() -> None:
    # 10 servers of 1 request/s at 8 requests/s: Erlang C 0.40918, wait 0.20459 s.
    servers = curve([*range(1, 11), 400], [*map(float, range(1, 11)), 10.0])
    load = open_loop(servers, 8.0)
    assert load is not None
    assert load.latencies_s["e2e", "mean"] == pytest.approx(1.204590, rel=1e-5)


def test_beyond_what_was_measured_nothing_is_said() -> None:
    short = curve([1, 2], [1.0, 1.5])
    assert open_loop(short, 1.5) is None
    assert open_loop(short, 1.4) is None  # often more than two in flight
    assert open_loop(short, 0.05) is not None


def test_an_arrival_has_the_ttft_of_the_load_it_makes() -> None:
    # Two states are met at a vanishing rate: an arrival finds none in flight and is the only one.
    load = open_loop(curve([1, 50], [1.0, 20.0], [0.1, 2.0]), 1e-6)
    assert load is not None
    assert load.latencies_s["ttft", "mean"] == pytest.approx(0.1, rel=1e-3)


def test_the_highest_rate_keeps_the_limit_and_no_higher_one_does() -> None:
    shape = curve([1, 8, 64], [2.0, 10.0, 20.0], [0.05, 0.2, 1.5])
    limit = {("ttft", "mean"): 0.3}
    rate = highest_rate(shape, 20.0, limit)
    kept, above = open_loop(shape, rate), open_loop(shape, rate * 1.001)
    assert kept is not None and kept.latencies_s["ttft", "mean"] <= 0.3
    assert above is None or above.latencies_s["ttft", "mean"] > 0.3


def test_scatter_is_removed_so_that_nothing_falls_with_load() -> None:
    found = measured(str(DATA / "course_8b_2000_200.csv"), Filter(precisions=("fp16",), tp=(1,)))
    smooth = load_curve(found.lines[0].points)
    assert smooth is not None
    assert np.all(np.diff(smooth.requests_per_s) >= 0)
    assert all(np.all(np.diff(values) >= 0) for values in smooth.latencies_s.values())


@pytest.mark.parametrize(
    ("limit_s", "in_flight", "rate", "servers"), [(0.3, 10, 5.19543, 4.81), (0.5, 25, 8.84342, 2.83)]
)
def test_the_course_reads_its_best_point_off_the_curve(
    limit_s: float, in_flight: int, rate: float, servers: float
) -> None:
    # FP8 TP1 on H100, eight to a server, 200 requests/s: 41.56 and 70.75 requests/s a server.
    found = measured(str(DATA / "course_8b_2000_200.csv"), Filter(precisions=("fp8",), tp=(1,)))
    points = load_curve(found.lines[0].points)
    assert points is not None
    index = heaviest_measured(points, {("ttft", "mean"): limit_s})
    assert index is not None
    load = closed_loop(points, float(points.in_flight[index]))
    assert (load.in_flight, load.requests_per_s) == (in_flight, pytest.approx(rate))
    assert round(200 / (8 * load.requests_per_s), 2) == servers
