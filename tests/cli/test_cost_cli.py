"""`llmsize cost`: figures by load, options side by side, break-even, pictures, and mistakes told in a line each."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sizing.cli.main import run
from sizing.formats.text import SCREEN

SMALL = ("-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "2000", "--osl", "200", "--ttft", "500ms", "--no-verify")
# The call centre of NVIDIA's course: 28.539 requests/s on average, 7 times that at the peak.
CALLS = (*SMALL, "--mean-rps", "28.539", "--peak-to-mean", "7", "--active-hours", "24")
OWN = """\
price_usd: 320000
depreciation_years: 4
hosting_usd_per_year: 3000
licence_usd_per_gpu_year: 4500
network_share: 0
staff_share: 0
usd_per_kwh: 0
"""


@pytest.fixture
def server(tmp_path: Path) -> str:
    path = tmp_path / "server.yaml"
    path.write_text(OWN)
    return str(path)


def asked(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run(["cost", *arguments, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "llmsize.cost/1"
    return document  # type: ignore[no-any-return]


def test_explain_derives_every_way_to_pay_under_its_name(capsys: pytest.CaptureFixture[str], server: str) -> None:
    found = asked(capsys, *CALLS, "--own", server, "--cloud", "aws", "--api", "1.0,3.0", "--explain")
    by = {(each["about"], each["what"]): each for each in found["explanations"]}
    for option in found["options"]:
        assert by[option["name"], "$ a year"]["value"] == option["usd_per_year"]
        assert by[option["name"], "$ per 1,000 requests"]["value"] == option["usd_per_1k_requests"]["at_load"]
    own = found["options"][0]
    parts = [
        each["value"] for (about, what), each in by.items() if about == own["name"] and what.endswith("all servers")
    ]
    assert sum(parts) == pytest.approx(own["usd_per_year"])
    assert "Break-even" in {about for about, _ in by}


def test_own_cloud_and_api_by_load(capsys: pytest.CaptureFixture[str], server: str) -> None:
    found = asked(capsys, *CALLS, "--own", server, "--cloud", "aws,lambda", "--api", "1.0,3.0")
    names = [option["name"] for option in found["options"]]
    assert names == [
        "own (server.yaml)",
        "AWS",
        "AWS, following the load",
        "Lambda",
        "Lambda, following the load",
        "API at $1 / $3",
    ]
    own, replicas = found["options"][0], found["deployments"][0]["replicas"]
    servers = -(-replicas // 8)
    assert (own["units"], own["gpus"]) == (servers, 8 * servers)
    assert found["usd_per_year"] == own["usd_per_year"] == pytest.approx(119_000 * servers)
    assert found["usd_per_hour"] == pytest.approx(found["usd_per_year"] / 8_760)
    assert found["basis"] == own["name"]
    # At the mean load all servers' cost falls on 28.539 requests/s; at full use on what all their replicas serve.
    at_mean = 1000 * 119_000 * servers / (28.539 * 31_536_000)
    at_full = 1000 * 119_000 / (8 * found["full_use_requests_per_s"] / replicas * 31_536_000)
    assert found["usd_per_1k_requests"]["at_load"] == pytest.approx(at_mean)
    assert found["usd_per_1k_requests"]["full_use"] == pytest.approx(at_full)
    tokens = found["usd_per_million_tokens"]
    for load in ("full_use", "at_load"):  # an output token costs three times an input token, as the API charges
        assert tokens["output"][load] == pytest.approx(3 * tokens["input"][load])
    api = found["options"][-1]
    assert api["usd_per_1k_requests"] == {name: pytest.approx(2.6) for name in ("full_use", "at_load", "mean_load")}
    assert all(option["date"] and option["source"] for option in found["options"])


def test_break_even_of_every_pair_that_matters(capsys: pytest.CaptureFixture[str], server: str) -> None:
    found = asked(capsys, *CALLS, "--own", server, "--cloud", "lambda", "--api", "1.0,3.0")
    pairs = {(pair["one"], pair["other"]): pair for pair in found["break_even"]}
    against_api = pairs["own (server.yaml)", "API at $1 / $3"]
    # One server is as dear as the API at 119,000 / (365 * 0.0026) = 125,395 requests a day, which it holds.
    assert against_api["first_requests_per_day"] == pytest.approx(125_395, rel=1e-4)
    servers, api = found["options"][0]["units"], found["options"][-1]["usd_per_year"]
    months = 12 * servers * 320_000 / (api - servers * 39_000)
    assert against_api["months"] == pytest.approx(months)
    # Three servers around the clock cost less than the API for as many requests: so it stays at every load above.
    assert against_api["requests_per_day"] is not None
    assert ("Lambda", "API at $1 / $3") in pairs


def test_none_has_its_reason(capsys: pytest.CaptureFixture[str], server: str) -> None:
    found = asked(capsys, *CALLS, "--own", server, "--api", "0.001,0.003")
    (pair,) = (
        each for each in found["break_even"] if each["one"].startswith("own") and each["other"].startswith("API")
    )
    assert pair["requests_per_day"] is None
    assert pair["first_requests_per_day"] is None
    assert "never cheaper" in pair["reason"]
    assert pair["months"] is None
    assert pair["months_reason"]


def test_energy_at_the_meter(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(OWN + "server_power_w: 10200\npue: 1.3\nidle_share: 1\n")
    found = asked(capsys, *CALLS, "--own", str(path))
    per_server = 8 * found["full_use_requests_per_s"] / found["deployments"][0]["replicas"]
    kwh = 10_200 * 1.3 / (per_server * 200) / 3.6  # watts over tokens/s are joules a token; 3.6 MJ are a kWh
    assert found["energy"]["kwh_per_million_output_tokens"]["full_use"] == pytest.approx(kwh)
    year = found["options"][0]["units"] * 10.2 * 1.3 * 8_760
    assert found["energy"]["kwh_per_year"] == {
        "full_use": pytest.approx(year), "at_load": pytest.approx(year), "mean_load": pytest.approx(year)
    }  # fmt: skip


def test_a_rate_without_a_mean_is_that_rate_around_the_clock(capsys: pytest.CaptureFixture[str], server: str) -> None:
    # Half a request/s of 2,000 and 200 tokens at $1 and $3: 15,768,000 a year at 0.0026 are $40,997, below a server's
    # $119,000; a headroom makes the size larger, not the load.
    found = asked(capsys, *SMALL, "--rps", "0.5", "--headroom", "50%", "--own", server, "--api", "1,3")
    assert found["load"] == "stated_demand"
    assert found["mean_requests_per_s"] is None
    assert {option["load_requests_per_s"] for option in found["options"]} == {0.5}
    own, api = (option for option in found["options"] if option["kind"] != "cloud")
    assert (own["usd_per_year"], api["usd_per_year"]) == (pytest.approx(119_000), pytest.approx(40_996.8))
    assert found["usd_per_1k_requests"]["at_load"] == pytest.approx(119_000 / 15_768)
    (pair,) = (each for each in found["break_even"] if (each["one"], each["other"]) == (own["name"], api["name"]))
    assert pair["cheaper_at_this_load"] == api["name"]
    assert pair["months_reason"]
    assert any(a["what"] == "load" and "stated demand" in a["value"] for a in found["assumptions"])
    assert run(["cost", *SMALL, "--rps", "0.5", "--own", server, "--api", "1,3"]) == 0
    table = " ".join(capsys.readouterr().out.split())
    assert table.startswith("API at $1 / $3: $41,000 a year, ")
    assert "--profile" in table


def test_without_a_demand_every_way_serves_what_is_sized(capsys: pytest.CaptureFixture[str], server: str) -> None:
    found = asked(capsys, *SMALL, "--gpus", "1", "--own", server, "--api", "1,3")
    assert found["load"] == "as_sized"
    rate = found["full_use_requests_per_s"]
    assert [option["load_requests_per_s"] for option in found["options"]] == [rate, rate, rate]  # own, rented, API
    assert found["options"][0]["utilisation_at_load"] == pytest.approx(1 / 8)  # one of the server's eight GPUs
    assert found["options"][-1]["usd_per_year"] == pytest.approx(0.0026 * rate * 31_536_000)


def test_requests_in_flight_have_a_mean_too(capsys: pytest.CaptureFixture[str]) -> None:
    flight = (*SMALL, "--concurrency", "32")
    whole = asked(capsys, *flight)
    assert whole["load"] == "stated_demand"
    # Eight of 24 hours, and half as many on average as at the peak: a sixth.
    part = asked(capsys, *flight, "--active-hours", "8", "--peak-to-mean", "2")
    assert part["load"] == "mean_load"
    assert part["mean_requests_per_s"] == pytest.approx(whole["load_requests_per_s"] / 6)
    assert part["sized_to_mean"] == pytest.approx(6)


def test_servers_too_small_on_one_type_leave_that_type_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "single.yaml"
    path.write_text("gpus: 1\nprice_usd: 40000\n")
    # 70 GB of weights are more than an L40S holds, less than an H200 does.
    large = ("-m", "llama-3.1-70b", "--precision", "fp8", "--isl", "1000", "--osl", "200", "--rps", "1", "--no-verify")
    found = asked(capsys, *large, "-g", "h200-sxm,l40s", "--own", str(path))
    assert {option["gpu"] for option in found["options"]} == {"H200 SXM 141GB"}
    assert any("L40S" in problem and "has 1 GPU" in problem for problem in found["problems"])
    assert run(["cost", *large, "-g", "l40s", "--own", str(path)]) == 2
    assert f"{path}:1: gpus: single.yaml has 1 GPU" in capsys.readouterr().err


def test_the_middle_of_a_range_is_not_called_stated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "range.yaml"
    path.write_text(
        "model: llama-3.1-8b\ngpu: h100-sxm\ntokens: {isl: 1000, osl: 200}\ndemand: {requests_per_s: 2..5}\n"
    )
    assert asked(capsys, str(path), "--no-verify")["demand"] == "peak 3.50 requests/s, the middle of 2 to 5"


def test_the_range_at_full_use_is_that_of_the_most_requests_per_s_of_estimate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    question = (
        "-m",
        "llama-3.1-8b",
        "-g",
        "h100-sxm",
        "--isl",
        "1000",
        "--osl",
        "200",
        "--rps",
        "30",
        "--ttft",
        "p95:500ms",
    )
    found = asked(capsys, *question)
    cost, at_full = found["bands"]["usd_per_1k_requests.full_use"], found["usd_per_1k_requests"]["full_use"]
    assert run(["estimate", *question, "--json"]) == 0
    sized = json.loads(capsys.readouterr().out)
    most, rate = sized["load"]["max_requests_per_s"], sized["bands"]["load.max_requests_per_s"]
    assert cost["low"] == pytest.approx(at_full * most / rate["high"])
    assert cost["high"] == pytest.approx(at_full * most / rate["low"])


def test_optimised_rates_have_no_band(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(capsys, *CALLS)["bands"]
    assert asked(capsys, *CALLS, "--speculative", "ngram:4@0.5")["bands"] == {}


def test_the_split_by_time_charges_everything(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, *CALLS, "--split", "time")
    tokens = found["usd_per_million_tokens"]
    for load in ("full_use", "at_load"):
        charged = tokens["input"][load] * 2000 + tokens["output"][load] * 200
        assert charged == pytest.approx(1000 * found["usd_per_1k_requests"][load])
    # With few requests beside it an output token takes longer, and bears more of the cost.
    ratio = {load: tokens["output"][load] / tokens["input"][load] for load in ("full_use", "at_load")}
    assert ratio["at_load"] > ratio["full_use"] > 1


def test_price_and_offline(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, *SMALL[:-3], "--mode", "offline", "--no-verify", "--price", "3")
    option = found["options"][0]
    assert option["usd_per_hour"] == pytest.approx(3 * option["gpus"])
    per_s = option["capacity_requests_per_s"]
    assert found["usd_per_1k_requests"]["full_use"] == pytest.approx(1000 * 3 * option["gpus"] / (per_s * 3600))


def test_several_types_cheapest_first(capsys: pytest.CaptureFixture[str]) -> None:
    asking = [part if part != "h100-sxm" else "h100-sxm,l40s,h20" for part in CALLS]
    found = asked(capsys, *asking)
    first = {}
    for option in found["options"]:
        first.setdefault(option["gpu"], option["usd_per_year"])
    assert list(first.values()) == sorted(first.values())
    assert len(first) == 2
    assert found["usd_per_year"] == min(first.values())
    assert any("H20" in problem and "no price" in problem for problem in found["problems"])


def test_infeasible_is_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, *SMALL[:-2], "1ms", "--no-verify", "--rps", "20", code=1)
    assert not found["feasible"]
    assert found["usd_per_year"] is None
    assert found["problems"]
    assert any("TTFT limit" in change for change in found["suggestions"])
    assert run(["cost", *SMALL[:-2], "1ms", "--no-verify", "--rps", "20"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "Infeasible" in out
    assert "Try TTFT limit" in out
    assert "H100 SXM 80GB: H100 SXM 80GB" not in out


def test_an_infeasible_picture_says_that_there_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "none.svg"
    assert run(["cost", *SMALL[:-2], "1ms", "--no-verify", "--rps", "20", "--plot", str(path)]) == 1
    assert "--plot: nothing is drawn" in capsys.readouterr().err
    assert not path.exists()


def test_a_broken_matplotlib_is_told_after_the_numbers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", ModuleType("matplotlib.figure"))  # without its Figure
    assert run(["cost", *CALLS, "--plot", str(tmp_path / "x.svg")]) == 2
    captured = capsys.readouterr()
    assert "per 1,000 requests" in " ".join(captured.out.split())
    assert "matplotlib, which cannot be loaded" in captured.err


def test_table_csv_and_markdown(capsys: pytest.CaptureFixture[str], server: str) -> None:
    asking = ("cost", *CALLS, "--own", server, "--api", "1,3")
    assert run([*asking, "--verbose"]) == 0
    table = capsys.readouterr().out
    for word in ("own (server.yaml)", "full use", "mean load", "costs less than", "Likely range"):
        assert word in table
    assert run([*asking, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["kind"], row["load"]) for row in rows] == [
        (kind, load) for kind in ("own", "cloud", "cloud", "api") for load in ("full_use", "mean_load")
    ]
    assert run([*asking, "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("| option | kind |")


def test_mistakes_come_out_together(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    own = tmp_path / "server.yaml"
    own.write_text("price_usd: -5\npu: 1.2\n")
    wrong = ("--own", str(own), "--cloud", ",", "--api", "1", "--split", "x", "--plot", "x.gif", "--format", "xml")
    assert run(["cost", *CALLS, *wrong]) == 2
    lines = capsys.readouterr().err.splitlines()
    for told in ("server.yaml:1: price_usd", "did you mean pue?", "--cloud", "--api", "--split", "--plot", "--format"):
        assert any(told in line for line in lines), told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--cloud", "awz"), "did you mean AWS?"),
        (("--cloud", "aws:spt"), "allowed: on-demand"),
        (("--own", "hgs-h100"), "did you mean hgx-h100"),
        (("--own", "hgx-h200"), "holds h200-sxm GPUs"),
        (("--api", "nan,1"), "is not two prices"),
        (("--api", "0,0"), "is not two prices"),
        (("--api", "1e-300,1e-300"), "each from 0.0001"),
        (("--api", "\u0661,\u0663"), "is not two prices"),
        (("--api", "1_000,3"), "is not two prices"),
        (("--split", "1_0"), "splits nothing"),
        (("--split", "1e-300"), "splits nothing"),
        (("--split", "-1"), "splits nothing"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], options: tuple[str, ...], told: str) -> None:
    assert run(["cost", *CALLS, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert told in captured.err
    assert len(captured.err.splitlines()) == 1


def test_money_is_of_a_named_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", "chat"]) == 2
    assert "--gpu: is needed" in capsys.readouterr().err


def test_the_picture_is_the_same_twice(capsys: pytest.CaptureFixture[str], tmp_path: Path, server: str) -> None:
    pytest.importorskip("matplotlib")
    pictures = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for path in pictures:
        assert run(["cost", *CALLS, "--own", server, "--cloud", "aws", "--api", "1,3", "--plot", str(path)]) == 0
    capsys.readouterr()
    text = pictures[0].read_text()
    assert text == pictures[1].read_text()
    for label in ("own (server.yaml)", "AWS, following the load", "US dollars a year", "requests a day"):
        assert label in text


def test_what_follows_the_load_takes_the_gpu_hours_that_a_plan_does(capsys: pytest.CaptureFixture[str]) -> None:
    question = (*SMALL, "--mean-rps", "200", "--profile", "office", "--cloud", "aws")
    assert run(["plan", *question, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["cloud"]
    following = next(option for option in asked(capsys, *question)["options"] if option["follows_load"])
    assert following["mean_gpus"] == pytest.approx(planned["mean_gpus"])
    assert following["usd_per_month"] == pytest.approx(planned["mixes"][0]["usd_per_month_all_on_demand"])
    assert "profile office" in following["note"]


def test_what_finance_asks_first_stands_on_the_screen(capsys: pytest.CaptureFixture[str], server: str) -> None:
    assert run(["cost", *CALLS, "--own", "hgx-h100", "--cloud", "aws", "--api", "1.0,3.0"]) == 0
    shown = capsys.readouterr().out
    said = " ".join(shown.split())
    assert shown.count("\n") <= SCREEN
    of_a_server = "10 % for the network, written off over 4 years, 0 % interest, hosting $3,000 a year"
    assert f"{of_a_server}, licence $0 a GPU, 5 % of a person, $0.12/kWh, 100 % uptime" in said
    assert "Assumed $285,000 a server" in said
    assert "own (HGX H100) costs less than AWS from" in said and "costs less than API at $1 / $3 from" in said
    assert " months" in said and "$940,500 upfront" in said.replace("$941,000", "$940,500"), (
        "3 servers of $285,000 and the network"
    )
    assert run(["cost", *CALLS, "--own", server]) == 0  # what its file states is not assumed
    said = " ".join(capsys.readouterr().out.split())
    assert "0 % interest, 100 % uptime" in said and "written off" not in said and "$320,000 a server" not in said


def test_what_pays_holds_at_every_load(capsys: pytest.CaptureFixture[str]) -> None:
    """A way that is dearer at scale is cheaper at some loads alone, below one that is named: the one above it is no exception."""
    options = ("--own", "hgx-h100", "--cloud", "aws")
    question = ("-m", "llama-3.3-70b", "-g", "h100-sxm", "chat", "--requests-per-user", "1", "--no-verify", *options)
    for users, cheaper in (("1.8m", "own"), ("3m", "own"), ("10m", "AWS"), ("30m", "AWS")):
        found = asked(capsys, *question, "--dau", users)
        own, _, following = found["options"]
        pair = next(pair for pair in found["break_even"] if pair["other"] == "AWS, following the load")
        assert (own["usd_per_year"] < following["usd_per_year"]) == (cheaper == "own")
        assert pair["cheaper_at_this_load"].startswith(cheaper) and pair["requests_per_day"] is None
        assert (float(users[:-1]) * 1e6 > pair["last_requests_per_day"]) == (cheaper == "AWS")


@pytest.mark.parametrize(("mode", "alike"), [("offline", False), ("streaming", True)])
def test_a_likely_range_says_whose_it_is(capsys: pytest.CaptureFixture[str], mode: str, alike: bool) -> None:
    asked_of = ("-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "200", "--no-verify")
    assert run(["cost", *asked_of, "--mode", mode, "--rps", "50"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert ("in 8 of 10 published runs like this" in text) == alike
    assert ("no published runs like this; ranges: runs of other engines or GPUs" in text) != alike
    assert ("in 8 of 10 of those other runs" in text) != alike


def test_what_is_assumed_of_users_is_what_the_demand_needs(capsys: pytest.CaptureFixture[str]) -> None:
    def assumed(*demand: str) -> set[str]:
        return {each["what"] for each in asked(capsys, *SMALL, *demand)["assumptions"]}

    assert "requests per user per day" not in assumed("--rps", "4", "--profile", "office")
    assert {"requests per user per day", "peak to mean"} <= assumed("--dau", "20000")
    assert not assumed("--rps", "4") & {"active hours", "peak to mean"}  # a load around the clock


def test_the_loads_below_a_break_even_are_not_called_dearer_where_some_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ways = ["--own", "hgx-h100", "--cloud", "aws", "--api", "1.0,3.0", "--no-verify", "--explain"]
    asked = ["cost", "-m", "llama-3.1-70b", "-g", "h100-sxm", "--isl", "2000", "--osl", "200", "--rps", "20", "--ttft", "p95:1s", "--itl", "40ms"]  # fmt: skip
    assert run([*asked, *ways]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "AWS costs no more than API at $1 / $3 from" in said
    (between,) = [part for part in said.split("costs no more than") if part.startswith(" API at $1 / $3 from = 2,")]
    assert "below it more at some loads, less at others" in between and "; more below it" not in between


# --- what a buyer reads -----------------------------------------------------------------------------------------------

CHAT = ("chat", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--no-verify")
BUSY = (*CHAT, "--dau", "1m")


def screen_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["cost", *arguments]) == 0
    return capsys.readouterr().out


def test_a_rate_with_a_margin_names_the_rate_that_estimate_gives(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, *BUSY, "--confidence", "90%")
    margin, sized = found["margin"], found["full_use_requests_per_s"]
    assert run(["estimate", *BUSY, "--confidence", "90%", "--json"]) == 0
    most = json.loads(capsys.readouterr().out)["load"]["max_requests_per_s"]
    assert margin > 1 and sized * margin == pytest.approx(most)
    said = " ".join(screen_of(capsys, *BUSY, "--confidence", "90%").split())
    assert f"can serve {sized:.3g} at full use ({most:.3g}, less a margin of {margin:.3g} times)" in said
    assert asked(capsys, *BUSY)["margin"] == 1 and "less a margin" not in screen_of(capsys, *BUSY)


def test_the_sure_count_has_a_price_beside_that_of_the_expected_count(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, *BUSY)
    gpus, sure = found["deployments"][0]["gpus"], found["sure"]
    assert sure["gpus"] == found["deployments"][0]["gpus_sure"] > gpus
    assert sure["usd_per_year"] == pytest.approx(found["usd_per_year"] * sure["gpus"] / gpus)  # rented one by one
    assert sure["usd_per_month"] == pytest.approx(sure["usd_per_year"] / 12)
    assert f"; {sure['gpus']} GPUs to be sure, " in " ".join(screen_of(capsys, *BUSY).split())
    assert asked(capsys, *BUSY, "--confidence", "90%")["sure"] is None, "the answer is sure already"


def test_verbose_does_not_point_at_itself(capsys: pytest.CaptureFixture[str]) -> None:
    ways = (*CHAT, "--own", "hgx-h100", "--cloud", "aws,lambda")
    whole = screen_of(capsys, *ways, "--verbose")
    assert "--verbose" not in whole and "Next      --explain derives it" in whole
    found, said = asked(capsys, *ways), " ".join(whole.partition("figures ")[0].split())
    assert len(found["break_even"]) == 4
    pays = said.split(" Pays ")[1].split(" Load ")[0]
    assert all(pair["other"].removesuffix(", following the load") in pays for pair in found["break_even"])
    assert "Next  " not in screen_of(capsys, *ways, "--explain")


def test_own_servers_say_what_full_use_changes(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, *CHAT, "--own", "hgx-h100")
    assert found["energy"]["server_power_w"]["full_use"] == pytest.approx(8 * 700 * 1.82)
    said = " ".join(screen_of(capsys, *CHAT, "--own", "hgx-h100", "--verbose").split())
    here = found["energy"]["server_power_w"]["at_load"] / 1000
    assert f"Full use takes 10.2 kW in place of {here:.2f} kW: " in said
    assert "Full use takes" not in screen_of(capsys, *CHAT, "--verbose"), "rent does not follow the use"


def test_five_ways_with_two_notes_fit_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    ways = ("--own", "hgx-h100", "--cloud", "aws,lambda", "--api", "deepseek:deepseek-v3.2")
    for question in (BUSY, (*BUSY, "--confidence", "90%")):
        assert screen_of(capsys, *question, *ways).count("\n") <= SCREEN
        whole = screen_of(capsys, *question, *ways, "--verbose")
        assert "Following the load: " in whole and "is another model than" in whole
    screen = " ".join(screen_of(capsys, *CHAT, *ways[:4], "--api", "together:llama-3.3-70b,1,3").split())
    assert "of low confidence: the other table says 0.88 / 0.88" in screen
    assert all(api in screen.partition("Pays ")[2].partition("AWS")[0] for api in ("Together", "API at"))


def test_several_servers_and_apis_are_ways_to_pay(capsys: pytest.CaptureFixture[str], server: str) -> None:
    """Each has its row at its own price; prices without a name come in pairs."""
    ways = ("--own", f"hgx-h100,{server}", "--api", "1,3,deepseek:deepseek-v3.2,2,6")
    found = asked(capsys, *SMALL, "--rps", "0.5", *ways)
    usd = {option["name"]: option["usd_per_year"] for option in found["options"] if option["kind"] != "cloud"}
    assert list(usd)[:3] == ["own (HGX H100)", "own (server.yaml)", "API at $1 / $3"]
    assert usd["API at $2 / $6"] == pytest.approx(2 * usd["API at $1 / $3"])
    assert [each["usd_per_million_output"] for each in found["inputs"]["api_others"]] == [0.4, 6.0]
    assert found["inputs"]["own"]["title"] == "HGX H100" and found["inputs"]["own_others"][0]["price_usd"] == 320_000


def test_an_unknown_server_names_those_that_are_known_and_what_a_file_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", *SMALL, "--rps", "0.5", "--own", "hgx-b200"]) == 2
    said = capsys.readouterr().err
    assert "unknown server 'hgx-b200'; allowed: dgx-h100, hgx-h100, hgx-h200, or a file" in said and "price_usd" in said
