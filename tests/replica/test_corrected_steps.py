"""Corrections of step times: closed form, exact step and simulator scale alike, and every identity holds with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import ask, kernels_for, option, real_gpu, real_model
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.engine import deployment, simulation
from sizing.engine.batch import DecodeBatch, Piece
from sizing.engine.deployment import step_clock, windows_of
from sizing.engine.requests import Lengths
from sizing.model.architecture import Layout
from sizing.replica import batching
from sizing.replica import replica as candidates
from sizing.replica import step as exact
from sizing.replica.batching import Points
from sizing.replica.kernels import Kernels
from sizing.replica.timing import Timed, timed_by
from sizing.specs.bands import Correction

LLAMA, H100 = real_model("llama-3.1-8b"), real_gpu("h100-sxm")
FACTORS = st.floats(0.4, 2.5)
LOADS = np.array([0.5, 4.0, 30.0, 100.0])


def load_of(decode: float, prefill: float, **serving: int) -> Timed:
    """A layout whose step times are multiplied by two factors."""
    request = ask(LLAMA, isl=800, osl=150, serving={"tp": 1, **serving})
    found = candidates.candidates(request.service, option("h100-sxm"), None)
    replica = next(one for one in found if isinstance(one, candidates.Replica))
    return timed_by(replica, replace(Kernels.of(replica), correction=Correction(decode=decode, prefill=prefill)))


def open_loop(load: Timed) -> Points:
    return batching.open_loop(load.curves, load.batching, LOADS)


@given(FACTORS)
@settings(max_examples=10)
def test_one_factor_for_all_steps_is_another_unit_of_time(factor: float) -> None:
    plain, slower = open_loop(load_of(1.0, 1.0)), open_loop(load_of(factor, factor))
    assert slower.requests_per_s == pytest.approx(plain.requests_per_s / factor, rel=1e-9)
    for name in ("ttft_s", "itl_s", "e2e_s"):
        for statistic, seconds in getattr(plain, name).items():
            assert getattr(slower, name)[statistic] == pytest.approx(seconds * factor, rel=1e-9), (name, statistic)


@given(FACTORS, FACTORS)
@settings(max_examples=20)
def test_identities_hold_with_any_factors(decode: float, prefill: float) -> None:
    load = load_of(decode, prefill)
    points = open_loop(load)
    after_first = load.batching.osl - 1
    assert points.e2e_s["mean"] == pytest.approx(points.ttft_s["mean"] + after_first * points.itl_s["mean"])
    assert (points.running <= points.in_flight * (1 + 1e-9)).all()
    light = points.running < load.slots / 4  # where none waits for a slot
    assert points.running[light] == pytest.approx(points.requests_per_s[light] * points.e2e_s["mean"][light], rel=1e-3)
    assert np.all(np.diff(points.requests_per_s) > 0)
    plain = load_of(1.0, 1.0)
    assert load.solo_ttft_s == pytest.approx(prefill * plain.solo_ttft_s)
    assert load.solo_itl_s == pytest.approx(decode * plain.solo_itl_s)


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize(("decode", "prefill"), [(1.5, 1.5), (0.8, 1.3), (1.4, 0.7)])
@pytest.mark.parametrize(("decoding", "prompts"), [(40, 0), (0, 2), (40, 2)])
def test_the_clock_and_the_exact_step_scale_alike(
    decode: float, prefill: float, decoding: int, prompts: int, pp: int
) -> None:
    bare = kernels_for(LLAMA, H100, Layout(pp=pp))
    kernels = replace(bare, correction=Correction(decode=decode, prefill=prefill))
    seconds = []
    for each in (bare, kernels):
        clock = step_clock(each, most_tokens=8192, most_rows=128)
        batch = DecodeBatch(windows_of(LLAMA))
        for number in range(decoding):
            batch.join(number, 700.0, 1000)
        pieces = [Piece(1000 + n, 500.0, 0.0) for n in range(prompts)]
        taken = sum(clock.step(pieces, batch, decoding > 0)) if prompts else clock.series(batch).time(1)
        whole = exact.Batch(float(decoding), 700.0, float(prompts), 500.0 if prompts else 0.0, 0.0, float(prompts))
        step = exact.step(each, whole)
        assert sum(one.seconds for one in step.operations) == pytest.approx(step.gpu_s)
        seconds.append((taken, step.total_s))
    (plain_clock, plain_step), (clock_s, step_s) = seconds
    low, high = sorted((decode, prefill))
    assert low * plain_step * (1 - 1e-9) <= step_s <= high * plain_step * (1 + 1e-9)
    assert clock_s / plain_clock == pytest.approx(step_s / plain_step, rel=0.01)
    if not prompts or not decoding:
        assert step_s == pytest.approx(plain_step * (prefill if prompts else decode))


@pytest.mark.parametrize(("decode", "prefill"), [(1.3, 1.3), (1.4, 0.8)])
def test_a_simulated_load_follows_the_factors(decode: float, prefill: float) -> None:
    traffic = simulation.Traffic(Lengths(800), Lengths(150), 64, in_flight=16, longest=2048)
    plain, slower = (
        simulation.simulate(deployment.deployment_of(load_of(*by)), traffic) for by in ((1, 1), (decode, prefill))
    )
    ratio = slower.latencies_s["e2e"]["mean"] / plain.latencies_s["e2e"]["mean"]
    low, high = sorted((decode, prefill))
    assert low * (1 - 1e-6) <= ratio <= high * (1 + 1e-6)
    latencies = {name: slower.latencies_s[name]["mean"] for name in ("ttft", "itl", "e2e")}
    assert latencies["e2e"] == pytest.approx(latencies["ttft"] + 149 * latencies["itl"])
