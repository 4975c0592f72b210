"""What a result file says of the load beside the figures: failed requests, arrivals that were not random, pools of GPUs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from result_forms import AGGREGATE, AIPERF, GENAI_PERF, GUIDELLM_0_8, GUIDELLM_METRICS, LLMPERF, STATED, VLLM, written

from sizing.answers.measured_lines import EVERY_LOAD, Filter, measured
from sizing.catalog.imports.results import read_results
from sizing.catalog.imports.rows import Imports, csv_text, import_files
from sizing.catalog.imports.run import RunSettings
from sizing.catalog.measured import load_measured
from sizing.evidence.rows import case_of_row

AT_A_RATE = {**VLLM, "request_rate": 10.0, "max_concurrency": None}
GUIDELLM_RUN = GUIDELLM_0_8["benchmarks"][0]


def imported(tmp_path: Path, content: Any, said: RunSettings = STATED, name: str = "result.json") -> Imports:
    return import_files([written(tmp_path, content, name)], said)


def failing(count: int) -> dict[str, dict[str, Any]]:
    """A run of each tool with 40 completed requests and `count` failed ones."""
    totals = {"successful": 40, "errored": count}
    return {
        "vllm": {**VLLM, "failed": count},
        "old vllm": {**VLLM, "num_prompts": 40 + count},
        "aiperf": {**AIPERF, "error_request_count": {"avg": count, "unit": "requests"}},
        "llmperf": {**LLMPERF, "results_number_errors": count},
        "guidellm": {"benchmarks": [{**GUIDELLM_RUN, "request_totals": totals}]},
    }


@pytest.mark.parametrize("tool", failing(0))
def test_failed_requests_are_told_of_every_tool_and_many_refuse_the_run(tmp_path: Path, tool: str) -> None:
    (row,), faults, _ = imported(tmp_path, failing(2)[tool])
    assert faults == [] and "2 of 42 requests failed" in str(row["notes"])
    rows, (fault,), _ = imported(tmp_path, failing(10)[tool])
    assert rows == [] and "10 of 50 requests failed" in str(fault) and "at most 10%" in str(fault)
    assert "failed" not in str(imported(tmp_path, failing(0)[tool]).rows[0]["notes"])


def test_failures_out_of_an_unknown_number_are_told(tmp_path: Path) -> None:
    run = {**GENAI_PERF, "error_request_count": {"avg": 9, "unit": "requests"}}
    assert "9 requests failed, and the file does not state of how many" in str(imported(tmp_path, run).rows[0]["notes"])


def test_a_failed_request_among_records_is_left_out_and_counted(tmp_path: Path) -> None:
    times = {"time_to_first_token": 50, "inter_token_latency": 10, "request_latency": 360}
    tokens = {"input_sequence_length": 128, "output_sequence_length": 32}
    good = {name: {"value": value, "unit": "ms"} for name, value in {**times, **tokens}.items()}
    told = {"request_start_ns": 0, "request_end_ns": 360_000_000, "benchmark_phase": "profiling"}
    bad = {
        "metadata": told,
        "metrics": {"error_request_count": {"value": 1, "unit": "requests"}},
        "error": {"code": 500},
    }
    lines = [*[json.dumps({"metadata": told, "metrics": good})] * 19, json.dumps(bad)]
    (row,), faults, _ = imported(tmp_path, "\n".join(lines), replace(STATED, concurrency=19), "records.jsonl")
    assert faults == [] and row["num_requests"] == 19 and row["ttft_ms"] == 50
    assert "1 of 20 requests failed" in str(row["notes"])


def guidellm_at(kind: str) -> dict[str, Any]:
    strategy = {"type_": kind, "rate": 10.0}
    return {"benchmarks": [{"config": {"strategy": strategy}, "metrics": GUIDELLM_METRICS}]}


@pytest.mark.parametrize(
    ("run", "sent"),
    [
        (AT_A_RATE, None),
        ({**AT_A_RATE, "burstiness": 1.0}, None),
        ({**AT_A_RATE, "burstiness": 100.0}, "even arrivals"),
        ({**AT_A_RATE, "burstiness": 0.5}, "bursty arrivals"),
        ({**AT_A_RATE, "max_concurrency": 8}, "arrivals capped at 8 in flight"),
        ({**AT_A_RATE, "max_concurrency": 8, "max_concurrent_requests": 5}, None),
        ({**AT_A_RATE, "max_concurrency": 256}, None),  # far above the 3.6 in flight
        (guidellm_at("constant"), "even arrivals"),
        (guidellm_at("poisson"), None),
        ({**GENAI_PERF, "input_config": {"model": ["m"], "request_rate": 10.0}}, "even arrivals"),
        ({**AIPERF, "input_config": {"phases": [{"type": "poisson", "request_rate": 10.0}]}}, None),
        ({**AIPERF, "input_config": {"phases": [{"type": "constant", "request_rate": 10.0}]}}, "even arrivals"),
    ],
)  # fmt: skip
def test_arrivals_that_were_not_random_are_told_on_the_row_and_its_line(
    tmp_path: Path, run: dict[str, Any], sent: str | None
) -> None:
    rows, faults, _ = imported(tmp_path, run)
    assert faults == [] and rows[0]["mode"] == "open_loop"
    file = written(tmp_path, csv_text(rows), "rows.csv")
    (line,) = measured(file, Filter(), "--from", EVERY_LOAD).lines
    assert line.sent == sent


@pytest.mark.parametrize(
    ("burstiness", "sent"), [(1.0, ("poisson", 1.0)), (0.5, ("gamma", 0.5)), (math.inf, ("even", 1.0))]
)
def test_arrivals_are_predicted_as_they_were_sent(tmp_path: Path, burstiness: float, sent: tuple[str, float]) -> None:
    run = {**AT_A_RATE, "burstiness": burstiness} if burstiness < math.inf else guidellm_at("constant")
    rows, _, _ = imported(tmp_path, run)
    (row,) = load_measured(written(tmp_path, csv_text(rows), "rows.csv"))
    traffic = case_of_row(replace(row, model="llama-3.1-8b")).traffic
    assert (traffic.arrivals, traffic.burstiness) == sent


def test_separate_pools_are_one_replica_of_all_their_gpus(tmp_path: Path) -> None:
    run = {**AGGREGATE, "disagg": True, "num_prefill_gpu": 4, "num_decode_gpu": 8, "output_tput_per_gpu": 40.0}
    rows, faults, _ = imported(tmp_path, run)
    assert faults == [] and rows[0]["n_gpus"] == 12
    assert rows[0]["output_tok_per_s"] == 320  # counted for each decode GPU
    (line,) = measured(written(tmp_path, csv_text(rows), "rows.csv"), Filter(), "--from", EVERY_LOAD).lines
    assert (line.gpus, line.pooled, line.points[0].concurrency) == (12, "4 prefill + 8 decode GPUs", 4)


def test_pools_of_an_unknown_size_ask_for_their_gpus(tmp_path: Path) -> None:
    run = {**AGGREGATE, "disagg": True}
    rows, (fault,), _ = imported(tmp_path, run)
    assert rows == [] and "--gpus" in str(fault)
    assert imported(tmp_path, run, replace(STATED, n_gpus=6)).rows[0]["n_gpus"] == 6


@pytest.mark.parametrize("name", ["pcp_size", "dcp_size"])
def test_context_parallelism_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    rows, (fault,), _ = imported(tmp_path, {**AGGREGATE, name: 2})
    assert rows == [] and f"{name} 2" in str(fault)
    assert imported(tmp_path, {**AGGREGATE, name: 1}).faults == []


@pytest.mark.parametrize(
    ("key", "name", "option", "near"),
    [
        ("hw", "nonsense9000", "--gpu", ""),
        ("hw", "b200-trt", "--gpu", "b200"),
        ("framework", "dynamo-sglang", "--engine", "SGLang"),
        ("framework", "atom", "--engine", ""),
    ],
)
def test_a_name_that_no_profile_has_is_asked_for(tmp_path: Path, key: str, name: str, option: str, near: str) -> None:
    run = {**AGGREGATE, key: name}
    unsaid = replace(STATED, **{"hw": {"gpu": ""}, "framework": {"engine": ""}}[key])
    rows, (fault,), _ = imported(tmp_path, run, unsaid)
    assert rows == [] and repr(name) in str(fault) and f"state {option}" in str(fault)
    assert (f"did you mean {near}" in str(fault)) == bool(near)
    assert imported(tmp_path, run).faults == []


def test_ratios_of_ranks_are_averaged_and_counts_summed(tmp_path: Path) -> None:
    gauges = {"num_running_reqs": 5, "num_queue_reqs": 0, "token_usage": 0.3, "spec_accept_length": 2.4}
    lines = [f'sglang:{name}{{dp_rank="{rank}"}} {value}' for name, value in gauges.items() for rank in (0, 1)]
    counted = {
        "num_requests_total": 100,
        "e2e_request_latency_seconds_sum": 200,
        "e2e_request_latency_seconds_count": 100,
    }
    lines += [f"sglang:{name} {value}" for name, value in counted.items()]
    (scrape,) = read_results(written(tmp_path, "\n".join(lines), "metrics.txt")).scrapes
    assert {name: scrape.values[name] for name in gauges} == {**gauges, "num_running_reqs": 10}
    said = replace(STATED, engine="sglang", isl=1000, osl=200, n_gpus=2)
    (row,) = imported(tmp_path, "\n".join(lines), said, "metrics.txt").rows
    assert "speculative decoding: method not stated, 2.4 tokens a step" in str(row["notes"])


def test_a_raw_export_has_the_gap_that_follows_from_the_stated_length(tmp_path: Path) -> None:
    requests = [{"timestamp": 0, "response_timestamps": [50_000_000, 360_000_000]}]
    experiment = {"experiment": {"mode": "concurrency", "value": 1}, "requests": requests}
    run = {"experiments": [experiment], "service_kind": "openai"}
    (row,), faults, _ = imported(tmp_path, run, replace(STATED, isl=128, osl=32))
    assert faults == [] and row["itl_ms"] == pytest.approx(10)
    assert "does not state" not in str(row["notes"])
