"""The optimisations that were asked for, as sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sizing.formats.words import number, percent, plural

HIT, ACCEPTANCE = "hit", "acceptance"


def _drafted(stated: Any) -> str:
    """Write what speculative decoding drafts, and how often a drafted token is accepted."""
    tokens, rates = stated.get("tokens"), stated.get("by_depth") or ()
    by = f"{stated['method']} ({stated['model']})" if "model" in stated else stated["method"]
    drafts = f"speculative decoding by {by}" + (f" drafts {plural(tokens, 'token')}" if tokens else "")
    if rates:
        return f"{drafts}, accepted in {', '.join(map(percent, rates))} of cases by their place"
    return drafts + (f", each accepted in {percent(stated[ACCEPTANCE])} of cases" if ACCEPTANCE in stated else "")


def _found_in_cache(stated: Any) -> str:
    """Write the part of a prompt that is found in the prefix cache, or the turns of a conversation."""
    hit, shared, distinct = (stated.get(name) for name in (HIT, "shared_tokens", "distinct"))
    turns, think_s, routing = (stated.get(name) for name in ("turns", "think_time_s", "routing"))
    return ", ".join(
        [
            *([f"{percent(hit)} of each prompt is found in the prefix cache"] if isinstance(hit, float) else []),
            *([f"{shared:,} tokens at the start of prompts are shared"] if shared else []),
            *([f"{distinct:,} different ones"] if distinct else []),
            *([f"conversations of {plural(turns, 'turn')}"] if turns else []),
            *([f"{number(think_s)} s between turns"] if think_s else []),
            *([f"{routing} routing"] if routing else []),
        ]
    )


def _adapters(stated: Any) -> str:
    experts = ", on experts too" if stated.get("experts") else ""
    return f"{plural(stated['slots'], 'LoRA adapter')} of rank {stated['rank']}{experts}"


def _images(stated: Any) -> str:
    size = f"{stated['width']:,} x {stated['height']:,} pixels (width x height)"
    return f"each request has {plural(stated['count'], 'image')} of {size}"


def _offloaded(stated: Any) -> str:
    speed = f", read at {number(stated['gb_per_s'])} GB/s" if "gb_per_s" in stated else ""
    return f"{percent(stated[HIT])} of each prompt is found in host memory{speed}"


WRITERS: dict[str, Callable[[Any], str]] = {  # by the key of an optimisation
    "speculative": _drafted,
    "sparsity": "{} sparse weights".format,
    "prefix": _found_in_cache,
    "lora": _adapters,
    "images": _images,
    "kv_offload": _offloaded,
}
