"""Screens of given GPUs: what they serve, those that stay unused, a budget that is too small."""

from __future__ import annotations

import pytest
from screens import Capture, printed

from sizing.cli.main import run
from sizing.report.parts.screen import (
    limits_verdict,
)


def test_a_budget_says_why_it_serves_no_more_and_no_limit_is_not_confirmed(capsys: Capture) -> None:
    asked = ["estimate", "-m", "llama-3.1-8b", "-g", "l40s", "--isl", "1000", "--osl", "200", "--concurrency", "200"]
    assert run([*asked, "--no-verify", "--gpus", "1"]) == 1
    assert ", 80 % of the highest stable rate (--max-utilisation)" in " ".join(capsys.readouterr().out.split())
    assert limits_verdict(False, True) == "No latency limit is set; rate confirmed by simulation"


def test_gpus_to_spare_are_not_in_the_figures(capsys: Capture) -> None:
    text, found = printed(["estimate", "chat", "-g", "h100-sxm", "--gpus", "10"], capsys)
    assert found["deployment"]["gpus"] == 8
    assert "2 of 10 to spare, all figures are of 8" in text


@pytest.mark.parametrize(
    "command, budget, used",
    [
        (["estimate", "--tp", "2"], 3, 2),
        (["cost", "--tp", "2"], 3, 2),
        (["cost", "--rps", "20"], 8, 2),
        (["plan", "--rps", "20"], 8, 2),
    ],
)
def test_gpus_that_are_given_and_not_used_are_told(command: list[str], budget: int, used: int, capsys: Capture) -> None:
    name, *options = command
    asked = [name, "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "300", *options]
    text, found = printed([*asked, "--gpus", str(budget), "--no-verify"], capsys)
    assert f"{budget - used} of {budget} to spare, all figures are of {used}" in text
    (told,) = [each for each in found["assumptions"] if each["what"] == "GPUs to spare"]
    assert told["value"] == f"{budget - used} of {budget}: figures are of the {used} that are used"


def test_an_infeasible_budget_is_said_once_with_what_its_gpus_serve(capsys: Capture) -> None:
    """The larger budget is in the verdict, with its nodes and cost, and no change repeats it."""
    asked = ["-m", "llama-3.1-8b", "-g", "l40s", "--isl", "1000", "--osl", "200", "--rps", "500", "--itl", "30ms"]
    assert run(["estimate", *asked, "--gpus", "8", "--no-verify"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert " 8 GPUs serve " in said and said.count("the demand takes") == 2, "the headline, and the verdict"
    assert "a larger budget" not in said and " nodes of 8, $" in said
