"""A limit that is said to take fewer GPUs does, when it is asked for; also where a margin for a confidence counts."""

from __future__ import annotations

from typing import Any

import pytest

from sizing import ask, estimate

ASKED = {
    "as predicted": {"model": "gpt-oss-120b", "gpu": "a100-sxm-80gb", "isl": 1000, "osl": 200, "rps": 60, "itl": "p99:45ms"},
    "for a confidence": {"model": "gpt-oss-120b", "gpu": "a100-sxm-80gb", "isl": 1000, "osl": 200, "rps": 60, "itl": "45ms", "confidence": "90%"},
    "at even odds": {"model": "llama-3.3-70b", "gpu": "mi300x", "precision": "fp8", "isl": 1000, "osl": 500, "rps": 40, "itl": "45ms"},
    "of a first token": {"model": "qwen3-32b", "gpu": "h100-sxm", "isl": 4000, "osl": 100, "rps": 30, "ttft": "p95:600ms", "confidence": "80%"},
    "of turns, which find less in fewer caches": {"model": "llama-3.1-8b", "gpu": "l40s", "isl": 800, "osl": 150, "users": 600, "turns": 4, "prefix_routing": "affinity", "ttft": "p95:400ms", "tp": 1, "pp": 1},
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_a_limit_that_is_said_to_take_fewer_gpus_does(case: str) -> None:
    given: dict[str, Any] = ASKED[case]
    found = estimate(ask(**given), simulated=False)
    assert found.best is not None
    assert found.hints.relaxation is not None
    assert found.hints.relaxation.gpus < found.best.gpus
    name = found.hints.relaxation.limit
    statistic = given[name].rpartition(":")[0]
    again = estimate(
        ask(**{**given, name: f"{statistic or 'mean'}:{found.hints.relaxation.seconds * 1e3}ms"}), simulated=False
    )
    assert again.best is not None
    assert again.best.gpus <= found.hints.relaxation.gpus


def test_without_a_limit_that_saves_gpus_none_is_named() -> None:
    """Fewer replicas find less of the turns in their caches: no limit up to three times the stated one saves one of 3 GPUs."""
    given: dict[str, Any] = {**ASKED["of turns, which find less in fewer caches"], "users": 300}
    found = estimate(ask(**given), simulated=False)
    loosest = estimate(ask(**given | {"ttft": "p95:1.2s"}), simulated=False, relaxed=False)
    assert found.best is not None and loosest.best is not None
    assert found.hints.relaxation is None
    assert loosest.best.gpus == found.best.gpus


@pytest.mark.parametrize(("gpu", "rps", "itl"), [("h100-sxm", 60, "15ms"), ("l40s", 10, "30ms")])
def test_a_checkpoint_that_is_said_to_take_fewer_gpus_does(gpu: str, rps: int, itl: str) -> None:
    """Its weights are in blocks, whose products have other speeds than those of whole matrices."""
    given: dict[str, Any] = {"gpu": gpu, "isl": 500, "osl": 250, "rps": rps, "itl": itl}
    found = estimate(ask(model="qwen3-30b-a3b", **given), simulated=False)
    assert found.hints.in_fp8 is not None and found.hints.in_fp8.answer is not None and found.best is not None
    again = estimate(ask(model=found.hints.in_fp8.options.split()[1], **given), simulated=False, relaxed=False).best
    assert again is not None
    assert again.gpus == found.hints.in_fp8.answer.gpus < found.best.gpus


def test_a_limit_that_a_simulation_confirms_takes_fewer_gpus_too() -> None:
    given: dict[str, Any] = {
        "model": "llama-3.1-8b",
        "gpu": "l40s",
        "isl": 500,
        "osl": 40,
        "rps": 15,
        "itl": "p99:40ms",
    }
    found = estimate(ask(**given))
    assert found.best is not None
    assert found.hints.relaxation is not None
    again = estimate(ask(**{**given, "itl": f"p99:{found.hints.relaxation.seconds * 1e3}ms"}), relaxed=False)
    assert again.best is not None
    assert again.best.gpus <= found.hints.relaxation.gpus < found.best.gpus


def test_a_looser_limit_saves_none_of_given_gpus_and_serves_more() -> None:
    given: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "isl": 2000, "osl": 200, "gpus": 6}
    found = estimate(ask(**given, itl="20ms"), simulated=False)
    looser = estimate(ask(**given, itl="20.2ms"), simulated=False, relaxed=False)
    assert found.best is not None and looser.best is not None
    assert found.hints.relaxation is None
    assert looser.best.gpus == found.best.gpus
    assert looser.best.requests_per_s > found.best.requests_per_s
