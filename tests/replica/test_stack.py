"""Layouts evaluated together: what is shared between them, and stacking them, changes no figure of any."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from builders import ask, option, real_model

from sizing.answers.search import search
from sizing.model import operations
from sizing.question.question import Question
from sizing.replica import batching
from sizing.replica.capacity import most_of, points_of, shared, stack
from sizing.replica.curves import token_grid
from sizing.replica.replica import Replica, candidates
from sizing.replica.step import gpu_seconds
from sizing.replica.timing import Timed, Timing, timed

SAME = 1e-12  # array and scalar functions of numpy may round the last bit differently
MODELS = ("llama-3.1-70b", "gpt-oss-120b", "kimi-linear-48b-a3b")


def request_of(model: str, osl: int) -> Question:
    return ask(real_model(model), isl=1000, osl=osl).with_(requests_per_s=5.0, gpu_budget=None, offline=False)


@cache
def loads_of(model: str, osl: int) -> tuple[tuple[Replica, Timed], ...]:
    """Every layout of two GPU types that fits, tabulated with shared splits."""
    request = request_of(model, osl)
    loads = Timing()
    found = [
        entry
        for gpu in ("h100-sxm", "l40s")
        for entry in candidates(request.service, option(gpu), None)
        if isinstance(entry, Replica)
    ]
    assert len({str(candidate.layout) for candidate in found}) > 2
    return tuple((candidate, loads.of(candidate)) for candidate in found)


@pytest.mark.parametrize("model", MODELS)
def test_a_pipeline_shares_its_splits_tables_and_adds_its_sends(model: str) -> None:
    deep = 0
    for candidate, load in loads_of(model, 200):
        kernels = load.kernels
        # A rank's own operations, sends included, are over its tokens; what ranks do together over the tokens of all.
        dp = candidate.layout.dp
        own = [o for o in operations.body(kernels.shard, token_grid() * dp) if dp == 1 or not o.of_all]
        np.testing.assert_allclose(load.curves.body_s, np.asarray(gpu_seconds(own, kernels)), rtol=SAME)
        together = [o for o in operations.body(kernels.shard, token_grid()) if dp > 1 and o.of_all]
        assert (load.curves.shared_s is None) == (not together)
        if load.curves.shared_s is not None:
            np.testing.assert_allclose(load.curves.shared_s, np.asarray(gpu_seconds(together, kernels)), rtol=SAME)
        alone = timed(candidate)
        np.testing.assert_array_equal(load.curves.body_s, alone.curves.body_s)
        np.testing.assert_array_equal(load.curves.head_s, alone.curves.head_s)
        assert load.slots == alone.slots
        deep += candidate.layout.pp > 1
    assert deep


@pytest.mark.parametrize("osl", [1, 200])
@pytest.mark.parametrize("model", MODELS)
def test_layouts_sized_together_are_sized_as_each_alone(model: str, osl: int) -> None:
    request = request_of(model, osl)
    loads = [load for _, load in loads_of(model, osl)]
    together = most_of(loads, request.target)
    sized = [(load, most) for load, most in zip(loads, together, strict=True) if most is not None]
    assert len(sized) > 2
    for load, most in zip(loads, together, strict=True):
        alone = most_of([load], request.target)[0]
        assert (alone is None) == (most is None)
        if alone is not None and most is not None:
            assert most.binding == alone.binding
            assert most.amount == pytest.approx(alone.amount, rel=SAME)
            assert most.decoding == pytest.approx(alone.decoding, rel=SAME)
    counts = [2 + number % 3 for number in range(len(sized))]
    points = points_of([load for load, _ in sized], [request.target] * len(sized), [most for _, most in sized], counts)
    for (load, most), count, point in zip(sized, counts, points, strict=True):
        alone_point = points_of([load], [request.target], [most], [count])[0]
        assert point.requests_per_s == pytest.approx(alone_point.requests_per_s, rel=SAME)
        for statistic, values in point.e2e_s.items():
            assert values == pytest.approx(alone_point.e2e_s[statistic], rel=SAME)


@pytest.mark.parametrize("prefill_only", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_a_stacks_rows_are_its_layouts_operating_points(model: str, prefill_only: bool) -> None:
    everyone = [load for _, load in loads_of(model, 200)]
    first = shared(everyone[0].curves, everyone[0].batching)
    loads = [load for load in everyone if shared(load.curves, load.batching) == first]
    assert len({(load.batching.pp, load.batching.dp, load.slots) for load in loads}) > 1
    services = [replace(load.batching, prefill_only=prefill_only) for load in loads]
    decoding = np.geomspace(0.01, 50.0, 40)
    points = batching.open_loop(*stack([load.curves for load in loads], services), np.tile(decoding, (len(loads), 1)))
    for index, (load, service) in enumerate(zip(loads, services, strict=True)):
        alone = batching.open_loop(load.curves, service, decoding)
        found = points.row(index)
        assert points.firsts[index] == found.at(0)
        np.testing.assert_array_equal(found.stable, alone.stable)
        for name in ("requests_per_s", "running", "prefill_share"):
            np.testing.assert_allclose(getattr(found, name), getattr(alone, name), rtol=SAME)
        for name in ("ttft_s", "itl_s", "e2e_s"):
            for statistic, values in getattr(alone, name).items():
                np.testing.assert_allclose(getattr(found, name)[statistic], values, rtol=SAME)


@pytest.mark.parametrize("osl", [1, 200])
@pytest.mark.parametrize("rate", [1e-6, 1e-3, 1.0])
def test_however_little_is_asked_that_is_what_is_served(rate: float, osl: int) -> None:
    request = ask(real_model("llama-3.1-8b"), isl=1000, osl=osl, demand={"requests_per_s": rate})
    best = search(request.with_(gpu_types=(option("h100-sxm"),), precisions=(None,))).best
    assert best is not None
    assert best.requests_per_s == pytest.approx(rate, rel=1e-6)
