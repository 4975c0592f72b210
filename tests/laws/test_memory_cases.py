"""Memory against what engines log: every quantity of every published case, at the case's own tolerance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from builders import found_model, memory_of, real_gpu, with_visible_gib
from places import DATA

from sizing.answers.deployment import Resolved, deployment
from sizing.model.architecture import Layout
from sizing.model.footprint import activation_bytes, weight_bytes
from sizing.model.memory import MemoryUse
from sizing.question.ask import ask_layout
from sizing.specs.errors import InputError
from sizing.specs.units import GIB

TABLE = DATA / "memory_cases.yaml"
ASKED = ("model", "gpu", "engine", "memory_fraction", "max_model_len", "precision", "kv_precision")
CASES: list[dict[str, Any]] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))["cases"]


def _quantities() -> list[Any]:
    """One test a quantity."""
    found = []
    for case in CASES:
        for name, expected in case.get("expect", {}).items():
            found.append(pytest.param(case, name, expected, id=f"{case['id']}-{name}"))
    return found


def _deployed(case: dict[str, Any]) -> Resolved:
    """The case as `llmsize memory` would have it, on a card with the memory that the log reports."""
    options = {name: case[name] for name in ASKED if name in case}
    question = ask_layout(**options, **case.get("layout", {}), **case.get("options", {}))
    if "visible_gib" in case:
        (gpu_type,) = question.space.gpu_types
        question = question.with_(
            gpu_types=(replace(gpu_type, gpu=with_visible_gib(gpu_type.gpu, case["visible_gib"])),)
        )
    return deployment(question)


_USED: dict[str, MemoryUse] = {}


def _use(case: dict[str, Any]) -> MemoryUse:
    """The memory of a case, worked out once for all of its quantities."""
    key = repr(case)
    if key not in _USED:
        _USED[key] = _used(case)
    return _USED[key]


def _used(case: dict[str, Any]) -> MemoryUse:
    found = _deployed(case)
    if case.get("stage") != "first":
        return found.memory
    shard = found.replica.shard
    first, tokens = shard.stages[0], shard.settings.max_num_batched_tokens
    return found.memory._replace(
        weights_gib=weight_bytes(shard, first) / GIB,
        activation_gib=activation_bytes(shard, first, tokens) / GIB,
    )


def _value(used: MemoryUse, name: str, case: dict[str, Any]) -> float:
    if name == "most_num_seqs":
        return float(used.most_num_seqs or 0)
    if name == "tokens_per_gib":
        return used.kv_cache_tokens / used.kv_cache_gib
    if name == "rank_concurrency":
        return used.max_concurrency / case["layout"]["dp"]
    return float(getattr(used, name))


def _agrees(value: float, expected: Any) -> bool:
    """Whether a predicted value is what a log says, within its tolerance."""
    if isinstance(expected, bool):
        return bool(value) is expected
    if "below" in expected:
        return bool(value < expected["below"])
    if "above" in expected:
        return bool(value > expected["above"])
    relative, absolute = expected.get("relative", 0.0), expected.get("absolute", 0.0)
    return bool(value == pytest.approx(expected["value"], rel=relative, abs=max(absolute, 1e-9)))


@pytest.mark.parametrize(("case", "name", "expected"), _quantities())
def test_case(case: dict[str, Any], name: str, expected: Any) -> None:
    try:
        value = _value(_use(case), name, case)
    except InputError as error:
        pytest.fail(str(error))
    assert _agrees(value, expected), f"{value:g}, expected {expected}"


def test_the_planned_sequences_of_a_rank_are_no_more_than_its_engine_admits() -> None:
    """The engine admits 28.98 sequences a rank; more would queue.
    https://github.com/ai-dynamo/aiconfigurator/issues/1396
    """
    case = next(c for c in CASES if c["id"] == "MF32")
    assert _value(_use(case), "rank_concurrency", case) <= 28.98


def test_a_full_memory_fraction_still_leaves_the_frameworks_memory() -> None:
    """At a fraction of 1 the same rank may not hold the 96 sequences that a planner once promised (MF32)."""
    case = next(c for c in CASES if c["id"] == "MF32")
    used = _use({**case, "memory_fraction": 1.0})
    assert used.weights_gib + used.non_torch_gib + used.kv_cache_gib <= used.visible_gib
    assert used.max_concurrency / 4 < 96


def test_every_case_names_its_source_once() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES)
    assert all(case["source"].startswith("https://") for case in CASES)
    assert not any(set(case.get("left_out", {})) & set(case.get("expect", {})) for case in CASES)


def test_latent_attention_keeps_far_less_than_its_heads_would() -> None:
    """DeepSeek-V2-Lite: 27 layers x 576 x 2 B = 31,104 against 27 x 16 heads x 256 x 2 x 2 B = 442,368, 14.2
    x.
    """
    latent = memory_of(found_model("deepseek-v2-lite").spec, real_gpu("h100-sxm")).kv_bytes_per_token
    assert 27 * 16 * 256 * 2 * 2 / latent == pytest.approx(14.2, abs=0.05)


def test_latent_attention_is_24_9_times_below_the_multi_head_formula() -> None:
    """DeepSeek-R1: 61 x 576 x 2 B = 70,272; 2 x 61 x 128 x (7168 // 128) x 2 B = 1,748,992 as multi-head
    attention.
    """
    latent = memory_of(found_model("deepseek-r1").spec, real_gpu("h200-sxm"), Layout(tp=8)).kv_bytes_per_token
    assert latent == 70_272
    assert 2 * 61 * 128 * (7168 // 128) * 2 / latent == pytest.approx(24.9, abs=0.05)


def test_attention_data_ranks_hold_six_to_eight_times_the_latents_of_tensor_ranks() -> None:
    """TP8 replicates the latent, DP8 does not; 7.7 x measured on a sister model, vllm-project/vllm issue
    51454.
    """
    model, gpu = found_model("deepseek-r1").spec, real_gpu("b200")
    tensor = memory_of(model, gpu, Layout(tp=8), engine="vllm:0.25.0", kv="fp8")
    data_ranks = memory_of(model, gpu, Layout(dp=8, ep=8), engine="vllm:0.25.0", kv="fp8")
    assert 6 <= data_ranks.kv_cache_tokens / tensor.kv_cache_tokens <= 8


def _report() -> None:
    """Print every quantity of every case: what the log says, what is predicted, their ratio, and whether they agree."""
    for case in CASES:
        for name, reason in case.get("left_out", {}).items():
            print(f"{case['id']:12} {name:20} left out: {reason}")
        if "expect" not in case:
            continue
        try:
            used = _use(case)
        except InputError as error:
            print(f"{case['id']:12} {error}")
            continue
        for name, expected in case.get("expect", {}).items():
            value = _value(used, name, case)
            logged = expected if isinstance(expected, bool) else next(iter(expected.values()))
            ratio = "" if isinstance(expected, bool) or not logged else f"{value / logged:.3f}"
            mark = "" if _agrees(value, expected) else "  <-- MISS"
            print(f"{case['id']:12} {name:20} {logged!s:>12} {value:>14,.5g} {ratio:>7}{mark}")


if __name__ == "__main__":
    _report()
