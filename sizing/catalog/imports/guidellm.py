"""Results of guidellm, versions 0.3 and 0.8: a JSON file with a list of benchmarks, or its CSV.

In both versions `inter_token_latency_ms` is (last - first) / (OSL - 1). `time_per_output_token_ms` changed its meaning and is not
read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from sizing.catalog.imports.run import (
    BenchmarkRun,
    LatencyFigures,
    MalformedRunError,
    count,
    lines,
    number,
    part,
    stated,
    text,
)

TOOL = "guidellm"
CSV_PERCENTS = (0.1, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9)  # the order of its lists
SECONDS = 1e3
COUNTED = {"successful": "Successful", "errored": "Errored"}


def recognised(entry: Mapping[str, Any]) -> bool:
    """Whether an object is a report of guidellm."""
    found = entry.get("benchmarks")
    return (
        isinstance(found, list)
        and all(isinstance(each, Mapping) and "metrics" in each for each in found)
        and bool(found)
    )


def runs(entry: Mapping[str, Any]) -> Iterator[BenchmarkRun]:
    """A run for each benchmark. Raises MalformedRunError."""
    yield from map(_run, entry["benchmarks"])


def _run(benchmark: Mapping[str, Any]) -> BenchmarkRun:
    metrics = part(benchmark, "metrics")
    strategy = part(benchmark, "config", "strategy") or part(benchmark, "args", "strategy")
    totals = part(benchmark, "request_totals") or part(benchmark, "scheduler_metrics", "requests_made")
    return BenchmarkRun(
        TOOL,
        **stated((TOOL,), benchmark),
        **_load(text(strategy, "type_", "kind"), strategy),
        failed=count(totals, "errored") or 0,
        ttft=_spread(metrics, "time_to_first_token_ms", 1.0),
        itl=_spread(metrics, "inter_token_latency_ms", 1.0),
        e2e=_spread(metrics, "request_latency", SECONDS),
    )


def _load(kind: str, strategy: Mapping[str, Any]) -> dict[str, Any]:
    """How requests were sent: a number in flight, one after another, at a rate, or all at once."""
    if kind == "synchronous":
        return {"concurrency": 1}
    if kind == "concurrent":
        return {"concurrency": count(strategy, "streams")}
    if kind == "throughput":
        return {"rate_per_s": math.inf}
    even = {"burstiness": math.inf} if kind == "constant" else {}
    return {"rate_per_s": number(strategy, "rate"), **even}


def _spread(metrics: Mapping[str, Any], name: str, in_ms: float) -> LatencyFigures:
    found = part(metrics, name, "successful")
    listed = part(found, "percentiles")
    values = {_percent(key): value for key in listed if (value := number(listed, key)) is not None}
    return LatencyFigures(number(found, "mean"), values).scaled(in_ms)


def _percent(key: str | float) -> float:
    """Read p50 as 50, p001 as 0.1 and p999 as 99.9. A number from the CSV stays as it is."""
    if isinstance(key, float):
        return key
    digits = key.removeprefix("p")
    if not digits.isdigit():
        raise MalformedRunError(f"{key!r} is no percentile")
    return int(digits) / 10 if len(digits) > 2 else float(digits)


def is_table(head: str) -> bool:
    """Whether a CSV file begins as guidellm's does: a line of groups, then a line of names."""
    return head.startswith("Run Info,")


# Metrics of the CSV by group, name and unit, as the JSON file calls them.
CSV_METRICS = {
    "prompt_token_count": ("Token Metrics", "Successful Input Tokens"),
    "output_token_count": ("Token Metrics", "Successful Output Tokens"),
    "time_to_first_token_ms": ("Time to First Token", "Successful ms"),
    "inter_token_latency_ms": ("Inter Token Latency", "Successful ms"),
    "request_latency": ("Request Latency", "Successful Sec"),
    "requests_per_second": ("Server Throughput", "Successful Requests/Sec"),
    "output_tokens_per_second": ("Token Throughput", "Successful Output Tokens/Sec"),
}


def from_table(content: str) -> Iterator[BenchmarkRun]:
    """A run for each row of the CSV, whose head has three lines: group, name with unit, statistic. Raises MalformedRunError."""
    found = list(lines(content))
    heads = list(zip(*found[:3], strict=False))
    for cells in found[3:]:
        row = {head: _json(cell) for head, cell in zip(heads, cells, strict=False)}
        metrics = {}
        for metric, head in CSV_METRICS.items():
            listed = row.get((*head, "Percentiles"))
            percentiles = dict(zip(CSV_PERCENTS, listed, strict=False)) if isinstance(listed, list) else {}
            metrics[metric] = {"successful": {"mean": row.get((*head, "Mean")), "percentiles": percentiles}}
        kind, _, value = dict(zip(heads, cells, strict=False)).get(("Benchmark", "Strategy", ""), "").partition("@")
        strategy = {"kind": kind, "streams": _json(value), "rate": _json(value)}
        config = {"backend": row.get(("Run Info", "Backend", "")), "strategy": strategy}
        counts = {key: row.get(("Request Counts", name, "")) for key, name in COUNTED.items()}
        yield _run({"metrics": metrics, "config": config, "request_totals": counts})


def _json(cell: str) -> Any:
    """The value of a cell; None if it is empty."""
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return None
