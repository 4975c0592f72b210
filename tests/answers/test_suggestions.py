"""What is said to help does: asked with a suggested change, a question that was infeasible takes no more GPUs than were said."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from sizing import ask, estimate
from sizing.answers.advice import LARGER_BUDGET
from sizing.catalog.prices import PriceRule
from sizing.catalog.profiles import load_gpu
from sizing.formats.words import number_down
from sizing.report.parts.limits import unmet

ASKED: dict[str, dict[str, Any]] = {
    "too tight": {"model": "llama-3.1-70b", "gpu": "l40s", "isl": 1000, "osl": 200, "rps": 4, "itl": "12ms"},
    "too tight for a confidence": {"workload": "chat", "gpu": "mi300x", "confidence": "95%", "itl": "15ms"},
    "too large": {"model": "llama-3.1-405b", "gpu": "l40s", "isl": 1000, "osl": 200, "rps": 1, "tp": 8},
    "too few": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "isl": 1000, "osl": 200, "rps": 60, "itl": "20ms", "gpus": 2},
    "too few at even odds": {"workload": "chat", "gpu": "mi300x", "gpus": 11},
    "a first token too late": {"model": "llama-3.1-8b", "gpu": "a10g", "isl": 6000, "osl": 100, "rps": 1, "ttft": "p95:300ms"},
}  # fmt: skip


CHAT = {"ttft": "p95:1s", "itl": "50ms"}  # limits of the ready workload


def changed(asked: dict[str, Any], change: str) -> dict[str, Any]:
    """A question with a suggested change, which is written as options or in words."""
    if change.startswith("a larger budget"):
        return {name: value for name, value in asked.items() if name != "gpus"}
    if change.startswith("any layout"):
        return {name: value for name, value in asked.items() if name not in ("tp", "pp", "dp", "ep")}
    if change.startswith("--gpu ") and asked.get("gpus") is None:
        flags = change.split()
        return asked | dict(zip((flag.removeprefix("--") for flag in flags[::2]), flags[1::2], strict=True))
    words = [word for word in change.split() if not word.startswith("(p")]
    name, limit, value, unit = [*words, "", ""][:4]
    if limit == "limit":
        name = name.lower()
        statistic = str(asked.get(name, CHAT.get(name, ""))).rpartition(":")[0]
        return asked | {name: f"{statistic}{':' * bool(statistic)}{value.replace(',', '')}{unit}"}
    return asked | {name.removeprefix("--").replace("-", "_"): limit}


@pytest.mark.parametrize("case", ASKED)
def test_what_would_help_does(case: str) -> None:
    asked = dict(ASKED[case])
    found = estimate(ask(**asked))
    assert found.answer is None and found.hints.suggestions
    for suggestion in found.hints.suggestions:
        again = estimate(ask(**changed(asked, suggestion.change)), relaxed=False).answer
        assert again is not None, suggestion
        assert again.gpus <= suggestion.gpus, suggestion


def test_a_budget_that_is_too_small_names_the_size_that_is_suggested() -> None:
    asked: dict[str, Any] = {"model": "deepseek-r1", "gpu": "h200-sxm", "gpus": 16, "isl": 4000, "osl": 1000, "rps": 60}
    outcome = estimate(ask(**asked), simulated=False)
    (larger,) = (change for change in outcome.hints.suggestions if change.change == LARGER_BUDGET)
    assert re.search(rf"takes {larger.gpus} x {larger.gpu} \({larger.layout}[;)]", unmet(outcome).detail)


TIGHT: dict[str, Any] = {
    "model": "gpt-oss-120b",
    "gpu": "h100-sxm",
    "isl": 1000,
    "osl": 500,
    "itl": "3ms",
    "users": 100,
    "pp": 1,  # the same suggestions as of all layouts, found in a fifth of the time
    "dp": 1,
}


def test_a_suggestion_is_the_answer_to_the_changed_question() -> None:
    found = estimate(ask(**TIGHT), simulated=False)
    assert found.hints.suggestions
    for suggestion in found.hints.suggestions:
        again = estimate(ask(**changed(TIGHT, suggestion.change)), simulated=False, relaxed=False)
        assert again.answer is not None, suggestion
        assert (again.answer.gpus, str(again.answer.pool.replica.layout)) == (suggestion.gpus, suggestion.layout)
    by_hand = estimate(ask(**TIGHT | {"precision": "fp8"}), simulated=False, relaxed=False)
    assert by_hand.answer is None
    assert not [suggestion for suggestion in found.hints.suggestions if "fp8" in suggestion.change.split()[:2]]


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "gpt-oss-120b", "gpu": "h100-sxm", "isl": 1000, "osl": 500}
        | {"users": 1000, "itl": "15ms", "ttft": "p95:400ms"},
        {"model": "mixtral-8x7b-v0.1", "gpu": "a100-sxm-80gb", "isl": 1500, "osl": 300, "rps": 8, "itl": "25ms"},
    ],
    ids=["users", "rate"],
)
def test_another_layout_takes_the_gpus_that_it_takes_where_it_is_asked_for(asked: dict[str, Any]) -> None:
    _, *others = estimate(ask(**asked), simulated=False, relaxed=False).answers
    assert [other for other in others if other.pool.margin > 1]
    for other in others:
        layout = other.pool.replica.layout
        sizes = {name: getattr(layout, name) for name in ("tp", "pp", "dp", "ep")}
        alone = estimate(ask(**asked, **sizes), simulated=False, relaxed=False).answer
        assert alone is not None and alone.gpus == other.gpus, layout


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "llama-3.1-70b", "gpu": "a100-sxm-80gb", "isl": 3000, "osl": 200, "gpus": 16, "rps": 2.9}
        | {"ttft": "p99:3s", "e2e": "p95:12s"},
        {"model": "llama-3.1-70b", "gpu": "h100-sxm", "isl": 2000, "osl": 300, "gpus": 8, "rps": 20}
        | {"itl": "40ms", "confidence": "90%"},
        {"model": "llama-3.1-8b", "gpu": "h100-sxm", "isl": 1000, "osl": 200, "gpus": 1, "concurrency": 900}
        | {"itl": "12ms"},
    ],
    ids=["another layout", "a confidence", "requests in flight"],
)
def test_what_a_budget_is_said_to_serve_it_serves(asked: dict[str, Any]) -> None:
    found = estimate(ask(**asked), simulated=False)
    assert found.answer is None
    served = re.search(r"GPUs?(?: as \S+ x .*?)? serves? ([\d.,]+) ", unmet(found).detail)
    assert served is not None
    demand, most = "rps" if "rps" in asked else "concurrency", float(served[1].replace(",", ""))
    amount = most if demand == "rps" else int(most)
    unit = 10 ** -len(served[1].partition(".")[2])  # the last digit that is written
    assert estimate(ask(**asked | {demand: amount}), simulated=False, relaxed=False).answer is not None
    assert estimate(ask(**asked | {demand: amount + unit}), simulated=False, relaxed=False).answer is None


@pytest.mark.parametrize(
    ("value", "written"), [(5.858, "5.85"), (5.86, "5.86"), (0.09999, "0.0999"), (1239.0, "1,230")]
)
def test_a_number_written_down_is_never_above_the_value(value: float, written: str) -> None:
    assert number_down(value) == written


@pytest.mark.parametrize("budget", [1, 4])
def test_a_larger_budget_is_one_that_a_node_holds(budget: int) -> None:
    asked: dict[str, Any] = {"model": "qwen3-235b-a22b", "gpu": "h100-sxm", "gpus": budget, "isl": 1000, "osl": 300}
    found = estimate(ask(**asked), simulated=False)
    budgets = [each.change for each in found.hints.suggestions if each.change.startswith("--gpus")]
    assert budgets == ["--gpus 8"]


SLOW: dict[str, Any] = {
    "model": "llama-3.1-405b", "gpu": "a100-sxm-80gb", "isl": 2000, "osl": 300, "rps": 2, "itl": "30ms",
}  # fmt: skip


def test_a_limit_that_is_missed_names_other_gpus_and_looser_limits_that_halve_the_gpus() -> None:
    found = estimate(ask(**SLOW), simulated=False)
    types = [each for each in found.hints.suggestions if each.change.startswith("--gpu ")]
    limits = [each for each in found.hints.suggestions if each.change.startswith("ITL limit")]
    assert types and all(each.gpu != "A100 SXM 80GB" for each in types)
    assert len(limits) >= 2
    assert all(looser.gpus <= tighter.gpus / 2 for tighter, looser in pairwise(limits))


def test_a_missed_itl_says_what_a_token_reads() -> None:
    found = estimate(ask(**SLOW), simulated=False)
    detail = unmet(found).detail
    said = re.search(r"a token reads ([\d.]+) GiB of weights in each of 2 stages, ([\d.]+) ms at 2,0\d\d GB/s", detail)
    assert said, detail
    assert float(said[1]) * 2**30 / 2.039e12 * 2 * 1e3 == pytest.approx(float(said[2]), rel=0.01)


def test_other_gpu_types_have_the_prices_that_were_asked_for() -> None:
    """A price for all is of the types asked for; a provider's prices are for others too, and what it does not sell is left out."""
    stated, by_provider = PriceRule(of_all=1.0), PriceRule(provider="Nebius")
    b200, l4 = load_gpu("b200"), load_gpu("l4")
    assert stated.of_others.priced(b200).usd_per_gpu_hour == PriceRule().priced(b200).usd_per_gpu_hour != 1.0
    assert PriceRule(by_id={"b200": 3.0}).of_others.priced(b200).usd_per_gpu_hour == 3.0
    assert not by_provider.of_others.offers(l4)
