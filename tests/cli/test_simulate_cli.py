"""`llmsize simulate` in real time: laws that hold, and results that say no."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import SHARED
from simulate_builders import LLAMA, OPEN, SAMPLE, SERVED, Capture, answer

from sizing.cli.main import run
from sizing.engine.requests import arrival_times, enough_within

TRACES = SHARED / "facts" / "traces"


# --- real time -------------------------------------------------------------------------------------------------


def test_the_json_has_the_keys_of_its_schema(capsys: Capture) -> None:
    found = answer(OPEN, capsys)
    assert found["schema"] == "llmsize.simulation/1"
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        assert list(found[name]) == ["mean", "p50", "p90", "p95", "p99", "max"]
        assert (
            found[name]["p50"] <= found[name]["p90"] <= found[name]["p95"] <= found[name]["p99"] <= found[name]["max"]
        )
    assert set(found["queue"]) == {"mean", "max", "end"}
    assert set(found["batch"]) == set(found["kv_utilisation"]) == {"mean", "max"}
    keys = {"completed", "duration_s", "requests_per_s", "output_tokens_per_s", "preemptions", "refused", "stable", "gpu_utilisation"}  # fmt: skip
    assert keys <= set(found)
    assert found["goodput_requests_per_s"] is None  # no limits are stated
    assert (found["completed"], found["refused"], found["stable"], found["policy"]) == (400, 0, True, "engine")


def test_rates_and_latencies_agree_with_each_other(capsys: Capture) -> None:
    found = answer(OPEN, capsys)
    assert found["requests_per_s"] == pytest.approx(found["completed"] / found["duration_s"])
    assert found["output_tokens_per_s"] == pytest.approx(200 * found["requests_per_s"])
    # E2E = TTFT + ITL x (OSL - 1), for every request and so for the means of equal lengths
    e2e = found["ttft_ms"]["mean"] + 199 * found["itl_ms"]["mean"]
    assert found["e2e_ms"]["mean"] == pytest.approx(e2e)
    # Little: what is in flight on average is the rate times the time in the system, but for waits within a step.
    in_flight = found["batch"]["mean"] + found["queue"]["mean"]
    assert in_flight == pytest.approx(found["requests_per_s"] * found["e2e_ms"]["mean"] / 1000, rel=0.05)


def test_a_closed_loop_holds_its_number_and_replicas_share_it(capsys: Capture) -> None:
    one = answer([*SERVED, "--concurrency", "16", "--requests", "160"], capsys)
    assert one["batch"]["max"] == 16 and one["batch"]["mean"] > 14.5  # the rest is in the front end
    # Four replicas with 16 each are four times the one, to the last digit.
    four = answer([*SERVED, "--concurrency", "64", "--requests", "640", "--replicas", "4"], capsys)
    assert four["completed"] == 640 and four["inputs"]["gpus"] == 4
    assert four["requests_per_s"] == pytest.approx(4 * one["requests_per_s"])
    assert four["e2e_ms"] == one["e2e_ms"]


def test_requests_alone_come_all_at_once(capsys: Capture) -> None:
    found = answer([*SERVED, "--requests", "50"], capsys)
    assert found["inputs"]["load"]["kind"] == "batch"
    assert found["duration_s"] == pytest.approx(found["e2e_ms"]["max"] / 1000)
    found = answer(
        ["simulate", "chat", "-g", "h100-sxm", "--tp", "2", "--requests", "5", "--arrivals", "at-once"], capsys
    )
    assert found["inputs"]["load"]["kind"] == "batch" and found["inputs"]["load"]["requests"] == 5


def test_a_workload_brings_its_own_demand(capsys: Capture) -> None:
    # chat: 100,000 users; its rate is 100,000 x 5 / 8 h x 2 whatever the defaults are, so it is above one a second.
    found = answer(["simulate", "chat", "-g", "h100-sxm", "--tp", "2", "--replicas", "8", "--requests", "300"], capsys)
    load = found["inputs"]["load"]
    assert load["kind"] == "open_loop" and load["requests_per_s"] > 1
    assert found["inputs"]["limits"]["ttft_ms"] == {"statistic": "p95", "ms": 1000.0}
    assert found["goodput_requests_per_s"] <= found["requests_per_s"]


def test_a_trace_sends_what_it_holds(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "sample.csv"
    path.write_text(SAMPLE)
    found = answer([*LLAMA, "--trace", str(path)], capsys)
    assert (found["completed"], found["inputs"]["load"]["kind"]) == (10, "trace")
    # Prompts of 100 to 1,000 are 550 on average; outputs of 10 to 100 are 550 tokens in all.
    assert (found["inputs"]["isl"], found["inputs"]["osl"]) == (550, 55)
    assert found["output_tokens_per_s"] * found["duration_s"] == pytest.approx(550)
    assert found["inputs"]["max_model_len"] == 1100
    few = answer([*LLAMA, "--trace", str(path), "--requests", "3"], capsys)
    assert few["completed"] == 3
    # Rows longer than the engine takes are refused, which the exit code says: 110 x (n + 1) tokens above 700 are four.
    cut = answer([*LLAMA, "--trace", str(path), "--max-model-len", "700"], capsys, code=1)
    assert (cut["completed"], cut["refused"], cut["arrived"]) == (6, 4, 10)


def test_a_trace_replaces_the_tokens_and_demand_of_a_workload(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "sample.csv"
    path.write_text(SAMPLE)
    found = answer(["simulate", "chat", "-g", "h100-sxm", "--tp", "2", "--trace", str(path)], capsys)
    assert found["completed"] == 10 and found["inputs"]["limits"]["itl_ms"]["ms"] == 50


def test_a_trace_in_a_file_is_the_trace_of_the_option(tmp_path: Path, capsys: Capture) -> None:
    path, file = tmp_path / "sample.csv", tmp_path / "w.yaml"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,100,10\n0,1000,100\n70,550,55\n")
    file.write_text("model: llama-3.1-8b\ngpu: h100-sxm\ndemand: {trace: sample.csv}\n")
    found = answer(["simulate", str(file)], capsys)
    assert found == answer(["simulate", str(file), "--trace", str(path)], capsys)
    assert found["inputs"]["load"]["kind"] == "trace" and found["inputs"]["isl"] == 550
    replaced = answer(["simulate", str(file), "--concurrency", "2", "--requests", "10"], capsys)
    assert replaced["inputs"]["load"]["kind"] == "closed_loop"


@pytest.mark.skipif(not TRACES.is_dir(), reason="the published traces are not here")
def test_a_published_trace_is_served(capsys: Capture) -> None:
    found = answer([*LLAMA, "--precision", "fp8", "--trace", str(TRACES / "azure2023_conv_full.csv")], capsys)
    assert found["completed"] == 19366 and found["stable"]
    assert found["duration_s"] == pytest.approx(3502, rel=0.01)


def test_static_batching_wastes_what_in_flight_batching_uses(capsys: Capture) -> None:
    lengths = ["--osl-std", "150", "--slots", "32", "--requests", "300", "--policy", "static,inflight,chunked,one-prefill,engine"]  # fmt: skip
    runs = {found["policy"]: found for found in answer([*SERVED, *lengths], capsys)["runs"]}
    assert all(found["completed"] == 300 and found["batch"]["max"] == 32 for found in runs.values())
    assert runs["inflight"]["requests_per_s"] > 1.3 * runs["static"]["requests_per_s"]
    assert runs["static"]["wasted_slot_share"] > 0.25 > 0.05 > runs["inflight"]["wasted_slot_share"]


def test_a_prefix_cache_shortens_the_wait_for_the_first_token(capsys: Capture) -> None:
    outside_ms = 19 + 1000 * 0.005  # on its way to the engine, whatever is cached there
    without = answer(OPEN, capsys)["ttft_ms"]["mean"] - outside_ms
    assert answer([*OPEN, "--prefix-hit", "80%"], capsys)["ttft_ms"]["mean"] - outside_ms < 0.6 * without


def test_clumped_arrivals_wait_longer_than_even_ones(capsys: Capture) -> None:
    busy = [*SERVED, "--rps", "16", "--requests", "600", "--arrivals"]
    even, poisson, clumped = (
        answer([*busy, kind], capsys)["ttft_ms"]["p99"] for kind in ("even", "poisson", "gamma:0.2")
    )
    assert even < poisson < clumped


def test_lengths_follow_what_is_asked(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "r.csv"

    def drawn(*options: str) -> list[int]:
        answer([*SERVED, "--requests", "2000", "--requests-out", str(path), *options], capsys)
        with path.open() as stream:
            return [int(row["isl"]) for row in csv.DictReader(stream)]

    assert set(drawn()) == {1000}
    uniform = drawn("--length-ratio", "0.8")
    assert min(uniform) >= 800 and max(uniform) <= 1000 and sum(uniform) / 2000 == pytest.approx(900, abs=6)
    skewed, symmetric = drawn("--isl-std", "300"), drawn("--isl-std", "300", "--length-shape", "normal")
    # 2,000 draws: the mean is off by 300/sqrt(2,000) = 7 in one case of three
    assert sum(skewed) / 2000 == pytest.approx(1000, abs=28) == sum(symmetric) / 2000
    assert max(skewed) - 1000 > 1.3 * (1000 - min(skewed))
    assert sorted(skewed)[1000] < 980 < sorted(symmetric)[1000]


def test_the_same_seed_gives_the_same_bytes_and_another_others(capsys: Capture) -> None:
    def out(*extra: str) -> str:
        assert run([*OPEN, "--osl-std", "80", "--json", *extra]) == 0
        return capsys.readouterr().out

    first = out()
    assert out() == first
    assert out("--seed", "7") != first


def test_the_least_loaded_replica_of_all_is_a_better_choice_than_the_better_of_two(capsys: Capture) -> None:
    shared = [*SERVED, "--rps", "75", "--osl-std", "150", "--requests", "1200", "--replicas", "4", "--routing"]
    kinds = ("round-robin", "least-requests", "power-of-two")
    tails = {kind: answer([*shared, kind], capsys)["ttft_ms"]["p99"] for kind in kinds}
    assert len(set(tails.values())) == 3
    assert tails["least-requests"] < tails["power-of-two"]


def test_a_time_limit_ends_the_run_without_calling_it_unstable(capsys: Capture) -> None:
    found = answer([*SERVED, "--rps", "10", "--limit", "30"], capsys)
    assert found["stable"] and found["arrived"] == pytest.approx(300, abs=60)
    assert found["arrived"] - found["completed"] < 60
    assert found["duration_s"] == pytest.approx(30, abs=1)
    assert found["inputs"]["load"]["requests"] is None  # as many as come
    assert answer([*SERVED, "--rps", "10", "--limit", "0.5min"], capsys)["completed"] == found["completed"]


def test_a_limit_without_a_count_takes_all_that_come_until_then(capsys: Capture) -> None:
    # 20/s for 1,000 s are 20,000, more than are sent without a limit; Poisson: six sigmas are 849.
    found = answer([*SERVED, "--osl", "2", "--rps", "20", "--replicas", "1", "--limit", "1000"], capsys)
    # The last request may end before the limit: with 20/s no second is without one.
    assert 999 <= found["duration_s"] <= 1000 and found["arrived"] == pytest.approx(20_000, abs=849)
    # Even arrivals come at 0.05, 0.10, ... and the one at the limit itself no longer does.
    even = answer(
        [*SERVED, "--osl", "2", "--rps", "20", "--replicas", "1", "--limit", "1000", "--arrivals", "even"], capsys
    )
    assert even["arrived"] == 19_999
    # A stated count stays one.
    assert answer([*SERVED, "--rps", "5", "--limit", "1000", "--requests", "90"], capsys)["arrived"] == 90


@pytest.mark.parametrize("lengths", [[], ["--osl-std", "150"], ["--policy", "engine,static"]])
def test_a_closed_loop_goes_on_until_its_limit(lengths: list[str], capsys: Capture) -> None:
    found = answer([*SERVED, "--concurrency", "8", "--limit", "300", *lengths], capsys)
    for run_ in found.get("runs", [found]):
        assert run_["duration_s"] == pytest.approx(300)
        assert run_["completed"] > 10 * 8  # the rounds of a run without a limit
        assert run_["arrived"] - run_["completed"] == 8  # all places are filled to the end
    assert found["inputs"]["load"]["requests"] is None


def test_the_requests_of_one_run_are_the_trace_of_another(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "r.csv"
    first = answer(
        [*SERVED, "--rps", "5", "--requests", "200", "--isl-std", "300", "--requests-out", str(path)], capsys
    )
    second = answer([*LLAMA, "--trace", str(path)], capsys)
    assert [second[key] for key in ("arrived", "completed")] == [200, 200]
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        assert second[name]["mean"] == pytest.approx(first[name]["mean"], rel=1e-6)


def test_limits_that_are_kept_are_said_so(capsys: Capture) -> None:
    run([*SERVED, "--rps", "1", "--requests", "50", "--ttft", "p95:5s", "--itl", "1s"])
    assert "Every limit is kept" in capsys.readouterr().out
    run([*SERVED, "--rps", "1", "--requests", "50", "--ttft", "p95:5s", "--itl", "1ms"])
    printed = capsys.readouterr().out
    assert "Every limit is kept" not in printed and "ITL over the limit" in printed


def test_lengths_that_are_spread_say_the_mean_drawn(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "r.csv"
    spread = [*SERVED, "--rps", "5", "--requests", "200", "--isl-std", "4000", "--length-shape", "normal"]
    found = answer([*spread, "--requests-out", str(path)], capsys)
    with path.open() as stream:
        drawn = [int(row["isl"]) for row in csv.DictReader(stream)]
    lengths = found["inputs"]["isl_lengths"]
    assert (lengths["mean"], lengths["std"]) == (1000, 4000)
    assert lengths["drawn_mean"] == pytest.approx(sum(drawn) / 200)
    # A normal of four times the mean is cut at 1: E[max(X, 1)] = 1000 Phi(1/4) + 4000 phi(1/4) = 2,145.
    assert lengths["drawn_mean"] == pytest.approx(2145, rel=0.2)
    assert found["inputs"]["osl_lengths"]["drawn_mean"] is None
    run(spread)
    assert f"mean drawn {lengths['drawn_mean']:,.0f}"[:12] in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "shape"), [("even", 1.0), ("poisson", 1.0), ("gamma", 0.01), ("gamma", 50.0)])
@pytest.mark.parametrize("span", [0.001, 1.0, 300.0])
def test_enough_is_drawn_to_outlast_a_limit(kind: Any, shape: float, span: float) -> None:
    for seed in range(50):
        count = int(enough_within(span, 20.0, kind, burstiness=shape))
        times = arrival_times(count, 20.0, kind, np.random.default_rng(seed), burstiness=shape)
        assert times[-1] >= span
    # and not many more: of 6,000 by a Poisson process six sigmas are 465
    assert int(enough_within(300.0, 20.0, "poisson")) == pytest.approx(6000 + 465, abs=40)


def test_a_low_rate_keeps_the_clock_exact(capsys: Capture) -> None:
    # 31 requests of the lowest rate come within a year on average, each alone: as long as one at ten a second with a gap.
    low = answer([*SERVED, "--rps", "1e-6"], capsys)
    assert low["arrived"] == 31  # floor(8,784 h x 3,600 s x 1e-6/s)
    alone = answer([*SERVED, "--requests", "1"], capsys)
    assert low["e2e_ms"]["mean"] == pytest.approx(alone["e2e_ms"]["mean"], rel=1e-4)


# --- results that say no ---------------------------------------------------------------------------------------


def test_an_overload_is_unstable_and_its_latencies_are_marked(capsys: Capture) -> None:
    overload = [*SERVED, "--rps", "200", "--replicas", "1", "--requests", "1000"]
    assert answer(overload, capsys, code=1)["stable"] is False
    assert run(overload) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[1] == "Unstable" and "the queue kept growing" in out


def test_a_demand_that_is_too_much_for_one_replica_says_how_to_spread_it(capsys: Capture) -> None:
    # estimate has no answer for this limit, and no number of replicas
    chat = ["simulate", "chat", "-g", "h100-sxm", "--tp", "2", "--requests", "1000", "--ttft", "1ms"]
    (hint,) = answer(chat, capsys, code=1)["suggestions"]
    assert "--replicas N" in hint and "estimate" in hint
    assert run(chat) == 1
    assert hint in " ".join(capsys.readouterr().out.split())
    assert run([*chat, "--policy", "static,inflight"]) == 1
    assert hint in " ".join(capsys.readouterr().out.split())
    # Who says how many has chosen; a run that holds needs no more.
    assert answer([*chat, "--replicas", "1"], capsys, code=1)["suggestions"] == []
    assert answer([*chat, "--replicas", "8"], capsys, code=1)["suggestions"] == []
    assert answer(OPEN, capsys)["suggestions"] == []


def test_each_policy_has_its_own_mark_of_not_having_converged(capsys: Capture) -> None:
    # 15 a second are above what static batches of 32 serve, and below what in-flight batching does.
    shared = [*SERVED, "--osl-std", "150", "--rps", "12", "--requests", "400", "--slots", "32"]
    shared += ["--policy", "static,dynamic,inflight"]
    stable = {found["policy"]: found["stable"] for found in answer(shared, capsys, code=1)["runs"]}
    assert stable == {"static": False, "dynamic": False, "inflight": True}
    run(shared)
    lines = capsys.readouterr().out.splitlines()
    rows = {policy: next(line for line in lines if line.startswith(policy)) for policy in stable}
    assert {policy: row.endswith("unstable") for policy, row in rows.items()} == {
        policy: not holds for policy, holds in stable.items()
    }


def test_a_missed_limit_is_a_result_and_a_kept_one_counts_as_goodput(capsys: Capture) -> None:
    missed = answer([*OPEN, "--itl", "p99:1us"], capsys, code=1)
    assert missed["missed"] == ["itl"] and missed["goodput_requests_per_s"] == 0
    kept = answer([*OPEN, "--itl", "p99:1s", "--ttft", "1h"], capsys)
    assert kept["missed"] == [] and kept["goodput_requests_per_s"] == kept["requests_per_s"]
    assert run([*OPEN, "--itl", "p99:1us"]) == 1
    assert re.search(r"ITL p99 .* missed", capsys.readouterr().out)


def test_what_does_not_fit_says_by_how_much(capsys: Capture) -> None:
    too_small = [
        "simulate",
        "-m",
        "llama-3.1-70b",
        "-g",
        "h100-sxm",
        "--tp",
        "1",
        "--isl",
        "1000",
        "--osl",
        "100",
        "--rps",
        "1",
    ]
    found = answer(too_small, capsys, code=1)
    assert found["completed"] is None and found["ttft_ms"]["mean"] is None and found["passed"] is False
    assert found["memory"]["deficit_gib"] > 50  # 131 GiB of weights against a budget of 73
    assert "GiB more per GPU" in found["reason"] and "--tp 2" in found["suggestions"]
    assert run(too_small) == 1
    assert capsys.readouterr().out.startswith("Does not fit")
    assert run([*too_small, "--format", "csv"]) == 1


# --- files and progress ----------------------------------------------------------------------------------------


def test_limits_are_not_met_where_nothing_was_served(capsys: Capture) -> None:
    assert run([*SERVED, "--rps", "20", "--limit", "1ms", "--ttft", "10s"]) == 1
    assert capsys.readouterr().err == ""


def test_a_workload_without_a_layout_is_driven_as_estimate_sizes_it(capsys: Capture) -> None:
    assert run(["estimate", "chat", "-g", "h100-sxm", "--json"]) == 0
    sized = json.loads(capsys.readouterr().out)["deployment"]
    assert run(["simulate", "chat", "-g", "h100-sxm", "--requests", "4000", "--json"]) == 0
    told = capsys.readouterr()
    driven = json.loads(told.out)["inputs"]
    assert (driven["replicas"], driven["tp"]) == (sized["replicas"], sized["tp"])
    assert "as llmsize estimate sizes it" in told.err


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        (["-m", "llama-3.1-8b", "--isl", "1000", "--osl", "200", "--rps", "30"], "no layout is stated: 2 x TP1,"),
        (["chat", "--tp", "4"], "no number of replicas is stated: 3 x TP4,"),
    ],
)
def test_options_are_driven_as_estimate_sizes_them(asked: list[str], note: str, capsys: Capture) -> None:
    assert run(["estimate", *asked, "-g", "h100-sxm", "--json"]) == 0
    sized = json.loads(capsys.readouterr().out)["deployment"]
    assert run(["simulate", *asked, "-g", "h100-sxm", "--requests", "1000", "--json"]) in (0, 1)
    told = capsys.readouterr()
    driven = json.loads(told.out)["inputs"]
    assert (driven["replicas"], driven["tp"]) == (sized["replicas"], sized["tp"])
    assert note in told.err
