"""Separate pools as candidates of `llmsize compare`: every figure is that of `estimate --disaggregate`, in the same order as the others."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from sizing.cli.main import run

Capsys = pytest.CaptureFixture[str]
ASKED = ["-m", "llama-3.1-70b", "--isl", "2000", "--osl", "300", "--rps", "20", "--ttft", "p95:800ms", "--itl", "25ms"]
LATENCIES = ("ttft_ms", "itl_ms", "e2e_ms")
PHASES = ("prefill", "decode")
OF_A_REPLICA = ("replicas", "gpus_per_replica", "tp", "pp", "ep", "dp")


def document(capsys: Capsys, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def pooled(compared: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for line in compared["candidates"] if line["disaggregated"]]


def check_as_estimated(line: dict[str, Any], estimate: dict[str, Any]) -> None:
    """Hold every figure of a pair of pools against the estimate of it alone."""
    pools, i = estimate["disaggregated"], estimate["inputs"]
    for name in ("gpus", "requests_per_s", "requests_per_s_per_gpu", "usd_per_hour", "power_w"):
        assert line[name] == pools[name], name
    for phase in PHASES:
        shape = line["pools"][phase]
        assert shape == {name: pools[phase][name] for name in shape}
        assert line["weight_precision"] == pools[phase]["weight_precision"]
    assert line["pools"]["kv_transfer_ms"] == pools["kv_transfer_ms"]
    most = min(pools[phase]["most_requests_per_s"] for phase in PHASES)
    assert line["max_requests_per_s"] == most
    assert line["headroom"] == pytest.approx(max(0, most / pools["requests_per_s"] - 1), rel=1e-6, abs=1e-7)
    assert line["limit"] == pools[pools["binding"]]["limit"]
    assert line["concurrency"] == pytest.approx(pools["requests_per_s"] * pools["e2e_ms"]["mean"] / 1000)
    for name in LATENCIES:
        limit = i["limits"][name]
        assert line[name] == pools[name]["mean"]
        assert line["limited"][name] == (
            None
            if limit is None
            else {"statistic": limit["statistic"], "ms": pools[name][limit["statistic"]], "limit_ms": limit["ms"]}
        )
    tokens_per_s = pools["requests_per_s"] * i["osl"]
    assert line["usd_per_million_output_tokens"] == pytest.approx(pools["usd_per_hour"] / 3600 / tokens_per_s * 1e6)
    assert line["kwh_per_million_output_tokens"] == pytest.approx(pools["power_w"] / 3.6e6 / tokens_per_s * 1e6)
    assert line["verified"] == (pools["sizes_tried"] is not None)
    assert line["bands"] == {} and all(line[name] is None for name in OF_A_REPLICA)


@pytest.mark.parametrize("extra", [[], ["--no-verify"], ["--no-verify", "--headroom", "50%"]])
def test_a_row_is_what_estimate_answers_to_the_same(extra: list[str], capsys: Capsys) -> None:
    """A row for each GPU type and precision, its pools of that type, beside the rows of serving as one, which stay as they are."""
    gpus = ("h100-sxm", "h200-sxm") if extra else ("h100-sxm",)  # of one type where pairs are simulated
    axes = ["-g", ",".join(gpus), "--precision", "fp8", *extra]
    compared = document(capsys, "compare", *ASKED, *axes, "--disaggregate")
    rows = {(line["gpu_id"], line["weight_precision"]): line for line in pooled(compared)}
    assert set(rows) == {(gpu, "fp8") for gpu in gpus} and len(compared["candidates"]) == 2 * len(gpus)
    for (gpu, precision), line in rows.items():
        alone = document(capsys, "estimate", *ASKED, "-g", gpu, "--precision", precision, *extra, "--disaggregate")
        check_as_estimated(line, alone)
    whole = document(capsys, "compare", *ASKED, *axes)["candidates"]
    assert [line for line in compared["candidates"] if not line["disaggregated"]] == whole
    asked_first = [line[{"gpus": "gpus", "cost": "usd_per_hour"}[compared["sort"]]] for line in compared["candidates"]]
    assert asked_first == sorted(asked_first)


def test_pools_that_name_their_gpus_are_one_row(capsys: Capsys) -> None:
    """Of H100 and H200, two ids and two prices: neither is the row's own."""
    pools = ["--disaggregate", "prefill=h100-sxm,decode=h200-sxm:tp4", "--no-verify"]
    compared = document(capsys, "compare", *ASKED, "-g", "h100-sxm,h200-sxm", *pools)
    (line,) = pooled(compared)
    assert line["gpu_id"] is line["price_source"] is None
    assert line["gpu"] == "H100 SXM 80GB + H200 SXM 141GB" and line["pools"]["decode"]["tp"] == 4
    check_as_estimated(line, document(capsys, "estimate", *ASKED, "-g", "h100-sxm", *pools))


def test_a_pool_that_names_no_gpu_takes_each_type_asked(capsys: Capsys) -> None:
    axes = ["-g", "h100-sxm,h200-sxm", "--precision", "fp8,bf16", "--disaggregate", "prefill=h100-sxm", "--no-verify"]
    lines = pooled(document(capsys, "compare", *ASKED, *axes))
    found = {(*(line["pools"][phase]["gpu_id"] for phase in PHASES), line["weight_precision"]) for line in lines}
    assert len(lines) == 4
    assert found == {("h100-sxm", gpu, weights) for gpu in ("h100-sxm", "h200-sxm") for weights in ("fp8", "bf16")}


def test_pools_that_cannot_serve_stay_with_the_reason_that_estimate_gives(capsys: Capsys) -> None:
    pools = ["--disaggregate", "prefill=mi300x:tp4,decode=h100-sxm:tp8", "--no-verify"]
    compared = document(capsys, "compare", *ASKED, "-g", "h100-sxm", *pools)
    (line,) = pooled(compared)
    alone = document(capsys, "estimate", *ASKED, "-g", "h100-sxm", *pools, code=1)
    assert not line["feasible"] and line["reason"] == alone["disaggregated"]["why"]
    assert line["limit"] == "pools"
    assert all(line[name] is None for name in ("gpus", "pools", "ttft_ms", "usd_per_hour", "assumed", "price_source"))
    assert compared["candidates"][-1] == line


def test_pools_take_the_place_of_gpus_that_serve_as_one(capsys: Capsys) -> None:
    """What is replaced serves as one; the pools are sized for that rate."""
    asked = [*ASKED[:6], *ASKED[8:], "-g", "h100-sxm", "--no-verify"]
    compared = document(capsys, "compare", *asked, "--replace", "32xh100-sxm", "--disaggregate")
    rate = compared["replaces"]["requests_per_s"]
    assert rate == document(capsys, "compare", *asked, "--replace", "32xh100-sxm")["replaces"]["requests_per_s"]
    (line,) = pooled(compared)
    assert line["requests_per_s"] == pytest.approx(rate)
    assert line["gpus_per_replaced_gpu"] == line["gpus"] / 32


def test_pools_are_in_every_form(capsys: Capsys) -> None:
    asked = ["compare", *ASKED, "-g", "h100-sxm", "--no-verify", "--disaggregate"]
    (line,) = pooled(document(capsys, *asked))
    prefill, decode = (line["pools"][phase] for phase in ("prefill", "decode"))
    shape = " + ".join(
        f"{phase} {of['replicas']} x TP{of['tp']}" for phase, of in (("prefill", prefill), ("decode", decode))
    )
    assert run([*asked, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["disaggregated"], row["pools"], row["tp"]) for row in rows] == [
        ("True", shape, ""),
        ("False", "", "8"),
    ]
    assert run(asked) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"28 x H100 SXM 80GB BF16, pools = {shape}") and max(map(len, out.splitlines())) <= 80
    (piped,) = pooled(document(capsys, *asked, "--layouts", "pipelines"))  # beyond the layouts that people run
    assert piped["gpus"] == line["gpus"] == 28  # a batch of prompts passes all stages: no pipeline takes fewer


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*ASKED[:6], "--concurrency", "50", "--disaggregate"], "sized by a rate"),
        ([*ASKED[:-2], "--osl", "1", "--disaggregate"], "nothing decodes"),  # and so no ITL is limited
        ([*ASKED, "--disaggregate", "prefill=h999"], "unknown GPU 'h999'"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], said: str, capsys: Capsys) -> None:
    assert run(["compare", *arguments, "-g", "h100-sxm"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0]
