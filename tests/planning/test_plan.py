"""Capacity planning: reserves, whole nodes, growth, scaling, pools and draws, by hand-worked numbers and laws."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pytest
from builders import data
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binom, spearmanr

from sizing import ask, plan, plan_rules
from sizing.answers.answer import Answer
from sizing.answers.estimate import answer
from sizing.catalog.profiles import load_gpu
from sizing.formats.words import monthly_growth, number
from sizing.planning import availability, cloud, fleet, growth, nodes, uncertainty
from sizing.planning.fleet import Sharing, Tenant
from sizing.planning.instances import Contracts, instances
from sizing.planning.nodes import Fit
from sizing.planning.rules import ProvisionRules, of_times
from sizing.planning.size import Need, need_of, reserve_of, size_of
from sizing.planning.uncertainty import Uncertain
from sizing.question.demand import Demanded, Habits, Shape
from sizing.specs.bands import Band
from sizing.specs.demand import Scaling, replicas_for
from sizing.specs.errors import InputError
from sizing.specs.gpu import Price
from sizing.specs.workload import Workload

ONE_NODE = Fit(1, 8)
SCALING = Scaling(
    network_gb_per_s=2.0,
    disk_gb_per_s=4.0,
    engine_start_s=60.0,
    node_start_s=100.0,
    min_replicas=1,
    reserved_discount=0.35,
    spot_discount=0.6,
    source="made up",
    date="2026-11-28",
)


def need(demand: float, per_replica: float = 10.0, *, gpus: int = 1, headroom: float = 0.0) -> Need:
    found = Need(demand, per_replica, headroom, Fit(gpus, 8), 0, False)
    return replace(found, base=found.replicas())


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


# --- availability ------------------------------------------------------------------------------------------------


def test_five_of_six_are_up() -> None:
    """0.99^6 + 6 * 0.99^5 * 0.01 = 0.941480 + 0.057060 = 0.998540."""
    assert availability.up(6, 5, 0.99) == pytest.approx(0.998540, abs=5e-7)
    assert availability.fewest(5, 0.99, 0.998) == 6
    assert availability.fewest(5, 0.99, 0.999) == 7


def test_a_target_that_is_met_exactly_is_met() -> None:
    """At least 5 of 9 coins fall heads in half of all throws: the sum of 126 + 84 + 36 + 9 + 1 = 256 of 512 ways."""
    assert availability.fewest(5, 0.5, 0.5) == 9
    assert availability.fewest(5, 0.5, 0.5, ONE_NODE._replace(gpus_per_replica=8)) == 9


def test_availability_of_times() -> None:
    """Eight hours of repair after 792 hours: 792 / 800 = 0.99."""
    assert of_times(792, 8) == pytest.approx(0.99)


@given(st.integers(1, 300), st.integers(0, 30), st.floats(0.5, 1))
def test_the_chance_that_enough_are_up_is_binomial(k: int, spare: int, share: float) -> None:
    expected = binom.sf(k - 1, k + spare, share)
    assert availability.up(k + spare, k, share) == pytest.approx(expected, abs=1e-9)


@given(st.integers(1, 200), st.floats(0.9, 0.9999), st.floats(0.9, 0.99999))
def test_the_fewest_are_enough_and_one_less_is_not(k: int, share: float, target: float) -> None:
    n = availability.fewest(k, share, target)
    assert n is not None
    assert availability.up(n, k, share) >= target - availability.CHANCE_ROUNDING
    assert n == k or availability.up(n - 1, k, share) < target


@given(st.integers(1, 24), st.integers(0, 12), st.integers(1, 8), st.floats(0.6, 0.99))
def test_replicas_that_fail_with_their_nodes_agree_with_every_case_counted(
    k: int, spare: int, each: int, share: float
) -> None:
    n, fit = k + spare, Fit(1, each)
    held = fit.nodes(n)
    assume(held <= 10)
    sizes = [n // held + (node < n % held) for node in range(held)]
    expected = sum(
        math.prod(share if up else 1 - share for up in state)
        for state in itertools.product((True, False), repeat=held)
        if sum(size for size, up in zip(sizes, state, strict=True) if up) >= k
    )
    assert availability.up(n, k, share, fit) == pytest.approx(expected, abs=1e-9)


def test_a_shared_node_takes_more_than_one_replica_with_it() -> None:
    """Six replicas, four to a node, lie on two nodes of three: five are up only while both are: 0.99^2 = 0.9801."""
    assert availability.up(6, 5, 0.99, Fit(2, 8)) == pytest.approx(0.9801)
    # Nine on three nodes of three keep six with one down: 0.99^3 + 3 * 0.99^2 * 0.01 = 0.999702.
    assert availability.fewest(5, 0.99, 0.998, Fit(2, 8)) == 9


# --- nodes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "replicas", "count"),
    [(1, 20, 3), (2, 5, 2), (2, 4, 1), (8, 3, 3), (3, 4, 2), (16, 3, 6), (12, 2, 4)],
)
def test_replicas_fill_whole_nodes(gpus: int, replicas: int, count: int) -> None:
    """Of 8 GPUs: two replicas of 3 fit a node, one of 16 takes two nodes, one of 12 as well."""
    assert Fit(gpus, 8).nodes(replicas) == count


@given(st.dictionaries(st.sampled_from([1, 2, 4, 8]), st.integers(0, 40), min_size=1))
def test_sizes_that_divide_a_node_leave_no_gap(replicas: dict[int, int]) -> None:
    gpus = sum(size * count for size, count in replicas.items())
    assert nodes.packed(replicas, 8) == -(-gpus // 8)


@given(st.dictionaries(st.integers(1, 20), st.integers(0, 20), min_size=1))
def test_nodes_hold_what_is_packed_and_no_more_than_apart(replicas: dict[int, int]) -> None:
    packed = nodes.packed(replicas, 8)
    gpus = sum(size * count for size, count in replicas.items())
    assert packed * 8 >= gpus
    assert packed <= sum(Fit(size, 8).nodes(count) for size, count in replicas.items())


# --- size ------------------------------------------------------------------------------------------------------------


def test_rounding_up_is_done_once() -> None:
    """10 requests/s with 20 % headroom at 3 a replica: 12 / 3 = 4 replicas, of two GPUs on one node."""
    size = size_of(need(10, 3, gpus=2, headroom=0.2), ProvisionRules())
    assert (size.base, size.replicas, size.gpus, size.nodes) == (4, 4, 8, 1)


@given(st.floats(1, 1e5), st.integers(0, 50), st.sampled_from([1, 2, 4, 8, 16]))
def test_spare_adds_exactly_as_many_replicas(demand: float, spare: int, gpus: int) -> None:
    without = size_of(need(demand, gpus=gpus), ProvisionRules())
    with_spare = size_of(need(demand, gpus=gpus), ProvisionRules(spare=spare))
    assert with_spare.replicas == without.replicas + spare
    assert with_spare.gpus == without.gpus + spare * gpus
    assert with_spare.nodes >= without.nodes


@given(st.floats(1, 1e4), st.floats(1, 5), st.floats(0.9, 0.999))
def test_more_demand_never_needs_fewer(demand: float, times: float, target: float) -> None:
    rules = ProvisionRules(spare=1, availability=target, unit_availability=0.99, maintenance=True)
    few, many = size_of(need(demand), rules), size_of(need(demand * times), rules)
    assert many.replicas >= few.replicas and many.gpus >= few.gpus and many.nodes >= few.nodes


def test_reserves_for_failures_are_one_and_maintenance_comes_on_top() -> None:
    """Five of five need two more for 99.9 % at 99 %; three spare cover them; a node of eight is out for maintenance."""
    rules = ProvisionRules(spare=3, availability=0.999, unit_availability=0.99, maintenance=True)
    found = reserve_of(5, ONE_NODE, rules)
    assert (found.spare, found.for_availability, found.failures, found.maintenance) == (3, 2, 3, 8)
    assert found.replicas == 11
    assert (
        reserve_of(5, Fit(16, 8), ProvisionRules(maintenance=True)).replicas == 1
    )  # a replica that spans two nodes is lost


def test_a_replica_over_two_nodes_needs_both() -> None:
    """0.99^2 = 0.9801: P(5 of 6) = 0.9801^6 + 6 * 0.9801^5 * 0.0199 = 0.88638 + 0.10799 = 0.99437."""
    rules = ProvisionRules(availability=0.995, unit_availability=0.99)
    assert reserve_of(5, Fit(16, 8), rules).for_availability == 2
    assert reserve_of(5, Fit(8, 8), rules).for_availability == 1


def test_a_target_out_of_reach_is_said() -> None:
    with pytest.raises(availability.UnreachableError, match="no reserve of up to 2,000 replicas keeps 90,000 up"):
        reserve_of(90_000, ONE_NODE, ProvisionRules(availability=0.999, unit_availability=0.5))


# --- growth ----------------------------------------------------------------------------------------------------------


def test_growth_until_a_date_and_the_next_node() -> None:
    """70 requests/s at 10 each take 7 GPUs, one node. By 1 March, 3 + 1/28 + ... months on, 70 * 1.05^3.1 > 80: two nodes.

    From 28 November to 1 November are 11 months (28 October) and 4 of 31 days: 1.05^11.129 = 1.7211, 120.5 requests/s.
    """

    def size(times: float) -> tuple[int, int, int]:
        found = size_of(need(70 * times), ProvisionRules())
        return found.replicas, found.gpus, found.nodes

    found = growth.growing(0.05, date(2026, 11, 28), date(2027, 11, 1), size)
    assert found.next_node is not None and (found.next_node.month, found.next_node.nodes) == ("2027-02", 2)
    assert found.at_date is not None and found.at_date.month == "2027-11"
    assert found.at_date.times == pytest.approx(1.05 ** (11 + 4 / 31))
    assert found.at_date.gpus == 13
    assert found.until == "2027-11-01"
    assert [month.month for month in found.additions] == ["2027-02"]


def test_the_sure_count_grows_as_a_plan_of_the_grown_demand() -> None:
    """A rate grown by 5 % a month for a year takes the expected and the sure GPUs that it takes when it is asked for itself."""
    asked = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "isl": 1000, "osl": 200, "itl": "40ms", "tp": 1}
    rules = plan_rules(growth="5%", start="2026-12", until="2027-12")
    grown = plan(ask(**asked, rps=100), rules, simulated=False).growth
    then = None if grown is None else grown.at_date
    assert then is not None
    alone = plan(ask(**asked, rps=100 * then.times), plan_rules(), simulated=False)
    assert alone.fleet is not None and alone.sure is not None
    assert (then.gpus, then.gpus_sure) == (alone.fleet.gpus, alone.sure.gpus)
    assert then.gpus_sure > then.gpus


def test_each_month_is_paid_at_the_size_of_its_end() -> None:
    """Two months and 4 of 31 days: at 10 % a month 1.1, 1.21 and 1.1^2.129 times, of which the last is 0.129 of a month."""
    found = list(growth.paid_months(0.1, date(2026, 11, 28), date(2027, 2, 1)))
    part = 4 / 31
    assert found == [
        (pytest.approx(1.1), 1),
        (pytest.approx(1.21), 1),
        (pytest.approx(1.1 ** (2 + part)), pytest.approx(part)),
    ]


@pytest.mark.parametrize(
    ("start", "end", "months"),
    [
        (date(2026, 11, 30), date(2026, 12, 1), 1 / 30),  # of the 30 days to 30 December
        (date(2026, 11, 28), date(2027, 11, 28), 12),
        (date(2027, 1, 31), date(2027, 2, 28), 1),  # the last day of a shorter month
        (date(2026, 12, 15), date(2027, 1, 1), 17 / 31),
    ],
)
def test_months_count_their_days(start: date, end: date, months: float) -> None:
    assert growth.months_between(start, end) == pytest.approx(months)


def test_a_node_that_only_the_rest_of_the_last_month_takes_is_not_yet_added() -> None:
    """From 79 requests/s at 5 % a month, 80 are reached after 0.26 months, 8 December, and not by 5 December."""

    def size(times: float) -> tuple[int, int, int]:
        found = size_of(need(79 * times), ProvisionRules())
        return found.replicas, found.gpus, found.nodes

    early = growth.growing(0.05, date(2026, 12, 1), date(2026, 12, 5), size)
    assert early.at_date is not None and early.at_date.nodes == 1
    assert early.next_node is not None and early.next_node.month == "2026-12" and early.additions == ()
    late = growth.growing(0.05, date(2026, 12, 1), date(2026, 12, 20), size)
    assert [month.nodes for month in late.additions] == [2]


@pytest.mark.parametrize(
    ("stated", "of_year"),
    [
        ("50%/year", 1.5),
        ("50 % per year", 1.5),
        ("0.5/Year", 1.5),
        ("200% a year", 3.0),
        ("3%/month", 1.03**12),
        (0.03, 1.03**12),
    ],
)
def test_a_growth_has_a_period_and_is_per_month_without_one(stated: str | float, of_year: float) -> None:
    per_month = plan_rules(growth=stated).growth_per_month
    assert per_month is not None and (1 + per_month) ** 12 == pytest.approx(of_year)
    assert f"({number((of_year - 1) * 100)} % a year)" in monthly_growth(per_month)


@pytest.mark.parametrize("stated", ["50%/week", "x/year", "2/year", "/year", "-5%/month"])
def test_a_growth_with_another_period_or_without_a_share_is_a_fault(stated: str) -> None:
    with pytest.raises(InputError, match="50%/year"):
        plan_rules(growth=stated)


def test_without_growth_no_node_is_due() -> None:
    found = growth.growing(0.0, date(2026, 1, 1), None, lambda times: (1, 8, 1))
    assert found.next_node is None and found.additions == ()


@pytest.mark.parametrize(
    ("months", "text"), [(0, "2026-11"), (1, "2026-12"), (2, "2027-01"), (14, "2028-01"), (13, "2027-12")]
)
def test_months_go_on_over_the_year(months: int, text: str) -> None:
    assert growth.month_after(date(2026, 11, 28), months) == text


# --- scaling ---------------------------------------------------------------------------------------------------------


def test_a_replica_is_delayed_by_the_slower_way_of_its_weights() -> None:
    """16 GB over 2 GB/s are 8 s, after 100 s for a node and before 60 s for the engine."""
    found = cloud.delay(16e9, SCALING)
    assert (found.load_s, found.total_s) == (pytest.approx(8.0), pytest.approx(168.0))


def test_requests_above_what_is_up_while_more_load_are_at_risk() -> None:
    """From 10/s on one replica of 10 to 30/s: 20/s too many for 360 s, 7,200 of (10 + 30) * 3,600 = 144,000 requests."""
    rates = [10.0, 30.0]
    assert cloud.at_risk(rates, [1, 3], 10.0, 360.0) == pytest.approx(20 * 360 / (40 * 3600))
    assert cloud.at_risk(rates, [3, 3], 10.0, 360.0) == 0
    assert cloud.at_risk([0.0, 0.0], [1, 1], 10.0, 360.0) == 0


@given(st.lists(st.floats(0, 1000), min_size=2, max_size=48), st.floats(0, 1e5))
def test_a_share_at_risk_is_a_share(rates: list[float], delay_s: float) -> None:
    replicas = [max(1, math.ceil(rate / 10)) for rate in rates]
    assert 0 <= cloud.at_risk(rates, replicas, 10.0, delay_s) <= 1


def terms(reserved: float, on_demand: float, spot: float) -> Contracts:
    return Contracts(on_demand, "", reserved, "", spot, "")


def test_a_gpu_is_reserved_where_its_hours_are_worth_it() -> None:
    """At 6 against 10 $/h a GPU is reserved that is used in 60 % of the hours or more: two of four here.

    A month of 730 h: 2 * 6 * 730 + (365 + 182.5) on demand, half of it spot at 4.
    """
    gpus = [2, 2, 3, 4]
    assert cloud.reserved(gpus, 6.0, 10.0) == 2
    found = cloud.mix("H100", gpus, terms(6.0, 10.0, 4.0), 0.5)
    assert found.on_demand_gpu_hours_per_month == found.spot_gpu_hours_per_month == pytest.approx(3 * 182.5 / 2)
    assert found.usd_per_month == pytest.approx(2 * 6 * 730 + 3 * 182.5 * 7)
    assert found.usd_per_month_all_on_demand == pytest.approx(11 * 182.5 * 10)
    assert found.usd_per_month_peak_always_on == pytest.approx(4 * 730 * 10)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=48), st.floats(0.1, 1))
def test_the_mix_is_the_cheapest_base(gpus: list[int], price: float) -> None:
    best = cloud.mix("H100", gpus, terms(price, 1.0, 0.0), 0.0)

    def usd(base: int) -> float:
        above = sum(max(0, g - base) for g in gpus)
        return (base * price * len(gpus) + above) * cloud.HOURS_PER_MONTH / len(gpus)

    assert best.usd_per_month == pytest.approx(min(usd(base) for base in range(max(gpus) + 1)))
    assert best.usd_per_month <= best.usd_per_month_all_on_demand * (1 + 1e-12)


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
    return Uncertain(tenant("one", 100.0), stated, data().defaults, band, price)


BAND = Band(metric="throughput", low=0.8, high=1.25, n=100, groups=10)


def test_nothing_uncertain_gives_one_size() -> None:
    """100 requests/s at ten each: ten GPUs at 2 $/h, 730 h a month."""
    found = uncertainty.simulate([uncertain()], ProvisionRules(spare=1), seed=1)
    assert found.gpus == (11.0, 11.0, 11.0)
    assert found.usd_per_month is not None and found.usd_per_month.p50 == pytest.approx(11 * 2 * 730)
    assert found.influences == ()


def test_a_range_of_demand_is_drawn_evenly() -> None:
    """Peaks of one to three times 100 requests/s: 1.2, 2 and 2.8 times at P10, P50 and P90, so 12, 20 and 28 GPUs."""
    found = uncertainty.simulate([uncertain(peak_to_mean="1..3")], ProvisionRules(), seed=1)
    assert found.gpus.p10 == pytest.approx(12, abs=1) and found.gpus.p90 == pytest.approx(28, abs=1)
    assert found.gpus.p50 == pytest.approx(20, abs=1)


def test_the_models_error_has_the_bands_ends_as_p10_and_p90() -> None:
    """What a replica serves is 0.8 to 1.25 times as much: 100 / 12.5 = 8 to 100 / 8 = 12.5, so 13 GPUs."""
    found = uncertainty.simulate([uncertain(BAND)], ProvisionRules(), seed=1, draws=40_000)
    assert found.gpus.p10 in (8, 9) and found.gpus.p90 in (12, 13)
    assert found.influences[0].rank_correlation < -0.95


def test_equal_seeds_give_equal_draws_and_what_matters_most_comes_first() -> None:
    asked = [uncertain(BAND, peak_to_mean="1..5", requests_per_user_per_day="9..11", price_uncertainty=0.2)]
    first, again = (uncertainty.simulate(asked, ProvisionRules(), seed=7) for _ in range(2))
    assert first == again
    assert first != uncertainty.simulate(asked, ProvisionRules(), seed=8)
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
    found = uncertainty.simulate(asked, rules, seed=1, draws=10)
    assert found.gpus.p10 == found.gpus.p90 == sum(one.gpus for one in fleet.pools_of(both, rules))


def test_without_a_price_there_is_no_cost() -> None:
    assert uncertainty.simulate([uncertain(BAND, price=None)], ProvisionRules(), seed=1).usd_per_month is None


@given(st.lists(st.integers(0, 9), min_size=3, max_size=50), st.randoms(use_true_random=False))
def test_the_rank_correlation_is_spearmans(values: list[int], random: Any) -> None:
    other = [random.randint(0, 9) for _ in values]
    one, two = np.array(values, dtype=float), np.array(other, dtype=float)
    assume(one.std() > 0 and two.std() > 0)
    assert uncertainty.rank_correlation(one, two) == pytest.approx(spearmanr(one, two).statistic)


def test_the_rate_of_a_replica_is_its_most_less_the_margin() -> None:
    question = ask("chat", gpu="mi300x", rps=20, ttft="p95:1s", itl="40ms")
    best = answer(question, data(), simulated=False).answer
    assert best is not None
    careful = replace(best.pool, margin=1.3)
    count = replicas_for(20 * 1.3, careful.capacity.amount)
    need = need_of(Answer((replace(careful, count=count),)), question)
    assert need.per_replica == pytest.approx(careful.capacity.amount / 1.3)
    assert need.replicas() == count
