"""What SGLang's static fraction keeps back for images, drafts and attention-data ranks, after server_args.py by version."""

from __future__ import annotations

import pytest

from sizing.answers.deployment import deployment
from sizing.question.ask import ask_layout


def fraction_of(model: str, **options: object) -> float:
    asked = {"gpu": "h200-sxm", "engine": "sglang:0.5.9", "max_model_len": 8192, **options}
    used = deployment(ask_layout(model=model, **asked)).memory
    return used.budget_gib / (used.visible_gib - used.non_torch_gib)


def test_an_encoder_of_images_lowers_the_fraction() -> None:
    """0.95 x (1 - 0.1 x (27 x 1152^2 / (24 x 1024^2) - 1)) of the fraction of the text alone: 0.9096."""
    seeing, reading = (fraction_of("qwen3-vl-8b", language_model_only=only) for only in (False, True))
    assert seeing / reading == pytest.approx(0.95 * (1 - 0.1 * (27 * 1152**2 / (24 * 1024**2) - 1)), abs=1e-6)


@pytest.mark.parametrize(("engine", "mib"), [("0.5.2", 2048), ("0.5.9", 2048), ("0.5.13", 4096), ("0.5.23", 0)])
def test_drafts_take_from_the_fraction_by_version(engine: str, mib: int) -> None:
    plain, drafting = (
        fraction_of("deepseek-r1", tp=8, engine=f"sglang:{engine}", speculative=asked) for asked in (None, "mtp:1")
    )
    assert plain - drafting == pytest.approx(mib / 143_771, abs=0.0011)


def test_attention_ranks_take_from_the_fraction_for_each_captured_sequence() -> None:
    """512 + 1.5 x 2048 + 2 x 256 + 128 x 8 + 3 x 256 x 8 = 11,264 MiB of 143,771, above the floor of 10,240."""
    assert fraction_of("deepseek-r1", dp=8, ep=8) == pytest.approx(1 - 11_264 / 143_771, abs=0.0006)


@pytest.mark.parametrize(("engine", "mib"), [("0.5.13", 0), ("0.5.16", 2048), ("0.5.23", 2048)])
def test_an_exchange_of_tokens_with_experts_takes_from_the_fraction_by_version(engine: str, mib: int) -> None:
    """https://github.com/sgl-project/sglang/blob/v0.5.23/python/sglang/srt/arg_groups/memory_hook.py"""
    asked = {"dp": 8, "ep": 8, "engine": f"sglang:{engine}"}
    plain, exchanging = (
        fraction_of("deepseek-r1", **asked, all2all_backend=way) for way in ("allgather", "low_latency")
    )
    assert plain - exchanging == pytest.approx(mib / 143_771, abs=0.0011)
