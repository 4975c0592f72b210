"""Measured load curves: open-loop figures against queues with known answers, and the course's own points."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from places import DATA

from sizing.answers.curve_points import LoadSample, point_of
from sizing.answers.measured_lines import Filter, measured
from sizing.answers.measured_size import (
    LoadCurve,
    heaviest_measured,
    highest_rate,
    load_at_rate,
    load_curve,
    load_in_flight,
)
from sizing.catalog.measured import MeasuredRow
from sizing.engine.simulation import simulate
from sizing.evidence.rows import Case, case_of_row
from sizing.specs.errors import InputError


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
        load = load_at_rate(flat, rate)
        assert load is not None
        assert load.latencies_s["e2e", "mean"] == pytest.approx(1 / (10 - rate), rel=1e-6)


def test_servers_in_parallel_are_an_m_m_c_queue() -> None:
    # 10 servers of 1 request/s at 8 requests/s: Erlang C 0.40918, wait 0.20459 s.
    servers = curve([*range(1, 11), 400], [*map(float, range(1, 11)), 10.0])
    load = load_at_rate(servers, 8.0)
    assert load is not None
    assert load.latencies_s["e2e", "mean"] == pytest.approx(1.204590, rel=1e-5)


def test_beyond_what_was_measured_nothing_is_said() -> None:
    short = curve([1, 2], [1.0, 1.5])
    assert load_at_rate(short, 1.5) is None
    assert load_at_rate(short, 1.4) is None  # often more than two in flight
    assert load_at_rate(short, 0.05) is not None


def test_an_arrival_has_the_ttft_of_the_load_it_makes() -> None:
    # Two states are met at a vanishing rate: an arrival finds none in flight and is the only one.
    load = load_at_rate(curve([1, 50], [1.0, 20.0], [0.1, 2.0]), 1e-6)
    assert load is not None
    assert load.latencies_s["ttft", "mean"] == pytest.approx(0.1, rel=1e-3)


def with_percentiles(in_flight: list[float], rates: list[float], **of_ttft: list[float]) -> LoadCurve:
    plain = curve(in_flight, rates)
    stated = {("ttft", name): np.array(values) for name, values in of_ttft.items()}
    return replace(plain, latencies_s={**plain.latencies_s, **stated})


def test_percentiles_at_a_vanishing_rate_are_those_of_one_request() -> None:
    shape = with_percentiles([1, 50], [1.0, 20.0], p50=[0.1, 2.0], p90=[0.2, 3.0], p95=[0.3, 4.0], p99=[0.5, 9.0])
    load = load_at_rate(shape, 1e-6)
    assert load is not None
    for name, expected in (("p50", 0.1), ("p90", 0.2), ("p95", 0.3), ("p99", 0.5)):
        assert load.latencies_s["ttft", name] == pytest.approx(expected, rel=1e-3)


def test_a_percentile_is_that_of_all_arrivals_and_no_mean_of_percentiles() -> None:
    # One rate at every load: n in flight are found with probability (1 - r) r^n, and the n + 1st has n + 1 s, always.
    states = [*map(float, range(1, 401))]
    shape = with_percentiles([1, 400], [10.0, 10.0], p95=[1.0, 400.0])
    load = load_at_rate(shape, 5.0)
    assert load is not None
    exact = np.quantile(np.repeat(states[:30], (1e6 * 0.5 ** np.arange(1, 31)).astype(int)), 0.95)
    assert load.latencies_s["ttft", "p95"] == pytest.approx(exact, abs=0.5)
    assert load.latencies_s["ttft", "p95"] > 2 * (1 / 0.5)  # the mean over arrivals of each state's p95 is 2 s


def test_a_percentile_never_falls_with_the_rate() -> None:
    shape = with_percentiles([1, 8, 64], [2.0, 10.0, 20.0], p50=[0.1, 0.2, 1.0], p95=[0.3, 0.4, 3.0])
    loads = [load_at_rate(shape, rate) for rate in np.linspace(0.1, 17, 30)]
    for name in ("p50", "p95"):
        assert np.all(np.diff([load.latencies_s["ttft", name] for load in loads if load is not None]) >= -1e-9)


def test_closed_loops_of_the_simulator_give_its_percentiles_under_random_arrivals() -> None:
    """Gaps between tokens at half and at seven tenths of the highest rate, from loads of 1 to 128 in flight."""

    def case(in_flight: int) -> Case:
        return case_of_row(
            MeasuredRow(
                id="x", engine="vllm", engine_version="0.19.0", model="llama-3.1-8b", gpu="h100-sxm", isl=1000, osl=100,
                mode="closed_loop", tp=1, n_gpus=1, weight_precision="bf16", concurrency=in_flight, length_ratio_min=0.8,
                num_requests=max(100, 10 * in_flight), ttft_ms=1.0,
            )
        )  # fmt: skip

    points = []
    for in_flight in (1, 2, 4, 8, 16, 32, 64, 128):
        one = case(in_flight)
        ran = simulate(one.deployed, one.traffic, routing="round-robin")
        points.append(point_of(LoadSample(in_flight, dict(ran.latencies_s), ran.requests_per_s), 1, None))
    shape = load_curve(points)
    assert shape is not None
    for share in (0.5, 0.7):
        rate = share * shape.most_requests_per_s
        found, one = load_at_rate(shape, rate), case(64)
        assert found is not None
        traffic = replace(one.traffic, rate_per_s=rate, in_flight=None, count=2000)
        ran = simulate(one.deployed, traffic, routing="round-robin")
        for name in ("mean", "p90", "p95"):
            assert found.latencies_s["itl", name] == pytest.approx(ran.latencies_s["itl"][name], rel=0.15), (
                share,
                name,
            )


def test_the_highest_rate_keeps_the_limit_and_no_higher_one_does() -> None:
    shape = curve([1, 8, 64], [2.0, 10.0, 20.0], [0.05, 0.2, 1.5])
    limit = {("ttft", "mean"): 0.3}
    rate = highest_rate(shape, 20.0, limit)
    kept, above = load_at_rate(shape, rate), load_at_rate(shape, rate * 1.001)
    assert kept is not None and kept.latencies_s["ttft", "mean"] <= 0.3
    assert above is None or above.latencies_s["ttft", "mean"] > 0.3


def test_scatter_is_removed_so_that_nothing_falls_with_load() -> None:
    found = measured(str(DATA / "course_8b_2000_200.csv"), Filter(precisions=("fp16",), tp=(1,)))
    smooth = load_curve(found.lines[0].points)
    assert smooth is not None
    assert np.all(np.diff(smooth.requests_per_s) >= 0)
    assert all(np.all(np.diff(values) >= 0) for values in smooth.latencies_s.values())


def test_of_runs_that_repeat_a_load_the_mean_counts() -> None:
    points = [
        point_of(LoadSample(load, {"ttft": {"mean": ttft_s}}, rate), 1, None)
        for load, ttft_s, rate in ((1, 0.1, 1.0), (8, 0.2, 6.0), (8, 0.4, 4.0))
    ]
    found = load_curve(points)
    assert found is not None
    assert (list(found.in_flight), list(found.requests_per_s)) == ([1, 8], [1, 5])
    assert found.latencies_s["ttft", "mean"] == pytest.approx([0.1, 0.3])


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
    load = load_in_flight(points, float(points.in_flight[index]))
    assert (load.in_flight, load.requests_per_s) == (in_flight, pytest.approx(rate))
    assert round(200 / (8 * load.requests_per_s), 2) == servers


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        (Filter(gpus=("h100-sxm", "b200")), "--gpu: b200 leaves no measured row; allowed: H100-SXM-80GB"),
        (Filter(precisions=("fp8", "int4")), "--precision: int4 leaves no measured row; allowed: fp16, fp8"),
    ],
)
def test_each_of_several_wanted_values_was_measured(wanted: Filter, fault: str) -> None:
    with pytest.raises(InputError) as told:
        measured(str(DATA / "course_8b_2000_200.csv"), wanted)
    assert [str(each) for each in told.value.faults] == [fault]


def test_lengths_that_were_measured_are_named_in_rounded_numbers(tmp_path: Path) -> None:
    text = (DATA / "course_8b_2000_200.csv").read_text(encoding="utf-8").replace(",2000,200,", ",2000.019,200,", 1)
    file = tmp_path / "measured.csv"
    file.write_text(text.replace(",2000,200,", ",2000.029,200,", 1), encoding="utf-8")
    with pytest.raises(InputError, match=r"--isl: leaves no measured row; allowed: 2,000$"):
        measured(str(file), Filter(isl=500))
