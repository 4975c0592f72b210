"""`llmsize simulate` in ticks as the course counts them, and its faults."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import ROOT
from simulate_builders import COURSE, Capture, answer, mistakes


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
