"""The optimisations that a result was asked with, on a line of any report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sizing.report.lines import Line, percent, plural


def optimised(inputs: dict[str, Any]) -> tuple[Line, ...]:
    """Return a line of the optimisations asked for; none where there are none."""
    text = optimisations(inputs)
    return (Line(text, "Optimised"),) if text else ()


def optimisations(inputs: dict[str, Any]) -> str:
    """Return the optimisations asked for in words; empty where there are none."""
    return "; ".join(_parts(inputs.get("optimisations") or {}))


def _parts(asked: dict[str, Any]) -> Iterator[str]:
    if spoken := asked.get("speculative"):
        text = spoken["method"] + (f" {spoken['model']}" if "model" in spoken else "")
        if "tokens" in spoken:
            text += f", {spoken['tokens']} drafted"
        if "acceptance" in spoken:
            text += f", {percent(spoken['acceptance'])} accepted"
        yield f"speculative decoding ({text})"
    if "sparsity" in asked:
        yield f"{asked['sparsity']} sparsity"
    if prefix := asked.get("prefix"):
        text = f"{percent(prefix['hit'])} of a prompt in the prefix cache"
        if "shared_tokens" in prefix:
            text += f", {prefix['shared_tokens']:,} tokens of it shared ({prefix.get('distinct', 1):,} distinct)"
        yield text
    if lora := asked.get("lora"):
        yield f"{plural(lora['slots'], 'LoRA adapter')} of rank {lora['rank']:,}"
    if images := asked.get("images"):
        yield f"{plural(images['count'], 'image')} of {images['height']:,} x {images['width']:,} pixels a request"
    if offload := asked.get("kv_offload"):
        rate = f" at {offload['gb_per_s']:g} GB/s" if "gb_per_s" in offload else ""
        yield f"{percent(offload['hit'])} of a prompt restored from host memory{rate}"
