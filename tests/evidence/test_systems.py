"""Benchmarks of whole systems: what their rows leave unsaid, the best submission, and the most that keeps a server's limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sizing.calibration.docs import accuracy_page
from sizing.catalog import shelf
from sizing.catalog.measured import MeasuredRow, read_measured
from sizing.catalog.workloads import load_workload
from sizing.evidence.notes import rules_out
from sizing.evidence.predict import predict_row, predict_rows
from sizing.evidence.systems import outdone, submissions
from sizing.specs.calibration import Calibration

SHARED = Path(__file__).parents[2].parent / "shared" / "measured"

# MLPerf Inference v4.1, NVIDIA's best submission on eight H100: 23,133 output tokens/s, answers of 291 tokens.
SERVER = MeasuredRow(
    id="best",
    source="MLPerf Inference v4.1",
    engine="TensorRT-LLM harness",
    engine_version="TensorRT 10.2.0",
    model="meta-llama/Llama-2-70b-chat-hf",
    weight_precision="fp16",
    gpu="H100-SXM-80GB",
    n_gpus=8,
    isl=294,
    osl=290.9,
    mode="server_slo",
    req_per_s=79.52,
    output_tok_per_s=23132.8,
    itl_ms=126.987,
)


def test_rows_without_lengths_have_those_of_their_workload_and_others_say_why_not(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(
        "id,source,engine,model,gpu,n_gpus,isl,osl,mode,req_per_s\n"
        "a,MLPerf Inference v4.0,TensorRT-LLM harness,meta-llama/Llama-2-70b-chat-hf,H100-SXM-80GB,8,,,server_slo,70\n"
        "b,MLPerf Inference v4.1,TensorRT-LLM harness,EleutherAI/gpt-j-6b,H100-SXM-80GB,8,,,server_slo,300\n"
        "c,elsewhere,vllm,meta-llama/Llama-2-70b-chat-hf,H100-SXM-80GB,8,,,server_slo,70\n"
    )
    found = read_measured([file])
    tokens = load_workload("openorca").spec.tokens
    assert [(row.id, row.isl, row.osl) for row in found.rows] == [("a", tokens.isl, tokens.osl)]
    reasons = {row.id: row.reason for row in found.unread}
    assert "beam search" in reasons["b"] and "isl: is empty" in reasons["c"]


def test_a_submitter_chooses_splits_that_divide_the_system_and_the_narrowest_format() -> None:
    assert [(run.tp, run.weight_precision, run.kv_precision) for run in submissions(replace(SERVER, n_gpus=4))] == [
        (tp, "fp8", "fp8") for tp in (1, 2, 4)
    ]
    assert {run.weight_precision for run in submissions(replace(SERVER, gpu="B200-SXM-180GB"))} == {"nvfp4"}
    plain = replace(SERVER, source="elsewhere")
    assert list(submissions(plain)) == [plain]


def test_the_best_submission_is_the_limit_of_its_system() -> None:
    lesser = replace(SERVER, id="lesser", req_per_s=70.83, output_tok_per_s=20605.3)
    smaller = replace(SERVER, id="smaller", n_gpus=4, req_per_s=32.73, output_tok_per_s=9522.2)
    assert outdone((lesser, SERVER, smaller)) == {0: "best"}
    skipped = predict_rows((lesser, replace(SERVER, gpu="none")))[0].skipped
    assert skipped is None or "best" not in skipped  # another GPU is another system


def test_a_server_keeps_its_limits_at_the_rate_that_is_found() -> None:
    found = predict_row(SERVER).prediction
    assert found is not None and found.missed is None
    # Published 79.5 requests/s and 127 ms: the decode limit binds, 200 ms at the 99th percentile.
    assert found.values["req_per_s"] == pytest.approx(79.52, rel=0.3)
    assert found.values["itl_ms"] == pytest.approx(127, rel=0.35)
    assert found.values["itl_ms"] < 200
    assert found.values["output_tok_per_s"] == pytest.approx(found.values["req_per_s"] * 290.9, rel=0.03)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the measured set lies outside the project")
def test_no_file_of_the_measured_set_is_refused_for_a_row() -> None:
    files = sorted(SHARED.glob("*.csv"))
    found = read_measured(files)
    assert len(found.rows) > 7000
    assert {row.mode for row in found.rows} >= {"server_slo", "max_throughput"}
    assert all(row.reason for row in found.unread)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published runs are not here")
def test_the_page_on_accuracy_counts_the_runs_that_fits_leave_out() -> None:
    rows = read_measured(sorted(SHARED.glob("*.csv"))).rows
    rules = shelf.only(Calibration).not_fitted
    assert [rule.runs for rule in rules] == [sum(rules_out(rule, row) for row in rows) for rule in rules]
    page = accuracy_page()
    largest = max((rule for rule in rules if rule.is_doubt), key=lambda rule: rule.runs)
    assert f"| {largest.runs} | {largest.source} | {largest.why} |" in page
    doubtful = sum(rule.runs for rule in rules if rule.is_doubt)
    assert f"{sum(rule.is_doubt for rule in rules)} sets of published runs, {doubtful:,} runs" in page
