"""Random questions, each by its seed, of which laws must hold whatever is asked."""

from __future__ import annotations

import random
from typing import Any

DENSE = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "mistral-7b-v0.1")
EXPERTS = ("mixtral-8x7b", "gpt-oss-120b", "qwen3-30b-a3b", "deepseek-v3")
GPUS = ("h100-sxm", "a100-sxm-80gb", "l40s", "h200-sxm", "h100-pcie", "b200")


def drawn(seed: int) -> dict[str, Any]:
    """Options of a random question: a usual service with limits or without, in flight or at a rate."""
    draw = random.Random(seed)
    found: dict[str, Any] = {
        "model": draw.choice(DENSE + EXPERTS),
        "gpu": draw.choice(GPUS),
        "isl": int(10 ** draw.uniform(2, 3.8)),
        "osl": int(10 ** draw.uniform(1, 3)),
        "rps": round(10 ** draw.uniform(-0.5, 1.7), 2),
    }
    statistic = draw.choice(("", "p95:", "p99:"))
    if draw.random() < 0.7:
        found["ttft"] = f"{statistic}{draw.choice((0.3, 0.6, 1, 2, 5))}s"
    if draw.random() < 0.7:
        found["itl"] = f"{statistic}{draw.choice((20, 40, 80, 150))}ms"
    return found
