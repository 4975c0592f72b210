"""Separate pools as a trial of `llmsize whatif`, and as what its other trials are laid over: the numbers of `estimate`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sizing.cli.main import run

Capsys = pytest.CaptureFixture[str]
LONG = [
    "-m", "llama-3.1-70b", "-g", "h100-sxm", "--tp", "8", "--isl", "6000", "--osl", "300", "--rps", "30",
    "--ttft", "1s", "--itl", "15ms",
]  # fmt: skip
SMALL = [
    "-m",
    "llama-3.1-8b",
    "-g",
    "h100-sxm",
    "--tp",
    "1",
    "--isl",
    "2000",
    "--osl",
    "300",
    "--rps",
    "20",
    "--itl",
    "20ms",
]
FIGURES = ("ttft_ms", "itl_ms", "e2e_ms")


def document(capsys: Capsys, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def check_as_estimated(found: dict[str, Any], pools: dict[str, Any]) -> None:
    """Hold an answer of `whatif` against the pools of `estimate`."""
    assert (found["gpus"], found["usd_per_hour"]) == (pools["gpus"], pools["usd_per_hour"])
    assert found["requests_per_s_per_gpu"] == pools["requests_per_s_per_gpu"]
    assert [found[name] for name in FIGURES] == [pools[name]["mean"] for name in FIGURES]
    most = min(pools[phase]["most_requests_per_s"] for phase in ("prefill", "decode"))
    assert found["max_requests_per_s_per_gpu"] == pytest.approx(most / pools["gpus"])


def test_where_pools_help_they_are_in_the_best_together(capsys: Capsys) -> None:
    """Long prompts under a tight limit on ITL: alone they save the most GPUs, so they are the first of the combination."""
    found = document(capsys, "whatif", *LONG, "--no-verify")
    (trial,) = (one for one in found["options"] if one["name"] == "disaggregate")
    alone = document(capsys, "estimate", *LONG, "--no-verify", "--disaggregate")
    check_as_estimated(trial, alone["disaggregated"])
    assert (
        trial["helps"]
        and trial["gpus_saved"] == alone["disaggregated"]["aggregated"]["gpus"] - alone["disaggregated"]["gpus"] > 0
    )
    assert trial["layout"].startswith("prefill ") and " + decode " in trial["layout"]
    best = found["best"]
    assert best["names"][0] == "disaggregate" and "--disaggregate auto" in best["options"]
    together = document(capsys, "estimate", *LONG, "--no-verify", *best["options"].split())
    check_as_estimated(best["answer"], together["disaggregated"])


def test_helping_is_told_of_one_closed_form_against_the_other(capsys: Capsys) -> None:
    """Whatever a simulation makes of the base, a trial that it has not seen is held against the base that it has not seen."""
    simulated, closed = (document(capsys, "whatif", *SMALL, *form) for form in ([], ["--no-verify"]))
    assert simulated["base"]["verified"] and not closed["base"]["verified"]
    assert simulated["options"] == closed["options"]


def test_pools_may_be_the_base(capsys: Capsys) -> None:
    """Then they are not tried, the base is the pools of `estimate` as simulated, and so is the best together."""
    asked = [*SMALL, "--disaggregate", "prefill=tp1,decode=tp1"]
    found = document(capsys, "whatif", *asked)
    check_as_estimated(found["base"], document(capsys, "estimate", *asked)["disaggregated"])
    assert found["base"]["verified"] and found["inputs"]["optimisations"]["disaggregate"]["prefill"] == {"tp": 1}
    assert "disaggregate" not in {one["name"] for one in (*found["options"], *found["not_possible"])}
    best = found["best"]
    assert best["answer"]["verified"] and best["answer"]["layout"].startswith("prefill ")
    check_as_estimated(best["answer"], document(capsys, "estimate", *asked, *best["options"].split())["disaggregated"])


def test_a_demand_without_a_rate_says_why_pools_are_not_possible(capsys: Capsys) -> None:
    asked = [*SMALL[:-4], "--concurrency", "50", "--no-verify"]
    (told,) = (one for one in document(capsys, "whatif", *asked)["not_possible"] if one["name"] == "disaggregate")
    assert "sized by a rate" in told["reason"]


def test_pools_that_nothing_serves_say_which_pool_lacks_what(capsys: Capsys) -> None:
    asked = [*SMALL, "--ttft", "5ms", "--disaggregate", "--no-verify"]
    found = document(capsys, "whatif", *asked, code=1)
    assert found["base"] is None and any(one["reason"].startswith("prefill: ") for one in found["not_possible"])
