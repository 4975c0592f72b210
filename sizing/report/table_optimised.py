"""The optimisations that a result was asked with, on a line of any report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sizing.report.lines import Line, number, percent, plural


def optimised(inputs: dict[str, Any]) -> tuple[Line, ...]:
    """Return a line of the optimisations asked for; none where there are none."""
    text = optimisations(inputs)
    lines = (Line(text, "Optimised"),) if text else ()
    said = turns(inputs)
    return (*lines, Line(said, "Turns")) if said else lines


def turns(inputs: dict[str, Any]) -> str:
    """Say how prompts grow in conversations, and what is found of them; empty where requests are not turns."""
    talk = inputs.get("conversation")
    if talk is None:
        return ""
    prompts = talk["isl_by_turn"]
    text = f"first prompt {prompts[0]:,} tokens (the ISL asked), turn {talk['turns']:,} {prompts[-1]:,}, mean {number(talk['isl_mean'], 4)}"
    if talk["hit"] is not None:
        over = f" over {talk['caches']:,} caches" if talk["routing"] == "random" and talk["caches"] > 1 else ""
        text += f"; {talk['hit'] * 100:.3g} % of prompt tokens found in cache ({talk['routing']} routing{over})"
    return text


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
        if "by_depth" in spoken:
            text += f", {', then '.join(percent(share) for share in spoken['by_depth'])} accepted"
        yield f"speculative decoding ({text})"
    if "sparsity" in asked:
        yield f"{asked['sparsity']} sparsity"
    if prefix := asked.get("prefix"):
        text = f"{percent(prefix['hit'])} of a prompt in the prefix cache" if "hit" in prefix else ""
        if "turns" in prefix:
            text = f"prefix cache over conversations of {plural(prefix['turns'], 'turn')}"
        if "shared_tokens" in prefix:
            text += f", {prefix['shared_tokens']:,} tokens of it shared ({prefix.get('distinct', 1):,} distinct)"
        if "routing" in prefix:
            text += f", {prefix['routing']} routing"
        yield text
    if lora := asked.get("lora"):
        yield f"{plural(lora['slots'], 'LoRA adapter')} of rank {lora['rank']:,}" + (
            ", routed experts too" if lora.get("experts") else ""
        )
    if images := asked.get("images"):
        yield f"{plural(images['count'], 'image')} of {images['height']:,} x {images['width']:,} pixels a request"
    if offload := asked.get("kv_offload"):
        rate = f" at {offload['gb_per_s']:g} GB/s" if "gb_per_s" in offload else ""
        yield f"{percent(offload['hit'])} of a prompt restored from host memory{rate}"
