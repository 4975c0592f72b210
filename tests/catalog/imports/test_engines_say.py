"""What running engines say of themselves: Prometheus scrapes become rows, start-up logs facts beside a prediction."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.answers.deployment import logged
from sizing.catalog.imports.engine_logs import EngineFacts
from sizing.catalog.imports.rows import Imports, csv_text, import_files
from sizing.catalog.imports.run import RunSettings
from sizing.catalog.measured import load_measured
from sizing.catalog.shelf import only
from sizing.cli.main import run
from sizing.evidence.rows import case_of_row
from sizing.specs.errors import InputError
from sizing.specs.measurements import EngineLogs

STATED = RunSettings(gpu="h100-sxm", weight_precision="bf16", tp=1)
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
# 600 requests of 1,000 prompt and 200 output tokens: TTFT 100 ms, 20 ms a token, so E2E 4.08 s; in 60 s 40.8 in flight.
REQUESTS, ISL, OSL, TTFT_S, ITL_S, SECONDS = 600, 1000, 200, 0.1, 0.02, 60.0
E2E_S = TTFT_S + (OSL - 1) * ITL_S


def metrics(times: float = 1.0, engine: str = "vllm", at_s: float | None = None, ranks: int = 1, more: str = "") -> str:
    """The text of /metrics after `times` as many requests, over so many ranks."""
    new = engine == "vllm"
    names = {
        "ttft": "time_to_first_token_seconds",
        "itl": "request_time_per_output_token_seconds" if new else "inter_token_latency_seconds",
        "e2e": "e2e_request_latency_seconds",
    }
    stamp = "" if at_s is None else f" {at_s * 1e3:.0f}"
    lines = [
        "# HELP python_info Python platform information",
        "# TYPE python_info gauge",
        'python_info{version="3.12"} 1.0',
    ]
    for rank in range(ranks):
        labels = f'engine="{rank}",model_name="{MODEL}"'
        n = REQUESTS * times / ranks
        gaps = n if new else n * (OSL - 1)
        counted = {
            ("num_requests_running" if new else "num_running_reqs"): 40 / ranks,
            ("num_requests_waiting" if new else "num_queue_reqs"): 2 / ranks,
            "prompt_tokens_total": n * ISL,
            "generation_tokens_total": n * OSL,
            ("request_success_total" if new else "num_requests_total"): n,
        }
        for name, (count, mean) in {"ttft": (n, TTFT_S), "itl": (gaps, ITL_S), "e2e": (n, E2E_S)}.items():
            counted |= {f"{names[name]}_count": count, f"{names[name]}_sum": count * mean}
            for bound, share in ((mean / 2, 0.0), (mean, 0.5), (mean * 2, 1.0), (math.inf, 1.0)):
                le = "+Inf" if math.isinf(bound) else repr(bound)
                lines.append(f'{engine}:{names[name]}_bucket{{{labels},le="{le}"}} {count * share}{stamp}')
        lines += [f"{engine}:{name}{{{labels}}} {value}{stamp}" for name, value in counted.items()]
    return "\n".join([*lines, more]) + "\n"


def imported(tmp_path: Path, *texts: str, seconds: float | None = None, said: RunSettings = STATED) -> Imports:
    files = []
    for number, text in enumerate(texts):
        path = tmp_path / f"engine{number}.txt"
        path.write_text(text, encoding="utf-8")
        files.append(str(path))
    return import_files(files, said, seconds)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_scrape_since_the_start_is_the_average_load(tmp_path: Path, engine: str, ranks: int) -> None:
    found = imported(tmp_path, metrics(engine=engine, ranks=ranks), seconds=SECONDS, said=replace(STATED, n_gpus=ranks))
    assert found.faults == []
    (row,) = found.rows
    assert (row["engine"], row["model"], row["mode"]) == (engine, MODEL, "open_loop")  # whatever arrives
    assert (row["isl"], row["osl"], row["concurrency"]) == (ISL, OSL, None)
    assert str(row["notes"]).startswith("rate=10; ") and f"{REQUESTS:,} requests" in str(row["notes"])
    assert row["req_per_s"] == pytest.approx(REQUESTS / SECONDS)
    for name, seconds in (("ttft", TTFT_S), ("itl", ITL_S), ("e2e", E2E_S)):
        assert row[f"{name}_ms"] == pytest.approx(seconds * 1e3)
        assert row[f"{name}_p50_ms"] == pytest.approx(seconds * 1e3)  # half lie below the mean, which is a bound
        assert row[f"{name}_p99_ms"] == pytest.approx(seconds * 1e3 * (1 + 0.49 / 0.5))


def test_ranks_that_count_by_themselves_have_gpus_of_their_own(tmp_path: Path) -> None:
    """Two ranks on one GPU would be half the GPUs that served the load."""
    for said, gpus in ((STATED, None), (replace(STATED, attention_dp=2), 2), (replace(STATED, n_gpus=3), None)):
        found = imported(tmp_path, metrics(ranks=2), seconds=SECONDS, said=said)
        assert [row["n_gpus"] for row in found.rows] == ([gpus] if gpus else [])
        assert gpus or "state --dp 2" in str(found.faults[0])


def test_two_scrapes_are_what_lies_between_them(tmp_path: Path) -> None:
    (row,) = imported(tmp_path, metrics(3.0), metrics(4.0), seconds=SECONDS).rows
    (of_one_file,) = imported(tmp_path, metrics(3.0) + metrics(4.0), seconds=SECONDS).rows
    assert row["req_per_s"] == pytest.approx(REQUESTS / SECONDS)
    assert {**of_one_file, "id": row["id"]} == row
    (stamped,) = imported(tmp_path, metrics(3.0, at_s=1000), metrics(4.0, at_s=1000 + SECONDS)).rows
    assert stamped["req_per_s"] == pytest.approx(REQUESTS / SECONDS)


def test_a_time_that_does_not_fit_the_requests_in_flight_is_told(tmp_path: Path) -> None:
    """42 requests ran or waited; 10,000 times the rate would be thousands in flight."""
    for seconds, told in ((SECONDS, False), (SECONDS / 1e4, True)):
        (row,) = imported(tmp_path, metrics(), seconds=seconds).rows
        assert ("look at --seconds" in str(row["notes"])) is told


def test_without_a_time_the_rate_follows_from_requests_in_flight(tmp_path: Path) -> None:
    (row,) = imported(tmp_path, metrics()).rows
    assert row["req_per_s"] == pytest.approx(42 / E2E_S)
    assert "Little's law" in str(row["notes"])
    for gauge in ("running", "waiting"):  # a gauge that is not there is not a zero
        absent = metrics().replace(f"num_requests_{gauge}", "num_requests_swapped")
        (fault,) = imported(tmp_path, absent).faults
        assert "--seconds" in str(fault)
        (row,) = imported(tmp_path, absent, seconds=SECONDS).rows
        assert f"not known how many requests were {gauge}" in str(row["notes"]) and f"0 {gauge}" not in str(
            row["notes"]
        )


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ((metrics(0.0),), "no request was served"),
        ((metrics(4.0), metrics(3.0)), "its counters are lower"),
        ((metrics()[:-9],), "is torn at line"),
        ((metrics() + 'vllm:num_requests_running{model_name="other"} 1\n',), "several services"),
        ((metrics() + f'vllm:num_requests_running{{model_name="{MODEL}"}} many\n',), "is no number: 'many'"),
        ((metrics() + f'vllm:prompt_tokens_total{{model_name="{MODEL}"}} -5\n',), "below zero"),
    ],
)
def test_scrapes_that_say_nothing_are_refused_with_the_reason(
    tmp_path: Path, texts: tuple[str, ...], says: str
) -> None:
    found = imported(tmp_path, *texts, seconds=SECONDS)
    assert found.rows == []
    assert any(says in str(fault) for fault in found.faults), found.faults


def test_what_a_scrape_does_not_say_is_asked_for_by_name(tmp_path: Path) -> None:
    (fault,) = imported(tmp_path, metrics(), said=RunSettings()).faults
    assert "--gpu, --tp, --precision" in str(fault)


def test_drafts_and_prefixes_found_in_cache_are_told(tmp_path: Path) -> None:
    counted = {"prefix_cache_hits_total": 30, "prefix_cache_queries_total": 100, "spec_decode_num_drafts_total": 10,
               "spec_decode_num_draft_tokens_total": 30, "spec_decode_num_accepted_tokens_total": 15}  # fmt: skip
    more = "\n".join(f"vllm:{name} {value}" for name, value in counted.items())
    (row,) = imported(tmp_path, metrics(more=more)).rows
    assert "prefix caching: 30% of prompt tokens" in str(row["notes"])
    assert "speculative decoding: 3 tokens drafted, 2.5 tokens a step" in str(row["notes"])
    (named,) = imported(tmp_path, metrics(more=more), said=replace(STATED, speculative="eagle3")).rows
    assert "speculative decoding: eagle3:3, 2.5 tokens a step" in str(named["notes"])


def test_a_running_service_is_sized_anew_from_its_scrapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "metrics.txt", tmp_path / "rows.csv"
    path.write_text(metrics(), encoding="utf-8")
    words = ["-g", "h100-sxm", "--tp", "1", "--precision", "bf16", "--seconds", "60", "-o", str(out)]
    assert run(["import", str(path), *words]) == 0
    capsys.readouterr()
    assert (
        run(["estimate", "--from", str(out), "--rps", "100", "--closed-loop", "--max-utilisation", "100%", "--json"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["deployment"]["gpus"] == 10  # 100 requests/s, 10 of one GPU


def test_rows_of_scrapes_go_round_through_the_file(tmp_path: Path) -> None:
    found = imported(tmp_path, metrics(), seconds=SECONDS)
    path = tmp_path / "rows.csv"
    path.write_text(csv_text(found.rows), encoding="utf-8")
    (row,) = load_measured(path)
    assert (row.ttft_ms, row.in_flight) == (pytest.approx(TTFT_S * 1e3), pytest.approx(REQUESTS / SECONDS * E2E_S))


# --- start-up logs -------------------------------------------------------------------------------------------------------

LOGS = {
    "vllm": (  # figures of a published log: llm-d-planner's accuracy report, Llama-3.1-8B on an H100 under vLLM 0.19.0
        "INFO 07-15 10:00:05 [arg_utils.py:9] non-default args: {'gpu_memory_utilization': 0.95}\n"
        "INFO 07-15 10:00:05 [core.py:69] Initializing a V1 LLM engine (v0.19.0) with config: model='meta-llama/Llama-3.1-8B-Instruct', "
        "max_seq_len=8192, tensor_parallel_size=1, pipeline_parallel_size=1, kv_cache_dtype=auto\n"
        "INFO 07-15 10:00:15 [gpu_model_runner.py:1801] Model loading took 14.99 GiB and 3.2 seconds\n"
        "INFO 07-15 10:00:30 [gpu_worker.py:232] Available KV cache memory: 58.11 GiB\n"
        "INFO 07-15 10:00:30 [kv_cache_utils.py:716] GPU KV cache size: 476,000 tokens\n"
        "INFO 07-15 10:00:30 [kv_cache_utils.py:720] Maximum concurrency for 8,192 tokens per request: 58.11x\n"
        "INFO 07-15 10:00:51 [gpu_model_runner.py:2326] Graph capturing finished in 21 secs, took 0.9 GiB\n",
        {"engine_version": "0.19.0", "weights_gib": 14.99, "kv_cache_gib": 58.11, "kv_cache_tokens": 476000, "max_concurrency": 58.11,
         "graphs_gib": 0.9, "max_model_len": 8192, "tp": 1, "memory_fraction": 0.95, "kv_precision": ""},
    ),
    "vllm of 0.6": (
        "INFO Initializing an LLM engine (v0.6.6) with config: model='a/b', tensor_parallel_size=2\n"
        "INFO Memory profiling takes 1.36 seconds the current vLLM instance can use total_gpu_memory (79.19GiB) x gpu_memory_utilization "
        "(0.90) = 71.27GiB model weights take 14.99GiB; non_torch_memory takes 0.16GiB; PyTorch activation peak memory takes 1.23GiB; "
        "the rest of the memory reserved for KV Cache is 54.88GiB.\n",
        {"weights_gib": 14.99, "non_torch_gib": 0.16, "activation_gib": 1.23, "kv_cache_gib": 54.88, "memory_fraction": 0.9, "tp": 2},
    ),
    "sglang": (
        "[2025-07-15 10:00:00] server_args=ServerArgs(model_path='a/b', mem_fraction_static=0.88, tp_size=8, dp_size=2, enable_dp_attention=True, kv_cache_dtype='auto')\n"
        "[2025-07-15 10:00:15] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=63.59 GB, mem usage=15.08 GB.\n"
        "[2025-07-15 10:00:15] KV Cache is allocated. #tokens: 435211, K size: 26.56 GB, V size: 26.56 GB\n"
        "[2025-07-15 10:00:25] Capture cuda graph end. Time elapsed: 7.82 s. mem usage=0.28 GB. avail mem=9.37 GB.\n"
        "[2025-07-15 10:00:25] max_total_num_tokens=435211, chunked_prefill_size=8192, max_running_requests=2048, context_len=131072\n",
        {"weights_gib": 15.08, "kv_cache_gib": 53.12, "kv_cache_tokens": 435211, "graphs_gib": 0.28, "tp": 4, "memory_fraction": 0.88,
         "max_num_batched_tokens": 8192, "max_num_seqs": 2048, "max_model_len": 131072, "attention_dp": 2, "speculative": ""},
    ),
    "vllm of 0.7": (  # its arguments as a Namespace, its cache in blocks of 16 tokens
        "INFO api_server.py:840] vLLM API server version 0.7.2\n"
        "INFO api_server.py:841] args: Namespace(subparser='serve', model_tag='a/b', model='a/b', dtype='auto', kv_cache_dtype='fp8_e4m3', "
        "max_model_len=None, tensor_parallel_size=1, block_size=None, max_num_batched_tokens=None, max_num_seqs=256, quantization=None)\n"
        "INFO llm_engine.py:234] Initializing a V0 LLM engine (v0.7.2) with config: model='a/b', speculative_config=None, "
        "dtype=torch.bfloat16, max_seq_len=131072, tensor_parallel_size=1, quantization=None, enable_prefix_caching=False\n"
        "INFO model_runner.py:1115] Loading model weights took 14.9888 GB\n"
        "INFO executor_base.py:110] # CUDA blocks: 27488, # CPU blocks: 2048\n",
        {"engine_version": "0.7.2", "model": "a/b", "weights_gib": 14.9888, "kv_cache_tokens": 439808, "max_num_seqs": 256, "tp": 1,
         "max_num_batched_tokens": None, "weight_precision": "bf16", "kv_precision": "fp8", "max_model_len": 131072, "speculative": "",
         "prefix_caching": ""},
    ),
    "vllm of 0.11": (  # its arguments as a dict, with values that are no literals
        "(APIServer pid=1) INFO [utils.py:233] non-default args: {'model_tag': 'a/b', 'model': 'a/b', 'max_model_len': 16384, "
        "'data_parallel_size': 2, 'tensor_parallel_size': 2, 'enable_expert_parallel': True, 'gpu_memory_utilization': 0.92, "
        "'enable_prefix_caching': True, 'max_num_batched_tokens': 4096, 'max_num_seqs': 128, 'quantization': 'awq_marlin', "
        "'compilation_config': {'cudagraph_mode': <CUDAGraphMode.FULL: 2>}, "
        "'speculative_config': {'model': 'x', 'method': 'deepseek_mtp', 'num_speculative_tokens': 3, 'draft_tensor_parallel_size': 1}}\n"
        "(EngineCore_0 pid=2) INFO [kv_cache_utils.py:716] GPU KV cache size: 1,876,000 tokens\n",
        {"model": "a/b", "tp": 2, "attention_dp": 2, "ep": 4, "max_model_len": 16384, "max_num_seqs": 128, "memory_fraction": 0.92,
         "max_num_batched_tokens": 4096, "weight_precision": "int4", "prefix_caching": "on", "speculative": "mtp", "drafted": 3},
    ),
    "vllm of 0.33": (  # vllm/entrypoints/common/startup.py, v1/core/kv_cache_utils.py, v1/worker/gpu_worker.py
        "INFO [startup.py:38] vLLM server version 0.33.0, serving model a/b\n"
        "INFO [startup.py:96] non-default args: {'model': 'a/b', 'max_num_seqs': 64}\n"
        "INFO [core.py:140] Initializing a V1 LLM engine (v0.33.0) with config: model='a/b', speculative_config=None\n"
        "INFO [model_runner.py:429] Model loading took 14.99 GiB memory and 3.200000 seconds\n"
        "INFO [kv_cache_utils.py:1148] GPU KV cache size: 476,000 tokens, Maximum concurrency for 8,192 tokens per request: 58.11x\n"
        "INFO [gpu_worker.py:1066] Free memory on device (78.5/79.19 GiB) on startup. Desired GPU memory utilization is (0.92, 72.85 GiB). "
        "Actual usage is 15.2 GiB for consumed memory (weights + non-torch), 1.25 GiB for peak activation, and 0.9 GiB for CUDAGraph memory.\n",
        {"engine_version": "0.33.0", "weights_gib": 14.99, "kv_cache_tokens": 476000, "max_concurrency": 58.11, "memory_fraction": 0.92,
         "activation_gib": 1.25, "max_num_seqs": 64, "max_num_batched_tokens": None},
    ),
    "sglang of 0.5.20": (  # its arguments as a dict, its graphs by role
        "server_args={'model_path': 'a/b', 'quantization': None, 'kv_cache_dtype': 'fp8_e4m3', 'tp_size': 8, 'dp_size': 2, "
        "'enable_dp_attention': True, 'mem_fraction_static': 0.88, 'context_length': None, 'disable_radix_cache': False, "
        "'speculative_algorithm': 'EAGLE', 'speculative_num_steps': 3, 'speculative_eagle_topk': 1, 'chunked_prefill_size': 16384}\n"
        "Load weight end. elapsed=3.20 s, type=LlamaForCausalLM, avail mem=63.59 GB, mem usage=15.08 GB.\n"
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 435211, K size: 26.56 GB, V size: 26.56 GB\n"
        "Capture target decode CUDA graph end. elapsed=7.82 s, mem usage=0.28 GB, avail mem=9.37 GB.\n"
        "Capture draft decode CUDA graph end. elapsed=1.82 s, mem usage=0.08 GB, avail mem=9.29 GB.\n"
        "max_total_num_tokens=435211, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=131072, "
        "available_gpu_mem=9.29 GB\n",
        {"model": "a/b", "weights_gib": 15.08, "kv_cache_gib": 53.12, "kv_cache_tokens": 435211, "graphs_gib": 0.28, "tp": 4,
         "attention_dp": 2, "memory_fraction": 0.88, "max_num_batched_tokens": 8192, "max_num_seqs": 2048, "max_model_len": 131072,
         "kv_precision": "fp8", "weight_precision": "", "prefix_caching": "on", "drafted": 3},
    ),
    "tensorrt-llm": (  # the log of its own documents
        "[TensorRT-LLM] TensorRT-LLM version: 0.14.0\n"
        "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 79.10 GiB, available: 70.48 GiB\n"
        "[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 4060\n"
        "[TensorRT-LLM][INFO] Allocated 63.44 GiB for max tokens in paged KV cache (259840).\n",
        {"engine_version": "0.14.0", "kv_cache_gib": 63.44, "kv_cache_tokens": 259840},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_a_start_up_log_gives_its_facts(tmp_path: Path, name: str) -> None:
    text, expected = LOGS[name]
    found = imported(tmp_path, text, said=RunSettings())
    assert (found.rows, found.faults) == ([], [])
    (facts,) = found.facts
    assert facts.engine == name.partition(" ")[0]
    assert {key: getattr(facts, key) for key in expected} == pytest.approx(expected)


def test_a_log_stands_beside_its_prediction(tmp_path: Path) -> None:
    (facts,) = imported(tmp_path, LOGS["vllm"][0]).facts
    found = logged(facts, STATED)
    assert found.predicted is not None
    assert found.predicted.weights_gib == pytest.approx(14.99, abs=0.01)
    assert found.predicted.kv_cache_tokens == pytest.approx(476000, rel=0.03)
    assert found.predicted.max_concurrency == pytest.approx(58.11, rel=0.03)


def test_drafts_of_a_log_take_memory_whatever_is_accepted() -> None:
    facts = EngineFacts("x.log", "vllm", model=MODEL, speculative="ngram", drafted=4)
    assert logged(facts, STATED).predicted is not None


def test_what_a_log_does_not_say_is_asked_for_by_name() -> None:
    assert logged(EngineFacts("x.log", "tensorrt-llm"), RunSettings()).why_not == "a prediction needs --model and --gpu"
    assert logged(EngineFacts("x.log", "vllm", model=MODEL), RunSettings()).why_not == "a prediction needs --gpu"


def test_a_service_that_ran_for_long_says_what_its_start_said(tmp_path: Path) -> None:
    """Lines of a running service after the start take no time, and those far behind it no part."""
    log = LOGS["vllm"][0]
    for later, said in (("INFO 11-29 throughput: 5 tokens/s\n" * 40_000, ""), ("x" * 2**21 + "\nmax_num_seqs=7\n", "")):
        (facts,) = imported(tmp_path, log + later).facts
        assert facts == imported(tmp_path, log + said).facts[0]


@pytest.mark.parametrize("ready", ["", "INFO: Application startup complete.\n"])
@pytest.mark.parametrize("name", ["vllm", "vllm of 0.7", "sglang", "sglang of 0.5.20"])
def test_settings_of_an_earlier_start_are_not_those_of_the_last(tmp_path: Path, name: str, ready: str) -> None:
    """An earlier start, which failed or was stopped, had flags and memory of its own."""
    earlier = {
        "vllm": "non-default args: {'max_num_seqs': 7, 'enable_expert_parallel': True}\nmodel weights take 9.9GiB\n",
        "sglang": "server_args=ServerArgs(tp_size=2, quantization='fp8', pp_size=3)\n",
    }[name.partition(" ")[0]]
    plain, told = (
        imported(tmp_path, text, said=RunSettings()).facts for text in (LOGS[name][0], earlier + ready + LOGS[name][0])
    )
    assert told == plain


@pytest.mark.parametrize("name", LOGS)
def test_colours_and_requests_of_a_log_say_nothing(tmp_path: Path, name: str) -> None:
    log = LOGS[name][0]
    coloured = "".join(f"\x1b[1;36m(Engine pid=1)\x1b[0;0m {line}" for line in log.splitlines(keepends=True))
    asked = 'INFO: Application startup complete.\nINFO sent: "GPU KV cache size: 9 tokens, max_total_num_tokens=9 (9), non-default args: server_args={"\n'
    plain, told = (imported(tmp_path, text, said=RunSettings()).facts for text in (log, coloured + asked))
    assert told == plain


def test_a_log_without_runs_that_says_otherwise_is_refused(tmp_path: Path) -> None:
    found = imported(tmp_path, LOGS["vllm"][0], said=RunSettings(gpu="h100-sxm", tp=2))
    assert ["the engine says 1, --tp says 2" in str(fault) for fault in found.faults] == [True] and not found.facts
    assert imported(tmp_path, LOGS["vllm"][0], said=RunSettings(gpu="h100-sxm", tp=1)).facts


def test_a_log_of_more_memory_than_the_gpu_has_is_refused(tmp_path: Path) -> None:
    (fault,) = imported(tmp_path, LOGS["vllm"][0], said=RunSettings(gpu="a100-sxm-40gb")).faults
    assert "take 73.1 GiB, --gpu says a100-sxm-40gb" in str(fault)  # 14.99 + 58.11


def test_a_file_of_rows_that_a_log_cannot_give_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "server.log").write_text(LOGS["vllm"][0], encoding="utf-8")
    out = tmp_path / "rows.csv"
    assert run(["import", str(path), "-g", "h100-sxm", "-o", str(out)]) == 2
    assert "is not written" in capsys.readouterr().err and not out.exists()


def test_a_log_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    (fault,) = imported(tmp_path, "\n".join(LOGS["vllm"][0].splitlines()[:2])).faults
    assert "ends before it says what its memory holds" in str(fault)


def test_import_shows_a_log_and_exits_with_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.log"
    path.write_text(LOGS["vllm"][0], encoding="utf-8")
    assert run(["import", str(path), "-g", "h100-sxm"]) == 0
    assert "KV cache, tokens" in capsys.readouterr().out
    assert run(["import", str(path), "-g", "h100-sxm", "--json"]) == 0
    (log,) = json.loads(capsys.readouterr().out)["logs"]
    assert log["facts"]["kv_cache_tokens"] == 476000 and log["predicted"]["weights_gib"] > 14


def test_a_log_gives_rows_its_settings_and_none_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = RunSettings(gpu="h100-sxm", weight_precision="bf16")
    (row,) = imported(tmp_path, metrics(), LOGS["vllm"][0], seconds=SECONDS, said=said).rows
    assert (row["tp"], row["engine_version"], row["kv_cache_tokens"]) == (1, "0.19.0", 476000)
    (other,) = imported(tmp_path, metrics(), LOGS["sglang"][0], seconds=SECONDS, said=said).faults  # of another engine
    assert "--tp" in str(other)
    out, log = tmp_path / "rows.csv", tmp_path / "engine1.txt"
    log.write_text(LOGS["vllm"][0], encoding="utf-8")
    out.write_text(csv_text([row]), encoding="utf-8")
    assert run(["estimate", "--from", str(out), "--rps", "10"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Cache 397 requests at once by the engine's log, as predicted; more than are in flight" in said
    assert run(["estimate", "--from", str(log), "--rps", "10"]) == 2
    assert "has no performance, only weights of 14.99 GiB" in capsys.readouterr().err


def test_every_fact_of_a_line_is_a_field() -> None:
    facts = {name for known in only(EngineLogs).engines.values() for name in known.facts}
    assert facts <= set(EngineFacts._fields)


TEXTS = st.sampled_from([metrics(), metrics(engine="sglang"), *(text for text, _ in LOGS.values())])


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.data())
def test_mutated_scrapes_and_logs_give_figures_or_faults(
    tmp_path_factory: pytest.TempPathFactory, text: str, data: st.DataObject
) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 30)))
        put = data.draw(st.sampled_from(["", "NaN", "inf", "-1", "1e400", "{", '"', "\n", "9" * 20, " 0 ", "x"]))
        text = text[:start] + put + text[end:]
    path = tmp_path_factory.mktemp("mutated") / "engine.txt"
    path.write_text(text, encoding="utf-8")
    found = import_files([str(path)], replace(STATED, model="llama-3.1-8b", engine=""), 60.0)
    assert found.rows or found.faults or found.facts
    for row in found.rows:
        assert all(not isinstance(value, float) or 0 <= value < math.inf for value in row.values())
    if found.rows:
        path.write_text(csv_text(found.rows), encoding="utf-8")
        assert len(load_measured(path)) == len(found.rows)
    for facts in found.facts:
        assert all(not isinstance(value, float) or 0 <= value < math.inf for value in facts)


def test_a_log_against_the_run_or_the_user_is_refused(tmp_path: Path) -> None:
    said = RunSettings(gpu="h100-sxm", weight_precision="bf16", tp=2)
    found = imported(tmp_path, metrics(), LOGS["vllm"][0], seconds=SECONDS, said=said)
    (fault,) = found.faults
    assert found.rows == [] and "engine1.txt says 1, --tp says 2" in str(fault)
    said = replace(STATED, engine="vllm", engine_version="0.18.0", model="llama-3.1-8b")
    (fault,) = imported(tmp_path, metrics(), LOGS["vllm"][0], seconds=SECONDS, said=said).faults
    assert "engine1.txt says 0.19, --engine says 0.18" in str(fault)


def test_drafts_and_formats_of_a_log_are_those_of_its_rows(tmp_path: Path) -> None:
    log, said = LOGS["vllm of 0.11"][0].replace("'a/b'", f"'{MODEL}'"), RunSettings(gpu="h100-sxm")
    (row,) = imported(tmp_path, metrics(), log, seconds=SECONDS, said=said).rows
    assert (row["weight_precision"], row["n_gpus"], row["ep"]) == ("int4", 4, 4)
    assert row["kv_cache_tokens"] == 2 * 1_876_000  # each of its ranks prints its own
    assert "speculative decoding: mtp:3" in str(row["notes"]) and "prefix caching was on" in str(row["notes"])


def test_a_row_is_predicted_with_the_cache_that_its_engine_printed(tmp_path: Path) -> None:
    said = RunSettings(gpu="h100-sxm", weight_precision="bf16")
    found = imported(tmp_path, metrics(), LOGS["vllm"][0], seconds=SECONDS, said=said)
    path = tmp_path / "rows.csv"
    path.write_text(csv_text(found.rows), encoding="utf-8")
    (row,) = load_measured(path)
    plain = case_of_row(replace(row, kv_cache_tokens=None)).replica
    assert plain.settings.memory_fraction == 0.95 and plain.memory.kv_cache_tokens == pytest.approx(476_000, rel=0.01)
    for tokens in (476_000, 30_000):
        held = case_of_row(replace(row, kv_cache_tokens=tokens)).replica.memory
        assert held.kv_cache_tokens == pytest.approx(tokens, rel=0.01)
        assert held.kv_cache_gib * 2**30 == pytest.approx(tokens * held.kv_bytes_per_token)
    with pytest.raises(InputError, match="900,000 tokens exceed the memory"):
        case_of_row(replace(row, kv_cache_tokens=900_000))
    windowed = case_of_row(replace(row, model="gpt-oss-120b", weight_precision="mxfp4", kv_cache_tokens=30_000))
    assert any("depends on the length" in note for note in windowed.notes)
