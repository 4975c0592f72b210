"""Figures of one run that contradict each other are told by column, wherever rows are read; those of published runs do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from places import SHARED

from sizing.catalog.measured import MeasuredRow, contradictions, read_measured
from sizing.cli.main import run

ROW = MeasuredRow(
    id="x", engine="vllm", model="llama-3.1-8b", gpu="h100-sxm", isl=128, osl=32, mode="closed_loop", concurrency=4, ttft_ms=50.0,
    itl_ms=10.0, e2e_ms=360.0, req_per_s=10.0, output_tok_per_s=320.0, ttft_p99_ms=60.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        ({}, []),
        ({"e2e_ms": 45.0, "req_per_s": 80.0, "output_tok_per_s": None}, ["e2e_ms"]),
        ({"e2e_ms": 3600.0, "req_per_s": 1.0, "output_tok_per_s": 32.0}, ["e2e_ms"]),
        ({"itl_ms": 0.01, "e2e_ms": None, "concurrency": None}, []),  # nothing else tells the unit
        ({"itl_ms": 0.01, "e2e_ms": 360.0}, ["e2e_ms"]),
        ({"output_tok_per_s": 3200.0}, ["output_tok_per_s"]),
        ({"concurrency": 1}, ["concurrency"]),
        ({"concurrency": 16}, []),  # a short run
        ({"concurrency": 40}, ["concurrency"]),
        ({"ttft_p99_ms": 0.06}, ["ttft_p99_ms"]),
        ({"ttft_ms": 0.066, "ttft_p99_ms": 80.0, "cells": {"ttft_p50_ms": "60"}}, ["ttft_ms"]),  # half took 60 ms
        ({"ttft_ms": 31.0, "e2e_ms": 341.0, "cells": {"ttft_p50_ms": "60", "ttft_p99_ms": "60"}}, []),
        ({"cells": {"itl_p50_ms": "12", "itl_p95_ms": "10"}}, ["itl_p95_ms"]),
    ],
)
def test_figures_that_one_run_cannot_have_measured_are_told_by_column(
    changed: dict[str, object], fields: list[str]
) -> None:
    assert [found.field for found in contradictions(replace(ROW, **changed))] == fields  # type: ignore[arg-type]


def test_more_than_arrives_is_not_served() -> None:
    assert [found.field for found in contradictions(ROW, 5.0)] == ["req_per_s"]
    assert list(contradictions(ROW, 20.0)) == []


HEAD = "id,engine,model,gpu,isl,osl,mode,concurrency,tp,ttft_ms,itl_ms,e2e_ms,req_per_s"
GOOD = "good,vllm,llama-3.1-8b,h100-sxm,128,32,closed_loop,4,1,50,10,360,10"
BAD = "bad,vllm,llama-3.1-8b,h100-sxm,128,32,closed_loop,8,1,50,10,3.6,20"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["estimate", "--from", "rows.csv", "--rps", "1"], 2),
        (["curve", "--measured", "rows.csv"], 2),
        (["validate", "rows.csv"], 0),  # which lists it with its reason
    ],
)
def test_a_row_against_itself_is_told_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([HEAD, GOOD, BAD]) + "\n", encoding="utf-8")
    assert run([str(path) if word == "rows.csv" else word for word in words]) == code
    out, err = capsys.readouterr()
    assert "e2e_ms: 3.6 contradicts its part ttft_ms, 50" in " ".join((out + err).split())


@pytest.mark.skipif(not (SHARED / "measured").is_dir(), reason="published rows are not here")
def test_no_published_run_contradicts_itself() -> None:
    for file in sorted((SHARED / "measured").glob("*.csv")):
        unread = read_measured([file]).unread
        said = [fault.message for row in unread for fault in row.faults]
        assert not [one for one in said if "contradicts" in one], file.name
