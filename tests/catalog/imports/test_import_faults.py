"""What a result file does not say is asked for, and what contradicts, lies out of range or is torn is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_forms import AGGREGATE, FORMS, GENAI_PERF, ISL, OSL, SGLANG, STATED, VLLM, metric, written

from sizing.catalog.imports.results import read_results
from sizing.catalog.imports.rows import csv_text, import_files, stated
from sizing.catalog.imports.run import RunSettings
from sizing.catalog.measured import load_measured
from sizing.specs.errors import InputError


def test_a_record_in_an_unknown_unit_is_refused(tmp_path: Path) -> None:
    times = {"time_to_first_token": 0.05, "inter_token_latency": 0.01, "request_latency": 0.36}
    metrics = {name: {"value": value, "unit": "minutes"} for name, value in times.items()}
    rows, (fault,), _ = import_files([written(tmp_path, {"metrics": metrics})], STATED)
    assert rows == [] and "time_to_first_token has the unit 'minutes'" in str(fault)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (RunSettings(), "model, engine, gpu, tp, weight_precision"),
        (replace(STATED, gpu=""), "--gpu"),
        (replace(STATED, tp=None), "--tp"),
    ],
)
def test_what_a_file_does_not_record_is_asked_for_in_one_line(
    tmp_path: Path, stated: RunSettings, expected: str
) -> None:
    unnamed = {**VLLM, "model_id": ""}
    rows, faults, _ = import_files([written(tmp_path, unnamed)], stated)
    assert rows == []
    assert [expected in str(fault) for fault in faults] == [True]


@pytest.mark.parametrize(
    ("form", "against", "says"),
    [
        (AGGREGATE, {"weight_precision": "fp8"}, "the file records bf16, --precision says fp8"),
        (AGGREGATE, {"gpu": "h200-sxm"}, "the file records h100-sxm, --gpu says h200-sxm"),
        (AGGREGATE, {"n_gpus": 8}, "the file records 1, --gpus says 8"),
        ({**VLLM, "gpu": "4xNVIDIA_L40S"}, {}, "the file records l40s, --gpu says h100-sxm"),
        ({**VLLM, "gpu": "2 x H100 SXM"}, {"n_gpus": 1}, "the file records 2, --gpus says 1"),
        (GENAI_PERF, {"rate_per_s": 10.0}, "the file records 4 requests in flight, --rps says 10"),
        (VLLM, {"rate_per_s": 10.0}, "the file records 4 requests in flight, --rps says 10"),
        ({**VLLM, "request_rate": 10.0, "max_concurrency": None}, {"concurrency": 4}, "10 requests/s, --concurrency says 4"),
        (GENAI_PERF, {"tp": 2, "n_gpus": 3}, "--gpus: 3 GPUs are no whole number of replicas of TP2"),
        (GENAI_PERF, {"tp": 2, "ep": 3}, "--ep: EP3 does not divide the 2 GPUs"),
        ({**VLLM, "ramp_up_strategy": "linear"}, {}, "its rate rose during the run"),
        ({**VLLM, "completed": 1, "duration": 0.1, "total_input_tokens": ISL, "total_output_tokens": OSL}, {}, "num_requests: 1 contradicts"),
        ({**AGGREGATE, "spec_decoding": "mtp"}, {"speculative": "eagle3:3"}, "records mtp, --speculative says eagle3"),
    ],
)  # fmt: skip
def test_a_statement_against_the_file_is_refused(
    tmp_path: Path, form: dict[str, Any], against: dict[str, Any], says: str
) -> None:
    rows, (fault,), _ = import_files([written(tmp_path, form)], replace(STATED, **against))
    assert rows == []
    assert says in str(fault)


@pytest.mark.parametrize("stated", ["llama-3.1-8b", "qwen3-8b", "a-folder-of-mine"])
@pytest.mark.parametrize("recorded", ["meta-llama/Llama-3.1-8B-Instruct", "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"])
def test_another_model_than_the_files_is_refused_where_both_are_known(
    tmp_path: Path, recorded: str, stated: str
) -> None:
    file = written(tmp_path, {**VLLM, "model_id": recorded})
    rows, faults, _ = import_files([file], replace(STATED, model=stated))
    told = f"the file records {recorded}, --model says qwen3-8b"
    assert [told in str(fault) for fault in faults] == ([True] if stated == "qwen3-8b" else [])
    assert len(rows) == (stated != "qwen3-8b")


def test_lengths_that_were_not_measured_are_refused(tmp_path: Path) -> None:
    rows, (fault,), _ = import_files([written(tmp_path, VLLM)], replace(STATED, isl=500))
    assert rows == []
    assert "the file records a mean of 128, --isl says 500" in str(fault)


def test_latencies_that_a_file_leaves_out_are_named(tmp_path: Path) -> None:
    run = {key: value for key, value in VLLM.items() if "ttft" not in key and "tpot" not in key}
    (row,), _, _ = import_files([written(tmp_path, run)], STATED)
    assert "does not state: TTFT, ITL, E2E" in str(row["notes"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("{", "is not valid JSON"),
        ('{"a": 1, "a": 2}', "is given twice"),
        ('{"a": 1}', "it has the keys a"),
        ("[]", "holds no runs"),
        (json.dumps({"service_kind": "openai", "experiments": []}), "holds no runs"),
        ("3,4\n5,6\n", "its first line is '3,4'"),
        (json.dumps({**VLLM, "completed": 0}), "no request was completed"),
        (json.dumps({**VLLM, "mean_ttft_ms": -1.0}), "mean_ttft_ms is below zero"),
        (json.dumps({**VLLM, "mean_ttft_ms": float("nan")}), "mean_ttft_ms is nan"),
        (json.dumps({**GENAI_PERF, "request_latency": metric(3.0, "fortnights")}), "unit 'fortnights'"),
        (json.dumps({**GENAI_PERF, "time_to_first_token": [1]}), "time_to_first_token is no object"),
        (json.dumps({**GENAI_PERF, "time_to_first_token": {"avg": "883", "unit": "ms"}}), "avg is no number: '883'"),
        (
            json.dumps({**VLLM, "request_throughput": 500.0}),
            "output_tok_per_s: 320 contradicts req_per_s x OSL, 1.6e+04",
        ),
        (
            json.dumps({**GENAI_PERF, "request_throughput": metric(500.0, "")}),
            "concurrency: 4 contradicts requests in flight",
        ),
        (json.dumps({**SGLANG, "mean_e2e_latency_ms": 40.0}), "e2e_ms: 40 contradicts its part ttft_ms, 50"),
        (
            json.dumps({**SGLANG, "mean_e2e_latency_ms": 900.0}),
            "e2e_ms: 900 contradicts ttft_ms + itl_ms x (OSL - 1), 360",
        ),
        (json.dumps({**VLLM, "p99_ttft_ms": 0.06}), "ttft_p99_ms: 0.06 contradicts the mean, 50"),
        (json.dumps({**VLLM, "p90_ttft_ms": 70.0}), "ttft_p99_ms: 60 contradicts the ttft_p90_ms, 70"),
        (
            json.dumps({**VLLM, "max_concurrency": None, "request_rate": 5.0}),
            "req_per_s: 10 contradicts the arrivals a second, 5",
        ),
        (
            json.dumps({**VLLM, "max_concurrency": 2, "request_rate": 10.0}),
            "concurrency: 2 contradicts requests in flight by Little's law, req_per_s x E2E, 3.6",
        ),
        (json.dumps({**VLLM, "duration": 1e308}), "req_per_s: 10 contradicts 40 requests in 1e+308 s"),
        (json.dumps({**VLLM, "burstiness": 0}), "burstiness is 0"),
        (json.dumps({**VLLM, "request_rate": 0}), "request_rate is 0"),
        (
            json.dumps({**VLLM, "max_concurrency": 64}),
            "concurrency: 64 contradicts requests in flight by Little's law, req_per_s x E2E, 3.6",
        ),
    ],
)
def test_a_file_that_cannot_be_taken_is_named_with_its_reason(tmp_path: Path, content: str, words: str) -> None:
    rows, faults, _ = import_files([written(tmp_path, content)], STATED)
    assert rows == []
    assert any(words in str(fault) for fault in faults), faults


def test_good_runs_are_kept_beside_bad_ones(tmp_path: Path) -> None:
    lines = f"{json.dumps(VLLM)}\n{json.dumps({**VLLM, 'completed': 0})}\n{json.dumps(SGLANG)}\n"
    rows, (fault,), _ = import_files([written(tmp_path, lines)], STATED)
    assert (len(rows), fault.line) == (2, 2)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["inf", "ms", "p99"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_results_give_rows_or_faults(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    entry = json.loads(json.dumps(data.draw(st.sampled_from(list(FORMS.values())))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = entry
        while True:
            key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else list(range(len(at)))))
            inner = at[key]
            if isinstance(inner, dict | list) and inner and data.draw(st.booleans()):
                at = inner
                continue
            at[key] = data.draw(VALUES)
            break
    path = tmp_path_factory.mktemp("mutated") / "result.json"
    path.write_text(json.dumps(entry))
    rows, faults, _ = import_files([str(path)], STATED)
    assert rows or faults
    for row in rows:
        assert all(not isinstance(value, float) or 0 <= value < float("inf") for value in row.values())
    if rows:
        path.write_text(csv_text(rows), encoding="utf-8")
        assert len(load_measured(path)) == len(rows)


@pytest.mark.parametrize(
    ("name", "option"), [("n_gpus", "--gpus"), ("attention_dp", "--dp"), ("rate_per_s", "--rps"), ("tp", "--tp")]
)
def test_a_number_out_of_range_is_told_by_its_option(name: str, option: str) -> None:
    with pytest.raises(InputError) as caught:
        stated({name: 0})
    assert str(caught.value).startswith(f"{option}: 0 is out of range")


def test_a_file_that_is_too_large_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as stream:
        stream.truncate(300 * 2**20)
    with pytest.raises(InputError, match="is larger than 256 MiB"):
        read_results(str(path))


TABLE = (
    "Metric,avg,min,max,p99,p95,p90,p75,p50,p25\n"
    'Time To First Token (ms),"1,050.00",1,2,"1,060.00",1,1,1,1,1\n'
    'Request Latency (ms),"1,360.00",1,2,"1,400.00",9,8,7,6,5\n'
    "Output Sequence Length,32.00,1,2,3,4,5,6,7,8\nInput Sequence Length,128.00,1,2,3,4,5,6,7,8\n"
    "\nMetric,Value\nRequest Throughput (per sec),10.00\n"
)

WRITTEN = [TABLE, *(json.dumps(form) for form in FORMS.values()), f"{json.dumps(VLLM)}\n{json.dumps(SGLANG)}\n"]

SPLICED = [
    "NaN",
    "Infinity",
    "-1",
    "0",
    "1e400",
    "1e-320",
    "null",
    '"x"',
    "[]",
    "{}",
    "\x00",
    "\n",
    ",",
    "\ufeff",
    "9" * 30,
]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_torn_and_spliced_files_give_rows_that_read_back_or_faults(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = data.draw(st.sampled_from(WRITTEN))
    for _ in range(data.draw(st.integers(1, 3))):
        start, end = sorted(data.draw(st.integers(0, len(text))) for _ in range(2))
        text = (
            text[:start] + data.draw(st.sampled_from(["", *SPLICED])) + text[data.draw(st.sampled_from([start, end])) :]
        )
    folder = tmp_path_factory.mktemp("torn")
    rows, faults, _ = import_files([written(folder, text)], replace(STATED, concurrency=14))
    assert rows or faults
    if rows:
        assert len(load_measured(written(folder, csv_text(rows), "rows.csv"))) == len(rows)
