"""Figures and names of any answer, of replicas that serve as one or of separate pools."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sizing.answers.answer import Answer, Pool
from sizing.formats.words import milliseconds, money, plural
from sizing.model.architecture import SIZES
from sizing.planning import cost
from sizing.question.question import Question
from sizing.report.parts.figures import Statistics
from sizing.report.parts.layouts import sizes
from sizing.report.parts.question import LimitInMs, LimitsInMs


def gpus_called(found: Answer) -> str:
    """Write the GPU types of an answer, each once."""
    return _each(found, lambda pool: pool.replica.gpu_type.name)


def weights_called(found: Answer) -> str:
    """Write the weight formats of an answer, each once."""
    return _each(found, lambda pool: pool.replica.plan.weight_format)


def cache_called(found: Answer) -> str:
    """Write the cache formats of an answer, each once."""
    return _each(found, lambda pool: pool.replica.plan.kv_format)


def shape(found: Answer) -> str:
    """Write the replicas and their layouts: `2 x TP4`, `prefill 2 x TP4 + decode 1 x TP8`, with GPU types where they
    differ.
    """
    mixed = len({pool.replica.gpu_type.id for pool in found.pools}) > 1

    def called(pool: Pool) -> str:
        gpu = f" {pool.replica.gpu_type.name}" if mixed else ""
        return f"{pool.name} {pool.count} x {pool.replica.layout}{gpu}".strip()

    return " + ".join(map(called, found.pools))


def as_one(found: Answer | None) -> dict[str, int | None]:
    """The replicas and the layout of an answer without separate pools; null with them."""
    if found is None or found.separate:
        return dict.fromkeys(("replicas", *SIZES))
    return {"replicas": found.pool.count, **sizes(found.pool.replica.layout)}


def usd_per_million_output_tokens(found: Answer, question: Question) -> float | None:
    """$ per million output tokens around the clock; None without a price or without output tokens."""
    if found.usd_per_hour is None or question.service.model.pooled:
        return None
    return cost.usd_per_million_tokens(found.usd_per_hour, found.requests_per_s * question.service.output_tokens)


def usd_per_million_tokens(found: Answer, question: Question) -> float | None:
    """$ per million tokens (prompts and outputs alike) around the clock; None without a price."""
    if found.usd_per_hour is None:
        return None
    per_s = found.requests_per_s * (question.service.isl + question.service.output_tokens)
    return cost.usd_per_million_tokens(found.usd_per_hour, per_s)


def kwh_per_million_output_tokens(found: Answer, question: Question) -> float | None:
    """kWh per million output tokens at the thermal design power; None without output tokens."""
    if question.service.model.pooled:
        return None
    return cost.kwh_per_million_tokens(found.power_w, found.requests_per_s * question.service.output_tokens)


def _each(found: Answer, called: Callable[[Pool], str]) -> str:
    return " + ".join(dict.fromkeys(map(called, found.pools)))


def headline(gpus: int, gpu: str | None, shape: str, usd_per_hour: float | None) -> str:
    """Write an answer: `10 x H100 = 5 replicas x TP2, $61.55/h`; `gpu` is None for pools of two GPU types."""
    price = f"{money(usd_per_hour)}/h" if usd_per_hour is not None else "no price known"
    return f"{plural(gpus, 'GPU') if gpu is None else f'{gpus} x {gpu}'} = {shape}, {price}"


def latencies(spreads: Iterable[Statistics | None], limits: LimitsInMs) -> str:
    """Write the means of TTFT, ITL and E2E in ms and, for a limited one, the statistic that the limit bounds."""
    return ", ".join(
        _latency(name, spread, limits[f"{name}_ms"])
        for name, spread in zip(("ttft", "itl", "e2e"), spreads, strict=True)
        if spread is not None and spread.mean is not None
    )


def _latency(name: str, spread: Statistics, limit: LimitInMs | None) -> str:
    mean = f"{name.upper()} {milliseconds(spread.mean)}"
    if limit is None:
        return mean
    bound = f"limit {milliseconds(limit.ms)}"
    if limit.statistic != "mean":
        bound = f"{limit.statistic} {milliseconds(getattr(spread, limit.statistic))}, {bound}"
    return f"{mean} ({bound})"
