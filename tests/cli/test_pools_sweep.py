"""Separate pools in `llmsize sweep`: a row is what `estimate --disaggregate` answers."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from sizing.cli.main import run

Capsys = pytest.CaptureFixture[str]
FIXED = [
    "-m",
    "llama-3.1-70b",
    "-g",
    "h100-sxm",
    "--isl",
    "2000",
    "--osl",
    "300",
    "--ttft",
    "p95:800ms",
    "--disaggregate",
]
VARIED = ["--vary", "itl=5ms,25ms", "--vary", "rps=5,20"]
LATENCIES = ("ttft_ms", "itl_ms", "e2e_ms")


def document(capsys: Capsys, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("verified", [False, True])
def test_rows_are_what_estimate_says_of_pools(verified: bool, capsys: Capsys) -> None:
    """ITL of 5 ms is below that of a lone request on any layout: half of them can't be served, and say so as `estimate` does."""
    varied = ["--vary", "itl=5ms,25ms", "--vary", "rps=20", "--verify"] if verified else VARIED
    rows = document(capsys, "sweep", *FIXED, *varied)["rows"]
    assert [row["feasible"] for row in rows] == ([False, True] if verified else [False, False, True, True])
    for row in rows:
        asked = ["--itl", row["itl"], "--rps", str(row["rps"]), *([] if verified else ["--no-verify"])]
        pools = document(capsys, "estimate", *FIXED, *asked, code=0 if row["feasible"] else 1)["disaggregated"]
        for name in ("gpus", "requests_per_s", "requests_per_s_per_gpu", "usd_per_hour", "power_w"):
            assert row[name] == pools[name], name
        assert all(row[name] is None for name in ("replicas", "tp", "pp", "ep", "dp"))
        if not row["feasible"]:
            assert (row["limit"], row["detail"], row["pools"]) == ("pools", pools["why"], None)
            continue
        assert [row[name] for name in LATENCIES] == [pools[name]["mean"] for name in LATENCIES]
        assert row["limit"] == pools[pools["binding"]]["limit"]
        prefill, decode = pools["prefill"]["replicas"], pools["decode"]["replicas"]
        assert row["pools"].startswith(f"prefill {prefill} x TP") and f" + decode {decode} x TP" in row["pools"]
        per_token = pools["usd_per_hour"] / 3600 / (pools["requests_per_s"] * 300)
        assert row["usd_per_million_output_tokens"] == pytest.approx(per_token * 1e6)


def test_every_form_has_the_pools(capsys: Capsys) -> None:
    asked = ["sweep", *FIXED, *VARIED]
    pools = [row["pools"] for row in document(capsys, *asked)["rows"]]
    assert run([*asked, "--format", "csv"]) == 0
    assert [row["pools"] or None for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == pools
    assert run([*asked, "--format", "jsonl", "--jobs", "2"]) == 0
    assert [json.loads(line)["pools"] for line in capsys.readouterr().out.splitlines()] == pools
    assert run(asked) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80 and "prefill" in out


def test_a_combination_that_cannot_be_split_is_a_row(capsys: Capsys) -> None:
    asked = [*FIXED[:6], *FIXED[8:], "--rps", "5", "--vary", "osl=1,300"]
    single, several = document(capsys, "sweep", *asked)["rows"]
    assert (single["feasible"], single["limit"]) == (False, "input") and several["feasible"]
    assert "nothing decodes" in single["detail"]


@pytest.mark.parametrize("key", ["disaggregate=auto,auto", "--disaggregate=auto"])
def test_the_pools_themselves_are_not_varied(key: str, capsys: Capsys) -> None:
    """Their text has commas of its own."""
    assert run(["sweep", *FIXED, "--rps", "5", "--vary", key]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--vary" in line and "disaggregate" in line
