"""Laws of the search: a wider choice is no worse, more demand needs no fewer GPUs, an answer meets what is asked."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
from builders import (
    ask,
    option,
    real_model,
)
from law_builders import HAIR

from sizing.answers import search
from sizing.answers.answer import Answer, Outcome


@cache
def outcome(
    gpu_names: tuple[str, ...],
    rate: float | None = 20.0,
    *,
    concurrency: int | None = None,
    ttft: str | None = None,
    itl: str | None = None,
    e2e: str | None = None,
    headroom: float | str | None = None,
    max_utilisation: float | None = None,
    objective: str = "gpus",
    isl: int = 1000,
    osl: int = 200,
) -> Outcome:
    limits = {name: value for name, value in (("ttft", ttft), ("itl", itl), ("e2e", e2e)) if value}
    planning = {
        name: value
        for name, value in (
            ("headroom", headroom),
            ("max_utilisation", max_utilisation),
            ("objective", objective),
        )
        if value is not None
    }
    demand = {"concurrency": concurrency} if concurrency else {"requests_per_s": rate}
    asked = ask(
        real_model("llama-3.1-8b"),
        isl=isl,
        osl=osl,
        demand=demand,
        limits=limits,
        planning=planning,
        serving={"pp": 1},
    )
    prices = {"h100-sxm": 3.0, "a100-sxm-80gb": 1.5, "l40s": 1.0}
    return search.search(
        asked.with_(gpu_types=tuple(option(name, prices[name]) for name in gpu_names), precisions=(None,))
    )


def best(*args: Any, **kwargs: Any) -> Answer:
    found = outcome(*args, **kwargs).best
    assert found is not None
    return found


@pytest.mark.parametrize("objective", ["gpus", "cost", "energy"])
def test_a_choice_of_cards_is_never_worse_than_one_of_them(objective: str) -> None:
    names = ("h100-sxm", "a100-sxm-80gb", "l40s")
    value = {
        "gpus": lambda e: e.gpus,
        "cost": lambda e: e.usd_per_hour,
        "energy": lambda e: e.power_w,
    }[objective]
    alone = [value(best((name,), objective=objective)) for name in names]
    assert value(best(names, objective=objective)) == min(alone)


def gpus_needed(**kwargs: Any) -> float:
    found = outcome(("h100-sxm",), **kwargs).best
    return math.inf if found is None else found.gpus


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rate", [0.1, 1.0, 5.0, 20.0, 80.0, 300.0]),
        ("concurrency", [1, 10, 100, 500, 2000]),
        ("headroom", [0.0, 0.1, 0.5, 1.0, "300%"]),
        ("isl", [100, 500, 2000, 8000]),
        ("osl", [20, 100, 400, 1600]),
    ],
)
def test_more_demand_never_needs_fewer_gpus(name: str, values: list[float]) -> None:
    needed = [gpus_needed(**{name: value}) for value in values]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1] < math.inf


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ttft", ["10s", "1s", "300ms", "100ms", "50ms", "1ms"]),
        ("ttft", ["p95:10s", "p95:1s", "p95:300ms", "p95:100ms", "p95:60ms", "p95:1ms"]),
        ("itl", ["1s", "100ms", "30ms", "15ms", "8ms", "10us"]),
        ("e2e", ["100s", "10s", "4s", "2s", "1s", "1ms"]),
        ("max_utilisation", [1.0, 0.9, 0.7, 0.5, 0.2]),
    ],
)
@pytest.mark.parametrize("demand", [{"rate": 60.0}, {"concurrency": 300}])
def test_tighter_limits_never_need_fewer_gpus(demand: dict[str, Any], name: str, values: list[Any]) -> None:
    needed = [gpus_needed(**demand, **{name: value}) for value in values]
    assert needed == sorted(needed)
    if not isinstance(values[-1], float):
        assert needed[-1] == math.inf


def test_an_answer_meets_its_limits_and_its_demand() -> None:
    found = outcome(("h100-sxm", "l40s"), 60.0, ttft="p95:500ms", itl="30ms")
    assert len(found.answers) > 3
    for each in found.answers:
        assert float(each.pool.point.ttft_s["p95"]) <= 0.5 * HAIR
        assert float(each.pool.point.itl_s["mean"]) <= 0.03 * HAIR
        assert each.requests_per_s == pytest.approx(60.0, rel=1e-6)
        assert each.pool.capacity.amount * each.pool.count >= 60.0 * (1 - 1e-9)
        assert each.pool.capacity.amount * (each.pool.count - 1) < 60.0
    ranked = [each.gpus for each in found.answers]
    assert ranked == sorted(ranked)


def test_every_layout_tried_is_ranked_or_refused_with_its_reason() -> None:
    found = outcome(("h100-sxm", "l40s"), 60.0, ttft="p95:500ms", itl="30ms")
    assert all(each.reason and each.detail for each in found.refusals)
    layouts = [(e.pool.replica.gpu_type.id, e.pool.replica.layout) for e in found.answers]
    layouts += [(r.gpu_type.id, r.layout) for r in found.refusals]
    assert len(set(layouts)) == len(layouts)
