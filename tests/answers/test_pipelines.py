"""Pipelines: a budget of GPUs finds nothing that the free search does not take, or name beside its answer."""

from __future__ import annotations

from typing import Any

import pytest

from sizing import ask, estimate
from sizing.answers.answer import Outcome, objective_value

ASKED: dict[str, dict[str, Any]] = {
    "a card without fast links": {"model": "llama-3.1-70b", "gpu": "h100-pcie", "isl": 1000, "osl": 300, "rps": 5, "itl": "60ms", "ttft": "p95:3s"},
    "a small card": {"model": "qwen3-32b", "gpu": "a10g", "precision": "fp8", "isl": 1000, "osl": 200, "rps": 30, "e2e": "p95:20s"},
    "experts over nodes": {"model": "deepseek-ai/DeepSeek-V3", "gpu": "a100-80gb", "isl": 1000, "osl": 200, "rps": 30, "e2e": "p95:20s"},
    "stages that are no whole nodes": {"model": "Qwen/Qwen3-235B-A22B", "gpu": "a10g", "precision": "fp8", "isl": 8000, "osl": 300, "rps": 30, "itl": "120ms"},
    "a node that is enough": {"model": "llama-3.1-70b", "gpu": "h100-sxm", "precision": "fp8", "isl": 1000, "osl": 300, "rps": 20, "itl": "50ms"},
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_a_budget_finds_nothing_that_the_free_search_hides(case: str) -> None:
    free = found(case)
    assert free.answer is not None
    named = min(each.gpus for each in free.answers)
    for budget in {free.answer.gpus - 1, 3 * free.answer.gpus // 4, named - 1} - {0}:
        tried = estimate(ask(gpus=budget, **ASKED[case]), simulated=False, relaxed=False)
        assert tried.answer is None or named <= tried.answer.gpus


@pytest.mark.parametrize("case", ASKED)
def test_what_is_surer_is_sure_at_less(case: str) -> None:
    free = found(case)
    assert free.answer is not None and free.by_runs.odds is not None
    if free.by_runs.cheaper_when_sure is not None:  # within the reach of the usual search, as the answer is
        depth, own = (each.pool.replica.layout.pp for each in (free.by_runs.cheaper_when_sure.answer, free.answer))
        assert depth == 1 or own > 1
    if free.by_runs.cheaper_when_sure is not None and free.by_runs.odds.gpus is not None:
        assert free.by_runs.cheaper_when_sure.sure_answer.gpus is not None
        gpus = free.by_runs.cheaper_when_sure.sure_answer.gpus / free.by_runs.cheaper_when_sure.answer.gpus
        assert (
            objective_value(free.by_runs.cheaper_when_sure.answer, "gpus") * gpus
            < objective_value(free.answer, "gpus") * free.by_runs.odds.gpus / free.answer.gpus
        )


def test_pipelines_are_beside_the_answer_where_a_node_will_do_and_the_answer_where_nodes_are_needed() -> None:
    beside, over_nodes = found("a card without fast links"), found("experts over nodes")
    assert beside.answer is not None and over_nodes.answer is not None
    assert beside.answer.pool.replica.layout.pp == 1 < max(each.pool.replica.layout.pp for each in beside.answers)
    assert over_nodes.answer.pool.replica.layout.pp > 1


def found(case: str) -> Outcome:
    return estimate(ask(**ASKED[case]), simulated=False, relaxed=False)
