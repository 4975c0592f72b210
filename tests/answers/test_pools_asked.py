"""Separate pools as asked for: how they are read, the answer beside serving as one, and what is refused."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from sizing.cli.main import run
from sizing.cli.options import with_values
from sizing.question.question import PoolSpace
from sizing.specs.optimisations import Disaggregate, PoolLayout
from sizing.specs.workload import Serving, Workload

BASE = ["-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "2000", "--osl", "300"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", Disaggregate()),
        ("prefill=h100-sxm:tp2,decode=h200-sxm:tp4", Disaggregate(prefill=PoolLayout(gpu="h100-sxm", tp=2), decode=PoolLayout(gpu="h200-sxm", tp=4))),
        ("decode=3xtp4pp2", Disaggregate(decode=PoolLayout(replicas=3, tp=4, pp=2))),
        ("prefill=2xl40s", Disaggregate(prefill=PoolLayout(replicas=2, gpu="l40s"))),
        ("prefill=./my.yaml:tp2", Disaggregate(prefill=PoolLayout(gpu="./my.yaml", tp=2))),
    ],
)  # fmt: skip
def test_pools_are_read(text: str, expected: Disaggregate) -> None:
    workload = Workload.model_validate(
        {"model": "x", "tokens": {"isl": 1, "osl": 2}, "optimisations": {"disaggregate": text}}
    )
    assert workload.optimisations.disaggregate == expected


def test_an_option_without_a_value_leaves_the_pools_to_the_search() -> None:
    assert with_values(["estimate", "--disaggregate", "rag.yaml"]) == ["estimate", "--disaggregate", "auto", "rag.yaml"]
    assert with_values(["estimate", "--disaggregate"]) == ["estimate", "--disaggregate", "auto"]
    assert with_values(["--disaggregate", "prefill=tp2"]) == ["--disaggregate", "prefill=tp2"]
    assert with_values(["--disaggregate=auto"]) == ["--disaggregate=auto"]
    assert with_values(["estimate", "--disaggregate", "chat"]) == ["estimate", "--disaggregate", "auto", "chat"]


def test_a_word_that_is_no_workload_is_meant_as_the_pools_where_the_work_is_stated() -> None:
    for said in (["chat", "--disaggregate", "nonsense"], ["-m", "llama-3.1-8b", "--disaggregate", "nonsense"]):
        assert with_values(["estimate", *said]) == ["estimate", *said]
    assert with_values(["estimate", "chat", "--disaggregate", ""]) == ["estimate", "chat", "--disaggregate", ""]
    assert with_values(["estimate", "--disaggregate", "chatt"]) == ["estimate", "--disaggregate", "auto", "chatt"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_estimate_says_which_serves_with_fewer_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    tight = ["estimate", "-m", "llama-3.1-70b", "-g", "h100-sxm", "--isl", "2000", "--osl", "300", "--rps", "20",
             "--ttft", "p95:800ms", "--itl", "25ms"]  # fmt: skip
    code, document = answer(capsys, *tight, "--disaggregate")
    found = document["disaggregated"]
    assert code == 0
    assert (
        found["beats_aggregated"] and found["gpus"] < found["aggregated"]["gpus"] == document["alternatives"][0]["gpus"]
    )
    assert found["gpus"] == found["prefill"]["gpus"] + found["decode"]["gpus"]
    assert found["ratio"] == pytest.approx(found["prefill"]["gpus"] / found["decode"]["gpus"])
    assert "ITL" in found["why"]
    code, plain = answer(capsys, *tight)
    assert plain["disaggregated"] is None
    of_one = ("deployment", "load", "memory", "throughput")
    assert all(plain[key] is not None and document[key] is None for key in of_one)
    assert document["alternatives"][0]["usd_per_hour"] == plain["cost"]["usd_per_hour"]
    assert document["cost"]["usd_per_hour"] == found["usd_per_hour"] != plain["cost"]["usd_per_hour"]
    assert document["latency"]["itl_ms"] == found["itl_ms"] != plain["latency"]["itl_ms"]


def test_the_pools_command_of_an_answer_keeps_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--ttft", "p95:400ms", "--itl", "12ms"]
    _, document = answer(capsys, "estimate", *BASE, "--rps", "30", *limits, "--disaggregate")
    found = document["disaggregated"]
    code, simulated = answer(capsys, *shlex.split(found["simulate_command"])[1:])
    assert code == 0
    assert simulated["inputs"]["gpus"] == found["gpus"]
    assert simulated["disaggregated"]["kv_transfer"]["within_node"] == found["kv_transfer"]["within_node"]
    assert simulated["itl_ms"]["mean"] == pytest.approx(found["itl_ms"]["mean"], rel=0.03)


@pytest.mark.parametrize(
    "optimised",
    [
        ["--prefix-hit", "0.5", "--prefix-shared", "512", "--prefix-distinct", "3"],
        ["--kv-offload", "0.5@40"],
        ["--speculative", "ngram:4@0.6"],
        ["--lora", "4x16"],
        ["--sparsity", "2:4"],
        ["--images", "2x512x512"],
    ],
    ids=lambda options: options[0],
)
def test_the_pools_command_keeps_the_optimisations(optimised: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run as printed it serves the same load on the same pools, with the same options, and comes to the same verdict.

    TTFT and ITL are within the chance of two simulations: without the option they are off by more than a tenth.
    """
    limits = ["--ttft", "p95:400ms", "--itl", "15ms"]
    _, document = answer(capsys, "estimate", *BASE, "--rps", "15", *limits, *optimised, "--disaggregate")
    found = document["disaggregated"]
    words = shlex.split(found["simulate_command"])[1:]
    assert all(words[words.index(name) + 1] == value for name, value in zip(*[iter(optimised)] * 2, strict=True))
    code, simulated = answer(capsys, *words)
    assert code == 0 and found["feasible"]
    assert simulated["inputs"]["gpus"] == found["gpus"]
    assert simulated["inputs"]["isl"] == document["inputs"]["isl"]
    assert simulated["disaggregated"]["kv_transfer"] == found["kv_transfer"]
    assert simulated["itl_ms"]["mean"] == pytest.approx(found["itl_ms"]["mean"], rel=0.03)
    assert simulated["ttft_ms"]["mean"] == pytest.approx(found["ttft_ms"]["mean"], rel=0.1)


@pytest.mark.parametrize(
    "optimised", [["--prefix-hit", "0.9"], ["--kv-offload", "0.5"]], ids=lambda options: options[0]
)
def test_the_whole_prompts_cache_moves_whatever_was_not_computed(
    optimised: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Llama-2-7B: 32 layers * 32 heads * 128 * 2 * 2 B = 524,288 B a token * 3,800 = 1.992 GB; PCIe 4 at 0.6 * 32 = 19.2 GB/s:
    103.8 ms, as the simulator takes where prompts are too few to wait for each other on the link.
    """
    work = ["-m", "llama-2-7b", "-g", "l40s", "--isl", "3800", "--osl", "200", "--rps", "0.05", *optimised]
    pools = ["--disaggregate", "prefill=1xtp1,decode=1xtp1"]
    _, document = answer(capsys, "estimate", *work, *pools, "--no-verify")
    found = document["disaggregated"]
    _, simulated = answer(capsys, "simulate", *work, *pools, "--requests", "50", "--arrivals", "even")
    assert found["kv_transfer"]["gb_per_gpu"] == pytest.approx(1.9923, rel=1e-4)
    assert found["kv_transfer_ms"] == pytest.approx(103.78, rel=1e-3)
    assert simulated["disaggregated"]["kv_transfer_ms"] == pytest.approx(found["kv_transfer_ms"], rel=1e-3)
    assert simulated["ttft_ms"]["mean"] == pytest.approx(found["ttft_ms"]["mean"], rel=0.03)


@pytest.mark.parametrize(
    ("pools", "limits", "said"),
    [
        ("prefill=mi300x:tp2,decode=h100-sxm:tp4", [], ("MI300X", "no cache connector joins GPUs of AMD and NVIDIA")),
        ("prefill=1xtp1pp2,decode=1xtp4", [], ("prefill: 1 x", "ended by TTFT", "nearest: 3 prefill replicas")),
        ("auto", ["--e2e", "1.5s"], ("decode: ", "E2E of a request that is alone", "(of 1.50 s for both pools)")),
        ("auto", ["--e2e", "20ms"], ("prefill: ", "E2E of a request that is alone", "the limit 20.0 ms")),
    ],
)
def test_pools_that_cannot_serve_say_the_true_reason(
    pools: str, limits: list[str], said: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = answer(capsys, "estimate", "chat", "-g", "h100-sxm", *limits, "--disaggregate", pools)
    found = document["disaggregated"]
    assert code == 1 and not found["feasible"]
    assert all(words in found["why"] for words in said), found["why"]


def test_the_nearest_change_of_too_few_replicas_is_one_that_serves(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["estimate", "chat", "-g", "h100-sxm", "--disaggregate"]
    assert run([*few, "prefill=2xtp1pp2,decode=1xtp4", "--json"]) == 1
    assert "nearest: 3 prefill replicas" in capsys.readouterr().out
    assert run([*few, "prefill=3xtp1pp2,decode=1xtp4", "--json"]) == 0


def test_a_budget_that_holds_no_pair_is_named_with_the_one_that_does(capsys: pytest.CaptureFixture[str]) -> None:
    """3 x TP2 and 2 x TP4 are 14 GPUs."""
    work = ["-m", "llama-3.1-70b", "-g", "h100-sxm", "--isl", "2000", "--osl", "300"]
    pools = ["--disaggregate", "prefill=3xtp2,decode=2xtp4", "--no-verify"]
    _, document = answer(capsys, "estimate", *work, "--gpus", "8", *pools)
    why = document["disaggregated"]["why"]
    assert "take 14 GPUs, the budget is 8; nearest: --gpus 14" in why
    code, document = answer(capsys, "estimate", *work, "--gpus", "14", *pools)
    assert code == 0 and document["disaggregated"]["gpus"] == 14


def test_estimate_says_where_serving_as_one_is_better(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = answer(capsys, "estimate", *BASE, "--rps", "2", "--disaggregate")
    found = document["disaggregated"]
    assert code == 0
    assert (found["gpus"], found["aggregated"]["gpus"], found["beats_aggregated"]) == (2, 1, False)
    assert "whole replicas" in found["why"]
    assert run(["estimate", *BASE, "--rps", "2", "--disaggregate", "-q"]) == 0
    assert capsys.readouterr().out == "2\n"


def test_one_pool_is_compared_by_prediction_alone_as_pools_are(capsys: pytest.CaptureFixture[str]) -> None:
    """No runs of pools are published: what runs add to one pool is said beside the comparison, not counted in it."""
    asked = ("estimate", "-m", "deepseek-ai/DeepSeek-R1", "-g", "b200", "--precision", "nvfp4", "--isl", "2000", "--osl", "1500",
             "--rps", "10", "--ttft", "p95:2s", "--itl", "50ms", "--no-verify", "--gpus")  # fmt: skip
    one = answer(capsys, *asked, "12")[1]
    for budget in ("12", "8"):  # 8 GPUs are too few for half of published runs
        found = answer(capsys, *asked, budget, "--disaggregate")[1]["disaggregated"]["aggregated"]
        assert found["gpus"] == one["evidence"]["gpus_as_predicted"] < found["gpus_even"] == one["deployment"]["gpus"]


def test_pools_of_offline_work_are_as_full_as_one_pool(capsys: pytest.CaptureFixture[str]) -> None:
    """A queue may wait in both: neither keeps a share of the stable rate free."""
    asked = ["estimate", *BASE, "--rps", "10", "--disaggregate", "prefill=2xtp1,decode=2xtp1", "--no-verify"]
    online, offline = (answer(capsys, *asked, *mode)[1]["disaggregated"] for mode in ((), ("--mode", "offline")))
    most = [found["prefill"]["most_requests_per_s"] for found in (online, offline)]
    assert most[0] == pytest.approx(0.8 * most[1], rel=0.01)


def test_pools_that_no_layout_meets_are_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = answer(capsys, "estimate", *BASE, "--rps", "2", "--ttft", "5ms", "--disaggregate")
    assert code == 1
    assert not document["disaggregated"]["feasible"]
    assert document["disaggregated"]["why"].startswith("prefill: ")


def test_simulate_runs_given_pools(capsys: pytest.CaptureFixture[str]) -> None:
    pools = "prefill=2xtp1,decode=tp2"
    code, document = answer(capsys, "simulate", *BASE, "--rps", "20", "--requests", "500", "--disaggregate", pools)
    assert code == 0
    assert document["inputs"]["gpus"] == 4
    assert document["requests_per_s_per_gpu"] == pytest.approx(document["requests_per_s"] / 4)
    assert document["disaggregated"]["prefill"]["replicas"] == 2
    assert document["disaggregated"]["decode"]["tp"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["estimate", *BASE, "--concurrency", "9", "--disaggregate"], "sized by a rate"),
        (["estimate", *BASE, "--osl", "1", "--rps", "9", "--disaggregate"], "nothing decodes"),
        (["estimate", *BASE, "--rps", "9", "--disaggregate", "decode=tp2tp4"], "twice"),
        (["estimate", *BASE, "--rps", "9", "--disaggregate", "serve=tp2"], "names no pool"),
        (["estimate", "chat", "--disaggregate", "nonsense"], "the form is auto, or prefill=POOL,decode=POOL"),
        (["estimate", "chat", "--disaggregate", ""], "the form is auto, or prefill=POOL,decode=POOL"),
        (["simulate", "chat", "-g", "h100-sxm", "--disaggregate", "nonsense"], "the form is auto, or prefill=POOL,decode=POOL"),
        (["estimate", *BASE, "--rps", "9", "--disaggregate", "prefill=h999"], "unknown GPU 'h999'"),
        (["simulate", *BASE, "--concurrency", "9", "--disaggregate"], "closed loop"),
        (["simulate", *BASE, "--rps", "9", "--replicas", "2", "--disaggregate"], "--replicas"),
        (["simulate", *BASE, "--rps", "9", "--disaggregate", "prefill=mi300x"], "no cache connector"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("prefil=tp2", "did you mean prefill?"),
        ("prefill=tp2,prefill=tp3", "prefill is named twice"),
        ("prefill=0xtp2", "'0xtp2' counts 0 replicas, from 1 to 4,096"),
        ("prefill=tp9999,decode=tp1", "'tp9999' has tp 9999, from 1 to 1,024"),
        ("prefill=,decode=tp1", "prefill has no pool"),
    ],
)
def test_a_pool_that_cannot_be_read_says_which(asked: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["estimate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "600", "--osl", "250", "--rps", "2"]
    assert run([*arguments, "--disaggregate", asked]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("llmsize: --disaggregate: ")
    assert words in line


def test_one_turn_over_pools_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["estimate", "-m", "llama-3.1-70b", "-g", "h100-sxm", "--isl", "2000", "--osl", "200", "--rps", "8"]
    asked = [*asked, "--disaggregate", "--no-verify", "--json"]
    gpus = []
    for turns in ([], ["--turns", "1", "--think-time", "30s"]):
        assert run([*asked, *turns]) == 0
        gpus.append(json.loads(capsys.readouterr().out)["disaggregated"]["gpus"])
    assert gpus[0] == gpus[1]


def test_a_pool_with_a_layout_takes_none_of_the_others_sizes() -> None:
    """Its own TP4 is not TP4 CP2 because those that serve as one are."""
    pool = PoolSpace((), PoolLayout(tp=4)).serving(Serving(tp=8, cp=2))
    assert (pool.tp, pool.cp) == (4, None)
    assert PoolSpace((), PoolLayout()).serving(Serving(tp=8, cp=2)).cp == 2
