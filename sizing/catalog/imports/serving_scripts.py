"""Results with one flat object per run: `vllm bench serve`, SGLang's bench_serving, InferenceMAX (InferenceX) and LLMPerf.

Fields and units: benchmarks/serve.py of vLLM, bench_serving.py of SGLang, utils/bench_serving and utils/process_result.py
of InferenceX, token_benchmark_ray.py of LLMPerf, and result files of each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypedDict

from sizing.catalog.imports.engine_logs import in_our_words
from sizing.catalog.imports.run import (
    PREFIXES_KEPT,
    BenchmarkRun,
    LatencyFigures,
    MalformedRunError,
    count,
    number,
    part,
    positive,
    rate,
    same_tokens,
    spread_of,
    stated,
    text,
)
from sizing.catalog.measured import LATENCY_MS
from sizing.specs.units import MILLI
from sizing.specs.workload import LATENCIES

# Engines by the name of the client's backend. `openai` and similar backends work with any server.
ENGINES = {"vllm": "vllm", "sglang": "sglang", "sglang-oai": "sglang", "sglang-native": "sglang", "tensorrt-llm": "tensorrt-llm",
           "trt": "tensorrt-llm", "trtllm": "tensorrt-llm", "dynamo-trt": "tensorrt-llm"}  # fmt: skip


CONTEXT_PARALLEL = ("pcp_size", "dcp_size")  # GPUs among which the prompt, or the cache, of a sequence is split
SERVED_BY, POOLS = "sglang", ("prefill", "decode")  # what `server_info` is of; its pools
SEPARATE = "disaggregated"  # a note
COUNTED_GPUS = re.compile(r"^(?:(\d{1,4})\s*x\s*)?(.+)$")
MODULES = {"nextn": "mtp"}  # SGLang's name of drafts by the model's own modules


VLLM, SGLANG, IN_SECONDS, LLMPERF = (
    "vllm bench serve",
    "sglang bench_serving",
    "InferenceMAX",
    "LLMPerf",
)  # tables of keys
SERVING, AGGREGATE = "serving script", "aggregate"


def recognised(entry: Mapping[str, Any]) -> bool:
    """Whether an object is a run of one of these scripts."""
    is_serving = {"completed", "duration", "total_input_tokens", "total_output_tokens"} <= set(entry)
    return is_serving or _is_aggregate(entry) or _is_llmperf(entry)


def runs(entry: Mapping[str, Any]) -> Iterator[BenchmarkRun]:
    """The run of an object. Raises MalformedRunError."""
    if _is_llmperf(entry):
        yield _llmperf(entry)
    else:
        yield _aggregate(entry) if _is_aggregate(entry) else _serving(entry)


def _is_aggregate(entry: Mapping[str, Any]) -> bool:
    return {"hw", "conc", "isl", "osl"} <= set(entry) and any(key.endswith("_per_gpu") for key in entry)


def _is_llmperf(entry: Mapping[str, Any]) -> bool:
    return "num_concurrent_requests" in entry and any(key.startswith("results_") for key in entry)


def _serving(entry: Mapping[str, Any]) -> BenchmarkRun:
    if not any(key.endswith("_ms") for key in entry):
        tool = IN_SECONDS
    else:
        tool = SGLANG if "dataset_name" in entry or any("e2e_latency" in key for key in entry) else VLLM
    found = stated((SERVING, tool), entry)
    completed, duration_s = found["requests"], found["duration_s"]
    requests_per_s = number(entry, "request_throughput")
    if requests_per_s is None and completed and duration_s:
        requests_per_s = completed / duration_s
    if strategy := text(entry, "ramp_up_strategy"):
        rose = f"its rate rose during the run (ramp_up_strategy {strategy})"
        raise MalformedRunError(rose, "runs at one rate, or of a number of clients")
    server = part(entry, "server_info")
    gpus, gpu = _gpus(entry)
    if (detailed := _detailed(entry)) is not None:
        found |= {name: _joined(found[name], each) for name, each in zip(LATENCIES, detailed, strict=True)}
    notes = [PREFIXES_KEPT] if server.get("disable_radix_cache") is False else []
    is_pool = text(server, "disaggregation_mode") in POOLS
    return BenchmarkRun(
        tool,
        **found,
        named_engine=ENGINES.get(text(entry, "backend").lower(), ""),
        engine=SERVED_BY if server else "",
        weight_precision=in_our_words(SERVED_BY, "weight_precision", text(server, "quantization")),
        kv_precision=in_our_words(SERVED_BY, "kv_precision", text(server, "kv_cache_dtype")),
        one_replica=is_pool,
        gpu=gpu,
        **_ranks(entry, server, gpus),
        isl=_mean(entry, "total_input_tokens", completed),
        osl=_mean(entry, "total_output_tokens", completed),
        concurrency=_cap(entry),
        failed=_failed(entry, completed),
        burstiness=positive(entry, "burstiness") or 1.0,
        **_drafts(entry),
        req_per_s=requests_per_s,
        notes=(*notes, *([SEPARATE] if is_pool else [])),
    )


def _cap(entry: Mapping[str, Any]) -> int | None:
    """The most requests that the client kept in flight; None for arrivals at a rate that never reached it."""
    cap, most = (count(entry, name) for name in ("max_concurrency", "max_concurrent_requests"))
    arrivals = rate(entry, "request_rate")
    is_idle = cap is not None and most is not None and most < cap
    return None if is_idle and arrivals is not None and math.isfinite(arrivals) else cap


def _failed(entry: Mapping[str, Any], completed: int | None) -> int:
    """The failed requests: as stated, or those sent that were not completed."""
    stated, sent = count(entry, "failed"), count(entry, "num_prompts")
    if stated is not None:
        return stated
    return 0 if sent is None or completed is None else max(0, sent - completed)


class Ranks(TypedDict):
    """How the GPUs of a server share the work; None where the file does not say it."""

    tp: int | None
    pp: int | None
    attention_dp: int | None
    n_gpus: int | None


def _gpus(entry: Mapping[str, Any]) -> tuple[int | None, str]:
    """The number and the name of the GPUs that `--metadata gpu=4xNVIDIA_L40S` states; None and empty without it."""
    ((number, name),) = COUNTED_GPUS.findall(text(entry, "gpu")) or [("", "")]
    return int(number) if number else None, name


def _ranks(entry: Mapping[str, Any], server: Mapping[str, Any], gpus: int | None) -> Ranks:
    """The layout of SGLang's server, and the number of GPUs: as the layout says, else as `gpus` states.

    With attention data parallelism `tp_size` counts the ranks too; without it, the ranks are replicas.
    """
    tp, pp, ranks = (count(server, name) for name in ("tp_size", "pp_size", "dp_size"))
    tp = count(entry, "tensor_parallel_size") or tp
    if server.get("enable_dp_attention") is True:
        return Ranks(tp=max(1, tp // (ranks or 1)) if tp else None, pp=pp, attention_dp=ranks, n_gpus=gpus)
    of_layout = tp * (pp or 1) * ranks if tp and ranks else None
    return Ranks(tp=tp, pp=pp, attention_dp=None, n_gpus=of_layout or gpus)


def _detailed(entry: Mapping[str, Any]) -> tuple[LatencyFigures, LatencyFigures, LatencyFigures] | None:
    """TTFT, ITL and E2E from the lists that `--save-detailed` writes, in seconds per request; None without these lists."""
    first, gaps = entry.get("ttfts"), entry.get("itls")
    if not (isinstance(first, list) and isinstance(gaps, list) and len(first) == len(gaps) and first):
        return None
    if not all(map(_is_time, first)) or not all(isinstance(each, list) and all(map(_is_time, each)) for each in gaps):
        raise MalformedRunError("ttfts and itls are not lists of seconds")
    # Failed requests have no tokens.
    served = [(at, each) for at, each in zip(first, gaps, strict=True) if at > 0]
    itl = [1e3 * sum(each) / len(each) for _, each in served if each]
    e2e = [1e3 * (at + sum(each)) for at, each in served]
    return spread_of([1e3 * at for at, _ in served]), spread_of(itl), spread_of(e2e)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LATENCY_MS.most * MILLI


def _joined(summary: LatencyFigures, detailed: LatencyFigures) -> LatencyFigures:
    """The figures of the summary. Missing ones come from the single requests."""
    mean = detailed.mean if summary.mean is None else summary.mean
    return LatencyFigures(mean, {**detailed.percentiles, **summary.percentiles})


class Drafts(TypedDict):
    """Speculative decoding in a file: the method, the tokens drafted in a row, and the mean tokens that a step gave."""

    speculative: str
    drafted: int | None
    tokens_per_step: float | None


def _drafts(entry: Mapping[str, Any]) -> Drafts:
    """The drafts of a run; nothing for a plain run. Drafts in a tree have no number of tokens in a row."""
    server = part(entry, "server_info")
    method = text(server, "speculative_algorithm").lower()
    is_tree = (count(server, "speculative_eagle_topk") or 1) > 1
    steps, drafted = number(entry, "spec_decode_num_drafts"), number(entry, "spec_decode_draft_tokens")
    in_a_row = None if is_tree else count(server, "speculative_num_steps")
    return Drafts(
        speculative=MODULES.get(method, method),
        drafted=round(drafted / steps) if drafted and steps else in_a_row,
        tokens_per_step=number(entry, "accept_length") or number(entry, "spec_decode_acceptance_length"),
    )


def _mean(entry: Mapping[str, Any], key: str, completed: int | None) -> float | None:
    total = number(entry, key)
    return total / completed if total is not None and completed else None


def _aggregate(entry: Mapping[str, Any]) -> BenchmarkRun:
    """One `agg_*.json` of InferenceMAX. Times are in seconds without a unit in their names, throughput is per GPU."""
    separate = entry.get("disagg") in (True, "true")
    pools = [count(entry, name) for name in ("num_prefill_gpu", "num_decode_gpu")] if separate else []
    pooled = sum(each for each in pools if each) if pools and all(pools) else None
    notes = [SEPARATE] if separate else []
    if pooled is not None:
        notes = [f"{SEPARATE}: {pools[0]} prefill + {pools[1]} decode GPUs"]
    for name in CONTEXT_PARALLEL:
        if (count(entry, name) or 1) > 1:
            raise MalformedRunError(f"ran with context parallelism ({name} {entry[name]}), which rows cannot state")
    drafts = text(entry, "spec_decoding").lower()
    found, tp = stated((AGGREGATE, IN_SECONDS), entry), count(entry, "tp")
    attention_parallel = text(entry, "dp_attention").lower() == "true" or entry.get("dp_attention") is True
    gpus = None if separate or tp is None else tp * (found["pp"] or 1)
    lengths = _lengths(entry, separate=separate)
    notes += lengths.notes
    # Of separate pools, the file counts output tokens for each decode GPU.
    per_gpu, decoding = number(entry, "output_tput_per_gpu"), pools[1] if pooled else gpus
    tokens = None if decoding is None or per_gpu is None else per_gpu * decoding
    return BenchmarkRun(
        IN_SECONDS,
        **found,
        engine=ENGINES.get(text(entry, "framework").lower(), text(entry, "framework")),
        n_gpus=pooled if separate else gpus,
        one_replica=separate,
        # With attention data parallelism the script's `tp` counts the ranks.
        tp=1 if attention_parallel else tp,
        attention_dp=tp if attention_parallel else None,
        isl=lengths.isl,
        osl=lengths.osl,
        speculative="" if drafts == "none" else drafts,
        req_per_s=tokens / lengths.osl if tokens is not None and lengths.osl else None,
        output_tok_per_s=tokens,
        notes=tuple(notes),
    )


class MeanLengths(NamedTuple):
    """Mean tokens of a prompt and an output, and how they were found."""

    isl: float | None
    osl: float | None
    notes: tuple[str, ...] = ()


def _lengths(entry: Mapping[str, Any], *, separate: bool) -> MeanLengths:
    """The mean lengths of a run whose file states the longest only: outputs from its times, prompts from its rates of tokens."""
    isl, osl = number(entry, "isl"), number(entry, "osl")
    ttft, itl, e2e = (number(entry, f"mean_{name}") for name in ("ttft", "tpot", "e2el"))
    if not (isl and osl and itl) or ttft is None or e2e is None or e2e <= ttft:
        return MeanLengths(isl, osl)
    drawn = 1 + (e2e - ttft) / itl
    if same_tokens(drawn, osl):
        return MeanLengths(isl, osl)
    taken, given = (number(entry, f"{name}_tput_per_gpu") for name in ("input", "output"))
    prompt = drawn * taken / given if taken and given and not separate else isl * drawn / osl
    note = f"lengths were drawn, {isl:,g} and {osl:,g} at most: means by (E2E - TTFT) / ITL + 1"
    return MeanLengths(prompt, drawn, (note,))


def _llmperf(entry: Mapping[str, Any]) -> BenchmarkRun:
    """A summary of LLMPerf. Its inter-token latency is E2E over tokens and includes the TTFT, so ITL is computed again."""
    per_minute = number(entry, "results_num_completed_requests_per_min")
    return BenchmarkRun(
        LLMPERF,
        **stated((LLMPERF,), entry),
        failed=count(entry, "results_number_errors") or 0,
        client_counts=True,
        req_per_s=None if per_minute is None else per_minute / 60,
        notes=("ITL computed anew: (E2E - TTFT) / (OSL - 1), as the tool's own contains the TTFT",),
    )
