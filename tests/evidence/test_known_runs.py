"""Published runs whose settings explain what a prediction with the engine's defaults misses."""

from __future__ import annotations

import pytest

from sizing.catalog.measured import MeasuredRow
from sizing.evidence.predict import predict_row


def test_many_long_prompts_in_flight_take_whole_budgets_between_tokens() -> None:
    """Qwen3-8B, 9,000 in and 30 out, 64 in flight on an H200 under vLLM 0.18: 308.8 ms between tokens were measured.

    The source (https://github.com/ai-dynamo/aiconfigurator/issues/1148) names no budget. Its tool writes batch + prompt + 1,500
    tokens, and sends ten requests for each in flight; 8,192 tokens, vLLM's default, take 239 ms.
    """
    row = MeasuredRow(
        id="a",
        engine="vLLM",
        engine_version="0.18.0",
        model="Qwen/Qwen3-8B",
        gpu="H200-SXM-141GB",
        weight_precision="bf16",
        isl=9000,
        osl=30,
        mode="closed_loop",
        concurrency=64,
        num_requests=640,
        length_ratio_min=1.0,
        max_num_batched_tokens=64 + 9000 + 1500,
        n_gpus=1,
        tp=1,
        itl_ms=308.8,
    )
    found = predict_row(row).prediction
    assert found is not None
    assert found.values["itl_ms"] == pytest.approx(308.8, rel=0.05)
