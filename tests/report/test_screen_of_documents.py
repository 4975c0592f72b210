"""What the first screen says of documents that are all done within a time."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from screens import Capture, printed

from sizing.cli.main import run
from sizing.formats.words import duration


def test_documents_within_a_time_say_when_they_are_done_and_what_they_cost(capsys: Capture) -> None:
    asked = ["estimate", "offline-batch", "-g", "h100-sxm", "--documents", "2M", "--within", "6h", "--no-verify"]
    text, found = printed(asked, capsys)
    job, most = found["batch_job"], found["load"]["max_requests_per_s"]
    assert job["least_s"] == pytest.approx(2e6 / most, rel=1e-4)  # many rounds: the last one hardly counts
    assert job["usd"] == pytest.approx(6 * found["cost"]["usd_per_hour"], rel=1e-6)
    assert "2,000,000 requests in 6 h = 92.6 requests/s" in text
    assert f"Batch all done in {duration(job['least_s'])}, the last request too; $222 for 6 h" in text
    assert "binds" not in text.lower()  # a full cache is what offline work wants


def test_a_budget_too_small_for_documents_says_how_long_it_takes(capsys: Capture) -> None:
    asked = ["estimate", "offline-batch", "-g", "h100-sxm", "--documents", "2M", "--within", "6h", "--no-verify"]
    _, enough = printed(asked, capsys)
    longer_s = enough["batch_job"]["least_s"] * 6 / 5
    run([*asked, "--gpus", "5"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"5 GPUs take {duration(longer_s)}; the demand takes 6 x" in text


ALL_AT_ONCE = (
    "estimate",
    "-m",
    "llama-3.1-8b",
    "-g",
    "h100-sxm",
    "--isl",
    "1000",
    "--osl",
    "2000",
    "--tp",
    "1",
    "--no-verify",
)


@pytest.mark.parametrize(
    ("documents", "simulated_s"), [(100, 34.5), (200, 68.7), (298, 88.8), (400, 123.3), (520, 161.5)]
)
def test_documents_are_done_when_the_last_one_is(documents: int, simulated_s: float, capsys: Capture) -> None:
    """`simulate --concurrency 149 --requests N` took so long: rounds of the 149 slots, and a last one of fewer requests."""
    _, found = printed([*ALL_AT_ONCE, "--documents", str(documents), "--within", "10min"], capsys)
    assert found["deployment"]["replicas"] == 1
    assert found["batch_job"]["least_s"] == pytest.approx(simulated_s, rel=0.03)


@pytest.mark.parametrize(("documents", "within_s"), [(100, 12), (100, 30), (1200, 60), (5000, 50)])
def test_what_is_sized_for_a_time_is_done_within_it_and_a_gpu_less_is_not(
    documents: int, within_s: int, capsys: Capture
) -> None:
    asked = [*ALL_AT_ONCE, "--documents", str(documents), "--within", f"{within_s}s"]
    code = run([*asked, "-q"])
    gpus = capsys.readouterr().out.strip()
    if within_s == 12:  # less than a lone request takes
        assert code == 1
        return
    assert printed(asked, capsys)[1]["batch_job"]["least_s"] <= within_s
    if int(gpus) > 1:
        assert run([*asked, "--gpus", str(int(gpus) - 1), "-q"]) == 1


@pytest.mark.parametrize("pools", [(), ("--disaggregate",)])
def test_a_simulated_batch_is_done_as_the_simulator_says_of_its_share(pools: tuple[str, ...], capsys: Capture) -> None:
    lengths = ["-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "40"]
    asked = ["estimate", *lengths, "--documents", "1200", "--within", "12s", *pools]

    def answered(arguments: list[str]) -> dict[str, Any]:
        assert run([*arguments, "--json"]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    found = answered(asked)
    assert found["batch_job"]["least_s"] <= 12
    if pools:
        both = [found["disaggregated"][name] for name in ("prefill", "decode")]
        shape = ",".join(f"{of}={pool['replicas']}xtp1" for of, pool in zip(("prefill", "decode"), both, strict=True))
        share, layout = 1200, ["--disaggregate", shape, "--routing", "round-robin"]
    else:
        share, layout = 1200 / found["deployment"]["replicas"], ["--tp", "1"]
    batch = ["--arrivals", "at-once", "--requests", f"{math.ceil(share)}", *layout]
    simulated = answered(["simulate", *lengths, *batch])
    assert simulated["duration_s"] == pytest.approx(found["batch_job"]["least_s"], rel=0.01)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (21_600, "6 h"),
        (21_600.001, "6 h 1 min"),
        (18_720, "5 h 12 min"),
        (60, "1 min"),
        (59, "59 s"),
        (3_599.9, "1 h"),
        (230, "3 min 50 s"),
        (134.2, "2 min 15 s"),
    ],
)
def test_a_duration_is_rounded_up_to_a_minute_or_below_an_hour_to_a_second(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_nobody_waits_for_documents_so_nothing_makes_them_faster(capsys: Capture) -> None:
    assert run(["whatif", *ALL_AT_ONCE[1:], "--documents", "1M", "--within", "24h"]) == 0
    assert "Faster" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--documents", "1", "--within", "1min"], "Demand 1 request in 1 min ="),
        (["--rps", "1"], "Demand 1 request/s ="),
        (["--dau", "1"], "1 daily active user x"),
    ],
)
def test_one_is_in_the_singular(asked: list[str], words: str, capsys: Capture) -> None:
    run([*ALL_AT_ONCE, *asked])
    assert words in " ".join(capsys.readouterr().out.split())


def test_gpus_that_no_replica_uses_are_said_without_a_demand_too(capsys: Capture) -> None:
    layout = [
        "estimate",
        "-m",
        "llama-3.1-8b",
        "-g",
        "h100-sxm",
        "--isl",
        "1000",
        "--osl",
        "300",
        "--tp",
        "2",
        "--no-verify",
    ]
    assert run([*layout, "--gpus", "3"]) == 0
    assert "1 of 3 to spare, all figures are of 2" in " ".join(capsys.readouterr().out.split())
    assert run([*layout, "--gpus", "1"]) == 1
    assert capsys.readouterr().out.startswith("Infeasible: a replica takes more GPUs than the budget\n")


def test_pools_that_a_budget_refuses_name_the_one_pool_that_keeps_it(capsys: Capture) -> None:
    asked = ("estimate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "300", "--no-verify")
    pools = (*asked, "--disaggregate", "auto", "--within", "2min", "--gpus", "8")
    assert run([*pools, "--documents", "20000"]) == 1
    assert "Try one pool (without --disaggregate): 8 GPUs" in " ".join(capsys.readouterr().out.split())
    assert run([*pools, "--documents", "0.5"]) == 2
    assert "--documents: must be a number of at least 1" in capsys.readouterr().err
