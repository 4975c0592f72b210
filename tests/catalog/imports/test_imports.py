"""Result files: one run written by every tool gives one row."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from places import SHARED
from result_forms import (
    AGGREGATE,
    E2E_MS,
    FORMS,
    GENAI_PERF,
    IN_FLIGHT,
    ISL,
    ITL_MS,
    REQUESTS,
    SECONDS,
    SGLANG,
    STATED,
    TTFT_MS,
    VLLM,
    written,
)

from sizing.answers.measured_lines import Filter, measured
from sizing.catalog.imports.rows import HEAD, csv_text, import_files, stated
from sizing.catalog.imports.run import RunSettings
from sizing.catalog.measured import load_measured
from sizing.evidence.predict import predict_row
from sizing.specs.errors import InputError


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
        return {**VLLM, **rates, "duration": VLLM["duration"] * IN_FLIGHT / in_flight, "max_concurrency": in_flight}

    lines = "\n".join(json.dumps(at(in_flight)) for in_flight in (4, 8, 16))
    rows, faults, _ = import_files([written(tmp_path, lines)], STATED)
    assert ([row["concurrency"] for row in rows], faults) == ([4, 8, 16], [])
    rows, (fault,), _ = import_files([written(tmp_path, lines[:-9])], STATED)  # the last line is torn
    assert [row["concurrency"] for row in rows] == [4, 8] and ":3: is not valid JSON" in str(fault)


def test_a_file_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, VLLM)
    with pytest.raises(InputError, match="is named twice"):
        import_files([file, f"{tmp_path}/../{tmp_path.name}/{Path(file).name}"], STATED)


def test_lists_of_single_requests_give_percentiles(tmp_path: Path) -> None:
    # Gaps 3 x 10, 7 x 20 and 4 x 12 ms: 14 ms a request in the mean, 15.57 ms pooled over all gaps.
    gaps = [[0.010] * 3, [0.020] * 7, [0.012] * 4]
    summary = {key: value for key, value in VLLM.items() if not key.startswith(("mean", "p99", "output"))}
    counts = {
        "max_concurrency": 2,
        "completed": 3,
        "duration": 0.3,
        "total_input_tokens": 3 * ISL,
        "total_output_tokens": 17,
    }
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


@pytest.mark.parametrize(
    ("recorded", "precision"), [("RedHatAI/Meta-Llama-3.1-8B-FP8", "fp8"), ("Meta-Llama-3.1-8B", "")]
)
def test_a_models_name_states_the_precision_where_nothing_else_does(
    tmp_path: Path, recorded: str, precision: str
) -> None:
    asked = replace(STATED, weight_precision="")
    found, faults, _ = import_files([written(tmp_path, {**VLLM, "model_id": recorded})], asked)
    assert [row["weight_precision"] for row in found] == [precision] * bool(precision)
    assert ["weight_precision" in str(fault) for fault in faults] == [True] * (not precision)


def test_runs_with_drafts_or_separate_pools_say_so(tmp_path: Path) -> None:
    files = [
        written(tmp_path, {**SGLANG, "accept_length": 2.4}, "drafts.json"),
        written(tmp_path, {**AGGREGATE, "spec_decoding": "mtp"}, "mtp.json"),
    ]
    rows, _, _ = import_files(files, STATED)
    assert [str(row["notes"]).count("speculative decoding") for row in rows] == [1, 1]


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


@pytest.mark.parametrize(("within", "tp", "dp", "gpus"), [(True, 2, 4, 8), (False, 8, None, 32)])
def test_ranks_of_sglang_are_within_tp_or_replicas(tmp_path: Path, within: bool, tp: int, dp: int, gpus: int) -> None:
    """SGLang's tp_size counts the ranks with --enable-dp-attention; otherwise each of dp_size replicas has tp_size GPUs."""
    server = {"tp_size": 8, "dp_size": 4, "enable_dp_attention": within}
    said = replace(STATED, tp=None, gpu="h100-sxm", engine="sglang")
    (row,), _, _ = import_files([written(tmp_path, {**SGLANG, "server_info": server})], said)
    assert (row["tp"], row["attention_dp"], row["n_gpus"]) == (tp, dp, gpus)


def test_what_sglang_says_of_its_server_is_recorded(tmp_path: Path) -> None:
    server = {"tp_size": 1, "version": "0.5.9", "quantization": "fp8", "kv_cache_dtype": "fp8_e4m3"}
    entry, said = {**SGLANG, "server_info": server}, replace(STATED, engine="", weight_precision="")
    (row,), _, _ = import_files([written(tmp_path, entry)], said)
    names = ("engine", "engine_version", "weight_precision", "kv_precision")
    assert [row[name] for name in names] == ["sglang", "0.5.9", "fp8", "fp8"]
    _, (fault,), _ = import_files([written(tmp_path, entry)], replace(said, weight_precision="bf16"))
    assert "the file records fp8, --precision says bf16" in str(fault)
    pool = {**SGLANG, "server_info": {**server, "disaggregation_mode": "decode"}}
    _, (fault,), _ = import_files([written(tmp_path, pool)], said)
    assert "--gpus" in str(fault)  # one pool of several, whose GPUs the file does not count


def test_lengths_that_were_drawn_are_means_by_times_and_rates_of_tokens(tmp_path: Path) -> None:
    """Of InferenceMAX: 32 tokens at most, 24.5 in the mean, by E2E = TTFT + ITL x (OSL - 1); so more requests/s, not fewer."""
    drawn = {"mean_e2el": (TTFT_MS + 23.5 * ITL_MS) / 1e3, "output_tput_per_gpu": 245.0, "input_tput_per_gpu": 980.0}
    (row,), _, _ = import_files([written(tmp_path, {**AGGREGATE, **drawn})], STATED)
    assert [row[name] for name in ("isl", "osl", "req_per_s")] == pytest.approx([98, 24.5, 10])
    assert "lengths were drawn, 128 and 32 at most" in str(row["notes"])


def test_a_prompt_with_one_token_of_output_has_no_gap(tmp_path: Path) -> None:
    of_one = {"total_output_tokens": VLLM["completed"], "output_throughput": VLLM["request_throughput"]}
    gaps = {name: 0.0 for name in VLLM if "tpot" in name or "itl" in name}
    (row,), faults, _ = import_files([written(tmp_path, {**VLLM, **of_one, **gaps, "max_concurrency": 1})], STATED)
    assert (row["itl_ms"], row["ttft_ms"]) == (None, row["e2e_ms"]) and faults == []


def test_ranks_of_a_dense_model_are_replicas(tmp_path: Path) -> None:
    said = replace(STATED, attention_dp=2, tp=2)
    for model, of in (("llama-3.1-8b", (4, None)), ("gpt-oss-120b", (4, 2))):
        (row,), _, _ = import_files([written(tmp_path, VLLM)], replace(said, model=model))
        assert (row["n_gpus"], row["attention_dp"]) == of


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
    said = replace(STATED, model="llama-3.1-8b", engine="sglang")
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
