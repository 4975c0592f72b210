"""The size of a plan: reserves, whole nodes, scaling and terms, by hand-worked numbers and laws."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from plan_builders import need
from scipy.stats import binom

from sizing import ask
from sizing.answers.answer import Answer
from sizing.answers.estimate import answer
from sizing.catalog.profiles import load_gpu
from sizing.planning import cloud, nodes
from sizing.planning.nodes import Fit
from sizing.planning.provision import Contracts, contracts
from sizing.planning.rules import ProvisionRules, of_times
from sizing.planning.size import need_of, reserve_of, size_of
from sizing.report.plan.sections import outlasts
from sizing.specs.demand import Scaling, replicas_for
from sizing.specs.gpu import Price

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


# --- availability ------------------------------------------------------------------------------------------------


def test_five_of_six_are_up() -> None:
    """0.99^6 + 6 * 0.99^5 * 0.01 = 0.941480 + 0.057060 = 0.998540."""
    assert nodes.up(6, 5, 0.99) == pytest.approx(0.998540, abs=5e-7)
    assert nodes.fewest(5, 0.99, 0.998) == 6
    assert nodes.fewest(5, 0.99, 0.999) == 7


def test_a_target_that_is_met_exactly_is_met() -> None:
    """At least 5 of 9 coins fall heads in half of all throws: the sum of 126 + 84 + 36 + 9 + 1 = 256 of 512 ways."""
    assert nodes.fewest(5, 0.5, 0.5) == 9
    assert nodes.fewest(5, 0.5, 0.5, ONE_NODE._replace(gpus_per_replica=8)) == 9


def test_availability_of_times() -> None:
    """Eight hours of repair after 792 hours: 792 / 800 = 0.99."""
    assert of_times(792, 8) == pytest.approx(0.99)


@given(st.integers(1, 300), st.integers(0, 30), st.floats(0.5, 1))
def test_the_chance_that_enough_are_up_is_binomial(k: int, spare: int, share: float) -> None:
    expected = binom.sf(k - 1, k + spare, share)
    assert nodes.up(k + spare, k, share) == pytest.approx(expected, abs=1e-9)


@given(st.integers(1, 200), st.floats(0.9, 0.9999), st.floats(0.9, 0.99999))
def test_the_fewest_are_enough_and_one_less_is_not(k: int, share: float, target: float) -> None:
    n = nodes.fewest(k, share, target)
    assert n is not None
    assert nodes.up(n, k, share) >= target - nodes.CHANCE_ROUNDING
    assert n == k or nodes.up(n - 1, k, share) < target


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
    assert nodes.up(n, k, share, fit) == pytest.approx(expected, abs=1e-9)


def test_a_shared_node_takes_more_than_one_replica_with_it() -> None:
    """Six replicas, four to a node, lie on two nodes of three: five are up only while both are: 0.99^2 = 0.9801."""
    assert nodes.up(6, 5, 0.99, Fit(2, 8)) == pytest.approx(0.9801)
    # Nine on three nodes of three keep six with one down: 0.99^3 + 3 * 0.99^2 * 0.01 = 0.999702.
    assert nodes.fewest(5, 0.99, 0.998, Fit(2, 8)) == 9


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
    assert nodes.packed(replicas.items(), 8) == -(-gpus // 8)


@given(st.dictionaries(st.integers(1, 20), st.integers(0, 20), min_size=1))
def test_nodes_hold_what_is_packed_and_no_more_than_apart(replicas: dict[int, int]) -> None:
    packed = nodes.packed(replicas.items(), 8)
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
    with pytest.raises(nodes.UnreachableError, match="no reserve of up to 2,000 replicas keeps 90,000 up"):
        reserve_of(90_000, ONE_NODE, ProvisionRules(availability=0.999, unit_availability=0.5))


# --- scaling ---------------------------------------------------------------------------------------------------------


def test_a_replica_is_delayed_by_the_slower_way_of_its_weights() -> None:
    """16 GB over 2 GB/s are 8 s, after 100 s for a node and before 60 s for the engine."""
    _, load_s, _ = found = cloud.delays_s(16, SCALING)
    assert (load_s, sum(found)) == (pytest.approx(8.0), pytest.approx(168.0))


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


def test_a_known_reserved_price_replaces_the_usual_discount_and_one_year_comes_before_three() -> None:
    stated = {"provider": "AWS", "sku": "p5", "gpus": 8, "date": "2026-11", "source": "a quote"}

    def offer(kind: str, usd: float) -> Price:
        return Price.model_validate(stated | {"kind": kind, "usd_per_gpu_hour": usd})

    here, three, one = offer("on-demand", 6.0), offer("3-year reserved", 2.0), offer("1-year reserved", 3.5)
    gpu = load_gpu("h100-sxm").spec
    for known, expected in (
        ((here, three, one), 3.5),
        ((here, three), 2.0),
        ((here,), 6.0 * (1 - SCALING.reserved_discount)),
    ):
        priced = gpu.model_copy(update={"prices": known})
        assert contracts(priced, (6.0, "here"), SCALING, here).reserved == pytest.approx(expected)


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


# --- uncertainty ----------------------------------------------------------------------------------------------------


def test_the_rate_of_a_replica_is_its_most_less_the_margin() -> None:
    question = ask("chat", gpu="mi300x", rps=20, ttft="p95:1s", itl="40ms")
    best = answer(question, simulated=False).answer
    assert best is not None
    careful = replace(best.pool, margin=1.3)
    count = replicas_for(20 * 1.3, careful.capacity.amount)
    need = need_of(Answer((replace(careful, count=count),)), question)
    assert need.per_replica == pytest.approx(careful.capacity.amount / 1.3)
    assert need.replicas() == count


@pytest.mark.parametrize(
    ("reserve", "base", "gpus", "said"),
    [
        (0, 4, 2, None),
        (1, 4, 2, "a failed node takes up to 4 replicas: --spare 4 outlasts it"),
        (4, 4, 2, "a failed node takes up to 4 replicas: the others keep the limits"),
        (1, 3, 16, "a failed node takes up to 1 replica: the others keep the limits"),  # a replica on several nodes
        # Six and three on three nodes: each has three.
        (1, 6, 2, "a failed node takes up to 4 replicas: --spare 3 outlasts it, with replicas spread evenly over nodes"),
        (3, 6, 2, "a failed node takes up to 4 replicas: the others keep the limits with replicas spread evenly over nodes"),
    ],
)  # fmt: skip
def test_a_reserve_says_whether_it_outlasts_a_failed_node(reserve: int, base: int, gpus: int, said: str | None) -> None:
    assert [line.text for line in outlasts(reserve, base, Fit(gpus, 8))] == ([] if said is None else [said])


@given(base=st.integers(1, 60), gpus=st.sampled_from([1, 2, 4, 8, 16]))
def test_the_smallest_reserve_outlasts_the_fullest_node(base: int, gpus: int) -> None:
    """Spread evenly, no node has more replicas than the reserve; with one replica less in reserve a node would."""
    fit = Fit(gpus, 8)
    found = fit.outlasting(base)
    fullest = [math.ceil((base + more) / max(1, fit.nodes(base + more))) for more in (found, found - 1)]
    assert fullest[0] <= found and (found == 1 or fullest[1] > found - 1)
