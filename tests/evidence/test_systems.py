"""Benchmarks of whole systems: what their rows leave unsaid, the best submission, and the most that keeps a server's limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sizing.calibration.docs import accuracy_page
from sizing.catalog import shelf
from sizing.catalog.measured import MeasuredRow, read_measured
from sizing.catalog.workloads import load_workload
from sizing.evidence.notes import rules_out
from sizing.evidence.predict import LESSER, Predict, Prediction, Resolution, Result, predict_row, predict_rows
from sizing.evidence.rows import case_of_row
from sizing.evidence.systems import outdone, submissions
from sizing.model.operations import decode_attention
from sizing.specs.bands import Situation
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
        "c,elsewhere,vllm,meta-llama/Llama-2-70b-chat-hf,H100-SXM-80GB,8,,,server_slo,70\n"
    )
    found = read_measured([file])
    tokens = load_workload("openorca").spec.tokens
    assert [(row.id, row.isl, row.osl) for row in found.rows] == [("a", tokens.isl, tokens.osl)]
    assert "isl: is empty" in {row.id: row.reason for row in found.unread}["c"]


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
    assert outdone((lesser, SERVER, smaller)) == {0: 1}
    assert outdone((lesser, replace(SERVER, gpu="none"))) == {}  # another GPU is another system


UNKNOWN = Situation("served", "NVIDIA", "tensorrt-llm", "hopper", "dense", "high")


def as_measured(predict: Predict, chunks: Iterable[list[MeasuredRow]]) -> Iterator[list[Result]]:
    """Results whose predictions are what their rows state, in no time."""
    understood = Resolution("tensorrt-llm", "h100-sxm", "llama-2-70b", False, ("a note",), UNKNOWN)
    for chunk in chunks:
        yield [Result(row, understood, Prediction(row.measured(), 1.0), None) for row in chunk]


def test_a_lesser_submission_is_predicted_as_the_best_one_of_its_system() -> None:
    lesser = replace(SERVER, id="lesser", req_per_s=70.83, output_tok_per_s=20605.3)
    found, best = predict_rows((lesser, SERVER), each=as_measured)
    assert found.prediction == best.prediction and found.resolution is not None
    assert found.resolution.notes == ("a note", LESSER)
    # Its latencies are of a lower load, and are not compared.
    assert found.row.measured() == {"req_per_s": 70.83, "output_tok_per_s": 20605.3}
    other = predict_rows((replace(lesser, output_tok_per_s=None), replace(SERVER, req_per_s=None)), each=as_measured)[0]
    assert other.prediction is None and "does not state the same rates" in str(other.skipped)
    unknown = predict_rows((replace(lesser, gpu="none"), replace(SERVER, gpu="none")))
    assert [result.prediction for result in unknown] == [None, None] and unknown[0].skipped == unknown[1].skipped


def test_beams_read_a_cache_each_and_compute_a_token_each() -> None:
    beams = replace(SERVER, model="EleutherAI/gpt-j-6b", isl=780, osl=69, mode="max_throughput", n_gpus=1, tp=1)
    plain = replace(beams, source="elsewhere", weight_precision="fp8", kv_precision="fp8")
    searched, one = (case_of_row(row).deployed.kernels.shard for row in (beams, plain))
    assert (searched.extras.verified, searched.extras.tokens_per_step, one.extras.verified) == (4, 1, 1)
    (read,), (once,) = (decode_attention(shard, 8, 780) for shard in (searched, one))
    assert read.flops == pytest.approx(4 * once.flops)
    # 4 x 780 tokens through L2 at 5.5 TB/s take as long as 2.44 x 780 from the memory at 3.35 TB/s
    assert read.work is not None and once.work is not None
    assert read.work.sequences / once.work.sequences == pytest.approx(4 * 3.35 / 5.5, rel=0.01)


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
