"""What `llmsize simulate` refuses in real time: each mistake is one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulate_builders import LLAMA, OPEN, SAMPLE, SERVED, Capture, answer, mistakes

from sizing.cli.main import run

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
        (["--concurrency", "3"], ["--rps, --concurrency", "state exactly one"]),
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


def test_an_empty_policy_is_a_fault(capsys: Capture) -> None:
    assert run([*OPEN, "--policy", ""]) == 2
    assert "--policy" in capsys.readouterr().err
