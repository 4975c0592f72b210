"""`llmsize simulate`: ticks as the course counts them, laws that hold in real time, faults, files and the progress bar."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import ROOT, SHARED

from sizing.cli import progress
from sizing.cli.main import run
from sizing.engine.requests import arrival_times, enough_within

TRACES = SHARED / "facts" / "traces"
COURSE = ["simulate", "--ticks", "--slots", "4", "--prefill", "2", "--itl", "1", "--osl-mean", "10", "--osl-std", "5", "--seed", "42"]  # fmt: skip
LLAMA = ["simulate", "-m", "llama-3.1-8b", "-g", "h100-sxm"]
SERVED = [*LLAMA, "--isl", "1000", "--osl", "200"]
OPEN = [*SERVED, "--rps", "10", "--requests", "400"]
SAMPLE = "arrival_s,input_tokens,output_tokens\n" + "".join(
    f"{n / 4},{100 * n + 100},{10 * n + 10}\n" for n in range(10)
)

Capture = pytest.CaptureFixture[str]


def answer(arguments: list[str], capsys: Capture, code: int = 0) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == code
    out, err = capsys.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def mistakes(arguments: list[str], capsys: Capture) -> list[str]:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


# --- ticks -----------------------------------------------------------------------------------------------------


# Published with the course: completed, end, mean TTFT, E2E and ITL, requests and tokens in 1,000 ticks, queue at the end.
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--policy static --requests 100 --limit 100", (19, 100, 52.80, 58.16, 1.00, 190.00, 1680.00, 80)),
        ("--policy inflight --requests 100 --limit 100", (27, 101, 52.90, 58.44, 1.39, 267.33, 2376.24, 69)),
        ("--requests 100 --limit 100 --prefill-chunks 2", (31, 100, 54.51, 57.42, 1.14, 310.00, 2730.00, 65)),
        ("--policy one-prefill --prefill-chunks 2 --concurrency 6 --limit 100", (36, 100, 7.87, 15.14, 1.00, 360.00, 3170.00, 2)),
        ("--policy one-prefill --prefill-chunks 2 --rate 0.46 --limit 100", (35, 100, 11.03, 17.66, 1.00, 350.00, 3060.00, 6)),
        ("--policy one-prefill --prefill-chunks 2 --rate 0.46 --limit 10000", (3460, 10000, 1233.30, 1240.58, 1.00, 346.00, 3361.4, 1135)),
    ],
)  # fmt: skip
def test_the_course_s_numbers(options: str, expected: tuple[float, ...], capsys: Capture) -> None:
    found = answer([*COURSE, *options.split()], capsys)
    keys = ("completed", "end_tick", "mean_ttft", "mean_e2e", "mean_itl", "requests_per_1k_ticks", "tokens_per_1k_ticks", "queue_end")  # fmt: skip
    assert [found[key] for key in keys] == pytest.approx(expected, abs=0.005)
    assert found["schema"] == "llmsize.simulation/1" and found["inputs"]["clock"] == "ticks"


def test_without_options_ticks_are_the_course_s(capsys: Capture) -> None:
    # Alone: prefill 2, then three more tokens of one tick each.
    found = answer(["simulate", "--ticks", "--requests", "1"], capsys)
    assert (found["mean_ttft"], found["mean_e2e"], found["mean_itl"], found["end_tick"]) == (2, 5, 1, 5)
    assert found["timeline"] == ["ppddd", ".....", ".....", "....."]
    assert found["gpu_utilisation"] == 1
    assert found["wasted_slot_share"] == 0  # three empty slots, but nobody waits for them


def test_wasted_slots_are_empty_while_requests_wait(capsys: Capture) -> None:
    # Two slots, three requests of 3 tokens. Static: two prefill in 0-4 (2 + 2 ticks) and decode to 6, then one runs alone
    # in 6-10: a slot is empty, but nobody waits.
    found = answer(
        ["simulate", "--ticks", "--slots", "2", "--osl", "3", "--requests", "3", "--policy", "static"], capsys
    )
    assert found["end_tick"] == 10 and found["wasted_slot_share"] == 0
    # One prefill at a time: slot 2 is empty in ticks 0-2, while two wait and one prefills: 2 of 2 x end slot-ticks.
    found = answer(["simulate", "--ticks", "--slots", "2", "--osl", "3", "--requests", "3", "--policy", "one-prefill"], capsys)  # fmt: skip
    assert found["wasted_slot_share"] == pytest.approx(2 / (2 * found["end_tick"]))


def test_dynamic_batches_wait_for_their_size_or_the_window(capsys: Capture) -> None:
    # One request of a batch of four: it waits out the window of 7 ticks, then takes 2 ticks to its first token.
    alone = ["simulate", "--ticks", "--policy", "dynamic", "--batch-size", "4", "--batch-window", "7", "--requests"]
    assert answer([*alone, "1"], capsys)["mean_ttft"] == 9
    assert answer([*alone, "4"], capsys)["mean_ttft"] == 8  # four are a batch at once: 4 x 2 ticks of prefill


def test_a_rate_ends_with_its_requests_when_no_limit_is_given(capsys: Capture) -> None:
    # floor(t x 0.1) have arrived by tick t: the tenth at tick 100, and alone it takes 5 ticks.
    found = answer(["simulate", "--ticks", "--rate", "0.1", "--requests", "10"], capsys)
    assert (found["completed"], found["end_tick"], found["mean_e2e"]) == (10, 105, 5)


def test_policies_run_side_by_side_and_each_as_alone(capsys: Capture) -> None:
    base = [*COURSE, "--requests", "100", "--limit", "100", "--policy"]
    runs = answer([*base, "static,inflight,one-prefill"], capsys)["runs"]
    assert [run_["policy"] for run_ in runs] == ["static", "inflight", "one-prefill"]
    for found in runs:
        alone = answer([*base, found["policy"]], capsys)
        assert {key: alone[key] for key in found} == found
        assert "runs" not in alone


def test_ticks_load_no_model_code() -> None:
    code = (
        "import sys; from sizing.cli.main import run; run(['simulate', '--ticks', '--requests', '5'])\n"
        "heavy = {'sizing.replica.kernels', 'sizing.replica.step', 'sizing.engine.simulation', 'sizing.catalog.models', 'yaml', 'rich', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--itl", "30ms"], ["--itl", "no number of ticks", "latency limit"]),
        (["--itl", "0"], ["--itl", "'0'"]),
        (["--itl", "0.5"], ["--itl", "no step is shorter than a tick"]),
        (["--prefill", "0.2"], ["--prefill", "4 prefills add up to 0.8", "at least 0.25"]),
        (["--osl-std", "41"], ["--osl-std", "at most 10 times the mean, 40"]),  # of 4 tokens
        (["--batch-size", "2"], ["--batch-size", "without --policy dynamic"]),
        (["--batch-window", "2"], ["--batch-window", "without --policy dynamic"]),
        (["--routing", "random"], ["--routing", "no meaning in ticks"]),
        (["--arrivals", "even"], ["--arrivals", "no meaning in ticks"]),
        (["--peak-to-mean", "2"], ["--peak-to-mean", "no meaning in ticks"]),
        (["--limit", "60s"], ["--limit", "'60s'"]),
        (["-g", "h100-sxm"], ["--gpu", "no meaning in ticks"]),
        (["--ttft", "1s"], ["--ttft", "no meaning in ticks"]),
        (["--rate", "0.1", "--concurrency", "3"], ["--rate", "contradicts --concurrency"]),
        (["--policy", "statik"], ["--policy", "did you mean static?"]),
        (["--policy", "engine"], ["--policy", "'engine'", "inflight"]),
        (["--osl", "3", "--osl-mean", "3"], ["contradicts --osl-mean"]),
        (["--slots", "0"], ["--slots", "1 to"]),
        (["--prefill", "-1"], ["--prefill", "above 0"]),
        (["--osl-mean", "0.5"], ["--osl-mean", "at least 1"]),
        (["--prefill-chunks", "0"], ["--prefill-chunks"]),
        (["--seed", "-1"], ["--seed", "0 to"]),
        (["--plot", "x.gif"], ["--plot", ".svg, .png, .pdf"]),
        (["--plot", "/no/such/folder/x.svg"], ["--plot", "no folder"]),
        (["--requests-out", "."], ["--requests-out", "folder"]),
    ],
)
def test_a_mistake_in_ticks_is_one_line(extra: list[str], words: list[str], capsys: Capture) -> None:
    (line,) = mistakes(["simulate", "--ticks", "--requests", "3", *extra], capsys)
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("load", "option"),
    [
        ("--requests 3 --prefill-chunks 10000000", "--prefill-chunks"),
        ("--requests 3 --prefill-chunks 200000", "--ticks"),  # and 4 tokens: 200,004 steps of 4 slots
        ("--requests 100 --osl-mean 200000", "--ticks"),  # 25 rounds of 200,000 steps
        ("--requests 100 --osl-mean 1000000", "--osl-mean"),
        ("--rate 1000000 --limit 100", "--rate"),
        ("--rate 1001 --limit 100", "--rate"),  # 100,100 requests
        ("--requests 10000000", "--requests"),
        ("--concurrency 10000000 --limit 9", "--concurrency"),
        ("--requests 3 --slots 10000", "--slots"),
        ("--concurrency 2 --limit 1e6", "--limit"),
        ("--rate 0.00001 --requests 10", "--ticks"),  # the tenth comes at tick 1,000,000
        # two in flight never make a batch of four, so each of five rounds waits 100,000 ticks for its window
        ("--concurrency 2 --requests 10 --policy dynamic --batch-size 4 --batch-window 100000", "--ticks"),
        ("--concurrency 9 --limit 100000 --policy static,inflight,chunked", "--ticks"),  # each alone would be taken
    ],
)
def test_a_tick_run_that_would_not_end_in_seconds_is_one_fault(load: str, option: str, capsys: Capture) -> None:
    began = time.monotonic()
    (line,) = mistakes(["simulate", "--ticks", *load.split()], capsys)
    assert line.startswith(f"llmsize: {option}: ") and ("allowed" in line or "at most" in line), line
    assert time.monotonic() - began < 2  # said before the work


def test_a_picture_of_more_ticks_than_can_be_drawn_is_a_fault_and_the_figures_are_not(
    tmp_path: Path, capsys: Capture
) -> None:
    # (4 slots and 16 for the step) x 60,000: above the million drawn, below the four walked through
    asked = ["simulate", "--ticks", "--concurrency", "1", "--osl", "60000", "--limit", "60000"]
    pytest.importorskip("matplotlib")
    (line,) = mistakes([*asked, "--plot", str(tmp_path / "t.svg")], capsys)
    assert "60,000 steps are too many to draw" in line
    assert answer(asked, capsys)["end_tick"] == 60000


def test_prefills_below_a_tick_add_up(capsys: Capture) -> None:
    # Three of half a tick share a step of 1.5; then three decode steps of one tick. Alone the step takes the tick.
    found = answer(["simulate", "--ticks", "--requests", "3", "--prefill", "0.5"], capsys)
    assert (found["mean_ttft"], found["mean_e2e"]) == (1.5, 4.5)
    assert answer(["simulate", "--ticks", "--requests", "1", "--prefill", "0.5"], capsys)["mean_ttft"] == 1


def test_ticks_say_the_mean_of_the_lengths_drawn(capsys: Capture) -> None:
    # The course's first ten outputs: 12 9 13 17 8 8 17 13 7 12, 116 in all.
    assert answer([*COURSE, "--requests", "10"], capsys)["inputs"]["osl_drawn_mean"] == 11.6
    assert answer(["simulate", "--ticks", "--requests", "3"], capsys)["inputs"]["osl_drawn_mean"] is None


@pytest.mark.parametrize(
    ("arguments", "word"),
    [([], "nothing says what to send"), (["--rate", "0.1"], "never end"), (["--concurrency", "2"], "never end"), (["chat"], "chat")],
)  # fmt: skip
def test_a_tick_run_needs_a_load_that_ends(arguments: list[str], word: str, capsys: Capture) -> None:
    assert any(word in line for line in mistakes(["simulate", "--ticks", *arguments], capsys))


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
    found = answer([*SERVED, "--osl", "2", "--rps", "20", "--limit", "1000"], capsys)
    assert found["duration_s"] == pytest.approx(1000) and found["arrived"] == pytest.approx(20_000, abs=849)
    # Even arrivals come at 0.05, 0.10, ... and the one at the limit itself no longer does.
    even = answer([*SERVED, "--osl", "2", "--rps", "20", "--limit", "1000", "--arrivals", "even"], capsys)
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
    overload = [*SERVED, "--rps", "200", "--requests", "1000"]
    assert answer(overload, capsys, code=1)["stable"] is False
    assert run(overload) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[1] == "Unstable" and "the queue kept growing" in out


def test_a_demand_that_is_too_much_for_one_replica_says_how_to_spread_it(capsys: Capture) -> None:
    chat = ["simulate", "chat", "-g", "h100-sxm", "--tp", "2", "--requests", "1000"]
    (hint,) = answer(chat, capsys, code=1)["suggestions"]
    assert "--replicas N" in hint and "estimate" in hint
    assert run(chat) == 1
    assert hint in " ".join(capsys.readouterr().out.split())
    assert run([*chat, "--policy", "static,inflight"]) == 1
    assert hint in " ".join(capsys.readouterr().out.split())
    # Who says how many has chosen; a run that holds needs no more.
    assert answer([*chat, "--replicas", "1"], capsys, code=1)["suggestions"] == []
    assert answer([*chat, "--replicas", "8"], capsys)["suggestions"] == []
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
    too_small = ["simulate", "-m", "llama-3.1-70b", "-g", "h100-sxm", "--isl", "1000", "--osl", "100", "--rps", "1"]
    found = answer(too_small, capsys, code=1)
    assert found["completed"] is None and found["ttft_ms"]["mean"] is None and found["passed"] is False
    assert found["memory"]["deficit_gib"] > 50  # 131 GiB of weights against a budget of 73
    assert "GiB more per GPU" in found["reason"] and "--tp 2" in found["suggestions"]
    assert run(too_small) == 1
    assert capsys.readouterr().out.startswith("Does not fit")
    assert run([*too_small, "--format", "csv"]) == 1


# --- mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--itl", "30"], ["--itl", "without its unit", "--ticks"]),
        (["--rate", "3"], ["--rate", "with --ticks"]),
        (["--osl-mean", "3"], ["--osl-mean", "with --ticks"]),
        (["--arrivals", "poison"], ["--arrivals", "did you mean poisson?"]),
        (["--arrivals", "gamma:0"], ["--arrivals", "gamma:SHAPE"]),
        (["--arrivals", "gamma:1e-9"], ["--arrivals", "gamma:SHAPE from 0.01"]),
        (["--arrivals", "at-once"], ["--rps", "contradicts --arrivals at-once"]),
        (["--batch-size", "4"], ["--batch-size", "without --policy dynamic"]),
        (["--batch-window", "1s", "--policy", "static,inflight"], ["--batch-window", "without --policy dynamic"]),
        (["--length-shape", "normal"], ["--length-shape", "all lengths are equal", "--isl-std"]),
        (["--isl-max", "2000"], ["--isl-max", "no prompt is longer than the mean", "--isl-std"]),
        (["--osl-max", "300", "--isl-std", "9"], ["--osl-max", "no output is longer than the mean", "--osl-std"]),
        (["--isl-max", "2000", "--length-ratio", "0.5"], ["--isl-max"]),
        (["--routing", "random"], ["--routing", "with one replica", "--replicas"]),
        (["--requests-per-user", "3"], ["--requests-per-user", "daily active users", "--dau"]),
        (["--active-hours", "3"], ["--active-hours", "daily active users"]),
        (["--peak-to-mean", "3"], ["--peak-to-mean", "daily active users"]),
        (["--osl-std", "2001"], ["--osl-std", "at most 10 times the mean, 2000"]),
        (["--seed", "nans"], ["--seed", "'nans' is no whole number"]),
        (["--isl-std", "wide"], ["--isl-std", "'wide' is no number"]),
        (["--rps", "1e-300"], ["--rps", "1e-06"]),
        (["--requests", "400000", "--rps", "0.001"], ["--requests", "longer than a year", "31,622"]),
        (["--limit", "1e300"], ["--limit", "8,784h"]),
        (["--plot", ""], ["--plot", "names no file"]),
        (["--requests-out", ""], ["--requests-out", "names no file"]),
        (["--routing", "least"], ["--routing", "least-requests"]),
        (["--policy", "inflght"], ["--policy", "did you mean inflight?"]),
        (["--length-shape", "gauss"], ["--length-shape", "lognormal, normal"]),
        (["--length-ratio", "1.5"], ["--length-ratio", "write 1.5% or 0.015"]),
        (["--length-ratio", "0.5", "--osl-std", "3"], ["--length-ratio", "contradicts"]),
        (["--prefix-hit", "80"], ["--prefix-hit", "write 80% or 0.8"]),
        (["--batch-window", "3"], ["--batch-window", "unit"]),
        (["--limit", "soon"], ["--limit", "unit"]),
        (["--replicas", "0"], ["--replicas", "1 to"]),
        (["--concurrency", "3"], ["exactly one of"]),
        (["--isl-std", "-3"], ["--isl-std"]),
        (["--gpu", "h100-sxm,a100-sxm-80gb"], ["--gpu", "one GPU type"]),
        (["--precision", "fp8,bf16"], ["--precision", "one precision"]),
        (["--tp", "2", "--ep", "3"], ["--ep", "does not divide"]),
    ],
)
def test_a_mistake_in_real_time_is_one_line(extra: list[str], words: list[str], capsys: Capture) -> None:
    (line,) = mistakes([*OPEN, *extra], capsys)
    assert all(word in line for word in words), line


def test_a_trace_and_a_stated_load_contradict_each_other(capsys: Capture) -> None:
    *lines, missing = mistakes([*SERVED, "--trace", "t.csv", "--rps", "3"], capsys)
    assert "t.csv: not found" in missing
    assert len(lines) == 3 and all("contradicts --trace" in line for line in lines)
    assert [line.split(":")[1].strip() for line in lines] == ["--rps", "--isl", "--osl"]


def test_options_without_an_effect_are_told_together(capsys: Capture) -> None:
    closed = [*SERVED, "--concurrency", "8", "--replicas", "2", "--routing", "random", "--batch-size", "4"]
    lines = mistakes([*closed, "--length-shape", "normal", "--isl-max", "2000", "--peak-to-mean", "2"], capsys)
    assert sorted(line.split(": ")[1] for line in lines) == [
        "--batch-size", "--isl-max", "--length-shape", "--peak-to-mean", "--routing",
    ]  # fmt: skip
    assert all("no meaning" in line for line in lines)
    (line,) = mistakes([*SERVED, "--requests", "9", "--arrivals", "even"], capsys)
    assert "--arrivals: has no meaning without a rate" in line


def test_a_trace_leaves_nothing_to_what_makes_a_rate(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "sample.csv"
    path.write_text(SAMPLE)
    traced = ["simulate", "chat", "-g", "h100-sxm", "--tp", "2", "--trace", str(path)]
    (line,) = mistakes([*traced, "--peak-to-mean", "2"], capsys)
    assert "--peak-to-mean" in line
    assert answer([*traced, "--routing", "round-robin", "--replicas", "2"], capsys)["completed"] == 10


def test_options_that_act_are_taken(capsys: Capture) -> None:
    chat = ["simulate", "chat", "-g", "h100-sxm", "--tp", "2", "--replicas", "8", "--requests", "1000"]
    # chat: 100,000 users; half the peak is half the rate.
    rates = [
        answer([*chat, "--peak-to-mean", peak, "--routing", "random", "--ttft", "1h", "--itl", "1s"], capsys)["inputs"][
            "load"
        ]["requests_per_s"]
        for peak in ("1", "2")
    ]
    assert rates[1] == pytest.approx(2 * rates[0])
    # A longer prompt than the file's longest needs another longest, though lengths are fixed.
    longer = answer([*chat, "--isl", "6000", "--isl-max", "8000", "--rps", "1", "--ttft", "1h"], capsys)
    assert longer["inputs"]["isl"] == 6000
    spread = [*SERVED, "--rps", "5", "--requests", "50", "--isl-std", "100", "--isl-max", "1100"]
    assert answer([*spread, "--length-shape", "normal"], capsys)["completed"] == 50
    batches = ["--policy", "dynamic", "--batch-size", "4", "--batch-window", "1s"]
    assert answer([*SERVED, "--requests", "8", *batches], capsys)["completed"] == 8


def test_a_limit_that_brings_more_than_fits_memory_is_a_fault(capsys: Capture) -> None:
    for load in (["--rps", "100000"], ["--concurrency", "100000"]):
        (line,) = mistakes([*SERVED, *load, "--limit", "10h"], capsys)
        assert line.startswith("llmsize: --limit: ") and "10,000,000" in line


def test_a_demand_in_users_too_low_for_the_clock_is_a_fault(capsys: Capture) -> None:
    (line,) = mistakes([*SERVED, "--dau", "1e-300"], capsys)
    assert line.startswith("llmsize: --dau: ") and "1e-06" in line


def test_a_workload_of_several_gpus_asks_for_one_of_them(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(
        "model: llama-3.1-8b\ngpu: [h100-sxm, a100-sxm-80gb]\ntokens: {isl: 1000, osl: 200}\ndemand: {requests_per_s: 5}\n"
    )
    (line,) = mistakes(["simulate", str(path)], capsys)
    assert line.startswith(f"llmsize: {path}:2: gpu: ") and "-g with one of h100-sxm, a100-sxm-80gb" in line
    assert answer(["simulate", str(path), "-g", "h100-sxm", "--tp", "1", "--requests", "50"], capsys)["completed"] == 50


def test_an_empty_trace_name_is_one_line(capsys: Capture) -> None:
    assert mistakes([*LLAMA, "--trace", ""], capsys) == [
        "llmsize: --trace: names no file; allowed: a CSV or JSON-lines file"
    ]


def test_a_run_needs_a_load_and_replicas_need_their_share(capsys: Capture) -> None:
    (line,) = mistakes(SERVED, capsys)
    assert "nothing says what to send" in line and "--trace" in line
    (line,) = mistakes([*SERVED, "--concurrency", "3", "--replicas", "4"], capsys)
    assert "--concurrency" in line and "at least 4" in line


# --- files and progress ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "unit"), [(OPEN, "s"), ([*COURSE, "--requests", "100", "--limit", "100"], "tick")]
)
def test_every_request_is_a_row_in_the_order_of_its_life(
    arguments: list[str], unit: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("old")
    found = answer([*arguments, "--requests-out", str(path)], capsys)
    with path.open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == [
        "number", f"arrival_{unit}", f"admitted_{unit}", f"first_token_{unit}", f"finished_{unit}", "isl", "osl", "preemptions",
    ]  # fmt: skip
    assert len(rows) == found["arrived"] and [int(row["number"]) for row in rows] == list(range(len(rows)))
    lives = [[float(row[f"{event}_{unit}"]) for event in ("arrival", "admitted", "first_token", "finished")] for row in rows if row[f"finished_{unit}"]]  # fmt: skip
    assert all(life == sorted(life) for life in lives)
    assert found["completed"] <= len(lives) <= found["completed"] + 4  # a tick run does not count its very last step
    if unit == "s":
        mean = sum(life[2] - life[0] for life in lives) / len(lives)
        assert found["ttft_ms"]["mean"] == pytest.approx(1000 * mean)


def test_several_policies_are_told_apart_in_the_file(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "requests.csv"
    answer([*COURSE, "--requests", "5", "--policy", "static,inflight", "--requests-out", str(path)], capsys)
    with path.open() as stream:
        assert [row["policy"] for row in csv.DictReader(stream)] == ["static"] * 5 + ["inflight"] * 5


@pytest.mark.parametrize("arguments", [OPEN, [*COURSE, "--requests", "5"]], ids=["seconds", "ticks"])
@pytest.mark.parametrize("way", ["same", "spelling", "symbolic link", "hard link"])
def test_two_outputs_are_not_one_file(arguments: list[str], way: str, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    plot, rows = tmp_path / "x.svg", tmp_path / "rows.csv"
    plot.write_text("old")
    if way == "symbolic link":
        rows.symlink_to(plot)
    elif way == "hard link":
        rows.hardlink_to(plot)
    else:
        rows = plot if way == "same" else tmp_path / ".." / tmp_path.name / "x.svg"
    (line,) = mistakes([*arguments, "--plot", str(plot), "--requests-out", str(rows)], capsys)
    assert line.startswith("llmsize: --requests-out: ") and "the file of --plot too" in line
    assert plot.read_text() == "old"


def test_what_is_read_is_not_written_over(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "sample.csv"
    path.write_text(SAMPLE)
    (line,) = mistakes([*LLAMA, "--trace", str(path), "--requests-out", str(path)], capsys)
    assert "--requests-out" in line and "the file of --trace too" in line
    assert path.read_text() == SAMPLE


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_may_not_be_written_is_a_fault(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("")
    path.chmod(0o400)
    assert run([*COURSE, "--requests", "5", "--requests-out", str(path)]) == 2
    assert "--requests-out" in capsys.readouterr().err


def test_csv_and_markdown_have_one_row_a_policy(capsys: Capture) -> None:
    for arguments in (OPEN, [*COURSE, "--requests", "9"]):
        assert run([*arguments, "--policy", "static,inflight", "--format", "csv"]) in (0, 1)
        rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
        assert [row["policy"] for row in rows] == ["static", "inflight"]
        assert run([*arguments, "--policy", "static", "--format", "markdown"]) in (0, 1)
        assert "| static |" in capsys.readouterr().out


class Terminal:
    """A stderr that says whether it is a terminal and keeps what is written."""

    def __init__(self, is_terminal: bool) -> None:
        self.is_terminal, self.text, self.encoding = is_terminal, "", "utf-8"

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(
    ("is_terminal", "patience_s", "shown"), [(True, -1, True), (False, -1, False), (True, 60, False)]
)
def test_the_bar_shows_itself_on_a_terminal_after_a_while(
    is_terminal: bool, patience_s: float, shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    stderr = Terminal(is_terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "PATIENCE_S", patience_s)
    monkeypatch.setenv("TERM", "xterm")
    assert run([*SERVED, "--osl-std", "50", "--rps", "10", "--requests", "3000", "--json"]) == 0
    assert ("engine" in stderr.text) == shown
    assert bool(stderr.text) == shown
    assert json.loads(capsys.readouterr().out)["completed"] == 3000


def test_progress_never_goes_back_and_stays_within_the_total() -> None:
    from engine_builders import driven

    for load in ({"rate_per_s": 10.0}, {"in_flight": 16}, {}):
        told: list[int] = []
        driven(1500, progress=told.append, **load)
        assert told and told == sorted(told) and told[0] >= 0 and told[-1] <= 1500


def test_limits_are_not_met_where_nothing_was_served(capsys: Capture) -> None:
    assert run([*SERVED, "--rps", "20", "--limit", "1ms", "--ttft", "10s"]) == 1
    assert capsys.readouterr().err == ""


def test_an_empty_policy_is_a_fault(capsys: Capture) -> None:
    assert run([*OPEN, "--policy", ""]) == 2
    assert "--policy" in capsys.readouterr().err


def test_a_workload_without_a_layout_is_driven_as_estimate_sizes_it(capsys: Capture) -> None:
    assert run(["estimate", "chat", "-g", "h100-sxm", "--json"]) == 0
    sized = json.loads(capsys.readouterr().out)["deployment"]
    assert run(["simulate", "chat", "-g", "h100-sxm", "--requests", "4000", "--json"]) == 0
    told = capsys.readouterr()
    driven = json.loads(told.out)["inputs"]
    assert (driven["replicas"], driven["tp"]) == (sized["replicas"], sized["tp"])
    assert "as llmsize estimate sizes it" in told.err
