"""Money and energy: the worked values of NVIDIA's TCO example, and laws of break-even, servers and prices."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.answers.estimate import estimate
from sizing.catalog import prices, profiles, servers
from sizing.planning import break_even, tco
from sizing.planning.break_even import CostCurve, crossing, payback_months
from sizing.planning.cost import Ways, cost
from sizing.planning.offers import ApiPrices, BreakEven, api, compared, own, rented
from sizing.planning.tco import OwnServer
from sizing.planning.usage import ByLoad, Usage
from sizing.question.ask import ask
from sizing.report.parts.costs import when_cheaper
from sizing.specs import units
from sizing.specs.errors import InputError

# NVIDIA's example: $320,000 over 4 years, $3,000 hosting, $4,500 licence for each of 8 GPUs; power is in the hosting.
EXAMPLE = OwnServer(
    gpus=8,
    price_usd=320_000,
    network_share=0,
    residual_usd=0,
    depreciation_years=4,
    interest_rate=0,
    hosting_usd_per_year=3_000,
    licence_usd_per_gpu_year=4_500,
    staff_share=0,
    staff_usd_per_year=0,
    power_w=10_200,
    idle_share=0.3,
    pue=1.3,
    usd_per_kwh=0,
    uptime=1,
)
OWN_FILE = """\
price_usd: 320000
depreciation_years: 4
hosting_usd_per_year: 3000
licence_usd_per_gpu_year: 4500
network_share: 0
staff_share: 0
usd_per_kwh: 0
server_power_w: 10200
"""
# 41.6 requests/s a server of 8 replicas; the peak of 200/s takes 39 of them, 7 times the mean of 28.539/s.
# Of the 24 hours one has the peak, the others (24 - 7) / 23 of the mean each, 0.10559 of the peak.
HOURS = (1.0, *[(24 - 7) / 23 / 7] * 23)
SERVED = Usage("H100", 2000, 200, 39, 1, 41.6 / 8, 3.0, ByLoad(0.5, 0.4), "mean_load", 28.539, 7.0, HOURS, "as tested")


def h100() -> tuple[str, profiles.Gpu]:
    found = profiles.load_gpu("h100-sxm")
    return found.id, found.spec


def own_file(folder: Path, text: str = OWN_FILE) -> servers.CompleteServer:
    path = folder / "own.yaml"
    path.write_text(text)
    return servers.complete_server(servers.load_server(str(path)), *h100())


# --- formulas -------------------------------------------------------------------------------------


def test_capital_recovery_factor() -> None:
    # 0.08 * 1.08^4 / (1.08^4 - 1) = 0.08 * 1.36048896 / 0.36048896 = 0.301921; without interest 1/4
    assert tco.capital_recovery_factor(0.08, 4) == pytest.approx(0.301921, abs=5e-7)
    assert tco.capital_recovery_factor(0, 4) == 0.25
    assert tco.capital_recovery_factor(1e-12, 4) == pytest.approx(0.25, rel=1e-9)


def test_a_residual_value_bears_interest_and_is_not_paid_off() -> None:
    # straight line: (100 - 20)/4 = 20; at 8 %: 0.301921 * 80 + 0.08 * 20 = 25.7537
    assert tco.capital_usd_per_year(100, 20, 0, 4) == pytest.approx(20)
    assert tco.capital_usd_per_year(100, 20, 0.08, 4) == pytest.approx(25.7537, abs=1e-4)


def test_the_worked_server_costs_119_000_a_year() -> None:
    # 320,000/4 + 3,000 + 8 * 4,500
    assert tco.server_year(EXAMPLE, 1.0).total == pytest.approx(119_000)
    assert 200 / 41.6 * tco.server_year(EXAMPLE, 1.0).total == pytest.approx(572_115, abs=0.5)


def test_power_grows_from_its_idle_share_with_the_load() -> None:
    # 10.2 kW * (0.3 + 0.7 * 0.5) = 6.63 kW at half load; * 1.3 * 0.12 * 8,760 h = 9,060
    paid = EXAMPLE._replace(usd_per_kwh=0.12)
    assert tco.power_w(10_200, 0.3, 0.5) == pytest.approx(6_630)
    assert tco.server_year(paid, 0.5).power == pytest.approx(9_060.3, abs=0.1)
    assert tco.server_year(paid, 0.0).power == pytest.approx(0.3 * tco.server_year(paid, 1.0).power)


def test_network_and_staff_are_shares() -> None:
    # network 10 % of 320,000 over 4 years; a twentieth of $150,000
    year = tco.server_year(EXAMPLE._replace(network_share=0.1, staff_share=0.05, staff_usd_per_year=150_000), 1.0)
    assert (year.network, year.staff) == (pytest.approx(8_000), pytest.approx(7_500))
    assert year.running == pytest.approx(3_000 + 36_000 + 7_500)


@pytest.mark.parametrize(
    ("usd", "rate", "expected"),
    [
        (119_000, 41.6, 0.090708),  # one server against what one server serves, not 4.8 servers against one
        (595_000, 28.539, 0.6611),  # five servers against the real mean load
        (119_000, 70.747, 0.05334),
    ],
)
def test_cost_per_1k_requests(usd: float, rate: float, expected: float) -> None:
    assert tco.usd_per_1k_requests(usd, rate) == pytest.approx(expected, rel=1e-4)


def test_what_is_served_while_down_is_nothing() -> None:
    assert tco.usd_per_1k_requests(119_000, 41.6, 0.5) == pytest.approx(2 * tco.usd_per_1k_requests(119_000, 41.6))


def test_the_split_by_price_ratio() -> None:
    # 90.708 / (2000 + 3 * 200) = 0.034888; times 3
    found = tco.split_by_ratio(0.090708, 2000, 200, 3)
    assert found.input == pytest.approx(0.034888, abs=1e-6)
    assert found.output == pytest.approx(0.104663, abs=2e-6)
    assert found.total == pytest.approx(90.708 / 2200)
    assert found.output_bearing_all == pytest.approx(90.708 / 200)


@given(
    usd=st.floats(1e-6, 1e3), isl=st.integers(1, 100_000), osl=st.integers(1, 100_000), by=st.floats(0, 1),
    ratio=st.floats(0, 1000),
)  # fmt: skip
def test_a_split_charges_the_whole_cost(usd: float, isl: int, osl: int, by: float, ratio: float) -> None:
    for found in (tco.split_by_time(usd, isl, osl, by), tco.split_by_ratio(usd, isl, osl, ratio)):
        assert found.input * isl + found.output * osl == pytest.approx(1000 * usd)
        assert found.total * (isl + osl) == pytest.approx(1000 * usd)


def test_an_api_by_the_token() -> None:
    assert tco.api_usd_per_1k_requests(1.0, 3.0, 2000, 200) == pytest.approx(2.60)


def test_dollars_and_energy_per_million_tokens() -> None:
    assert units.usd_per_million_tokens(2.5, 700) == pytest.approx(0.992, abs=5e-4)
    assert units.usd_per_million_tokens(2.5, 70) == pytest.approx(9.92, abs=5e-3)
    assert units.usd_per_million_tokens(3, 1000) == pytest.approx(0.8333, abs=5e-5)
    assert units.kwh_per_million_tokens(10_200 * 1.3, 14_149) == pytest.approx(0.2603, abs=5e-5)


# --- options --------------------------------------------------------------------------------------


def test_own_servers_are_whole_and_cost_what_the_example_says(tmp_path: Path) -> None:
    # 39 replicas of one GPU on servers of 8: 5 servers, 595,000; a server at full use 0.090708, at the mean 0.6611
    found = own(SERVED, own_file(tmp_path), h100()[1])
    assert (found.units, found.gpus) == (5, 40)
    assert found.usd_per_year == pytest.approx(595_000)
    assert found.usd_per_hour == pytest.approx(595_000 / 8_760)
    assert found.usd_per_1k_requests.full_use == pytest.approx(0.090708, abs=1e-6)
    assert found.usd_per_1k_requests.at_load == pytest.approx(0.6611, abs=5e-5)
    assert found.usd_per_million_tokens.input.full_use == pytest.approx(0.034888, abs=1e-6)
    assert found.usd_per_million_tokens.output.full_use == pytest.approx(0.104663, abs=2e-6)


def test_an_option_costs_at_its_own_load_what_its_curve_says(tmp_path: Path) -> None:
    here = np.array([SERVED.load_per_s * 86_400])
    gpu = h100()[1]
    text = OWN_FILE.replace("usd_per_kwh: 0", "usd_per_kwh: 0.12")
    options = [own(SERVED, own_file(tmp_path, text), gpu), api(SERVED, ApiPrices(1, 3, "api", "", ""))]
    options += rented(SERVED, prices.offers(gpu, "lambda"), gpu, "Lambda", "on-demand")
    assert len(options) == 4
    for option in options:
        assert break_even.usd_per_year(option.curves, here)[0] == pytest.approx(option.usd_per_year), option.name


def test_rented_instances_are_whole() -> None:
    # 39 GPUs: 39 single ones at 4.29 are 167.31 $/h, five instances of 8 at 3.99 are 159.60
    gpu = h100()[1]
    always, following = rented(SERVED, prices.offers(gpu, "lambda"), gpu, "Lambda", "on-demand")
    assert (always.units, always.gpus_per_unit, always.usd_per_hour) == (5, 8, pytest.approx(159.60))
    # Following the load, the peak takes 39 GPUs and each other hour 0.739 * 28.539 / 5.2 = 4.06, so 5: 6.417 on average,
    # at 4.29 27.53 $/h. Instances of 8 are five and 23 times one, 28 in 24 hours: 37.24 $/h.
    assert following.gpus_per_unit == 1 and following.note is not None and "as tested" in following.note
    assert following.mean_gpus == pytest.approx((39 + 23 * 5) / 24)
    assert following.usd_per_hour == pytest.approx((39 + 23 * 5) / 24 * 4.29)
    (_, of_eight) = rented(SERVED, [o for o in prices.offers(gpu, "lambda") if o.gpus == 8], gpu, "Lambda", "x")
    assert of_eight.usd_per_hour == pytest.approx((5 + 23) / 24 * 8 * 3.99)


def test_instances_that_do_not_hold_a_replica_are_passed_over() -> None:
    gpu = h100()[1]
    served = SERVED._replace(gpus_per_replica=4, replicas=1)
    (option, _) = rented(served, prices.offers(gpu, "lambda"), gpu, "Lambda", "on-demand")
    assert (option.units, option.gpus_per_unit, option.note) == (1, 8, None)
    (option, _) = rented(served, prices.offers(gpu, "runpod"), gpu, "RunPod", "on-demand")
    assert (option.units, option.gpus_per_unit) == (4, 1)
    assert option.note is not None and "joined" in option.note


def test_an_api_costs_the_same_at_any_load() -> None:
    found = api(SERVED, ApiPrices(1.0, 3.0, "API", "", ""))
    assert found.usd_per_1k_requests[:2] == (pytest.approx(2.60), pytest.approx(2.60))
    assert found.usd_per_million_tokens.input == ByLoad(1.0, 1.0, 1.0)
    assert found.usd_per_year == pytest.approx(2.60 / 1000 * 28.539 * 31_536_000)


def test_without_a_mean_every_way_is_at_the_demand_around_the_clock(tmp_path: Path) -> None:
    # Half a request a second for a year are 15,768,000 requests: the API takes 2.60 for each 1,000 of them, $40,997; one
    # server, $119,000, of which a replica would do, is busy by 0.5 / 41.6. Nothing is said of GPUs that follow the load.
    served = SERVED._replace(load="stated_demand", load_per_s=0.5, sized_to_load=1.0, replicas=1)
    gpu = h100()[1]
    mine, others = own(served, own_file(tmp_path), gpu), api(served, ApiPrices(1.0, 3.0, "API", "", ""))
    assert {option.load_requests_per_s for option in (mine, others)} == {0.5}
    assert others.usd_per_year == pytest.approx(40_996.8)
    assert mine.usd_per_year == pytest.approx(119_000)
    assert mine.utilisation_at_load == pytest.approx(0.5 / 41.6)
    assert mine.usd_per_1k_requests[:2] == (pytest.approx(0.090708, abs=1e-6), pytest.approx(119_000 / 15_768))
    assert len(rented(served, prices.offers(gpu, "aws"), gpu, "AWS", "x")) == 1


def test_what_a_purchase_saves_is_told_at_one_load(tmp_path: Path) -> None:
    # Over another load than its own an API would be dear: of this one it takes $40,997, the server $39,000 to run and
    # $320,000 to buy, which $1,997 a year do not pay back while it lasts.
    served = SERVED._replace(load="stated_demand", load_per_s=0.5, sized_to_load=1.0, replicas=1)
    mine, others = own(served, own_file(tmp_path), h100()[1]), api(SERVED, ApiPrices(1.0, 3.0, "API", "", ""))
    (pair,) = compared([mine, others])
    assert pair.cheaper_at_this_load == "API"
    assert pair.months == pytest.approx(320_000 / 1_996.8 * 12)
    assert pair.months_reason == "the 4 years that it is written off over"


# --- break-even -----------------------------------------------------------------------------------

API = CostCurve(0.0, math.inf, 0.002)  # $2 per 1,000 requests


def test_one_server_against_an_api() -> None:
    # 73,000 a year / (365 * 0.002) = 100,000 requests a day; the server holds a million, where it costs a tenth
    found = crossing((CostCurve(73_000, 1e6, 0.0),), (API,))
    assert found.first == pytest.approx(100_000)
    assert found.stays == pytest.approx(100_000)


def test_steps_make_the_first_load_differ_from_the_last() -> None:
    # A server holds 150,000 a day: from 100,000 it is cheaper, just above 150,000 two cost 146,000, as the API at 200,000;
    # three from 300,000 on cost what the API does there, and from then on n servers cost less than n * 150,000 requests do.
    found = crossing((CostCurve(73_000, 150_000, 0.0),), (API,))
    assert found.first == pytest.approx(100_000)
    assert found.stays == pytest.approx(200_000)


def test_no_break_even_where_a_full_server_is_dearer() -> None:
    found = crossing((CostCurve(73_000, 90_000, 0.0),), (API,))  # a full one costs 2.22 per 1,000
    assert (found.first, found.stays) == (None, None)
    assert found.one_usd_per_request == pytest.approx(73_000 / (90_000 * 365))


def test_cheaper_at_every_load() -> None:
    one, other = CostCurve(50_000, 1e5, 0.0), CostCurve(60_000, 1e5, 0.0)
    assert crossing((one,), (other,))[:2] == (0.0, 0.0)
    assert crossing((other,), (one,))[:2] == (None, None)
    assert crossing((one,), (one,))[:2] == (0.0, 0.0)


def test_units_that_follow_the_load_are_whole_in_each_hour() -> None:
    # One unit holds the peak of 1e6 a day. At 1.5e6 the busy half of the hours takes two, the other half, with a tenth of
    # the load, one: 1.5 on average. At scale a request costs 0.55 of what it does at the peak around the clock.
    cloud = CostCurve(365_000, 1e6, 0.0, (1.0, 0.1))
    assert list(cloud.units(np.array([1.0, 1e6, 1.5e6, 11e6]))) == [1, 1, 1.5, (11 + 2) / 2]
    assert cloud.usd_per_request_at_scale == pytest.approx(0.001 * 0.55)
    assert crossing((cloud,), (API,)).first == pytest.approx(
        500_000
    )  # one unit costs 365,000, as 500,000 a day of the API


def test_nothing_is_rented_where_a_batch_rests() -> None:
    """3 units for a quarter of the day: 0.75 on average. What waits for requests has one unit in the other hours too."""
    hours = (1.0, 0.0, 0.0, 0.0)
    for at_rest, mean in ((0, 3 / 4), (1, (3 + 3) / 4)):
        assert CostCurve(365_000, 1e6, 0.0, hours, True, at_rest).units(np.array([3e6])) == pytest.approx(mean)


def test_where_a_way_is_dearer_at_scale_the_last_load_that_it_is_cheaper_at_is_known() -> None:
    # One server at 100,000 holds 1e6 a day; of instances at 60,000 the half of the hours takes as many as the peak, the
    # others one. Up to 1e6 the server is dearer (60,000), up to 2e6 too (200,000 against 90,000), and so on for ever.
    server, cloud = CostCurve(100_000, 1e6, 0.0), CostCurve(60_000, 1e6, 0.0, (1.0, 0.0))
    assert crossing((server,), (cloud,))[:3] == (None, None, None)
    # At 70,000 against 80,000 it is cheaper up to 1e6 (70,000) alone: two cost 140,000, one and a half 120,000.
    found = crossing((CostCurve(70_000, 1e6, 0.0),), (CostCurve(80_000, 1e6, 0.0, (1.0, 0.0)),))
    assert found[:3] == (0.0, None, pytest.approx(1e6))


def test_the_cheapest_of_alternatives_counts() -> None:
    # Small instances: from 10,000 a day on one costs less than the API; large ones alone would need 100,000.
    small, large = CostCurve(7_300, 50_000, 0.0), CostCurve(73_000, 1e6, 0.0)
    assert crossing((large,), (API,)).first == pytest.approx(100_000)
    assert crossing((small, large), (API,)).first == pytest.approx(10_000)


curves = st.builds(
    CostCurve, st.floats(1_000, 1e6), st.floats(1e3, 1e6), st.floats(0, 0.01), st.sampled_from([(1.0,), HOURS, (0.3, 1.0, 0.0)])
)  # fmt: skip


@given(one=curves, other=curves, share=st.floats(0.001, 5))
def test_a_break_even_holds_at_every_higher_load(one: CostCurve, other: CostCurve, share: float) -> None:
    found = crossing((one,), (other,))

    def dearer(load: float) -> float:
        at = np.array([load])
        mine, others = one.usd_per_year(at)[0], other.usd_per_year(at)[0]
        return float((mine - others) / others)

    if found.stays is not None:
        assert dearer(max(1.0, found.stays * (1 + share) + 1e-3)) <= 1e-9
    if found.last is not None:
        assert dearer(found.last * (1 + share) + 1e-3) >= -1e-9
    if found.first is None:
        assert dearer(share * 1e6) > -1e-9
    elif found.first > 0:
        assert dearer(found.first * min(0.999, share / 5)) > -1e-9


def test_payback() -> None:
    # 640,000 to buy, 40,000 a year to run, against 200,000 a year: 4 years
    assert payback_months(640_000, 40_000, 200_000) == pytest.approx(48)
    assert payback_months(640_000, 40_000, 40_000) is None


# --- servers and prices ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", servers.SHELF.ids)
def test_every_number_of_a_ready_server_has_its_source(name: str) -> None:
    spec = servers.load_server(name).spec
    assert spec.gpu in profiles.GPUS.ids
    for field in servers.NUMBERS:
        assert (getattr(spec, field) is None) == (field not in spec.sources)


def test_the_defaults_leave_only_price_and_size_open() -> None:
    defaults = servers.load_defaults()
    absent = {field for field in servers.NUMBERS if getattr(defaults, field) is None}
    assert absent == {"gpus", "price_usd", "server_power_w"}
    assert set(defaults.sources) == set(servers.NUMBERS) - absent


def test_a_partial_file_takes_the_ready_server_and_then_the_defaults(tmp_path: Path) -> None:
    found = own_file(tmp_path, "hosting_usd_per_year: 1\n")
    assert found.value("hosting_usd_per_year") == 1
    assert found.value("price_usd") == servers.load_server("hgx-h100").spec.price_usd  # newer than the DGX's price
    assert found.value("depreciation_years") == servers.load_defaults().depreciation_years
    assert found.numbers["hosting_usd_per_year"].basis.source == "as stated in own.yaml"


def test_default_power_is_that_of_the_gpus_times_a_factor(tmp_path: Path) -> None:
    from sizing.planning.offers import own_server

    gpu = h100()[1]
    assert own_server(own_file(tmp_path), gpu).power_w == 10_200
    found = own_server(own_file(tmp_path, "price_usd: 320000\n"), gpu)
    assert found.power_w == pytest.approx(8 * 700 * 1.82)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("price_usd: 285\n", "own.yaml:1: price_usd: must be $ for the whole server, from 1,000"),
        # In thousands, of a dear server; in cents; and of one GPU where eight are meant.
        ("depreciation_years: 4\nprice_usd: 1285\n", "own.yaml:2: price_usd: $1,285 is no price of a server of 8 GPUs"),
        ("price_usd: 28500000\n", "allowed: 2,000 to 8,000,000"),
        ("gpus: 4\n", "no price of a server with 4 x H100 SXM 80GB is known"),  # the ready one has 8
        ("uptime: 0\n", "own.yaml:1: uptime: must be a share of the year, from 0.01 to 1"),
        ("price_usd: -5\n", "own.yaml:1: price_usd: must be $ for the whole server"),
        ("price_usd: 320000\npu: 1.2\n", "did you mean pue?"),
        ("gpu: h100-sxn\n", "own.yaml:1: gpu: unknown GPU 'h100-sxn'"),
        ("gpu: h200-sxm\n", "own.yaml:1: gpu: the server holds h200-sxm GPUs, not h100-sxm"),
        ("residual_usd: 900000\n", "own.yaml:1: residual_usd: is more than the server costs"),
        ("usd_per_kwh: 12\n", "12 cents are 0.12"),
    ],
)
def test_a_wrong_file_is_told(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        own_file(tmp_path, text)
    assert told in str(caught.value)


def test_a_server_of_gpus_without_a_known_price_needs_one(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("gpus: 8\n")
    a100 = profiles.load_gpu("a100-sxm-80gb")
    with pytest.raises(InputError, match="no price of a server with 8 x A100"):
        servers.complete_server(servers.load_server(str(path)), a100.id, a100.spec)


def test_a_server_too_small_for_a_replica_is_refused(tmp_path: Path) -> None:
    # Of 8 GPUs a server of 3 holds a half of a half, of 4 a half; where they span nodes, a node of 8 has to be held.
    for count, replica, told in ((3, 8, "--tp 2"), (4, 8, "--tp 4"), (1, 2, "--tp 1"), (4, 16, "at least 8 GPUs")):
        server = own_file(tmp_path, OWN_FILE + f"gpus: {count}\n")
        with pytest.raises(InputError) as caught:
            own(SERVED._replace(gpus_per_replica=replica), server, h100()[1])
        assert "own.yaml:9: gpus: " in str(caught.value)
        assert told in str(caught.value)
    assert own(SERVED._replace(gpus_per_replica=4), server, h100()[1]).gpus_per_unit == 4


def test_a_pipe_is_no_name_of_a_server(tmp_path: Path) -> None:
    path = tmp_path / "63"
    path.write_text(OWN_FILE)
    assert servers.complete_server(servers.load_server(str(path)), *h100()).title == "unnamed"
    path.write_text(OWN_FILE + "name: Ours\n")
    assert servers.complete_server(servers.load_server(str(path)), *h100()).title == "Ours"


def test_prices_by_provider_and_kind() -> None:
    gpu = h100()[1]
    assert prices.price_of(gpu, "AWS")[0] == pytest.approx(6.88)
    assert prices.price_of(gpu, " lambda ")[0] == pytest.approx(3.99)  # the cheapest of two
    assert prices.price_of(gpu, "nebius", "spot")[0] < prices.price_of(gpu, "nebius")[0]
    assert "2026-06" in prices.price_of(gpu, "lambda")[1]
    assert {price.kind for price in prices.offers(gpu)}.isdisjoint({"purchase"})


def test_a_provider_counts_once_however_many_products_it_lists() -> None:
    """Seven providers ask 2.69, 3.85, 3.99 (the lower of two), 6.155, 6.88 (twice), 11.06 (twice) and 12.29 for an H100."""
    gpu = h100()[1]
    found = [(offer.provider, offer.usd_per_gpu_hour) for offer in prices.providers_offers(gpu)]
    assert [usd for _, usd in found] == [2.69, 3.85, 3.99, 6.155, 6.88, 11.061, 12.29]
    assert len({provider for provider, _ in found}) == len(found) < len(prices.offers(gpu, kind="on-demand"))
    usd, source = prices.typical_price(gpu)
    assert usd == 6.155 and source is not None and "median of 7 providers from $2.69 to $12.29" in source


@pytest.mark.parametrize(
    ("provider", "kind", "told"),
    [("awz", "on-demand", "did you mean AWS?"), ("aws", "on-demnd", "did you mean on-demand?")],
)
def test_an_unknown_offer_is_told(provider: str, kind: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        prices.price_of(h100()[1], provider, kind)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("named", "other"),
    [("meta-llama/llama-3.1-70b", False), (None, False), ("gpt-4o-mini", True), ("deepseek-v3.2", True)],
)
def test_prices_of_another_model_than_the_one_served_say_so(named: str | None, other: bool) -> None:
    found = ApiPrices(1.0, 3.0, "API", "", "", named).other_model("meta-llama/Llama-3.1-70B-Instruct")
    assert (found is not None) == other
    assert found is None or found == f"{named} is another model than Llama-3.1-70B-Instruct"


def test_renting_the_sized_answer_is_always_a_way_to_pay() -> None:
    """With servers and an API, each type has its row at the planning price; the cheapest way is no dearer than the answer."""
    asked = {"model": "llama-3.1-8b", "isl": 500, "osl": 100, "dau": 30_000, "gpu": ["h100-sxm", "mi300x"]}
    question = ask(**asked)
    api = ApiPrices(9.0, 9.0, "API", "as asked", "as asked")
    bill = cost(question, Ways(own=(servers.load_server("hgx-h100"),), api=(api,)), simulated=False)
    best = estimate(question, simulated=False).answer
    assert best is not None and best.usd_per_hour is not None
    rented = {
        option.gpu: option.usd_per_year for option in bill.options if option.kind == "cloud" and not option.follows_load
    }
    assert set(rented) == {"H100 SXM 80GB", "MI300X 192GB"}
    assert min(rented.values()) == pytest.approx(best.usd_per_hour * 8760)
    assert [option.gpu for option in bill.options if option.kind == "own"] == ["H100 SXM 80GB"]
    assert bill.deployed[0].usage.gpu == best.pool.replica.gpu_type.name
    assert [name for name, _ in bill.unowned] == ["MI300X 192GB"]


def test_a_break_even_says_where_a_way_first_pays_and_where_it_always_does() -> None:
    """One server, full at 600,000 a day, pays from 387,000 on; the second one does not until 773,000."""
    pair = BreakEven("own", "API", 773_000.0, 387_000.0, None, None, "own", 34.0, None)
    said = when_cheaper(pair, 1.0)
    assert (
        "from 780,000 requests a day (9.0/s) on; at some lower loads too, the first at 390,000 requests a day" in said
    )
    assert "lower" not in when_cheaper(pair._replace(first_requests_per_day=773_000.0), 1.0)
