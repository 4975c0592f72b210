"""Separate pools that nobody asked for: tried where experts are spread over nodes, told where they take far fewer GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from sizing import ask, estimate

DEEPSEEK: dict[str, Any] = {
    "model": "deepseek-ai/DeepSeek-R1",
    "gpu": "h100-sxm",
    "engine": "sglang",
    "isl": 4384,
    "osl": 1211,
    "prefix_hit": 0.563,
    "itl": "50ms",
}


def test_deepseek_s_published_day_is_within_half_again() -> None:
    """608 billion tokens in, 56.3 % of them cached, and 168 billion out a day, on 1,814 GPUs at the mean (open-infra-index, day 6)."""
    question = ask(**DEEPSEEK, rps=1605, max_utilisation="100%")
    found = estimate(question, simulated=False, relaxed=False)
    pools = found.answer
    assert pools is not None and pools.separate
    assert found.one_pool is not None and found.one_pool.answer is not None
    assert 1814 / 1.5 <= pools.gpus <= 1814 * 1.5
    assert pools.gpus <= found.one_pool.answer.gpus / 2
    assert all(pool.replica.settings.all2all_backend == "low_latency" for pool in pools.pools)


@pytest.mark.parametrize("given", [{"tp": 1, "dp": 16, "ep": 16, "rps": 20}, {"concurrency": 2000}])
def test_they_are_not_tried_for_a_layout_or_a_number_in_flight_that_is_given(given: dict[str, Any]) -> None:
    assert estimate(ask(**DEEPSEEK, **given), simulated=False, relaxed=False).one_pool is None


def test_a_model_that_needs_no_network_is_served_as_one() -> None:
    question = ask(model="llama-3.1-8b", gpu="h100-sxm", isl=1000, osl=100, rps=50, itl="50ms")
    assert estimate(question, simulated=False, relaxed=False).one_pool is None
