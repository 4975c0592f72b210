"""How an answer is called: its GPU types, its layouts, its formats."""

from __future__ import annotations

from collections.abc import Callable

from sizing.answers.answer import Answer, Replicas


def gpus_called(found: Answer) -> str:
    """Write its GPU types, each once."""
    return _each(found, lambda part: part.replica.gpu_type.name)


def weights_called(found: Answer) -> str:
    """Write the formats of its weights, each once."""
    return _each(found, lambda part: part.replica.plan.weight_format)


def cache_called(found: Answer) -> str:
    """Write the formats of its cache, each once."""
    return _each(found, lambda part: part.replica.plan.kv_format)


def shape(found: Answer) -> str:
    """Write its replicas and their layouts: `2 x TP4`, `prefill 2 x TP4 + decode 1 x TP8`, GPU types where they differ."""
    mixed = len({part.replica.gpu_type.id for part in found.parts.values()}) > 1

    def one(name: str, part: Replicas) -> str:
        gpu = f" {part.replica.gpu_type.name}" if mixed else ""
        return f"{name} {part.replicas} x {part.replica.layout}{gpu}".strip()

    return " + ".join(one(name, part) for name, part in found.parts.items())


def _each(found: Answer, called: Callable[[Replicas], str]) -> str:
    return " + ".join(dict.fromkeys(map(called, found.parts.values())))
