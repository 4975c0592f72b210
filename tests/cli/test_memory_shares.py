"""`llmsize memory` of several models on one card, and of several sequences."""

from __future__ import annotations

import json

import pytest

from sizing.cli.main import run

BOTH = ("memory", "-m", "llama-3.1-8b", "-m", "qwen3-8b", "-g", "h100-sxm", "--max-model-len", "8192")


def test_each_model_gets_its_share_of_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    code = run([*BOTH, "--share", "0.5,0.3", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0 and found["fits"] and found["share"] == pytest.approx(0.8)
    budgets = [model["memory"]["budget_gib"] / model["memory"]["visible_gib"] for model in found["models"]]
    assert budgets == pytest.approx([0.5, 0.3])


def test_one_that_does_not_fit_is_a_no(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*BOTH, "--share", "0.5,0.2", "--json"]) == 1
    assert [model["fits"] for model in json.loads(capsys.readouterr().out)["models"]] == [True, False]


@pytest.mark.parametrize("share", ["0.5", "0.8,0.3", "a,b", "0,1"])
def test_shares_are_one_a_model_and_one_card_at_most(share: str) -> None:
    assert run([*BOTH, "--share", share]) == 2


def test_several_models_need_their_shares() -> None:
    assert run([*BOTH]) == 2


def test_more_sequences_than_the_cache_holds_are_a_no() -> None:
    one = ("memory", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--max-model-len", "8192", "--sequences")
    assert run([*one, "50"]) == 0
    assert run([*one, "60"]) == 1
    assert run([*one, "0"]) == 2
