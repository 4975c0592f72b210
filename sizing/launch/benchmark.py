"""The benchmark that confirms an estimate: it drives the answer's lengths and load, and imports the results."""

from __future__ import annotations

from typing import NamedTuple

from sizing.answers.answer import Answer
from sizing.catalog.shelf import only
from sizing.launch.answered import Started
from sizing.launch.command import folded
from sizing.question.question import Question
from sizing.specs.errors import InputError
from sizing.specs.launch import BenchmarkTool, LaunchFacts
from sizing.specs.units import MILLI

URL = "http://localhost:8000"  # placeholder for the router or the replica of the user


class LoadPoint(NamedTuple):
    """A load to drive: mean lengths, and a rate of random arrivals or requests in flight."""

    isl: int
    osl: int
    requests: int
    seconds: float
    rate: float | None
    in_flight: int | None


def point_of(answer: Answer, question: Question) -> LoadPoint:
    """The load of an answer over all its replicas, long enough for percentiles."""
    facts, service, target = only(LaunchFacts), question.service, question.target
    rate, in_flight = answer.requests_per_s, target.concurrency
    if in_flight is None and target.offline and target.amount is None:
        in_flight = sum(pool.count * pool.load.slots for pool in answer.pools)
    requests = max(facts.least_requests, round(rate * facts.benchmark_s))
    at_rate = None if in_flight else rate
    return LoadPoint(service.isl, service.output_tokens, requests, requests / rate, at_rate, in_flight)


def command(tool: str, answer: Answer, question: Question, part: Started) -> str:
    """The command that runs the benchmark tool, and the command that imports its results."""
    known = only(LaunchFacts).benchmarks[tool]
    if question.service.model.pooled:
        raise InputError("drives what generates tokens", field="--benchmark", allowed="--task generate")
    point, most = point_of(answer, question), part.launched.serving.max_model_len
    says = [f"# {tool} {known.version}, sent to the router over all replicas"]
    whole = point.isl + point.osl + known.added_tokens
    if most is not None and whole > most:  # the engine would refuse every request
        more = "# Prompts get a few more tokens on their way"
        says.append(f"{more}: start the engine for {whole:,} tokens, not {most:,}")
    words = _words(known, point, question, part)
    return "\n".join((*says, folded(words), folded(_import(known, answer, question, part))))


def _words(tool: BenchmarkTool, point: LoadPoint, question: Question, part: Started) -> tuple[str, ...]:
    """The words of the tool's command, filled with the load, the lengths and the limits."""
    limits = question.target.limits
    named = {"ttft": limits.ttft, "tpot": limits.itl, "e2el": limits.e2e}
    goals = " ".join(f"{name}:{limit.seconds / MILLI:g}" for name, limit in named.items() if limit is not None)
    text = tool.command.replace("{load}", tool.closed_load if point.rate is None else tool.open_load)
    text = text.replace("{goals}", f"{tool.goals} {goals}" if goals else "")
    figures = {
        **point._asdict(), "rate": f"{point.rate or 0:.4g}", "seconds": f"{point.seconds:.0f}", "model": part.launched.model,
        "url": URL, "result": tool.result,
    }  # fmt: skip
    return tuple(word.format(**figures) for word in text.split())


def _import(tool: BenchmarkTool, answer: Answer, question: Question, part: Started) -> tuple[str, ...]:
    """The command that imports the results, with options for settings that they do not record."""
    replica, service = answer.decode.replica, question.service
    engine = f"{service.engine.name}:{service.engine_version}"
    sizes = {name: size for name in ("tp", "pp", "ep", "dp") if (size := getattr(replica.layout, name)) > 1}
    stated = {
        "model": part.launched.model, "gpu": part.gpu_type.id, "gpus": answer.gpus, "engine": engine,
        "precision": replica.plan.weight_format, **sizes, "out": "measured.csv",
    }  # fmt: skip
    return (
        "llmsize",
        "import",
        tool.result,
        *(word for name, value in stated.items() for word in (f"--{name}", str(value))),
    )
