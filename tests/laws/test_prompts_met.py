"""The prompts that a request meets while it decodes: their number, and the percentiles of ITL that follow, against the simulator."""

from __future__ import annotations

import numpy as np
import pytest
from builders import ask, option, real_model

import sizing
from sizing.answers.search import search
from sizing.engine.deployment import deployment_of
from sizing.engine.requests import Lengths
from sizing.engine.simulation import Traffic, simulate
from sizing.replica import replica as candidates
from sizing.replica.capacity import highest_stable, point_at_rate
from sizing.replica.timing import timed
from sizing.replica.waits import COUNTED, PromptsMet
from sizing.specs.units import PERCENTILES

REQUESTS = 1500
# A request of few tokens has one of few ITLs, so a percentile is held against those of so many more or fewer requests.
BESIDE = {"p90": 0.035, "p95": 0.025, "p99": 0.008}
TOLERANCE = 0.1


def met(
    mean: float, dispersion: float, each: float = 1.0, first: float = 0.0, most: float = np.inf, steps: float = 9
) -> PromptsMet:
    return PromptsMet(*(np.array([value]) for value in (mean, dispersion, each, first, most, steps)))


def numbers(of: PromptsMet) -> dict[str, float]:
    return {name: value.item() for name, value in of.quantiles_s(PERCENTILES).items()}


def test_without_dispersion_the_number_is_poisson() -> None:
    """Poisson with a mean of 0.06: 94.2 % meet none, 99.8 % at most one; with a mean of 3, tables say 3, 5, 6 and 8."""
    assert numbers(met(0.06, 1.0)) == {"p50": 0, "p90": 0, "p95": 1, "p99": 1}
    assert numbers(met(3.0, 1.0)) == {"p50": 3, "p90": 5, "p95": 6, "p99": 8}


@pytest.mark.parametrize("brought", [0.0, 0.3, 0.6])
def test_the_number_is_that_of_prompts_that_bring_others(brought: float) -> None:
    """Drawn: a Poisson number of first ones, each of which brings a Poisson number of others, and so on (Consul): the mean is
    f/(1-g), the variance f/(1-g)^3.
    """
    random, first = np.random.default_rng(2), 4.0
    total = born = random.poisson(first, 40_000)
    while born.any():
        born = random.poisson(brought * born)
        total = total + born
    for name, number in numbers(met(first / (1 - brought), 1 / (1 - brought) ** 2)).items():
        q = PERCENTILES[name]
        assert (
            np.quantile(total, q - 0.01) * 0.97 - 0.5 <= number <= np.quantile(total, min(q + 0.004, 1.0)) * 1.02 + 0.5
        )


def test_the_series_meets_the_moments_where_it_ends() -> None:
    """More prompts are never fewer, and just above the last that is counted the moments are within one of it."""
    means, ones = np.linspace(0.1, 3 * COUNTED, 500), np.ones(500)
    found = PromptsMet(means, 1.5 * ones, ones, 0 * ones, np.inf * ones, 9 * ones).quantiles_s(PERCENTILES)
    for each in found.values():
        assert (np.diff(each) >= 0).all() and np.diff(each).max() <= 1


def test_a_step_that_any_prompt_makes_longer_counts_once() -> None:
    """Poisson prompts at random steps: of 9 steps a share 1 - exp(-mean/9) has any."""
    assert met(3.0, 1.0, each=0.0, first=1.0).overall_s.item() == pytest.approx(1 - np.exp(-3 / 9))
    assert met(3.0, 1.0, each=0.0, first=1.0, steps=1).overall_s.item() == pytest.approx(1 - np.exp(-3))


def test_a_full_step_is_no_longer_than_full() -> None:
    """Of one step that one prompt fills, the mean is that of a step with any prompt: 1 - exp(-2)."""
    full = met(2.0, 1.0, most=1.0, steps=1)
    assert full.overall_s.item() == pytest.approx(1 - np.exp(-2)) and set(numbers(full).values()) == {1.0}


@pytest.mark.parametrize(
    ("model", "precision", "tp", "engine", "isl"),
    [
        ("llama-3.1-8b", None, 1, "vllm:0.19.0", 1000),
        ("llama-3.1-70b", "fp8", 4, "vllm:0.19.0", 2000),
        ("llama-3.1-70b", "fp8", 4, "tensorrt-llm:1.2.0", 1000),
        ("llama-3.1-8b", None, 1, "sglang:0.5.9", 2000),
    ],
)
@pytest.mark.parametrize("osl", [2, 4, 16])
def test_few_tokens_have_the_mean_and_percentiles_of_the_simulator(
    model: str, precision: str | None, tp: int, engine: str, isl: int, osl: int
) -> None:
    """At 5 and 15 % of what is served, where a request meets one prompt or none; TTFT, as most requests wait for nothing, too."""
    request = ask(real_model(model), engine=engine, isl=isl, osl=osl, serving={"tp": tp})
    found = candidates.candidates(request.service, option("h100-sxm"), precision)
    load = timed(next(one for one in found if isinstance(one, candidates.Replica)))
    most = highest_stable(load)
    for share in (0.05, 0.15):
        rate = share * most.requests_per_s
        point = point_at_rate(load, rate, most)
        closed = point.itl_s
        traffic = Traffic(
            Lengths(isl), Lengths(osl), REQUESTS, rate_per_s=rate, longest=isl + osl, exact_rate=True, seed=3
        )
        served = simulate(deployment_of(load), traffic).requests
        itl_s = (np.asarray(served.finished) - np.asarray(served.first_token)) / (osl - 1)
        ttft_s = np.asarray(served.first_token) - np.asarray(served.arrival)
        low_s, high_s = np.quantile(ttft_s, [0.95 - BESIDE["p95"], 0.95 + BESIDE["p95"]])
        assert low_s * (1 - TOLERANCE) <= point.ttft_s["p95"] <= high_s * (1 + TOLERANCE), share
        assert closed["mean"] == pytest.approx(itl_s.mean(), rel=TOLERANCE), share
        for name, beside in BESIDE.items():
            low_s, high_s = np.quantile(itl_s, [PERCENTILES[name] - beside, PERCENTILES[name] + beside])
            assert low_s * (1 - TOLERANCE) <= closed[name] <= high_s * (1 + TOLERANCE), (share, name)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_nothing_is_met_in_less_than_no_time() -> None:
    """Few tokens in steps of prompts alone, with drafts: what a prompt adds may round below nothing, with 53,295 slots."""
    question = sizing.ask(
        model="deepseek-v3",
        gpu="h100-sxm",
        engine="sglang",
        precision="fp8",
        isl=131,
        osl=3,
        concurrency=204,
        speculative="eagle3:3@0.8/0.7/0.6",
        lora="16x32",
    )
    for each in search(question).answers:
        assert 0 < each.latency_s("itl")["mean"] < each.latency_s("e2e")["mean"]
