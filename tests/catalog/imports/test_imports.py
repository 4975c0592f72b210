"""Result files: one run written by every tool gives one row, and what a file does not say is asked for."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import SHARED

from sizing.answers.measured import Filter, measured
from sizing.catalog.imports.results import read_results
from sizing.catalog.imports.rows import HEAD, csv_text, import_files, stated
from sizing.catalog.imports.run import RunSettings
from sizing.catalog.measured import load_measured
from sizing.evidence.predict import predict_row
from sizing.specs.errors import InputError

# One run: TTFT 50 ms, then 31 gaps of 10 ms, so OSL 32 and E2E 360 ms; 40 requests in 4 s, 4 in flight.
TTFT_MS, ITL_MS, E2E_MS, ISL, OSL, IN_FLIGHT = 50.0, 10.0, 360.0, 128, 32, 4
REQUESTS, SECONDS = 40, 4.0
STATED = RunSettings(model="llama-3.1-8b", gpu="h100-sxm", engine="vllm", weight_precision="bf16", tp=1)

VLLM = {
    "backend": "openai-chat", "model_id": "m", "request_rate": "inf", "max_concurrency": IN_FLIGHT, "duration": SECONDS,
    "completed": REQUESTS, "total_input_tokens": REQUESTS * ISL, "total_output_tokens": REQUESTS * OSL,
    "request_throughput": REQUESTS / SECONDS, "request_goodput:": None, "output_throughput": REQUESTS * OSL / SECONDS,
    "mean_ttft_ms": TTFT_MS, "p99_ttft_ms": 60.0, "mean_tpot_ms": ITL_MS, "mean_itl_ms": 12.5,
}  # fmt: skip
SGLANG = {
    **{key: value for key, value in VLLM.items() if key not in ("backend", "model_id", "request_throughput")},
    "backend": "vllm", "dataset_name": "random", "mean_e2e_latency_ms": E2E_MS, "accept_length": None,
    "request_rate": float("inf"),
}  # fmt: skip
SECONDS_WITHOUT_UNIT = {
    **{key: value for key, value in VLLM.items() if not key.endswith("_ms")},
    "mean_ttft": TTFT_MS / 1e3, "p99_ttft": 0.06, "mean_tpot": ITL_MS / 1e3, "mean_e2el": E2E_MS / 1e3,
}  # fmt: skip
AGGREGATE = {
    "hw": "h100", "conc": IN_FLIGHT, "model": "m", "framework": "vllm", "precision": "bf16", "spec_decoding": "none",
    "disagg": False, "isl": ISL, "osl": OSL, "tp": 1, "pp": 1, "dp_attention": "false", "output_tput_per_gpu": 320.0,
    "mean_ttft": TTFT_MS / 1e3, "p99_ttft": 0.06, "mean_tpot": ITL_MS / 1e3, "mean_itl": 0.0125, "mean_e2el": E2E_MS / 1e3,
}  # fmt: skip
LLMPERF = {
    "model": "m", "num_concurrent_requests": IN_FLIGHT, "results_number_input_tokens_mean": ISL,
    "results_number_output_tokens_mean": OSL, "results_inter_token_latency_s_mean": E2E_MS / 1e3 / OSL,
    "results_ttft_s_mean": TTFT_MS / 1e3, "results_ttft_s_quantiles_p99": 0.06,
    "results_end_to_end_latency_s_mean": E2E_MS / 1e3, "results_num_completed_requests": REQUESTS,
    "results_num_completed_requests_per_min": REQUESTS / SECONDS * 60,
    "results_mean_output_throughput_token_per_s": REQUESTS * OSL / SECONDS,
}  # fmt: skip


def metric(value: float, unit: str, **more: float) -> dict[str, Any]:
    return {"avg": value, "unit": unit, **more}


GENAI_PERF = {
    "time_to_first_token": metric(TTFT_MS, "ms", p99=60.0),
    "inter_token_latency": metric(ITL_MS, "ms"),
    "request_latency": metric(E2E_MS, "ms"),
    "input_sequence_length": metric(ISL, "tokens"),
    "output_sequence_length": metric(OSL, "tokens"),
    "request_throughput": metric(REQUESTS / SECONDS, "requests/sec"),
    "output_token_throughput": metric(REQUESTS * OSL / SECONDS, "tokens/sec"),
    "input_config": {"model": ["m"], "backend": "openai", "concurrency": IN_FLIGHT, "request_rate": None},
}
NANOSECONDS = {
    **GENAI_PERF,
    "time_to_first_token": metric(TTFT_MS * 1e6, "ns", p99=60e6),
    "inter_token_latency": metric(ITL_MS * 1e6, "ns"),
    "request_latency": metric(E2E_MS * 1e6, "ns"),
}
AIPERF = {
    **GENAI_PERF,
    "aiperf_version": "0.13.0",
    "request_count": metric(REQUESTS, "requests"),
    "input_config": {"models": {"items": [{"name": "m"}]}, "phases": [{"concurrency": IN_FLIGHT}]},
}


def successful(mean: float, **percentiles: float) -> dict[str, Any]:
    return {"successful": {"mean": mean, "percentiles": percentiles}}


GUIDELLM_METRICS = {
    "time_to_first_token_ms": successful(TTFT_MS, p99=60.0),
    "inter_token_latency_ms": successful(ITL_MS),
    "time_per_output_token_ms": successful(E2E_MS / OSL),
    "request_latency": successful(E2E_MS / 1e3),
    "prompt_token_count": successful(ISL),
    "output_token_count": successful(OSL),
    "requests_per_second": successful(REQUESTS / SECONDS),
    "output_tokens_per_second": successful(REQUESTS * OSL / SECONDS),
}
GUIDELLM_0_8 = {
    "benchmarks": [{"config": {"strategy": {"type_": "concurrent", "streams": IN_FLIGHT}}, "metrics": GUIDELLM_METRICS}]
}
GUIDELLM_0_3 = {
    "benchmarks": [{"args": {"strategy": {"type_": "concurrent", "streams": IN_FLIGHT}}, "metrics": GUIDELLM_METRICS}]
}
FORMS = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "seconds": SECONDS_WITHOUT_UNIT,
    "aggregate": AGGREGATE,
    "llmperf": LLMPERF,
    "genai-perf": GENAI_PERF,
    "nanoseconds": NANOSECONDS,
    "aiperf": AIPERF,
    "guidellm 0.8": GUIDELLM_0_8,
    "guidellm 0.3": GUIDELLM_0_3,
}


def written(tmp_path: Path, content: Any, name: str = "result.json") -> str:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize("form", FORMS)
def test_one_run_means_the_same_in_every_form(tmp_path: Path, form: str) -> None:
    (row,), faults, _ = import_files([written(tmp_path, FORMS[form])], STATED)
    assert faults == []
    figures = ("ttft_ms", "itl_ms", "e2e_ms", "req_per_s", "output_tok_per_s", "isl", "osl", "ttft_p99_ms")
    assert [row[name] for name in figures] == pytest.approx([50, 10, 360, 10, 320, 128, 32, 60])
    assert (row["mode"], row["concurrency"], row["n_gpus"]) == ("closed_loop", IN_FLIGHT, 1)


def test_json_lines_are_runs_of_their_own(tmp_path: Path) -> None:
    def at(in_flight: int) -> dict[str, Any]:
        rates = {name: VLLM[name] * in_flight / IN_FLIGHT for name in ("request_throughput", "output_throughput")}
        return {**VLLM, **rates, "max_concurrency": in_flight}

    lines = "\n".join(json.dumps(at(in_flight)) for in_flight in (4, 8, 16))
    rows, faults, _ = import_files([written(tmp_path, lines)], STATED)
    assert ([row["concurrency"] for row in rows], faults) == ([4, 8, 16], [])
    rows, (fault,), _ = import_files([written(tmp_path, lines[:-9])], STATED)  # the last line is torn
    assert [row["concurrency"] for row in rows] == [4, 8] and ":3: is not valid JSON" in str(fault)


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    file = written(tmp_path, VLLM)
    assert len(import_files([file, file], STATED).rows) == 1


def test_lists_of_single_requests_give_percentiles(tmp_path: Path) -> None:
    # Gaps 3 x 10, 7 x 20 and 4 x 12 ms: 14 ms a request in the mean, 15.57 ms pooled over all gaps.
    gaps = [[0.010] * 3, [0.020] * 7, [0.012] * 4]
    summary = {key: value for key, value in VLLM.items() if not key.startswith(("mean", "p99", "output"))}
    counts = {"max_concurrency": 2, "completed": 3, "total_input_tokens": 3 * ISL, "total_output_tokens": 17}
    detailed = {**summary, **counts, "ttfts": [0.05, 0.08, 0.06], "itls": gaps}
    (row,), _, _ = import_files([written(tmp_path, detailed)], STATED)
    assert row["itl_ms"] == pytest.approx(14.0)
    assert row["itl_p50_ms"] == pytest.approx(12.0)
    assert row["e2e_p50_ms"] == pytest.approx(108.0)


def test_records_of_single_requests_are_one_run(tmp_path: Path) -> None:
    def request(start_ms: float, ttft: float, osl: int, phase: str = "profiling") -> dict[str, Any]:
        end_ns = int(1e6 * (start_ms + ttft + 10 * (osl - 1)))
        return {
            "metadata": {"request_start_ns": int(1e6 * start_ms), "request_end_ns": end_ns, "benchmark_phase": phase},
            "metrics": {
                "time_to_first_token": {"value": ttft, "unit": "ms"},
                "inter_token_latency": {"value": 10.0, "unit": "ms"},
                "request_latency": {"value": ttft + 10 * (osl - 1), "unit": "ms"},
                "input_sequence_length": {"value": 100, "unit": "tokens"},
                "output_sequence_length": {"value": osl, "unit": "tokens"},
            },
        }

    records = [request(0, 500, 11, "warmup"), request(0, 40, 11), request(100, 60, 21)]
    file = written(tmp_path, "\n".join(map(json.dumps, records)))
    (row,), _, _ = import_files([file], replace(STATED, concurrency=2))
    assert (row["num_requests"], row["osl"], row["ttft_ms"]) == (2, 16, 50)
    assert row["req_per_s"] == pytest.approx(2 / 0.36)


def test_a_record_in_an_unknown_unit_is_refused(tmp_path: Path) -> None:
    times = {"time_to_first_token": 0.05, "inter_token_latency": 0.01, "request_latency": 0.36}
    metrics = {name: {"value": value, "unit": "minutes"} for name, value in times.items()}
    rows, (fault,), _ = import_files([written(tmp_path, {"metrics": metrics})], STATED)
    assert rows == [] and "time_to_first_token has the unit 'minutes'" in str(fault)


def test_a_table_without_the_forced_length_says_so_and_takes_it_from_the_user(tmp_path: Path) -> None:
    lines = ["Metric,avg,min,max", "Time To First Token (ms),100,90,110", "Inter Token Latency (ms),10,9,11",
             "Request Latency (ms),590,500,600", "Output Sequence Length,50,49,51", "Input Sequence Length,200,199,201",
             "Metric,Value", "Output Token Throughput (per sec),500", "Request Throughput (per sec),10"]  # fmt: skip
    file = written(tmp_path, "\n".join(lines) + "\n", "table.csv")
    said = replace(STATED, concurrency=6, isl=200)
    (row,) = import_files([file], said)[0]
    assert "nothing in the file checks it" in str(row["notes"]) and row["osl"] == 50
    (forced,) = import_files([file], replace(said, osl=40))[0]
    assert (forced["osl"], forced["output_tok_per_s"]) == (40, 400)
    assert forced["itl_ms"] == pytest.approx(10 * 49 / 39)  # the same time between fewer tokens
    assert "50.00 output tokens a request counted where 40 were forced" in str(forced["notes"])


def test_lengths_of_another_tokenizer_give_way_to_the_length_that_was_forced(tmp_path: Path) -> None:
    forced = {
        "output_tokens_mean": 25,
        "output_tokens_stddev": 0,
        "extra_inputs": {"min_tokens": 25, "ignore_eos": True},
    }
    run = {**GENAI_PERF, "input_config": {**GENAI_PERF["input_config"], **forced}}
    (row,), _, _ = import_files([written(tmp_path, run)], STATED)
    assert row["osl"] == 25
    assert row["itl_ms"] == pytest.approx((E2E_MS - TTFT_MS) / 24)
    assert row["output_tok_per_s"] == pytest.approx(25 * REQUESTS / SECONDS)
    assert "another tokenizer" in str(row["notes"])


def test_a_csv_export_reads_as_its_json(tmp_path: Path) -> None:
    table = (
        "Metric,avg,min,max,p99,p95,p90,p75,p50,p25\n"
        'Time To First Token (ms),"1,050.00",1,2,"1,060.00",1,1,1,1,1\n'
        "Inter Token Latency (ms),10.00,1,2,13,12,11,10,9,8\n"
        'Request Latency (ms),"1,360.00",1,2,"1,400.00",9,8,7,6,5\n'
        "Output Sequence Length,32.00,1,2,3,4,5,6,7,8\n"
        "Input Sequence Length,128.00,1,2,3,4,5,6,7,8\n"
        "\nMetric,Value\nOutput Token Throughput (per sec),320.00\nRequest Throughput (per sec),10.00\n"
    )
    (row,), faults, _ = import_files([written(tmp_path, table, "result.csv")], replace(STATED, concurrency=14))
    assert faults == []
    assert [row[name] for name in ("ttft_ms", "ttft_p99_ms", "e2e_ms", "req_per_s")] == [1050, 1060, 1360, 10]


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
        (GENAI_PERF, {"rate_per_s": 10.0}, "the file records 4 requests in flight, --rps says 10"),
        (VLLM, {"rate_per_s": 10.0}, "the file records 4 requests in flight, --rps says 10"),
        ({**VLLM, "request_rate": 10.0, "max_concurrency": None}, {"concurrency": 4}, "10 requests/s, --concurrency says 4"),
        ({**AGGREGATE, "spec_decoding": "mtp"}, {"speculative": "eagle3:3"}, "records mtp, --speculative says eagle3"),
    ],
)  # fmt: skip
def test_a_statement_against_the_file_is_refused(
    tmp_path: Path, form: dict[str, Any], against: dict[str, Any], says: str
) -> None:
    rows, (fault,), _ = import_files([written(tmp_path, form)], replace(STATED, **against))
    assert rows == []
    assert says in str(fault)


@pytest.mark.parametrize(("said", "engine"), [("sglang", "sglang"), ("", "tensorrt-llm")])
def test_an_engine_that_the_client_names_is_that_unless_another_is_stated(
    tmp_path: Path, said: str, engine: str
) -> None:
    run = {**GENAI_PERF, "input_config": {**GENAI_PERF["input_config"], "backend": "tensorrtllm"}}
    (row,), _, _ = import_files([written(tmp_path, run)], replace(STATED, engine=said))
    assert row["engine"] == engine


def test_a_run_too_short_to_keep_its_clients_busy_says_so(tmp_path: Path) -> None:
    (row,), _, _ = import_files([written(tmp_path, {**VLLM, "max_concurrency": 16})], STATED)
    assert "a short run: 3.6 of 16 clients were busy by Little's law" in str(row["notes"])


@pytest.mark.parametrize(("recorded", "noted"), [("meta-llama/Llama-3.1-8B", False), ("my-model", True)])
def test_a_model_by_its_name_in_the_catalogue_is_no_other(tmp_path: Path, recorded: str, noted: bool) -> None:
    (row,), _, _ = import_files([written(tmp_path, {**VLLM, "model_id": recorded})], STATED)
    assert ("names another model" in str(row["notes"])) == noted


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


def test_runs_with_drafts_or_separate_pools_say_so(tmp_path: Path) -> None:
    files = [
        written(tmp_path, {**SGLANG, "accept_length": 2.4}, "drafts.json"),
        written(tmp_path, {**AGGREGATE, "spec_decoding": "mtp"}, "mtp.json"),
    ]
    rows, _, _ = import_files(files, STATED)
    assert [str(row["notes"]).count("speculative decoding") for row in rows] == [1, 1]


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


def test_rows_go_round_through_the_file_of_measured_rows(tmp_path: Path) -> None:
    rows, _, _ = import_files([written(tmp_path, FORMS[form], f"{form}.json") for form in FORMS], STATED)
    path = tmp_path / "measured.csv"
    path.write_text(csv_text(rows))
    assert [row.measured()["e2e_ms"] for row in load_measured(path)] == pytest.approx([E2E_MS] * len(FORMS))
    assert tuple(next(csv.reader(io.StringIO(path.read_text())))) == HEAD


@pytest.mark.skipif(not (SHARED / "formats").is_dir(), reason="samples are not here")
def test_every_sample_gives_rows_or_a_reason() -> None:
    for file in sorted((SHARED / "formats").iterdir()):
        rows, faults, _ = import_files([str(file)], STATED)
        assert rows or faults, file.name
        # Only what has to be stated is missing: no run of a real tool is refused for its figures.
        known = (
            "does not record",
            "the file records",
            "no result of a known tool: its first line is '# Result-file samples'",
        )
        assert all(any(words in str(one) for words in known) for one in faults), faults
        for row in rows:
            assert all(not isinstance(value, float) or value >= 0 for value in row.values()), file.name


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


@pytest.mark.parametrize(("said", "taken"), [(4, True), (7, True), (2, False), (8, False)])
def test_clients_that_are_stated_keep_to_littles_law(tmp_path: Path, said: int, taken: bool) -> None:
    """3.6 requests are in flight on average: 10 a second, of 360 ms each."""
    alone = {key: value for key, value in VLLM.items() if key not in ("max_concurrency", "request_rate")}
    rows, faults, _ = import_files([written(tmp_path, alone)], replace(STATED, concurrency=said))
    assert [row["concurrency"] for row in rows] == ([said] if taken else [])
    words = (
        f"concurrency: {said} contradicts requests in flight"
        if said < IN_FLIGHT
        else f"--concurrency: 3.6 of {said} clients were busy"
    )
    assert taken or words in str(faults[0])


@pytest.mark.parametrize(("within", "tp", "gpus"), [(True, 2, 8), (False, 8, 32)])
def test_ranks_of_attention_are_within_tp_or_beside_it(tmp_path: Path, within: bool, tp: int, gpus: int) -> None:
    """SGLang's tp_size counts the ranks with --enable-dp-attention; otherwise each of dp_size copies has tp_size GPUs."""
    server = {"tp_size": 8, "dp_size": 4, "enable_dp_attention": within}
    said = replace(STATED, tp=None, gpu="h100-sxm")
    (row,), _, _ = import_files([written(tmp_path, {**SGLANG, "server_info": server})], said)
    assert (row["tp"], row["attention_dp"], row["n_gpus"]) == (tp, 4, gpus)


EAGLE = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 1}


@pytest.mark.parametrize(
    ("server", "accepted", "told", "predicted"),
    [
        ({}, None, None, True),
        ({"disable_radix_cache": False}, None, None, True),
        ({"speculative_algorithm": "EAGLE"}, 2.5, "eagle, 2.5 tokens a step", False),
        (EAGLE, None, "eagle:3", False),
        (EAGLE, 2.5, "eagle:3, 2.5 tokens a step", True),
        ({**EAGLE, "speculative_eagle_topk": 4}, 2.5, "eagle, 2.5 tokens a step", False),  # a tree of drafts
        (EAGLE, 9.0, "eagle:3, 9 tokens a step", False),
    ],
)
def test_a_run_with_drafts_is_never_taken_for_a_plain_one(
    tmp_path: Path, server: dict[str, Any], accepted: float | None, told: str | None, predicted: bool
) -> None:
    said = replace(STATED, model="llama-3.1-8b")
    entry = {**SGLANG, "server_info": server, "accept_length": accepted}
    found, _, _ = import_files([written(tmp_path, entry)], said)
    (row,) = load_measured(written(tmp_path, csv_text(found), "rows.csv"))
    assert told is None or f"speculative decoding: {told}" in row.notes
    assert (predict_row(row).skipped is None) == predicted
    (line,) = measured(written(tmp_path, csv_text(found), "rows.csv"), Filter()).lines
    assert (line.source, line.ran_with) == (
        "sglang bench_serving",
        None if told is None else f"speculative decoding ({told.partition(',')[0]})",
    )


def test_drafts_of_vllm_are_named_by_the_user(tmp_path: Path) -> None:
    counted = {"spec_decode_num_drafts": 100, "spec_decode_draft_tokens": 300, "spec_decode_acceptance_length": 2.25}
    said = stated({"speculative": "eagle3", "prefix": "30%", "model": "llama-3.1-8b"})
    found, _, _ = import_files([written(tmp_path, {**VLLM, **counted})], replace(STATED, **_given(said)))
    notes = str(found[0]["notes"])
    assert "speculative decoding: eagle3:3, 2.25 tokens a step" in notes
    assert "prefix caching: 30% of prompt tokens" in notes


def _given(said: RunSettings) -> dict[str, Any]:
    return {name: getattr(said, name) for name in ("speculative", "prefix_hit")}


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
