"""Workloads that share GPUs, and plans of uncertain inputs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from plan_builders import need
from scipy.stats import spearmanr

from sizing.catalog.profiles import load_gpu
from sizing.planning import fleet, uncertainty
from sizing.planning.fleet import Sharing, Tenant
from sizing.planning.nodes import Fit
from sizing.planning.provision import instances
from sizing.planning.rules import ProvisionRules
from sizing.planning.size import size_of
from sizing.planning.uncertainty import Uncertain
from sizing.question.demand import Demanded, Habits, Shape
from sizing.specs.bands import Band
from sizing.specs.gpu import Price
from sizing.specs.workload import Workload


def tenant(
    name: str,
    demand: float,
    weights: tuple[float, ...] = (),
    *,
    pool: Sharing = "shared",
    gpus: int = 1,
    rules: ProvisionRules | None = None,
) -> Tenant:
    rules = rules or ProvisionRules()
    shape = Shape("made up", weights, "made up", "assumed") if weights else None
    demanded = Demanded("requests_per_s", demand, demand, None, Habits(3, 24, 1), (), shape)
    own = need(demand, gpus=gpus)
    return Tenant(name, "gpu", pool, own, size_of(own, rules), demanded)


# --- fleet -----------------------------------------------------------------------------------------------------------

DAY = (1.0,) * 12 + (0.0,) * 12

NIGHT = (0.0,) * 12 + (1.0,) * 12


def test_loads_that_alternate_share_their_gpus() -> None:
    """Forty requests/s by day and thirty by night, ten each: 4 + 3 apart; together 4 + 1 that stays up, or 1 + 3."""
    both = (tenant("day", 40, DAY), tenant("night", 30, NIGHT))
    (pool,) = fleet.pools_of(both, ProvisionRules())
    assert (pool.gpus_sum_of_peaks, pool.gpus) == (7, 5)
    assert pool.gpus_by_hour == (5,) * 12 + (4,) * 12
    apart = fleet.pools_of([one._replace(pool="separate") for one in both], ProvisionRules())
    assert [one.gpus for one in apart] == [4, 3]


def test_a_shared_pool_has_one_reserve() -> None:
    rules = ProvisionRules(spare=2)
    both = (tenant("a", 40, gpus=2, rules=rules), tenant("b", 30, rules=rules))
    (pool,) = fleet.pools_of(both, rules)
    assert pool.gpus == 4 * 2 + 3 + 2 * 2
    assert pool.gpus_sum_of_peaks == 6 * 2 + 5


def test_targets_of_workloads_in_one_pool_add_up() -> None:
    """Five of five need two more each for 99.9 % at 99 %; one reserve for both would be short of two at a time."""
    rules = ProvisionRules(availability=0.999, unit_availability=0.99)
    both = (tenant("a", 50, rules=rules), tenant("b", 50, rules=rules))
    (pool,) = fleet.pools_of(both, rules)
    assert pool.gpus == pool.gpus_sum_of_peaks == 14


def test_a_pool_says_what_its_one_reserve_saves() -> None:
    """One spare each of 2 GPUs and of 1: the pool keeps the larger, 2 of the 3 GPUs that they would have apart."""
    rules = ProvisionRules(spare=1)
    both = (tenant("a", 40, gpus=2, rules=rules), tenant("b", 30, rules=rules))
    (pool,) = fleet.pools_of(both, rules)
    assert (pool.reserve_gpus, pool.reserve_gpus_apart) == (2, 3)
    assert pool.gpus_sum_of_peaks - pool.gpus == 1  # the spare GPU, no hour


def test_instances_hold_whole_replicas() -> None:
    """Five replicas of 2 GPUs: 5 instances of 2, or 2 of 8 (4 each); at half the price a GPU the latter, 16 GPUs, cost less.

    Instances of 1 GPU hold no replica of 2, however cheap.
    """
    gpu = load_gpu("h100-sxm").spec

    def of(gpus: int, usd: float) -> Price:
        return Price(
            provider="P",
            sku=f"{gpus}x",
            kind="on-demand",
            gpus=gpus,
            usd_per_gpu_hour=usd,
            date="2026",
            source="made up",
        )

    (pool,) = fleet.pools_of((tenant("a", 50, gpus=2),), ProvisionRules())
    priced = gpu.model_copy(update={"prices": (of(1, 0.1), of(2, 4.0), of(8, 2.0))})
    found = instances((pool,), priced, "p")
    assert (found.offer.sku, found.by_hour, found.gpus_by_hour, found.joined) == ("8x", (2,), (16,), True)
    assert found.usd_per_hour == pytest.approx(32.0)
    dearer = gpu.model_copy(update={"prices": (of(1, 0.1), of(2, 4.0), of(8, 3.0))})
    assert instances((pool,), dearer, "p").gpus_by_hour == (10,)
    single = gpu.model_copy(update={"prices": (of(1, 0.1),)})
    assert not instances((pool,), single, "p").joined


def test_draws_pay_for_whole_instances() -> None:
    """Ten GPUs of replicas of 2 in instances of 8 are two, 16 GPUs; replicas of 3 leave 2 of 8 idle: 12 GPUs take 16 too."""
    for gpus, size, paid in ((10.0, 2, 16.0), (12.0, 3, 16.0), (13.0, 1, 16.0), (48.0, 16, 48.0)):
        assert uncertainty._paid_for(np.array([gpus]), [Fit(size, 8)], 8).tolist() == [paid]


def test_a_day_and_a_week_have_the_hours_of_a_week() -> None:
    week = (1.0,) * 120 + (0.5,) * 48
    members = (tenant("day", 40, DAY), tenant("week", 30, week), tenant("even", 20))
    assert fleet.hours_of(members) == 168
    assert len(fleet.pools_of(members, ProvisionRules())[0].gpus_by_hour) == 168


weights = st.lists(st.floats(0, 1), min_size=24, max_size=24).map(lambda found: (*found[:23], 1.0))


@given(
    st.lists(st.tuples(st.floats(1, 500), weights, st.sampled_from([1, 2, 4])), min_size=1, max_size=4),
    st.integers(0, 3),
)
def test_the_peak_of_sums_is_at_most_the_sum_of_peaks(
    loads: list[tuple[float, tuple[float, ...], int]], spare: int
) -> None:
    rules = ProvisionRules(spare=spare)
    members = [tenant(f"{i}", rate, shape, gpus=gpus, rules=rules) for i, (rate, shape, gpus) in enumerate(loads)]
    (pool,) = fleet.pools_of(members, rules)
    assert pool.gpus <= pool.gpus_sum_of_peaks == sum(one.size.gpus for one in members)
    assert pool.gpus >= max(one.size.gpus for one in members)
    assert pool.nodes * 8 >= pool.gpus
    alone = fleet.pools_of([one._replace(pool="separate") for one in members], rules)
    assert Counter(one.gpus for one in alone) == Counter(one.size.gpus for one in members)


# --- uncertainty ----------------------------------------------------------------------------------------------------


def uncertain(band: Band | None = None, price: float | None = 2.0, **planning: Any) -> Uncertain:
    stated = Workload.model_validate(
        {
            "model": "m",
            "tokens": {"isl": 1, "osl": 1},
            "demand": {"daily_active_users": 864_000},
            "planning": {"requests_per_user_per_day": 10, "active_hours": 24, "peak_to_mean": 1, **planning},
        }
    )
    return Uncertain(tenant("one", 100.0), stated, band, price)


BAND = Band(metric="throughput", low=0.8, high=1.25, n=100, groups=10)


def test_nothing_uncertain_gives_one_size() -> None:
    """100 requests/s at ten each: ten GPUs at 2 $/h, 730 h a month."""
    found = uncertainty.draw_sizes([uncertain()], ProvisionRules(spare=1), seed=1)
    assert found.gpus == (11.0, 11.0, 11.0)
    assert found.usd_per_month is not None and found.usd_per_month.p50 == pytest.approx(11 * 2 * 730)
    assert found.influences == ()


def test_a_range_of_demand_is_drawn_evenly() -> None:
    """Peaks of one to three times 100 requests/s: 1.2, 2 and 2.8 times at P10, P50 and P90, so 12, 20 and 28 GPUs."""
    found = uncertainty.draw_sizes([uncertain(peak_to_mean="1..3")], ProvisionRules(), seed=1)
    assert found.gpus.p10 == pytest.approx(12, abs=1) and found.gpus.p90 == pytest.approx(28, abs=1)
    assert found.gpus.p50 == pytest.approx(20, abs=1)


def test_the_models_error_has_the_bands_ends_as_p10_and_p90() -> None:
    """What a replica serves is 0.8 to 1.25 times as much: 100 / 12.5 = 8 to 100 / 8 = 12.5, so 13 GPUs."""
    found = uncertainty.draw_sizes([uncertain(BAND)], ProvisionRules(), seed=1, draws=40_000)
    assert found.gpus.p10 in (8, 9) and found.gpus.p90 in (12, 13)
    assert found.influences[0].rank_correlation < -0.95


def test_equal_seeds_give_equal_draws_and_what_matters_most_comes_first() -> None:
    asked = [uncertain(BAND, peak_to_mean="1..5", requests_per_user_per_day="9..11", price_uncertainty=0.2)]
    first, again = (uncertainty.draw_sizes(asked, ProvisionRules(), seed=7) for _ in range(2))
    assert first == again
    assert first != uncertainty.draw_sizes(asked, ProvisionRules(), seed=8)
    assert first.influences[0].input == "planning.peak_to_mean"
    strengths = [abs(one.rank_correlation) for one in first.influences]
    assert strengths == sorted(strengths, reverse=True)
    assert {one.input: one.of for one in first.influences}["price"] == "cost"
    assert first.usd_per_month is not None
    assert first.usd_per_month.p10 <= first.usd_per_month.p50 <= first.usd_per_month.p90


@pytest.mark.parametrize(
    "rules",
    [
        ProvisionRules(),
        ProvisionRules(spare=2),
        ProvisionRules(maintenance=True, availability=0.999, unit_availability=0.99),
    ],
)
@pytest.mark.parametrize("pool", ["shared", "separate"])
def test_certain_draws_are_the_plan(rules: ProvisionRules, pool: Sharing) -> None:
    """A fleet of which nothing is uncertain is sized by the draws as by the plan itself."""
    both = [
        tenant("day", 40, DAY, gpus=2, pool=pool, rules=rules),
        tenant("night", 90, NIGHT, pool=pool, rules=rules),
    ]
    asked = [uncertain()._replace(tenant=one) for one in both]
    found = uncertainty.draw_sizes(asked, rules, seed=1, draws=10)
    assert found.gpus.p10 == found.gpus.p90 == sum(one.gpus for one in fleet.pools_of(both, rules))


def test_without_a_price_there_is_no_cost() -> None:
    assert uncertainty.draw_sizes([uncertain(BAND, price=None)], ProvisionRules(), seed=1).usd_per_month is None


@given(st.lists(st.integers(0, 9), min_size=3, max_size=50), st.randoms(use_true_random=False))
def test_the_rank_correlation_is_spearmans(values: list[int], random: Any) -> None:
    other = [random.randint(0, 9) for _ in values]
    one, two = np.array(values, dtype=float), np.array(other, dtype=float)
    assume(one.std() > 0 and two.std() > 0)
    assert uncertainty.rank_correlation(one, two) == pytest.approx(spearmanr(one, two).statistic)
