"""How an answer is called: its GPU types, its layouts, its formats."""

from __future__ import annotations

from collections.abc import Callable

from sizing.answers.answer import Answer, Pool


def gpus_called(found: Answer) -> str:
    """Write its GPU types, each once."""
    return _each(found, lambda pool: pool.replica.gpu_type.name)


def weights_called(found: Answer) -> str:
    """Write the formats of its weights, each once."""
    return _each(found, lambda pool: pool.replica.plan.weight_format)


def cache_called(found: Answer) -> str:
    """Write the formats of its cache, each once."""
    return _each(found, lambda pool: pool.replica.plan.kv_format)


def shape(found: Answer) -> str:
    """Write its replicas and their layouts: `2 x TP4`, `prefill 2 x TP4 + decode 1 x TP8`, GPU types where they differ."""
    mixed = len({pool.replica.gpu_type.id for pool in found.pools}) > 1

    def called(pool: Pool) -> str:
        gpu = f" {pool.replica.gpu_type.name}" if mixed else ""
        return f"{pool.name} {pool.count} x {pool.replica.layout}{gpu}".strip()

    return " + ".join(map(called, found.pools))


def _each(found: Answer, called: Callable[[Pool], str]) -> str:
    return " + ".join(dict.fromkeys(map(called, found.pools)))
