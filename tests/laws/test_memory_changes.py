"""What `llmsize memory` proposes is true: followed as it is written the question fits, and one step further it does not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sizing.answers.deployment import Resolved, deployment
from sizing.answers.memory_changes import FRACTIONS, fit, least_fraction
from sizing.question.ask import ask_layout
from sizing.question.options import LAYOUT_OPTIONS
from sizing.replica.replica import most_sequences, sure_sequences
from sizing.report.memory import on_one_card, record
from sizing.specs.units import GIB, GIGA, parse_bytes

Asked = dict[str, Any]
NAMES = {flag: field.name for field in LAYOUT_OPTIONS for flag in field.flags}

# (models, sequences, options): not one of them fits.
REFUSED: dict[str, tuple[str, int, Asked]] = {
    "too long": ("llama-3.1-8b", 1, {"gpu": "l4"}),
    "too many": ("llama-3.1-8b", 60, {"gpu": "h100-sxm", "max_model_len": 8192}),
    "a sampler for many": ("qwen2.5-7b", 1, {"gpu": "l4", "max_num_seqs": 4096, "max_num_batched_tokens": 8192}),
    "more than run at once": ("llama-3.1-8b", 2000, {"gpu": "h100-sxm", "max_model_len": 128}),
    "many where not one fits": ("gpt-oss-120b", 50, {"gpu": "h100-sxm"}),
    "too large": ("deepseek-r1", 1, {"gpu": "h100-sxm"}),
    "an odd layout": ("deepseek-r1", 1, {"gpu": "h200-sxm", "tp": 3}),
    "states of a dense hybrid": ("qwen3.6-27b", 1, {"gpu": "h100-sxm", "engine": "vllm:0.27.0", "precision": "fp8"}),
    "states and a long cache": ("qwen3.6-35b-a3b", 1, {"gpu": "h100-sxm", "engine": "vllm:0.33.0"}),
    "states of SGLang": ("qwen3.6-27b", 9, {"gpu": "h100-sxm", "engine": "sglang", "max_model_len": 65536}),
    "states of TensorRT-LLM": ("nemotron-h-56b", 4, {"gpu": "h200-sxm", "engine": "tensorrt-llm", "max_num_seqs": 64}),
    "a budget as long as the prompt": ("qwen2.5-7b", 1, {"gpu": "t4", "engine": "vllm:0.6.3", "precision": "int4"}),
    "a cache beyond the card": ("llama-3.1-8b", 1, {"gpu": "h100-sxm", "kv_cache_bytes": "62G"}),
    "a cache beyond the card of SGLang": ("llama-3.1-8b", 1, {"gpu": "h100-sxm", "kv_cache_bytes": "70G", "engine": "sglang"}),
    "a cache that is too small": ("llama-3.1-8b", 1, {"gpu": "h100-sxm", "kv_cache_bytes": "10G"}),
    "shares": ("llama-3.1-8b,qwen3-8b", 1, {"gpu": "h100-sxm", "share": "0.3,0.2"}),
    "shares of too much": ("llama-3.1-8b,qwen3-8b", 4, {"gpu": "l40s", "share": "0.5,0.5"}),
    "shares of states": ("qwen3.6-27b,qwen3-8b", 1, {"gpu": "h100-sxm", "share": "0.5,0.2", "precision": "fp8"}),
}  # fmt: skip


def deployed(models: str, options: Asked) -> tuple[Resolved, ...]:
    """The deployments of models on one card, as the command makes them of its options."""
    stated = {name: value for name, value in options.items() if name != "share"}
    shares = [{"memory_fraction": float(share)} for share in str(options.get("share") or "").split(",") if share]
    asked = zip(models.split(","), shares or [{}], strict=True)
    return tuple(deployment(ask_layout(model=model, **stated, **share)) for model, share in asked)


def with_change(options: Asked, written: str) -> Asked:
    """Options after those that are written behind them."""
    words = written.split()
    given = {NAMES.get(flag, flag.lstrip("-")): value for flag, value in zip(words[::2], words[1::2], strict=True)}
    return options | {name: int(value) if value.isdigit() else value for name, value in given.items()}


def suggestions(asked: tuple[Resolved, ...], sequences: int) -> tuple[str, ...]:
    if len(asked) == 1:
        return record(asked[0], sequences).suggestions
    whole = on_one_card(asked, sequences)
    assert not any(each.suggestions for each in whole.models)
    return whole.suggestions


def beyond(options: Asked, asked: tuple[Resolved, ...]) -> Asked | None:
    """Options one step beyond those that were suggested: a longer sequence, a smaller share or fraction, a larger cache."""
    if options.get("kv_cache_bytes") and parse_bytes(options["kv_cache_bytes"]) > 20 * GIGA:
        return options | {"kv_cache_bytes": f"{parse_bytes(options['kv_cache_bytes']) / GIGA + 0.1:.1f}g"}
    if "memory_fraction" in options:
        return options | {"memory_fraction": f"{float(options['memory_fraction']) - 1 / FRACTIONS:.3f}"}
    fewer, first = options.get("max_num_seqs", math.inf), asked[0].replica
    if set(options) == {"max_num_seqs"} and fewer < first.settings.max_num_seqs and not most_sequences(first):
        return {"max_num_seqs": fewer + 1}
    longer = options.get("max_model_len", math.inf) + max(each.memory.block_tokens for each in asked)
    if longer <= min(each.question.service.model.max_position for each in asked):
        return options | {"max_model_len": longer}
    return None


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_suggested_fits_and_no_step_more(case: str) -> None:
    models, sequences, options = REFUSED[case]
    asked = deployed(models, options)
    assert not fit(asked, sequences)
    found = suggestions(asked, sequences)
    assert found
    for written in found:
        changed = with_change(options, written)
        assert fit(deployed(models, changed), sequences), written
        changed_alone = {name: value for name, value in changed.items() if value != options.get(name)}
        more = beyond(changed_alone, asked)
        assert more is None or not fit(deployed(models, options | more), sequences), written


@pytest.mark.parametrize("case", [case for case, (_, _, options) in REFUSED.items() if "share" not in options])
def test_the_least_fraction_fits_and_no_less(case: str) -> None:
    models, sequences, options = REFUSED[case]
    (asked,) = deployed(models, options)
    least = least_fraction(asked, sequences)
    assert (least is None) or asked.refused is None
    if least is None:
        return
    fraction, most = least
    fewer = {} if most is None else {"max_num_seqs": most}
    assert fit(deployed(models, options | fewer | {"memory_fraction": fraction}), sequences)
    assert not fit(deployed(models, options | fewer | {"memory_fraction": fraction - 1 / FRACTIONS}), sequences)
    if most is not None and most > sequences:
        (one_more,) = deployed(models, options | {"max_num_seqs": most + 1, "memory_fraction": fraction})
        assert not (one_more.memory.starts and one_more.memory.fits)


@pytest.mark.parametrize("gpu", ["h100-sxm", "l40s", "rtx-pro-6000-workstation", "b200"])
@pytest.mark.parametrize(("model", "tp"), [("qwen3.6-27b", 2), ("nemotron-3-nano-30b-a3b", 1), ("qwen3.8-27b", 1)])
def test_the_most_sequences_start_and_no_more(model: str, tp: int, gpu: str) -> None:
    asked: Asked = {"gpu": gpu, "tp": tp, "engine": "vllm:0.27.0", "precision": "fp8", "max_model_len": 4096}
    asked["max_num_seqs"] = 2 * (most_sequences(deployed(model, asked)[0].replica) or 0)
    (refused,) = deployed(model, asked)
    most, sure = most_sequences(refused.replica), sure_sequences(refused.replica)
    assert most is not None and sure is not None and 0 < sure <= most
    starts = [deployed(model, asked | {"max_num_seqs": count})[0].memory.starts for count in (sure, most, most + 1)]
    assert starts == [True, True, False]
    assert f"at most {most:,} sequences" in (record(refused).reason or "")


def test_a_refused_layout_has_no_least_fraction() -> None:
    """A layout that the engine refuses starts with no fraction, so none is the least."""
    found = record(*deployed("llama-3.1-8b", {"gpu": "h100-sxm", "tp": 5}))
    assert found.reason is not None and "refused" in found.reason
    assert found.memory.least_memory_fraction is None


def test_a_stated_cache_beyond_the_card_says_what_the_card_has() -> None:
    found = record(*deployed("llama-3.1-8b", {"gpu": "h100-sxm", "kv_cache_bytes": "62G"}))
    m = found.memory
    parts = m.weights_gib + m.activation_gib + m.non_torch_gib + m.cuda_graphs_gib + m.kv_cache_gib
    assert parts == pytest.approx(m.visible_gib) and m.kv_cache_gib + m.beyond_card_gib == pytest.approx(62)
    assert found.reason is not None and "does not start: the stated cache" in found.reason
    largest = next(written for written in found.suggestions if "kv-cache" in written)
    assert parse_bytes(largest.split()[1]) == pytest.approx(m.kv_cache_gib * GIB, abs=0.1 * GIGA)
    assert not any("kv_cache" in name for name in found.bands)
