"""Sparse and compressed caches by engine and version, against the engines' own arithmetic and logs."""

from __future__ import annotations

import pytest

from sizing.answers.deployment import Resolved, deployment
from sizing.question.ask import ask_layout

PRO, FLASH = "deepseek-ai/DeepSeek-V4-Pro", "deepseek-ai/DeepSeek-V4-Flash"


def deployed(model: str, engine: str, **options: object) -> Resolved:
    asked = {"gpu": "b300", "tp": 8, "max_model_len": 131_072, **options}
    return deployment(ask_layout(model=model, engine=engine, **asked))


@pytest.mark.parametrize(
    ("model", "tokens", "budget", "gib"),
    [
        (PRO, 131_072, 1, 0.743),
        (PRO, 131_072, 2_048, 1.891),
        (PRO, 131_072, 8_192, 5.336),
        (PRO, 1_048_576, 16_384, 14.876),
        (FLASH, 131_072, 8_192, 3.787),
        (FLASH, 1_048_576, 2_048, 4.853),
    ],
)
def test_a_request_needs_pages_for_its_chunk_in_flight(model: str, tokens: int, budget: int, gib: float) -> None:
    """Worked from vllm/v1/core/kv_cache_utils.py at 0.24.0, which vLLM issue 44376 logs exactly."""
    asked = deployed(model, "vllm:0.24.0", max_model_len=tokens, max_num_batched_tokens=budget)
    assert asked.memory.sequence_gib == pytest.approx(gib, abs=0.001)


def test_two_batches_in_flight_keep_twice_the_chunk() -> None:
    """max_in_flight_tokens counts both batches of asynchronous scheduling from 0.26.0."""
    once = deployed(PRO, "vllm:0.25.0", max_num_batched_tokens=16_384).memory.sequence_gib
    twice = deployed(PRO, "vllm:0.26.0", max_num_batched_tokens=8_192).memory.sequence_gib
    assert (once, twice) == (pytest.approx(9.93, abs=0.005), pytest.approx(9.93, abs=0.005))


@pytest.mark.parametrize(("model", "block"), [(PRO, 1_435_968), (FLASH, 1_002_240)])
def test_packed_blocks_are_as_wide_as_the_pages_that_grow(model: str, block: int) -> None:
    """Pro: 30 layers of 37,440 + 8,640 bytes and 31 of 1,728, for 256 tokens; Flash: 21 and 20."""
    assert deployed(model, "vllm:0.29.0").memory.kv_bytes_per_token == pytest.approx(block / 256)


@pytest.mark.parametrize(("model", "plain", "drafting"), [(PRO, 23_691, 38_937), (FLASH, 15_898, 26_025)])
def test_sglang_counts_windows_and_states_by_the_token(model: str, plain: int, drafting: int) -> None:
    """Values of pool_configurator.py at 0.5.13; with drafts it takes every layer times (L + 1)/L, here the drafting layer."""
    assert deployed(model, "sglang:0.5.13").memory.kv_bytes_per_token == pytest.approx(plain, abs=1)
    drafts = deployed(model, "sglang:0.5.13", speculative="mtp:1").memory.kv_bytes_per_token
    assert drafts == pytest.approx(drafting, rel=0.02)


@pytest.mark.parametrize(
    ("engine", "gpu", "per_layer"),
    [
        ("vllm:0.33.0", "b200", 656),
        ("vllm:0.11.0", "h200-sxm", 656),
        ("sglang", "b200", 656),
        ("sglang", "h200-sxm", 1152),
    ],
)
def test_a_sparse_cache_is_8_bit_where_the_engine_says_so(engine: str, gpu: str, per_layer: int) -> None:
    """DeepSeek-V3.2, 61 layers: 512 values in 8 bit, 4 scales and 64 rotary values, or 576 in 16 bit; 132 bytes of the index."""
    held = deployed("deepseek-ai/DeepSeek-V3.2", engine, gpu=gpu, max_model_len=8_192).memory
    assert held.kv_bytes_per_token == 61 * (per_layer + 132)


def test_hyper_connections_keep_four_hidden_states_of_every_token() -> None:
    """Three streams of 7,168 values beside the first, at 4 bytes of state and residual, and the workspace of six experts."""
    used = deployed(PRO, "vllm:0.24.0", max_num_batched_tokens=8_192).memory
    streams = 8_192 * 3 * 7_168 * 4
    experts = 8_192 * 2 * (6 * (7_168 + 7_168) + 7_168)
    assert used.activation_gib == pytest.approx((streams + experts) / 2**30, rel=1e-6)
