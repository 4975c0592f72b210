"""One run as every tool writes its result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sizing.catalog.imports.run import RunSettings

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
