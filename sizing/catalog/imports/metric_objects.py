"""Results of genai-perf and AIPerf: one object or line per metric, with its unit. Also their records of single requests.

Fields: genai_perf/export_data and AIPerf's exporters, and result files of both. The unit in the file is used, because old
versions wrote ns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sizing.catalog.imports.run import (
    UNIT_MS,
    BenchmarkRun,
    LatencyFigures,
    MalformedRunError,
    count,
    figures,
    lines,
    number,
    part,
    rate,
    spread_of,
    text,
)

TTFT, ITL, E2E = "time_to_first_token", "inter_token_latency", "request_latency"
ISL, OSL = "input_sequence_length", "output_sequence_length"
EVEN = "constant"  # arrivals at equal distances
GENAI_PERF, AIPERF = "genai-perf", "AIPerf"
ENGINES = {"tensorrtllm": "tensorrt-llm", "vllm": "vllm"}  # backends of Triton; other endpoints may be any engine
METRIC_LINE = re.compile(r"(?P<name>[^()]+?)\s*(?:\((?P<unit>[^()]*)\))?")


def recognised(entry: Mapping[str, Any]) -> bool:
    """Whether an object is a summary of either tool, or a raw export."""
    return _is_raw(entry) or "avg" in part(entry, E2E) or "avg" in part(entry, "request_throughput")


def runs(entry: Mapping[str, Any]) -> Iterator[BenchmarkRun]:
    """The run of a summary, or the runs of a raw export. Raises MalformedRunError."""
    if _is_raw(entry):
        yield from _raw_runs(entry)
    else:
        yield _run(entry)


def _run(entry: Mapping[str, Any]) -> BenchmarkRun:
    asked = part(entry, "input_config")
    is_aiperf = "aiperf_version" in entry or "models" in asked or "loadgen" in asked or "sum" in part(entry, E2E)
    load = _load(asked)
    extra = part(asked, "extra_inputs")
    forced = _mean_of(entry, OSL) is not None and _forced_length(asked, extra)
    return BenchmarkRun(
        AIPERF if is_aiperf else GENAI_PERF,
        model=_model(asked),
        named_engine=ENGINES.get(text(asked, "backend").lower(), ""),
        isl=_mean_of(entry, ISL),
        osl=_mean_of(entry, OSL),
        asked_osl=forced or None,
        client_counts=True,
        concurrency=count(load, "concurrency"),
        rate_per_s=rate(load, "request_rate"),
        burstiness=_burstiness(load, is_aiperf=is_aiperf),
        requests=count(_metric(entry, "request_count"), "avg"),
        failed=int(_mean_of(entry, "error_request_count") or 0),
        ttft=_spread(entry, TTFT),
        itl=_spread(entry, ITL),
        e2e=_spread(entry, E2E),
        req_per_s=_mean_of(entry, "request_throughput"),
        output_tok_per_s=_mean_of(entry, "output_token_throughput"),
    )


def _load(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object that states concurrency and rate. Its place depends on the version."""
    measured = _objects(asked.get("phases"))
    return measured[-1] if measured else part(asked, "loadgen") or asked


def _burstiness(load: Mapping[str, Any], *, is_aiperf: bool) -> float:
    """The shape of the gaps between arrivals at a rate. genai-perf sends evenly unless told otherwise, AIPerf at random."""
    named = text(load, "type", "arrival_pattern", "request_rate_mode", "request_distribution").lower()
    return math.inf if named == EVEN or (not named and not is_aiperf) else 1.0


def _model(asked: Mapping[str, Any]) -> str:
    items = part(asked, "models").get("items")
    if isinstance(items, list) and items and isinstance(items[0], Mapping):
        return text(items[0], "name")
    return text(asked, "model") or text(part(asked, "endpoint"), "model_names")


def _forced_length(asked: Mapping[str, Any], extra: Mapping[str, Any]) -> float:
    """The output length that was forced on the engine; 0 if it was not forced."""
    mean = number(asked, "output_tokens_mean")
    exact = extra.get("ignore_eos") is True and number(extra, "min_tokens") == mean
    exact = exact or bool(asked.get("output_tokens_mean_deterministic"))
    return mean if exact and mean and not number(asked, "output_tokens_stddev") else 0.0


def _metric(entry: Mapping[str, Any], metric: str) -> Mapping[str, Any]:
    """The statistics of a metric; empty without it. Raises MalformedRunError for anything else."""
    found = entry.get(metric)
    if found is not None and not isinstance(found, Mapping):
        raise MalformedRunError(f"{metric} is no object of statistics with a unit")
    return found or {}


def _mean_of(entry: Mapping[str, Any], metric: str) -> float | None:
    return number(_metric(entry, metric), "avg")


def _spread(entry: Mapping[str, Any], metric: str) -> LatencyFigures:
    """The statistics of a metric in ms, converted from the unit in the file."""
    found = _metric(entry, metric)
    if not found:
        return LatencyFigures()
    return figures(found, "avg", r"p(\d+(?:\.\d+)?)", _in_ms(found, metric))


def _in_ms(found: Mapping[str, Any], metric: str) -> float:
    """The milliseconds of a metric's unit; 1 for tokens."""
    unit = "ms" if metric in (ISL, OSL) else text(found, "unit").lower()
    if unit not in UNIT_MS:
        raise MalformedRunError(f"{metric} has the unit {unit!r}; times have one of {', '.join(UNIT_MS)}")
    return UNIT_MS[unit]


def is_table(head: str) -> bool:
    """Whether a CSV file begins as the exports of either tool do."""
    return head.lower().startswith("metric,avg,min,max")


def from_table(content: str) -> Iterator[BenchmarkRun]:
    """The run of a CSV export: sections of metrics with statistics, then metrics with one value. Raises MalformedRunError."""
    head: Sequence[str] = ()
    entry: dict[str, Any] = {}
    for cells in lines(content):
        if not cells:
            continue
        if cells[0].strip().lower() == "metric":
            head = [cell.strip().lower() for cell in cells]
            continue
        matched = METRIC_LINE.fullmatch(cells[0].strip())
        if matched is None or not head:
            continue
        figures = {name: _cell(cell) for name, cell in zip(head[1:], cells[1:], strict=False) if cell.strip()}
        if "value" in figures:
            figures["avg"] = figures["value"]
        entry[matched["name"].lower().replace(" ", "_")] = {"unit": (matched["unit"] or "").strip(), **figures}
    yield _run(entry)


def _cell(cell: str) -> float | str:
    """A number, possibly with commas between thousands; otherwise the text."""
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return cell


def is_record(entry: Mapping[str, Any]) -> bool:
    """Whether an object is one request of AIPerf's `profile_export.jsonl`. A failed one has no times."""
    return "value" in part(entry, "metrics", E2E) or bool(part(entry, "metadata") and entry.get("error"))


def from_records(entries: Sequence[Mapping[str, Any]]) -> Iterator[BenchmarkRun]:
    """The run of single requests, each with its metrics and units. Warm-up and cancelled requests are left out."""
    of_load = [entry for entry in entries if _is_of_load(entry)]
    kept = [entry for entry in of_load if not entry.get("error")]
    served = [part(entry, "metrics") for entry in kept]
    times = {
        name: [
            value * _in_ms(found, name)
            for found in (part(each, name) for each in served)
            if (value := number(found, "value")) is not None
        ]
        for name in (TTFT, ITL, E2E, ISL, OSL)
    }
    told = [part(entry, "metadata") for entry in kept]
    starts = [at for each in told if (at := number(each, "request_start_ns")) is not None]
    ends = [at for each in told if (at := number(each, "request_end_ns")) is not None]
    seconds = (max(ends) - min(starts)) * 1e-9 if starts and ends else 0.0
    failed = len(of_load) - len(kept)
    yield _of_requests(AIPERF, times, len(kept), failed, len(entries) - len(of_load), seconds)


def _is_of_load(entry: Mapping[str, Any]) -> bool:
    """Whether a request belongs to the measured load: after the warm-up, and not cancelled."""
    told = part(entry, "metadata")
    return text(told, "benchmark_phase") in ("", "profiling") and not told.get("was_cancelled")


def _is_raw(entry: Mapping[str, Any]) -> bool:
    """Whether an object is perf_analyzer's raw export of requests, which has no token counts."""
    return isinstance(entry.get("experiments"), list) and "service_kind" in entry


def _raw_runs(entry: Mapping[str, Any]) -> Iterator[BenchmarkRun]:
    """A run for each experiment, from times of requests and responses in ns. There are no token counts and so no ITL."""
    for experiment in _objects(entry["experiments"]):
        requests = _objects(experiment.get("requests"))
        times: dict[str, list[float]] = {TTFT: [], ITL: [], E2E: [], ISL: [], OSL: []}
        starts, ends = [], []
        for request in requests:
            start, responses = number(request, "timestamp"), request.get("response_timestamps")
            if start is None or not isinstance(responses, list) or not responses:
                continue
            if not all(isinstance(at, int | float) and at >= start for at in responses):
                raise MalformedRunError("response_timestamps lie before their request")
            starts.append(start)
            ends.append(float(responses[-1]))
            times[TTFT].append((responses[0] - start) * 1e-6)
            times[E2E].append((responses[-1] - start) * 1e-6)
        mode = part(experiment, "experiment")
        load = {"concurrency" if mode.get("mode") == "concurrency" else "request_rate": mode.get("value")}
        seconds = (max(ends) - min(starts)) * 1e-9 if starts else 0.0
        found = _of_requests(GENAI_PERF, times, len(starts), len(requests) - len(starts), 0, seconds)
        note = "a raw export has no token counts: lengths are those stated"
        yield replace(
            found,
            concurrency=count(load, "concurrency"),
            rate_per_s=rate(load, "request_rate"),
            burstiness=_burstiness(load, is_aiperf=False),
            notes=(note,),
        )


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _of_requests(
    tool: str, figures: Mapping[str, Sequence[float]], served: int, failed: int, left_out: int, seconds: float
) -> BenchmarkRun:
    """The run of single requests, from their figures by metric."""
    inputs, outputs = figures[ISL], figures[OSL]
    per_s = served / seconds if seconds > 0 else None
    return BenchmarkRun(
        tool,
        isl=sum(inputs) / len(inputs) if inputs else None,
        osl=sum(outputs) / len(outputs) if outputs else None,
        requests=served,
        failed=failed,
        ttft=spread_of(figures[TTFT]),
        itl=spread_of(figures[ITL]),
        e2e=spread_of(figures[E2E]),
        req_per_s=per_s,
        output_tok_per_s=sum(outputs) / seconds if outputs and seconds > 0 else None,
        notes=(f"{left_out} requests of the warm-up or cancelled are left out",) if left_out else (),
    )
