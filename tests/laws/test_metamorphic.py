"""Laws that hold between the answers to two questions, asked of random ones: LLMSIZE_METAMORPHIC=500 asks so many."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from random_questions import EXPERTS, GPUS, drawn

from sizing import ask
from sizing.answers.answer import Answer, objective_value
from sizing.answers.confidence import evenly, has_odds
from sizing.answers.estimate import answer, with_cheaper
from sizing.answers.search import at_load

QUESTIONS = int(os.environ.get("TESTS_METAMORPHIC", "20"))
SIMULATED = max(3, QUESTIONS // 10)  # a simulated answer takes some ten times as long
CHANGE = 1e-9  # of dollars an hour, that sums in another order differ by


def best(options: dict[str, Any], *, simulated: bool = False, **changes: Any) -> Answer | None:
    return answered(simulated, *sorted({**options, **changes}.items()))


@cache  # many laws compare with the same answer
def answered(simulated: bool, *options: tuple[str, Any]) -> Answer | None:
    return answer(ask(**dict(options)), simulated=simulated).answer


def dollars(found: Answer | None, what: str = "gpus") -> float:
    return float("inf") if found is None else objective_value(found, "cost" if what == "cost" else "gpus")


def layouts(options: dict[str, Any]) -> list[dict[str, int]]:
    """Layouts that the search may try, as a user gives them."""
    given = [{"tp": 2**power, "pp": 1} for power in range(4)]
    if options["model"] in EXPERTS:
        given += [
            {"tp": 8, "ep": 8},
            {"tp": 1, "dp": 8, "ep": 8},
            {"tp": 4, "dp": 2, "ep": 8},
            {"tp": 1, "dp": 16, "ep": 16},
        ]
    return given


@pytest.mark.parametrize("seed", range(QUESTIONS))
def test_metamorphic_free_search_is_no_worse_than_a_given_layout(seed: int) -> None:
    options = drawn(seed)
    free = dollars(best(options))
    for given in layouts(options):
        assert free <= dollars(best(options, **given)), given


@pytest.mark.parametrize("seed", range(SIMULATED))
def test_metamorphic_a_confirmed_answer_is_no_worse_than_that_of_a_given_layout(seed: int) -> None:
    options = drawn(1000 + seed)
    free = dollars(best(options, simulated=True))
    for given in layouts(options)[:4]:
        assert free <= dollars(best(options, simulated=True, **given)), given


@pytest.mark.parametrize("seed", range(QUESTIONS))
def test_metamorphic_all_layouts_are_no_worse_than_the_usual(seed: int) -> None:
    options = drawn(seed)
    usual = best(options)
    assert dollars(best(options, layouts="all")) <= dollars(usual)


@pytest.mark.parametrize("seed", range(QUESTIONS))
def test_metamorphic_another_gpu_type_costs_no_more(seed: int) -> None:
    options = drawn(seed)
    one = best(options, objective="cost")
    other = random.Random(seed).choice([gpu for gpu in GPUS if gpu != options["gpu"]])
    both = best(options, gpu=f"{options['gpu']},{other}")
    assert dollars(both, "cost") <= dollars(one, "cost") + CHANGE


@pytest.mark.parametrize("seed", range(QUESTIONS))
def test_metamorphic_more_requests_take_no_fewer_gpus(seed: int) -> None:
    options = drawn(seed)
    assert dollars(best(options)) <= dollars(best(options, rps=1.3 * options["rps"]))


@pytest.mark.parametrize("seed", range(QUESTIONS))
def test_metamorphic_looser_limits_take_no_more_gpus(seed: int) -> None:
    options = drawn(seed)
    without = {name: value for name, value in options.items() if name not in ("ttft", "itl")}
    assert dollars(best(without)) <= dollars(best(options))


@pytest.mark.parametrize("seed", range(QUESTIONS))
def test_metamorphic_longer_prompts_take_no_fewer_gpus(seed: int) -> None:
    options = drawn(seed)
    assert dollars(best(options)) <= dollars(best(options, isl=int(1.2 * options["isl"])))


ENGINES = ("vllm", "sglang", "tensorrt-llm", "vllm:0.6.0")


def of_any_engine(seed: int) -> dict[str, Any]:
    """The same questions asked of any engine, one in four of offline work, which has no limits."""
    draw, found = random.Random(seed), {**drawn(2000 + seed), "engine": random.Random(-seed).choice(ENGINES)}
    if draw.random() < 0.25:
        return {name: value for name, value in found.items() if name not in ("ttft", "itl")} | {"mode": "offline"}
    return found


@pytest.mark.parametrize("seed", range(QUESTIONS // 2))
def test_metamorphic_a_point_is_at_its_rate_and_its_figures_agree(seed: int) -> None:
    """E2E is TTFT and the steps after it, and what is in flight follows by Little's law, whatever fills the slots."""
    options = of_any_engine(seed)
    for layout in ({}, *(layouts(options)[-2:] if options["model"] in EXPERTS else ())):
        found = best(options, **layout)
        if found is None:
            continue
        point = found.pool.point
        assert found.requests_per_s == pytest.approx(options["rps"], rel=1e-4)
        assert point.e2e_s["mean"] == pytest.approx(point.ttft_s["mean"] + (options["osl"] - 1) * point.itl_s["mean"])
        waiting = point.in_flight - point.running  # for a slot
        assert waiting >= -1e-9 * point.running and point.running <= found.pool.timed.slots * (1 + 1e-6)
        if point.running < found.pool.timed.slots / 4:
            assert waiting == pytest.approx(0, abs=0.01 * point.running)


@pytest.mark.parametrize("seed", range(QUESTIONS // 4))
def test_metamorphic_a_budget_of_what_was_found_is_enough(seed: int) -> None:
    """One of less may be kept by wider layouts, which are tried where none within reach will do, and which are shown then."""
    options = of_any_engine(seed)
    found = best(options)
    if found is None:
        return
    assert dollars(best(options, gpus=found.gpus)) == found.gpus
    less = None if found.gpus == 1 else best(options, gpus=found.gpus - 1)
    outcome = answer(ask(**options), simulated=False)
    asked = evenly(outcome.question) if outcome.by_runs.even or has_odds(outcome) else outcome.question
    shown = with_cheaper(outcome, asked).answers
    assert less is None or (less.gpus, less.pool.replica.layout) in [
        (one.gpus, one.pool.replica.layout) for one in shown
    ]


def test_a_replica_that_a_simulation_adds_makes_no_other_layout_cheaper() -> None:
    """Other layouts are sized by the closed form, and so is the answer's own where they are compared."""
    limits = {"ttft": "p95:800ms", "itl": "p95:44.8ms"}
    asked = ask(model="llama-3.1-70b", gpu="h100-sxm", precision="fp8", isl=1500, osl=300, rps=40, **limits)
    outcome = answer(asked, simulated=False)
    assert outcome.answer is not None
    pool = at_load(outcome.answer.pool, outcome.answer.pool.count + 1, outcome.question)
    larger = replace(outcome, answers=(replace(outcome.answer, pools=(pool,)), *outcome.answers[1:]))
    shown, others = (with_cheaper(of, outcome.question).answers for of in (larger, outcome))
    assert {each.pool.replica.layout for each in shown} == {each.pool.replica.layout for each in others}
