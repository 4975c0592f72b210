"""Start-up logs of vLLM, SGLang and TensorRT-LLM: what the engine holds in memory, and the settings that it printed.

A log has no latencies, so it gives no measured row: its facts are shown, and say what a prediction of memory should be.
Lines are those that the engines print (ENGINES.md lists them by version); units are the engine's own, GB of SGLang being GiB.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sizing.catalog.imports.run import MalformedRunError, parsed


class EngineFacts(NamedTuple):
    """What a start-up log says of one GPU; None or empty where it says nothing. Sizes are GiB."""

    file: str
    engine: str
    engine_version: str = ""
    model: str = ""
    weights_gib: float | None = None
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    graphs_gib: float | None = None
    kv_cache_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    tp: int | None = None
    pp: int | None = None
    memory_fraction: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_precision: str = ""


N, WHOLE = r"([\d.]+)", r"([\d,]+)"
# The engine that prints a line, then the lines of each fact, the newest spelling first; the last line of a log counts.
SIGNS = {
    "vllm": r"vLLM API server version|Initializing (?:a V1 LLM|an LLM) engine|the current vLLM instance can use|GPU KV cache size:|Model loading took",
    "sglang": r"server_args=ServerArgs\(|max_total_num_tokens=\d+|Load weight end\.",
    "tensorrt-llm": r"\[TensorRT-LLM\]|\[TRT-LLM\]",
}
LINES: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm": {
        "engine_version": (r"vLLM API server version v?([\w.+-]+)", r"LLM engine \(v?([\w.+-]+)\)"),
        "model": (r"with config: model='([^']+)'",),
        "weights_gib": (rf"Model loading took {N} (?:GiB|GB)", rf"model weights take {N}\s?GiB"),
        "activation_gib": (rf"[Pp]eak activation memory(?: takes)?:? {N}\s?GiB", rf"activation peak memory takes {N}\s?GiB"),
        "non_torch_gib": (rf"non[_-]torch[_ ](?:forward )?memory(?: takes)?:? {N}\s?GiB",),
        "graphs_gib": (rf"Graph capturing finished in [\d.]+ secs?, took {N} GiB",),
        "kv_cache_gib": (rf"Available KV cache memory: {N} GiB", rf"reserved for KV Cache is {N}\s?GiB"),
        "kv_cache_tokens": (rf"GPU KV cache size: {WHOLE} tokens",),
        "max_concurrency": (rf"Maximum concurrency for {WHOLE} tokens per request: ([\d.,]+)x",),
        "max_model_len": (r"max_seq_len=(\d+)",),
        "tp": (r"tensor_parallel_size=(\d+)",),
        "pp": (r"pipeline_parallel_size=(\d+)",),
        "memory_fraction": (rf"gpu_memory_utilization \({N}\)", rf"gpu_memory_utilization['\"]?[=:] ?{N}"),
        "max_num_batched_tokens": (r"max_num_batched_tokens=(\d+)",),
        "max_num_seqs": (r"max_num_seqs['\"]?[=:] ?(\d+)",),
        "kv_precision": (r"kv_cache_dtype=(\w+)",),
    },
    "sglang": {
        "model": (r"model_path='([^']+)'",),
        "weights_gib": (rf"Load weight end\..*mem usage={N} GB",),
        "graphs_gib": (rf"Capture cuda graph end\..*mem usage={N} GB",),
        "kv_cache_tokens": (r"max_total_num_tokens=(\d+)", rf"KV Cache is allocated\..*#tokens: {WHOLE}"),
        "max_model_len": (r"context_len=(\d+)",),
        "tp": (r"\btp_size=(\d+)",),
        "pp": (r"\bpp_size=(\d+)",),
        "memory_fraction": (rf"mem_fraction_static={N}",),
        "max_num_batched_tokens": (r"chunked_prefill_size=(\d+)",),
        "max_num_seqs": (r"max_running_requests=(\d+)",),
        "kv_precision": (r"kv_cache_dtype='(\w+)'",),
    },
    "tensorrt-llm": {
        "engine_version": (r"TensorRT-LLM version:? v?([\w.+-]+)",),
        "kv_cache_gib": (rf"Allocated {N} GiB for max tokens in paged KV cache",),
        "kv_cache_tokens": (r"for max tokens in paged KV cache \((\d+)\)",),
        "max_num_batched_tokens": (r"max_?[nN]um_?[tT]okens:? (\d+)",),
        "max_num_seqs": (r"max_?[bB]atch_?[sS]ize:? (\d+)",),
        "max_model_len": (r"max_?[sS]eq(?:uence)?_?[lL]en:? (\d+)",),
    },
}  # fmt: skip
TEXTS = ("engine_version", "model", "kv_precision")
WHOLES = ("kv_cache_tokens", "max_model_len", "tp", "pp", "max_num_seqs", "max_num_batched_tokens")
KEY_AND_VALUE = re.compile(rf"KV Cache is allocated\..*K size: {N} GB, V size: {N} GB")


def engine_of(content: str) -> str:
    """The engine whose start-up log a text is; empty where it is none."""
    return next((name for name, sign in SIGNS.items() if re.search(sign, content)), "")


def facts(content: str, file: str) -> EngineFacts:
    """What a start-up log says. Raises MalformedRunError for a log without memory or cache."""
    engine = engine_of(content)
    found: dict[str, str | float | int] = {}
    for name, spellings in LINES[engine].items():
        values = (_last(spelling, content) for spelling in spellings)
        value = next((value for value in values if value), "")
        if value and value not in ("auto", "None"):
            found[name] = value if name in TEXTS else _figure(name, value)
    pair = KEY_AND_VALUE.findall(content)
    if engine == "sglang" and pair:
        found["kv_cache_gib"] = _figure("kv_cache_gib", pair[-1][0]) + _figure("kv_cache_gib", pair[-1][1])
    if not {"weights_gib", "kv_cache_gib", "kv_cache_tokens"} & found.keys():
        raise MalformedRunError(f"is a log of {engine} that ends before it says what its memory holds")
    return EngineFacts(file, engine, **found)  # type: ignore[arg-type]


def _last(spelling: str, content: str) -> str:
    """The last group of the last line with a spelling; empty without one."""
    matches = re.findall(spelling, content)
    if not matches:
        return ""
    return matches[-1] if isinstance(matches[-1], str) else matches[-1][-1]


def _figure(name: str, text: str) -> float | int:
    value = parsed(name, text.replace(",", "").rstrip("."))
    return int(value) if name in WHOLES else value
