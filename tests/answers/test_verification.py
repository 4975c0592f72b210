"""When a simulation decides: what chance leaves open, and how more requests are added to a run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from builders import ask, option, real_model

from sizing.answers.answer import Answer
from sizing.answers.search import search, with_count
from sizing.answers.sizes import VERIFY, at_population, serves_population
from sizing.answers.verify import driven, is_enough, is_sure, meets, simulated, verdict_on, verify
from sizing.engine.simulation import Run
from sizing.question.question import Question
from sizing.replica.capacity import highest_stable
from sizing.specs.demand import ROUNDING_SLACK
from sizing.specs.workload import Limit, Limits

SEEDS = 12


@cache
def asked(limit_ms: float = 30.0) -> Question:
    return ask(
        real_model("llama-3.1-8b"),
        isl=500,
        osl=50,
        demand={"requests_per_s": 20.0},
        limits={"itl": f"{limit_ms}ms"},
    ).with_(gpu_types=(option("a100-sxm-80gb"),), precisions=(None,))


@cache
def size() -> Answer:
    best = search(asked()).best
    assert best is not None
    return Answer((with_count(best.pool, 1, asked()),))


@cache
def runs() -> tuple[Run, ...]:
    found = [driven(size(), asked(), VERIFY.requests, seed).run for seed in range(SEEDS)]
    return tuple(run for run in found if run is not None)


def sure_at(run: Run, limit_s: float, statistic: str = "mean") -> bool:
    return is_sure(run, Limits(itl=Limit(statistic=statistic, seconds=limit_s)))


def test_a_mean_is_as_sure_as_runs_of_other_arrivals_are_alike() -> None:
    """Where half of such runs would say otherwise it is not sure; five times as far off as they differ, it is."""
    means = np.array([run.latencies_s["itl"]["mean"] for run in runs()])
    spread = float(means.std(ddof=1))
    at_mean = [sure_at(run, float(run.latencies_s["itl"]["mean"]) / (1 + VERIFY.missed) + spread / 4) for run in runs()]
    beyond = [sure_at(run, float(run.latencies_s["itl"]["mean"]) - 5 * spread) for run in runs()]
    assert not any(at_mean) and sum(beyond) >= SEEDS - 1


def test_long_waits_that_come_in_clusters_are_not_ruled_out_by_one_calm_run() -> None:
    """A thousand requests of which none was beyond the limit, though all of a hundred in a row came near it."""
    calm = np.linspace(0.4, 0.5, VERIFY.requests)
    near = calm.copy()
    near[:100] = 0.95
    limits = Limits(ttft=Limit(statistic="p99", seconds=1.0))
    run = runs()[0]

    def waiting(values_s: np.ndarray) -> Run:
        found = {**run.latencies_s, "ttft": {"mean": float(values_s.mean()), "p99": float(np.quantile(values_s, 0.99))}}
        return replace(run, latencies_s=found, measured_s={**run.measured_s, "ttft": values_s})

    assert is_sure(waiting(calm), limits) and not is_sure(waiting(near), limits)


def test_a_percentile_in_a_gap_between_two_values_holds_where_the_share_beyond_is_surely_less() -> None:
    """Requests of few tokens: ITL is 40 or 60 ms, by one prompt more or less, so that no tolerance on 50 ms helps."""
    run, limits = runs()[0], Limits(itl=Limit(statistic="p95", seconds=0.05))
    draws = np.random.default_rng(0).permutation(40_000)

    def mixed(share: float) -> Run:
        values_s = np.where(draws < share * draws.size, 0.06, 0.04)
        found = {**run.latencies_s, "itl": {"mean": float(values_s.mean()), "p95": float(np.quantile(values_s, 0.95))}}
        return replace(run, latencies_s=found, measured_s={**run.measured_s, "itl": values_s})

    assert meets(mixed(0.045), limits) and is_sure(mixed(0.045), limits)
    assert not meets(mixed(0.048), limits) and meets(mixed(0.048), limits, VERIFY.sure_enough)


def test_a_ttft_that_one_busy_period_makes_is_not_shown_after_a_short_run() -> None:
    """A hundred requests of a thousand waited six times as long, one after the other, or each among others that did not."""
    alike = np.full(VERIFY.requests, 0.5)
    alike[::10] = 3.0
    busy = np.sort(alike)[::-1].copy()

    def waited(values_s: np.ndarray) -> Run:
        found = {"mean": float(values_s.mean()), "p95": float(np.quantile(values_s, 0.95))}
        measured_s = {**runs()[0].measured_s, "ttft": values_s}
        return replace(runs()[0], latencies_s={**runs()[0].latencies_s, "ttft": found}, measured_s=measured_s)

    assert is_enough(waited(alike), Limits()) and not is_enough(waited(busy), Limits())
    missed = Limits(ttft=Limit(statistic="mean", seconds=0.1))
    assert is_enough(waited(alike), missed)


def test_more_requests_are_added_to_what_was_measured() -> None:
    """With a limit at the mean chance decides, so that they are driven to the end; means are of all of them."""
    mean_s = runs()[0].latencies_s["itl"]["mean"]
    at_limit = asked(round(1000 * mean_s, 3))
    some = simulated(size(), at_limit, most=VERIFY.longer)
    more = simulated(some, at_limit, most=2 * VERIFY.longer)
    assert some.run is not None and more.run is not None
    assert (some.run.completed, more.run.completed) == (5 * VERIFY.requests, 9 * VERIFY.requests)
    assert more.run.measured_s["itl"][: some.run.completed] == pytest.approx(some.run.measured_s["itl"])
    assert more.run.latencies_s["itl"]["mean"] == pytest.approx(more.run.measured_s["itl"].mean())
    assert more.run.requests_per_s == pytest.approx(more.run.completed / more.run.duration_s)


def test_the_size_found_holds_and_one_less_does_not() -> None:
    question = asked().with_(limits=Limits(ttft=Limit(statistic="p95", seconds=0.08)), requests_per_s=400.0)
    outcome = search(question)
    assert outcome.best is not None
    found = verify(replace(outcome, answers=outcome.answers[:1])).answer
    assert found is not None and found.run is not None and meets(found.run, question.target.limits)
    fewer = simulated(Answer((with_count(found.pool, found.pool.count - 1, question),)), question)
    assert fewer.run is not None and not meets(fewer.run, question.target.limits)
    assert found.pool.capacity.amount * fewer.pool.count <= 400.0 * (1 + ROUNDING_SLACK)  # so the most of fewer says so


def steep(rate_per_s: float, power: float) -> float:
    """E2E in seconds at a rate of one replica: 2 s at 20 requests/s, and growing with a power of the rate."""
    return 2.0 * (rate_per_s / 20.0) ** power


@pytest.mark.parametrize("power", [0.0, 1.0, 6.0, 15.0])
@pytest.mark.parametrize("asked_of", [10.0, 40.0, 600.0])
@pytest.mark.parametrize("think_s", [0.0, 30.0])
def test_a_simulated_rate_serves_the_population_asked_for(power: float, asked_of: float, think_s: float) -> None:
    """Little's law, where E2E is what the closed form says, and where it is far off and steep in the rate."""
    question = asked().with_(requests_per_s=None, population=asked_of, think_time_s=think_s, limits=Limits())
    tried: list[float] = []

    def drive(of: Answer) -> Answer:
        tried.append(of.pool.point.requests_per_s)
        e2e_s = steep(tried[-1], power)
        return replace(of, run=replace(runs()[0], latencies_s=runs()[0].latencies_s | {"e2e": {"mean": e2e_s}}))

    first = Answer((with_count(size().pool, 1, question),))
    found = at_population(first, question.target, drive)
    rate, most = found.requests_per_s, highest_stable(first.pool.timed).requests_per_s
    served = rate * (steep(rate, power) + think_s)
    if most * (steep(most, power) + think_s) > asked_of:
        assert served == pytest.approx(asked_of, rel=VERIFY.population_within)
    assert serves_population(found, question.target) == (
        abs(np.log(served / asked_of)) <= np.log1p(VERIFY.population_within)
    )
    assert len(tried) <= VERIFY.population_rounds


def test_a_population_whose_queue_grows_is_looked_for_at_lower_rates() -> None:
    """Above 5 requests/s nothing is stable, so that what was measured there says nothing."""
    question = asked().with_(requests_per_s=None, population=200.0, think_time_s=30.0, limits=Limits())

    def drive(of: Answer) -> Answer:
        rate = of.pool.point.requests_per_s
        e2e = {"e2e": {"mean": 200.0 * (rate / 5.0) ** 12 if rate < 5.0 else 1000.0}}
        return replace(of, run=replace(runs()[0], stable=rate < 5.0, latencies_s=runs()[0].latencies_s | e2e))

    first = Answer((with_count(size().pool, 1, question),))
    found = at_population(first, question.target, drive)
    assert found.run is not None and found.run.stable and serves_population(found, question.target)


def test_a_population_that_no_rate_serves_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    question = asked().with_(requests_per_s=None, population=20.0, think_time_s=0.0, limits=Limits())
    first = Answer((with_count(size().pool, 1, question),))
    assert verdict_on(first, question).kept
    monkeypatch.setattr("sizing.answers.verify.serves_population", lambda *_: False)
    assert not verdict_on(first, question).kept
