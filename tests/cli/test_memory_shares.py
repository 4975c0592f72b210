"""`llmsize memory` of several models on one card, and of several sequences."""

from __future__ import annotations

import json

import pytest

from sizing.cli.main import run
from sizing.specs.units import missing_gib

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


EXPERTS = ("memory", "-m", "deepseek-v3", "-g", "h200-sxm", "--max-model-len", "8k", "--all2all-backend")


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (("--dp", "8", "--ep", "8", "--engine", "sglang:0.5.15"), "this engine's profile counts no buffers for it"),
        (("--dp", "8", "--ep", "8", "--engine", "trtllm"), "this engine's profile counts no buffers for it"),
        (("--tp", "8"), "tokens go to the ranks of their experts only where"),
        (("--tp", "8", "--ep", "8"), "tokens go to the ranks of their experts only where"),
    ],
)
def test_a_way_to_experts_that_changes_no_memory_is_refused(
    layout: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for way in ("allgather", "low_latency", "high_throughput"):
        assert run([*EXPERTS, way, *layout]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith(f"llmsize: --all2all-backend: changes no memory here: {why}")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_way_to_experts_with_buffers_is_accepted(engine: str) -> None:
    assert run([*EXPERTS, "low_latency", "--dp", "8", "--ep", "8", "--engine", engine]) == 0


@pytest.mark.parametrize(
    "option",
    [
        ("--kv-precision", "fp8"),
        ("--sequences", "9"),
        ("--max-total-tokens", "1000"),
        ("--kv-cache-memory-bytes", "4G"),
        ("--enable-prefix-caching",),
    ],
)
def test_options_of_a_cache_are_refused_for_a_model_without_one(
    option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["memory", "-m", "BAAI/bge-m3", "-g", "l4"]) == 0
    capsys.readouterr()
    assert run(["memory", "-m", "BAAI/bge-m3", "-g", "l4", *option]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"llmsize: {option[0]}: has nothing to act on: the model keeps no KV cache\n"


def test_an_option_that_acts_on_one_of_two_models_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("memory", "-m", "llama-3.1-8b", "-m", "BAAI/bge-m3", "-g", "h100-sxm", "--share", "0.5,0.3")
    assert run([*asked, "--max-model-len", "8192", "--kv-precision", "fp8"]) == 0


def test_an_estimate_refuses_a_cache_precision_for_an_encoder(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("estimate", "-m", "BAAI/bge-m3", "-g", "l4", "--task", "embed", "--isl", "300", "--rps", "10")
    assert run([*asked, "--kv-precision", "fp8"]) == 2
    assert "--kv-precision: has nothing to act on: the model keeps no KV cache" in capsys.readouterr().err


def test_a_suggested_change_starts_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["memory", "-m", "qwen3.6-35b-a3b", "-g", "h100-sxm", "--json"]
    assert run(asked) == 1
    found = json.loads(capsys.readouterr().out)
    assert len(found["suggestions"]) > 1 and "--max-num-seqs" in found["suggestions"][0]
    for suggestion in found["suggestions"]:
        assert run([*asked, *suggestion.split()]) == 0, suggestion
    least = found["memory"]
    fraction = ["--gpu-memory-utilization", str(least["least_memory_fraction"])]
    assert run([*asked, *fraction]) == 1
    assert run([*asked, *fraction, "--max-num-seqs", str(least["least_fraction_num_seqs"])]) == 0


@pytest.mark.parametrize(("missing", "words"), [(2.5, "2.5"), (0.05, "0.1"), (0.02, "less than 0.1")])
def test_what_is_missing_is_never_written_as_none(missing: float, words: str) -> None:
    assert missing_gib(missing) == words
