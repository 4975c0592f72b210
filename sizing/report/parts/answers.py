"""Figures of any answer, of replicas that serve as one or of separate pools; and how it is called."""

from __future__ import annotations

from collections.abc import Callable

from sizing import cost
from sizing.answer import Answer, Replicas
from sizing.architecture import SIZES
from sizing.report.parts.layouts import sizes
from sizing.request import Request


def gpus_called(found: Answer) -> str:
    """Write its GPU types, each once."""
    return _each(found, lambda part: part.candidate.option.name)


def weights_called(found: Answer) -> str:
    """Write the formats of its weights, each once."""
    return _each(found, lambda part: part.candidate.plan.weight_format)


def cache_called(found: Answer) -> str:
    """Write the formats of its cache, each once."""
    return _each(found, lambda part: part.candidate.plan.kv_format)


def shape(found: Answer) -> str:
    """Write its replicas and their layouts: `2 x TP4`, `prefill 2 x TP4 + decode 1 x TP8`, GPU types where they differ."""
    mixed = len({part.candidate.option.id for part in found.parts.values()}) > 1

    def one(name: str, part: Replicas) -> str:
        gpu = f" {part.candidate.option.name}" if mixed else ""
        return f"{name} {part.replicas} x {part.candidate.layout}{gpu}".strip()

    return " + ".join(one(name, part) for name, part in found.parts.items())


def as_one(found: Answer | None) -> dict[str, int | None]:
    """Return the replicas and the layout of one, null where no one layout does all of a request."""
    part = None if found is None else found.parts.get("")
    if part is None:
        return dict.fromkeys(("replicas", *SIZES))
    return {"replicas": part.replicas, **sizes(part.candidate.layout)}


def usd_per_million_output_tokens(found: Answer, request: Request) -> float | None:
    """Return $ a million output tokens around the clock; None without a price, or where a task gives no tokens."""
    if found.usd_per_hour is None or request.model.pooled:
        return None
    return cost.usd_per_million_tokens(found.usd_per_hour, found.requests_per_s * request.output_tokens)


def usd_per_million_tokens(found: Answer, request: Request) -> float | None:
    """Return $ a million tokens around the clock, prompts and outputs alike; None without a price."""
    if found.usd_per_hour is None:
        return None
    per_s = found.requests_per_s * (request.isl + request.output_tokens)
    return cost.usd_per_million_tokens(found.usd_per_hour, per_s)


def kwh_per_million_output_tokens(found: Answer, request: Request) -> float | None:
    """Return the energy of a million output tokens at the thermal design power; None where a task gives no tokens."""
    if request.model.pooled:
        return None
    return cost.kwh_per_million_tokens(found.power_w, found.requests_per_s * request.output_tokens)


def _each(found: Answer, called: Callable[[Replicas], str]) -> str:
    return " + ".join(dict.fromkeys(map(called, found.parts.values())))
