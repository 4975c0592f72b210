"""What is said to help does: asked with a suggested change, a question that was infeasible takes no more GPUs than were said."""

from __future__ import annotations

from typing import Any

import pytest

from sizing import ask, estimate
from sizing.answers.estimate import LARGER_BUDGET
from sizing.report.parts.limiting import unmet

ASKED: dict[str, dict[str, Any]] = {
    "too tight": {"model": "llama-3.1-70b", "gpu": "l40s", "isl": 1000, "osl": 200, "rps": 4, "itl": "12ms"},
    "too tight for a confidence": {"workload": "chat", "gpu": "mi300x", "confidence": "90%"},
    "too large": {"model": "llama-3.1-405b", "gpu": "l40s", "isl": 1000, "osl": 200, "rps": 1, "tp": 8},
    "too few": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "isl": 1000, "osl": 200, "rps": 60, "itl": "20ms", "gpus": 2},
    "too few at even odds": {"workload": "chat", "gpu": "mi300x", "gpus": 16},
    "a first token too late": {"model": "llama-3.1-8b", "gpu": "a10g", "isl": 6000, "osl": 100, "rps": 1, "ttft": "p95:300ms"},
}  # fmt: skip


CHAT = {"ttft": "p95:1s", "itl": "50ms"}  # limits of the ready workload


def changed(asked: dict[str, Any], change: str) -> dict[str, Any]:
    """A question with a suggested change, which is written as options or in words."""
    if change.startswith("a larger budget"):
        return {name: value for name, value in asked.items() if name != "gpus"}
    if change.startswith("any layout"):
        return {name: value for name, value in asked.items() if name not in ("tp", "pp", "dp", "ep")}
    name, limit, value, unit = [*change.split(), "", ""][:4]
    if limit == "limit":
        name = name.lower()
        statistic = str(asked.get(name, CHAT.get(name, ""))).rpartition(":")[0]
        return asked | {name: f"{statistic}{':' * bool(statistic)}{value.replace(',', '')}{unit}"}
    return asked | {name.removeprefix("--").replace("-", "_"): limit}


@pytest.mark.parametrize("case", ASKED)
def test_what_would_help_does(case: str) -> None:
    asked = dict(ASKED[case])
    found = estimate(ask(**asked))
    assert found.answer is None and found.suggestions
    for suggestion in found.suggestions:
        again = estimate(ask(**changed(asked, suggestion.change)), relaxed=False).answer
        assert again is not None, suggestion
        assert again.gpus <= suggestion.gpus, suggestion


def test_a_budget_that_is_too_small_names_the_size_that_is_suggested() -> None:
    asked = {"model": "deepseek-r1", "gpu": "h200-sxm", "gpus": 16, "isl": 4000, "osl": 1000, "rps": 60}
    outcome = estimate(ask(**asked), simulated=False)
    (larger,) = (change for change in outcome.suggestions if change.change == LARGER_BUDGET)
    assert f"takes {larger.gpus} x {larger.gpu} ({larger.layout})" in unmet(outcome).detail
