"""What the first screen says of published runs: the count for a confidence, whose ranges they are."""

from __future__ import annotations

import pytest
from screens import Capture, printed

from sizing.cli.main import run
from sizing.report.parts.evidence import Evidence, LimitedLatency, SurerType, doubts
from sizing.report.parts.screen import LIMITS_HOLD, sure_line
from sizing.specs.bands import ConfidentSize, ErrorBand

LLAMA = ["estimate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "200"]


@pytest.mark.parametrize(
    ("extra", "keeps", "other"),
    [
        (["--rps", "5"], "keeps the rate", "limits"),
        (["--concurrency", "20"], "serves the demand", "limits"),
        (["--rps", "5", "--itl", "50ms"], "keeps the limits", "the rate"),
    ],
)
def test_runs_keep_what_is_asked(extra: list[str], keeps: str, other: str, capsys: Capture) -> None:
    """Without a limit no run keeps limits: it keeps the rate."""
    assert run([*LLAMA, *extra, "--no-verify"]) == 0
    said = next(line for line in capsys.readouterr().out.splitlines() if "benchmark runs" in line)
    assert keeps in said and other not in said


def test_one_line_says_the_count_for_a_confidence_and_the_one_without(capsys: Capture) -> None:
    text, found = printed(["estimate", "chat", "-g", "mi300x", "--confidence", "75%"], capsys)
    gpus, without = found["deployment"]["gpus"], found["conservative"]["gpus_without"]
    share = max(0.75, found["evidence"]["chance"])
    held = f"{gpus} GPUs keep the limits in {share * 100:.0f} % of similar benchmark runs"
    assert f"{held}; {without} without" in text
    assert text.count("benchmark runs") == 1


def test_even_odds_that_take_more_than_the_prediction_say_so(capsys: Capture) -> None:
    """As predicted 6 replicas of TP2 serve chat on MI300X; half of the published runs like it ask for a seventh."""
    text, found = printed(["estimate", "chat", "-g", "mi300x"], capsys)
    gpus, fewer = found["deployment"]["gpus"], found["evidence"]["gpus_as_predicted"]
    assert fewer < gpus and found["evidence"]["gpu_as_predicted"] == found["deployment"]["gpu"]
    assert f"Prediction alone: {fewer} GPUs, enough in under half of similar benchmark runs" in text
    text, found = printed([*LLAMA, "--rps", "20"], capsys)
    assert found["evidence"]["gpus_as_predicted"] is None and "prediction alone" not in text


def test_given_gpus_whose_rate_even_odds_lower_say_the_prediction_alone(capsys: Capture) -> None:
    """The lowered rate is not the capacity: the limit binds only at the higher rate."""
    asked = ["-m", "openai/gpt-oss-120b", "-g", "h100-sxm", "--isl", "1000", "--osl", "500", "--itl", "15ms"]
    text, found = printed(["estimate", *asked, "--gpus", "2", "--no-verify"], capsys)
    load, alone = found["load"], found["evidence"]["requests_per_s_as_predicted"]
    assert load["requests_per_s"] < load["max_requests_per_s"] == pytest.approx(alone)
    assert f"Prediction alone: {alone:.2f} requests/s, kept in under half of similar benchmark runs" in text
    assert f"ITL, at a capacity of {alone:.2f} requests/s a replica" in text and "ok, binds" not in text


def test_ranges_of_other_runs_are_said_to_be(capsys: Capture) -> None:
    asked = [
        "-m",
        "openai/gpt-oss-120b",
        "-g",
        "mi300x",
        "--isl",
        "1000",
        "--osl",
        "500",
        "--rps",
        "10",
        "--itl",
        "20ms",
    ]
    text, found = printed(["estimate", *asked], capsys)
    assert found["bands"] and found["evidence"]["groups"] == 0
    assert "no published runs like this; ranges: runs of other engines or GPUs" in text
    text, found = printed([*LLAMA, "--rps", "20"], capsys)
    assert found["evidence"]["groups"] and "ranges:" not in text


@pytest.mark.parametrize("stated", [False, True])
def test_a_think_time_that_users_were_not_stated_with_is_the_first_assumption(stated: bool, capsys: Capture) -> None:
    text, found = printed([*LLAMA, "--users", "500", *(["--think-time", "30s"] if stated else [])], capsys)
    assert ("Assumed think time 30 s, " in text) is not stated
    assert any(one["what"] == "think time" for one in found["assumptions"]) is not stated


def test_a_sure_share_counts_its_runs() -> None:
    several, own = ConfidentSize(None, 0.9, 3, 0.6, any_gpu=True), ConfidentSize(None, 0.9, 1, 0.6, own=True)
    assert (
        "published runs like this on any GPU generation (3 groups); no count" in sure_line(4, several, LIMITS_HOLD).text
    )
    assert "runs as far off as your own (1 run); no count" in sure_line(4, own, LIMITS_HOLD).text


def test_another_layout_that_makes_the_same_gpus_sure_is_named() -> None:
    surer = SurerType("H100", 4, 4, 24.62, "1 x TP2 PP2", 1)
    line = surer.same_gpus("H100", 4)
    assert line is not None and line.text.startswith("The same 4 GPUs as 1 x TP2 PP2 would be sure")
    assert surer.same_gpus("H100", 2) is None and surer.same_gpus("H200", 4) is None


def test_a_sure_number_of_another_layout_names_it() -> None:
    size = ConfidentSize(24, 0.9, 6, 0.6)
    said = "16 GPUs keep the limits in 60 % of similar benchmark runs, 24{} in 90 % or more"
    assert sure_line(16, size, LIMITS_HOLD, "", " (as TP4)").text == said.format(" (as TP4)")
    assert sure_line(16, size, LIMITS_HOLD).text == said.format("")


def test_the_share_of_the_printed_number_is_said_whether_it_is_sure_or_not() -> None:
    size = ConfidentSize(24, 0.9, 6, 0.83)
    said = sure_line(16, size, LIMITS_HOLD)
    assert said.text == "16 GPUs keep the limits in 83 % of similar benchmark runs, 24 in 90 % or more"
    enough = sure_line(24, size._replace(chance=0.96), LIMITS_HOLD)
    assert enough.text == "24 GPUs keep the limits in 96 % of similar benchmark runs"


def test_runs_of_other_gpus_are_never_called_similar() -> None:
    """A GPU without enough runs of its own never looks as sure as one that has them."""
    own, other = (ConfidentSize(4, 0.9, 3, 0.95, any_gpu=any_gpu) for any_gpu in (False, True))
    assert sure_line(4, own, LIMITS_HOLD).text == "4 GPUs keep the limits in 95 % of similar benchmark runs"
    assert sure_line(4, other, LIMITS_HOLD).text == "4 GPUs keep the limits in 95 % of benchmark runs on any GPU"
    found = Evidence(3, 0.95, None, None)
    assert not list(doubts(found, "B200", ()))
    (line,) = doubts(found._replace(any_gpu=True), "B200", ())
    assert line.text.startswith("Too few of these runs are on GPUs like B200: measure one replica first")
    (line,) = doubts(found._replace(any_gpu=True), "B200", (), said=True)
    assert "measure" not in line.text


@pytest.mark.parametrize("ranged", [False, True])
def test_a_wide_range_says_that_the_prediction_may_be_far_off(ranged: bool) -> None:
    found = Evidence(3, 0.95, None, None)

    def said(low: float, high: float) -> str:
        limited = LimitedLatency("itl_ms", "mean", 20.0, ErrorBand(low, high, 9))
        return " ".join(line.text for line in doubts(found, "B200", [limited], ranged=ranged))

    assert said(15.0, 25.0) == ""
    assert said(15.0, 60.0).startswith("The prediction may be far off") and "slower" not in said(15.0, 60.0)
    assert ("ITL 15 to 60 ms in place of 20 ms" in said(15.0, 60.0)) is not ranged
    assert said(20.0, 60.0).endswith("nearly all such runs are slower than predicted")


def test_estimate_and_compare_doubt_in_the_same_words(capsys: Capture) -> None:
    """Few published runs of dense models on vLLM are on Blackwell."""
    asked = ["-m", "llama-3.1-8b", "-g", "b200", "--isl", "1000", "--osl", "200", "--rps", "20", "--no-verify"]
    words = []
    for command in ("estimate", "compare"):
        assert run([command, *asked]) == 0
        lines = " ".join(capsys.readouterr().out.split())
        words.append(next(each for each in ("Too few of these runs are on GPUs like B200", "") if each in lines))
    assert all(words)
