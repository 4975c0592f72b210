"""Separate pools as lines of `llmsize curve`: laws of their points, agreement with `estimate` and `simulate`, which pairs are drawn."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from builders import ask, option, real_model

from sizing.answers import pool_lines
from sizing.answers.curve import evaluated
from sizing.answers.curve_lines import CurveLine, Grid, Layouts, Pair
from sizing.catalog import shelf
from sizing.cli.main import run
from sizing.question.question import PoolSpace, Question, SeparatePools
from sizing.specs.optimisations import HandOver, PoolLayout

Capsys = pytest.CaptureFixture[str]
BASE = ["-m", "llama-3.1-70b", "-g", "h100-sxm", "--isl", "2000", "--osl", "300"]
LIMITS = ["--ttft", "p95:800ms", "--itl", "25ms"]
CURVE = ["curve", *BASE, *LIMITS, "--tp", "8"]
GIVEN = ["--disaggregate", "prefill=2xtp4pp2,decode=1xtp8"]
LATENCIES = ("ttft_ms", "itl_ms", "e2e_ms")


def document(capsys: Capsys, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def pooled(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for line in found["lines"] if line["tp"] is None]


def ratio(line: dict[str, Any]) -> tuple[int, int]:
    return line["pools"]["prefill"]["replicas"], line["pools"]["decode"]["replicas"]


def grid(*, simulated: bool = False) -> Grid:
    return Grid(Layouts((8,), (1,)), (1,), arrivals="poisson", simulated=simulated)


@pytest.fixture(scope="module")
def line() -> CurveLine:
    (found,) = pool_lines.lines(_request(), grid())
    return found


def pair_of(line: CurveLine) -> Pair:
    assert isinstance(line.pools, Pair)
    return line.pools


def _request() -> Question:
    """Two prefill replicas of 8 GPUs and one that decodes on 8, up to the most that they hold."""
    sides = (PoolLayout(replicas=2, tp=4, pp=2), PoolLayout(replicas=1, tp=8))
    h100 = option("h100-sxm")
    pools = SeparatePools(*(PoolSpace((h100,), side) for side in sides), shelf.only(HandOver))
    asked = ask(real_model("llama-3.1-70b"), isl=2000, osl=300, demand=None, gpu_budget=128, limits={"itl": "25ms"})
    return asked.with_(gpu_types=(h100,), pools=pools)


@pytest.mark.parametrize("simulated", [False, True])
def test_pools_serve_no_more_than_the_smaller_of_them(line: CurveLine, simulated: bool) -> None:
    """And more the more are in flight; a simulation of some thousand requests is off by a per cent or two."""
    (drawn,) = evaluated([line], _request(), grid(simulated=simulated))
    rates = [point.requests_per_s for point in drawn.points if point.requests_per_s is not None]
    smaller = min(pool.count * pool.timed.highest_per_s for pool in pair_of(line).pair.pools)
    assert len(rates) >= 8 and rates == sorted(rates)
    assert smaller / 2 < rates[-1] <= smaller * (1.02 if simulated else 1)


def test_the_heaviest_load_without_any_asked_is_nine_tenths_of_the_highest_rate(line: CurveLine) -> None:
    """In flight are doublings from 1 to that; the prefill pool is the one that ends it."""
    (drawn,) = evaluated([line], _request(), grid())
    *doublings, last = pair_of(line).in_flight
    assert doublings == [2**power for power in range(len(doublings))] and doublings[-1] < last <= 2 * doublings[-1]
    prefill = pair_of(line).pair.prefill
    assert drawn.points[-1].requests_per_s == pytest.approx(0.9 * prefill.count * prefill.timed.highest_per_s, rel=0.01)


@pytest.mark.parametrize(("form", "in_flight", "tolerance"), [(["--no-verify"], [4, 32, 128], 0.01), ([], [32], 0.06)])
def test_so_many_are_in_flight_over_both_pools(
    form: list[str], in_flight: list[int], tolerance: float, capsys: Capsys
) -> None:
    """Little's law over both: in flight = rate * E2E."""
    (line,) = pooled(document(capsys, *CURVE, *GIVEN, "--concurrency", ",".join(map(str, in_flight)), *form))
    assert [point["concurrency"] for point in line["points"]] == in_flight
    for point in line["points"]:
        assert point["requests_per_s"] * point["e2e_ms"] / 1000 == pytest.approx(point["concurrency"], rel=tolerance)
        assert point["requests_per_s_per_8_gpus"] == pytest.approx(point["requests_per_s"] / 24 * 8)


def test_a_point_is_what_estimate_and_simulate_say_of_its_rate(capsys: Capsys) -> None:
    """As the closed form has it and as simulated: the rest is the chance of two simulations."""
    asked = [*CURVE, *GIVEN, "--concurrency", "64"]
    for form, tolerance in ((["--no-verify"], 1e-4), ([], 0.05)):
        (point,) = pooled(document(capsys, *asked, *form))[0]["points"]
        rate = ["--rps", f"{point['requests_per_s']:.9g}"]
        pools = document(capsys, "estimate", *BASE, *rate, *LIMITS, *GIVEN, *form)["disaggregated"]
        assert pools["gpus"] == 24
        for name in LATENCIES:
            assert point[name] == pytest.approx(pools[name]["mean"], rel=tolerance), name
    simulated = document(capsys, "simulate", *BASE, *rate, *GIVEN, "--requests", "3000")
    for name in LATENCIES:
        assert point[name] == pytest.approx(simulated[name]["mean"], rel=0.05), name


def test_lines_that_serve_as_one_stay_as_they_are_under_poisson_arrivals(capsys: Capsys) -> None:
    """Pools have no closed loop, so neither has what stands beside them."""
    loads = ["--concurrency", "4,32", "--no-verify"]
    beside = document(capsys, *CURVE, *GIVEN, *loads)
    alone = document(capsys, *CURVE, *loads)
    marks = ("pareto", "knee", "chosen")
    strip = [
        [{k: v for k, v in p.items() if k not in marks} for p in one["lines"][0]["points"]] for one in (beside, alone)
    ]
    assert strip[0] == strip[1] and beside["inputs"]["arrivals"] == "poisson"
    assert beside["inputs"]["optimisations"]["disaggregate"]["decode"] == {"replicas": 1, "tp": 8}
    assert alone["inputs"]["pools"] is None and beside["inputs"]["pools"]["concurrency"] == [[4, 32]]


def test_what_is_given_of_pools_is_drawn_and_what_is_not_are_ratios_around_the_best(capsys: Capsys) -> None:
    loads = ["--concurrency", "32", "--no-verify"]
    (line,) = pooled(document(capsys, *CURVE, *GIVEN, *loads))
    assert ratio(line) == (2, 1) and line["gpus"] == 24
    assert (line["pools"]["prefill"]["pp"], line["pools"]["decode"]["tp"]) == (2, 8)
    lines = pooled(document(capsys, *CURVE, "--disaggregate", "prefill=tp4pp2,decode=tp8", *loads))
    ratios = [prefill / decode for prefill, decode in map(ratio, lines)]
    best = document(
        capsys,
        "estimate",
        *BASE,
        *LIMITS,
        "--gpus",
        "128",
        "--disaggregate",
        "prefill=tp4pp2,decode=tp8",
        "--no-verify",
    )["disaggregated"]
    own = best["prefill"]["replicas"] / best["decode"]["replicas"]
    assert len(ratios) == 4 and ratios == sorted(ratios, reverse=True) and ratios[0] >= own >= ratios[-1]
    some = pooled(document(capsys, *CURVE, "--disaggregate", "prefill=2xtp4pp2,decode=tp8", *loads))
    assert {ratio(one)[0] for one in some} == {2} and len(some) > 1


def test_pools_that_beat_serving_as_one_are_chosen(capsys: Capsys) -> None:
    """At these limits `estimate` says that they take fewer GPUs.

    The frontier is of the latency on the axis and asks no other limit: of TTFT serving as one serves more wherever it may let
    ITL grow, beyond its limit too. Of ITL, which is what pools are for, both are on it.
    """
    asked = [word if word != "25ms" else "20ms" for word in CURVE]
    found = document(capsys, *asked, *GIVEN)
    assert found["chosen"]["pools"]["prefill"]["replicas"] == 2
    most = found["chosen"]["requests_per_s_per_8_gpus"]
    assert not any(point["feasible"] for point in found["pareto"] if point["requests_per_s_per_8_gpus"] > most)
    by_itl = document(capsys, *asked, *GIVEN, "--x", "itl", "--no-verify")
    assert {entry["pools"] is None for entry in by_itl["pareto"]} == {True, False}


def test_limits_that_no_pools_keep_are_drawn_and_judged(capsys: Capsys) -> None:
    found = document(
        capsys,
        "curve",
        *BASE,
        "--tp",
        "8",
        "--ttft",
        "20ms",
        "--disaggregate",
        "prefill=1xtp8,decode=1xtp8",
        "--no-verify",
        code=1,
    )
    (line,) = pooled(found)
    assert line["points"] and not any(point["feasible"] for point in line["points"])


def test_pools_that_cannot_be_joined_say_why(capsys: Capsys) -> None:
    found = document(capsys, *CURVE, "--disaggregate", "prefill=mi300x:tp4", "--no-verify", "--concurrency", "8")
    (line,) = pooled(found)
    assert not line["fits"] and "no cache connector" in line["reason"] and line["gpu"] == "MI300X 192GB + H100 SXM 80GB"
    assert run([*CURVE, "--disaggregate", "prefill=mi300x:tp4", "--no-verify"]) == 0
    assert "separate pools" in capsys.readouterr().out


def test_every_form_and_the_picture_have_the_pools(tmp_path: Path, capsys: Capsys) -> None:
    asked = [*CURVE, *GIVEN, "--concurrency", "8,64", "--no-verify"]
    shape = "prefill 2 x TP4 PP2 + decode 1 x TP8"
    assert run([*asked, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["pools"] for row in rows] == ["", "", shape, shape] and rows[-1]["tp"] == ""
    picture = tmp_path / "curve.svg"
    assert run([*asked, "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    words = " ".join(out.split())
    assert shape in words and "line-1" in picture.read_text(encoding="utf-8")
    assert run([*asked, "--verbose"]) == 0  # a screen has no room for what a line holds fixed
    words = " ".join(capsys.readouterr().out.split())
    assert (
        "a closed loop is not simulated over two pools" in words and "fixed along a line: layouts and replicas" in words
    )


def test_processes_change_nothing(capsys: Capsys) -> None:
    asked = [*CURVE, *GIVEN, "--concurrency", "64"]
    assert document(capsys, *asked, "--jobs", "1") == document(capsys, *asked, "--jobs", "2")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--closed-loop", "--disaggregate"], ["--closed-loop", "over two pools", "leave it out"]),
        (["--osl", "1", "--disaggregate"], ["--disaggregate", "nothing decodes"]),
        (["--disaggregate", "serve=tp2"], ["--disaggregate", "names no pool"]),
        (["--disaggregate", "prefill=h999"], ["--disaggregate", "unknown GPU 'h999'"]),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], said: list[str], capsys: Capsys) -> None:
    assert run(["curve", *BASE, *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and all(words in lines[0] for words in said), lines
