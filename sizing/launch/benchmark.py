"""The benchmark that confirms an estimate at its own point: lengths and load of the answer, its results ready for import."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from sizing.answers.answer import Answer
from sizing.catalog.shelf import only
from sizing.launch.answered import Started
from sizing.launch.command import folded
from sizing.question.question import Question
from sizing.specs.errors import InputError
from sizing.specs.launch import BenchmarkTool, LaunchFacts
from sizing.specs.units import MILLI
from sizing.specs.workload import Limit

URL = "http://localhost:8000"  # of the router or the replica; the user's own


class LoadPoint(NamedTuple):
    """A load to drive: mean lengths, and a rate of random arrivals or requests in flight."""

    isl: int
    osl: int
    requests: int
    seconds: float
    rate: float | None
    in_flight: int | None


def point_of(answer: Answer, question: Question) -> LoadPoint:
    """The load of an answer over all its replicas, for as long as percentiles take."""
    facts, service, target = only(LaunchFacts), question.service, question.target
    rate, in_flight = answer.requests_per_s, target.concurrency
    if in_flight is None and target.offline and target.amount is None:
        in_flight = sum(pool.count * pool.load.slots for pool in answer.pools)
    requests = max(facts.least_requests, math.ceil(rate * facts.benchmark_s))
    return LoadPoint(
        service.isl, service.output_tokens, requests, requests / rate, None if in_flight else rate, in_flight
    )


def command(tool: str, answer: Answer, question: Question, part: Started) -> str:
    """The benchmark of a tool, and the import of its results."""
    known = only(LaunchFacts).benchmarks
    if question.service.model.pooled:
        raise InputError("drives what generates tokens", field="--benchmark", allowed="--task generate")
    words = tuple(
        {"vllm": _vllm, "aiperf": _aiperf, "guidellm": _guidellm}[tool](
            point_of(answer, question), question, part, known[tool]
        )
    )
    say = f"# {tool} {known[tool].version}, sent to the router over all replicas"
    return "\n".join((say, folded(words), folded(_import(known[tool], answer, question, part))))


def _import(tool: BenchmarkTool, answer: Answer, question: Question, part: Started) -> tuple[str, ...]:
    """The import of the results, with what they do not record."""
    replica = answer.decode.replica
    engine = f"{question.service.engine.name}:{question.service.engine_version}"
    sizes = [
        word
        for name in ("tp", "pp", "ep", "dp")
        if (size := getattr(replica.layout, name)) > 1
        for word in (f"--{name}", str(size))
    ]
    served = ("--model", part.launched.model, "--gpu", part.gpu_type.id, "--gpus", str(answer.gpus), "--engine", engine)
    return (
        "llmsize",
        "import",
        tool.result,
        *served,
        "--precision",
        replica.plan.weight_format,
        *sizes,
        "--out",
        "measured.csv",
    )


def _vllm(point: LoadPoint, question: Question, part: Started, tool: BenchmarkTool) -> Iterator[str]:
    yield from ("vllm", "bench", "serve", "--model", part.launched.model, "--base-url", URL, "--dataset-name", "random")
    yield from (
        "--random-input-len",
        str(point.isl),
        "--random-output-len",
        str(point.osl),
        "--random-range-ratio",
        "0",
    )
    yield from ("--ignore-eos", "--num-prompts", str(point.requests))
    load = (
        ("--max-concurrency", str(point.in_flight))
        if point.rate is None
        else ("--request-rate", f"{point.rate:.4g}", "--burstiness", "1")
    )
    yield from load
    goals = [f"{name}:{limit.seconds / MILLI:g}" for name, limit in _limits(question)]
    if goals:
        yield from ("--goodput", *goals)
    yield from ("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99")
    yield from ("--save-result", "--result-filename", tool.result)


def _limits(question: Question) -> Iterator[tuple[str, Limit]]:
    limits = question.target.limits
    yield from (
        (name, limit)
        for name, limit in (("ttft", limits.ttft), ("tpot", limits.itl), ("e2el", limits.e2e))
        if limit is not None
    )


def _aiperf(point: LoadPoint, question: Question, part: Started, tool: BenchmarkTool) -> Iterator[str]:
    yield from (
        "aiperf",
        "profile",
        "--model",
        part.launched.model,
        "--url",
        URL,
        "--endpoint-type",
        "chat",
        "--streaming",
    )
    yield from (
        "--isl",
        str(point.isl),
        "--isl-stddev",
        "0",
        "--osl",
        str(point.osl),
        "--osl-stddev",
        "0",
        "--extra-inputs",
        "ignore_eos:true",
    )
    load = (
        ("--concurrency", str(point.in_flight))
        if point.rate is None
        else ("--request-rate", f"{point.rate:.4g}", "--arrival-pattern", "poisson")
    )
    yield from (*load, "--request-count", str(point.requests), "--random-seed", "1")
    yield from ("--artifact-dir", tool.result.rpartition("/")[0])


def _guidellm(point: LoadPoint, question: Question, part: Started, tool: BenchmarkTool) -> Iterator[str]:
    yield from ("guidellm", "benchmark", "--target", URL, "--model", part.launched.model)
    kind, rate = ("concurrent", str(point.in_flight)) if point.rate is None else ("poisson", f"{point.rate:.4g}")
    yield from ("--rate-type", kind, "--rate", rate, "--data", f"prompt_tokens={point.isl},output_tokens={point.osl}")
    yield from ("--max-seconds", f"{point.seconds:.0f}", "--output-path", tool.result)
