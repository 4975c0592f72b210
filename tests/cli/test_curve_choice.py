"""Numbers that a curve is asked for, and which of its points is chosen: Pareto set, knee, best point."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing import Grid, Layouts, ask
from sizing.answers import curve
from sizing.cli.main import run
from sizing.specs.errors import InputError
from sizing.specs.units import MOST_VALUES, numbers, whole_numbers

# Lists of numbers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,8,64", (1, 8, 64)),
        ("1..5", (1, 2, 3, 4, 5)),
        ("1..512x2", (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
        ("3..10x2", (3, 6, 10)),  # doublings below the end, and the end
        ("5..5", (5,)),
        ("5..5x2", (5,)),
        ("1k..100kx10", (1000, 10_000, 100_000)),
        ("1..100:33", (1, 34, 67, 100)),  # 1 + 3 * 33 falls on the end
        ("1..100:10", (1, 11, 21, 31, 41, 51, 61, 71, 81, 91)),  # 101 is beyond it
        ("0.1..0.3:0.1", (0.1, 0.2, 0.3)),  # in binary 0.1 + 2 * 0.1 is above 0.3
        ("0..4:2, 3, 4", (0, 2, 4, 3)),  # in the order given, each once
    ],
)
def test_a_list_of_numbers_is_read(text: str, expected: tuple[float, ...]) -> None:
    assert numbers(text) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "names no number"),
        ("x", "'x' is neither"),
        ("-1", "'-1' is neither"),
        ("1..", "'1..' is neither"),
        ("nan", "'nan' is neither"),
        ("8..1", "second number must be the larger"),
        ("0..8x2", "never grows: give steps, as 0..8:8"),
        ("1..8x1", "multiplies by 1"),
        ("1..512", "has 512 values: write 1..512x2 for doublings, or 1..512:50 for steps"),
        ("0.5..2", "has no whole steps: write 0.5..2x2 for doublings, or 0.5..2:0.2 for steps"),
        ("1..8:0", "step of 0"),
        ("1..1e9:1", "more than 10,000"),
        (",".join(map(str, range(MOST_VALUES + 1))), "more than 10,000"),
    ],
)
def test_what_is_no_list_of_numbers_is_told(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        numbers(text)


def test_most_values_are_still_read() -> None:
    assert len(numbers(f"1..{MOST_VALUES}:1")) == MOST_VALUES


@pytest.mark.parametrize("text", ["0", "1.5", "1,4097"])
def test_whole_numbers_are_whole_and_bounded(text: str) -> None:
    assert whole_numbers("4,1,2", 4096) == (1, 2, 4)
    with pytest.raises(ValueError, match="no whole number from 1 to 4,096"):
        whole_numbers(text, 4096)


# Pareto set, knee, best point

# A small grid, so that equal latencies and equal throughputs are common.
coordinate = st.one_of(st.integers(1, 6).map(float), st.just(float("nan")))


@given(st.lists(st.tuples(coordinate, coordinate), max_size=30))
def test_the_pareto_set_is_all_that_nothing_dominates(points: list[tuple[float, float]]) -> None:
    x, y = (np.array([point[axis] for point in points], dtype=float) for axis in (0, 1))
    marked = curve.pareto(x, y)
    for i in range(len(points)):
        known = np.isfinite(x[i]) and np.isfinite(y[i])
        dominated = any(x[j] <= x[i] and y[j] >= y[i] and (x[j] < x[i] or y[j] > y[i]) for j in range(len(points)))
        assert marked[i] == (known and not dominated)


def test_the_knee_is_furthest_above_the_chord() -> None:
    # In base 10 the points are (0,0), (1,1.8), (2,1.9), (3,2); the chord is y = 2/3 x, so the second lies 1.133 above it
    # (times cos), the third 0.567.
    latency, throughput = 10.0 ** np.arange(4), 10.0 ** np.array([0, 1.8, 1.9, 2])
    assert curve.knee(latency, throughput) == 1
    assert curve.knee(latency * 1e-3, throughput * 7) == 1  # whatever the units
    assert curve.knee(latency[::-1], throughput[::-1]) == 2  # whatever the order


@pytest.mark.parametrize(
    ("latency", "throughput"),
    [([1.0, 2.0], [1.0, 2.0]), ([1.0, 10.0, 100.0], [1.0, 10.0, 100.0]), ([1.0, 10.0, 100.0], [1.0, 2.0, 100.0])],
)
def test_a_straight_or_sagging_line_has_no_knee(latency: list[float], throughput: list[float]) -> None:
    assert curve.knee(np.array(latency), np.array(throughput)) is None


def test_the_best_point_is_allowed_and_of_equals_the_fastest() -> None:
    latency, throughput = np.array([3.0, 2.0, 1.0, 9.0]), np.array([5.0, 5.0, 1.0, 9.0])
    assert curve.best_within(latency, throughput, np.array([True, True, True, False])) == 1
    assert curve.best_within(latency, throughput, np.zeros(4, dtype=bool)) is None


# A demand


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run([*arguments, "--no-verify", "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("demand", [["--users", "500"], ["--dau", "50000"]])
def test_a_demand_is_answered_as_estimate_answers_it(demand: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The chosen point is the load of each replica of the answer, with its latencies and their ranges."""
    asked = ["-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "300", "--itl", "20ms", *demand]
    drawn, answer = told(capsys, "curve", *asked), told(capsys, "estimate", *asked)
    size, chosen = answer["deployment"], drawn["chosen"]
    assert (drawn["sized"]["gpus"], drawn["sized"]["replicas"]) == (size["gpus"], size["replicas"])
    assert (chosen["tp"], chosen["pp"], chosen["gpu"]) == (size["tp"], size["pp"], size["gpu"])
    assert chosen["requests_per_s"] * size["replicas"] == pytest.approx(answer["load"]["requests_per_s"], rel=1e-6)
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        assert chosen[name] == pytest.approx(answer["latency"][name]["mean"], rel=1e-6)
    (point,) = [p for line in drawn["lines"] for p in line["points"] if p["chosen"]]
    for end in ("low", "high"):
        assert point["bands"]["itl_ms"][end] == pytest.approx(answer["bands"]["latency.itl_ms.mean"][end], rel=1e-6)


def test_a_demand_that_nothing_serves_is_infeasible(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "300", "--itl", "0.1ms", "--users", "5"]
    found = told(capsys, "curve", *asked, code=1)
    assert not found["feasible"] and "llmsize estimate" in found["limiting"]["detail"]
    assert run(["curve", *asked, "--closed-loop"]) == 2


def test_a_screen_lists_the_points_of_the_chosen_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The first point, the choice, the knee and the first beyond a limit are there, in at most 12 lines."""
    asked = ["-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "300", "--itl", "20ms", "--tp", "1"]
    assert run(["curve", *asked, "--no-verify"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("flight"))
    table = lines[start + 1 : lines.index("", start)]
    loads = [float(line.split()[0].replace(",", "")) for line in table]
    assert len(table) + 2 <= 12 and loads == sorted(loads) and loads[0] == 1.0
    text = "\n".join(table)
    assert "the most allowed" in text and "misses ITL" in text and "knee" in text


def test_a_demand_that_no_line_serves_is_a_fault_for_callers_too() -> None:
    options = {"model": "llama-3.1-8b", "gpu": "l40s", "isl": 500, "osl": 100, "rps": 5}
    one, pools = ask(**options), ask(**options, disaggregate="auto")
    with pytest.raises(InputError, match="demanded: arrives at random"):
        curve.curve(one, Grid(Layouts((1,), (1,)), (1,), arrivals="closed", simulated=False), demanded=one)
    with pytest.raises(InputError, match="demanded: sizes one pool"):
        curve.curve(one, demanded=pools)
