"""Growth of a plan: each month's size and cost, and when the next node is due."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from plan_builders import need

from sizing import ask, plan, plan_rules
from sizing.formats.words import monthly_growth, number
from sizing.planning import growth
from sizing.planning.nodes import Fit
from sizing.planning.rules import ProvisionRules
from sizing.planning.size import Need, size_of
from sizing.report.parts.growth import growth_lines
from sizing.specs.errors import InputError


def test_growth_until_a_date_and_the_next_node() -> None:
    """70 requests/s at 10 each take 7 GPUs, one node. By 1 March, 3 + 1/28 + ... months on, 70 * 1.05^3.1 > 80: two nodes.

    From 28 November to 1 November are 11 months (28 October) and 4 of 31 days: 1.05^11.129 = 1.7211, 120.5 requests/s.
    """

    def size(times: float) -> growth.GrownSize:
        found = size_of(need(70 * times), ProvisionRules())
        return found.replicas, found.gpus, found.nodes, None, None

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
    assert alone.fleet is not None and alone.sure_fleet is not None
    assert (then.gpus, then.gpus_sure) == (alone.fleet.gpus, alone.sure_fleet.gpus)
    assert then.gpus_sure > then.gpus
    three = grown._replace(at_date=then._replace(gpus=16, nodes=2, gpus_sure=18, nodes_sure=3))
    assert "16 GPUs in 2 nodes (18 in 3 to be sure)" in next(growth_lines(three)).text


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

    def size(times: float) -> growth.GrownSize:
        found = size_of(need(79 * times), ProvisionRules())
        return found.replicas, found.gpus, found.nodes, None, None

    early = growth.growing(0.05, date(2026, 12, 1), date(2026, 12, 5), size)
    assert early.at_date is not None and early.at_date.nodes == 1
    assert early.next_node is not None and early.next_node.month == "2026-12" and early.additions == ()
    late = growth.growing(0.05, date(2026, 12, 1), date(2026, 12, 20), size)
    assert [month.nodes for month in late.additions] == [2]


def test_a_node_after_the_date_is_due_only_if_growth_goes_on() -> None:
    """8 GPUs hold twice today's demand, which takes 14.2 months at 5 %: 2028-02. Growth until 2027-12 ends before, until 2028-03 after."""

    def size(times: float) -> growth.GrownSize:
        nodes = 1 if times <= 2 else 2
        return nodes, 8 * nodes, nodes, None, None

    ends = [growth.growing(0.05, date(2026, 12, 1), end, size) for end in (date(2027, 12, 1), date(2028, 3, 1), None)]
    assert [found.next_node and found.next_node.month for found in ends] == ["2028-02"] * 3
    assert [len(found.additions) for found in ends] == [0, 1, 0]
    first, within, _ = (" ".join(line.text for line in growth_lines(found)) for found in ends)
    assert "none before the growth ends; if it goes on after 2027-12-01, in 2028-02" in first
    assert "due in 2028-02: 16 GPUs in 2 nodes; when to order: --lead-time 12w" in within and "goes on" not in within


def test_the_sure_size_has_nodes_and_orders_at_dates_of_its_own() -> None:
    """8 GPUs hold twice today's demand, for sure 1.5 times: 8.3 months at 5 % are August 2027. 12 weeks before its first day: 9 May."""

    def size(times: float) -> growth.GrownSize:
        nodes, surely = 1 + (times > 2), 1 + (times > 1.5)
        return nodes, 8 * nodes, nodes, 8 * surely, surely

    found = growth.growing(0.05, date(2026, 12, 1), None, size, timedelta(weeks=12))
    assert found.next_node is not None and found.next_node_sure is not None
    assert (found.next_node.month, found.next_node.order_by) == ("2028-02", "2027-11-09")
    assert (found.next_node_sure.month, found.next_node_sure.order_by) == ("2027-08", "2027-05-09")
    dates = [(line.label, line.text) for line in growth_lines(found)][1:]
    assert dates == [
        ("Next node", "due in 2028-02: 16 GPUs in 2 nodes; order by 2027-11-09"),
        ("To be sure", "due in 2027-08: 16 GPUs in 2 nodes; order by 2027-05-09"),
    ]


@pytest.mark.parametrize(
    ("stated", "of_year"),
    [
        ("50%/year", 1.5),
        ("50 % per year", 1.5),
        ("0.5/Year", 1.5),
        ("200% a year", 3.0),
        ("3%/month", 1.03**12),
        ("10%/quarter", 1.1**4),
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
    found = growth.growing(0.0, date(2026, 1, 1), None, lambda times: (1, 8, 1, None, None))
    assert found.next_node is None and found.additions == ()


@pytest.mark.parametrize(
    ("months", "text"), [(0, "2026-11"), (1, "2026-12"), (2, "2027-01"), (14, "2028-01"), (13, "2027-12")]
)
def test_months_go_on_over_the_year(months: int, text: str) -> None:
    assert growth.month_after(date(2026, 11, 28), months) == text


def test_users_grow_as_users_not_as_their_rate() -> None:
    """159 users fill a replica. Users who wait longer ask less often: at 6.34 times 400 of them 16 replicas do, not 17."""
    one = Need(9.35, 3.595, 0.0, Fit(2, 8), 3, in_flight=False, most=3.595, users=400, users_per_replica=159)
    assert [one.grown(times).base for times in (1.0, 470 / 400, 6.34)] == [3, 3, 16]
    assert one.grown(2.0).grown(3.17).replicas() == one.replicas(6.34)
    assert one.with_replicas(4).replicas() == 4
