"""`llmsize plan` on one workload: its JSON, its exit codes, its formats, and what it refuses."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from plan_commands import CALLS, FLEET, json_of, out_of

from sizing.cli.main import run

KEYS = {
    "schema", "version", "feasible", "inputs", "mean_requests_per_s", "peak_requests_per_s", "gpus", "nodes", "replicas",
    "workloads", "hours", "users", "availability", "growth", "cloud", "uncertainty", "assumptions",
}  # fmt: skip

UNCERTAIN = """\
model: llama-3.1-8b
precision: fp8
tokens: {isl: 2000, osl: 200}
demand: {daily_active_users: 500000}
limits: {ttft: 1s}
planning: {requests_per_user_per_day: 2..5, peak_to_mean: 2..4, price_uncertainty: 20%}
"""


@cache
def written(folder: Path) -> Path:
    path = folder / "uncertain.yaml"
    path.write_text(UNCERTAIN)
    return path


# --- one workload ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["call-centre", "chat", "agentic"])
@pytest.mark.parametrize("verified", [True, False])
def test_the_size_of_the_peak_is_that_of_estimate(
    name: str, verified: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    how = () if verified else ("--no-verify",)
    plan = json_of(capsys, "plan", name, "-g", "h100-sxm", "--headroom", "20%", *how)
    estimate = json_of(capsys, "estimate", name, "-g", "h100-sxm", "--headroom", "20%", *how)
    (one,) = plan["workloads"]
    assert one["base_replicas"] == estimate["deployment"]["replicas"]
    assert plan["gpus"] == estimate["deployment"]["gpus"]
    assert one["gpu_id"] == estimate["deployment"]["gpu_id"]
    # What is shown rounds up to it: demand * 1.2 / most per replica.
    needed = one["demand_at_peak"] * 1.2 / one["most_per_replica"]
    assert one["base_replicas"] - 1 < needed + 1e-9 <= one["base_replicas"] + 1e-6


def test_the_document_has_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, *CALLS)
    assert set(found) >= KEYS
    assert found["schema"] == "llmsize.plan/1"
    assert found["mean_requests_per_s"] == pytest.approx(28.539, abs=5e-4)
    assert found["peak_requests_per_s"] == pytest.approx(199.77, abs=5e-3)
    assert found["hours"] == [] and found["cloud"] is None and found["growth"] is None


def test_spare_replicas_and_whole_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    without, with_spare = json_of(capsys, *CALLS), json_of(capsys, *CALLS, "--spare", "3")
    assert with_spare["replicas"] == without["replicas"] + 3
    assert with_spare["nodes"] == -(-with_spare["gpus"] // 8)  # one-GPU or two-GPU replicas fill nodes of eight
    assert with_spare["installed_gpus"] == 8 * with_spare["nodes"]
    text = out_of(capsys, *CALLS, "--spare", "3")
    assert text.splitlines()[0].startswith(f"{with_spare['gpus']} x H100 SXM 80GB serve call-centre: 200 requests/s")


def test_availability_adds_what_the_binomial_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, *CALLS, "--availability", "99.9%", "--mtbf", "99d", "--mttr", "24h")
    (one,), (size,) = found["availability"], found["workloads"]
    assert one["node_availability"] == pytest.approx(0.99)
    assert one["replicas_needed"] == size["base_replicas"]
    assert one["achieved"] >= 0.999
    assert one["achieved_by_node"] < one["achieved"]
    by_node = json_of(capsys, *CALLS, "--availability", "99.9%", "--node-availability", "99%", "--failures", "node")
    assert by_node["availability"][0]["achieved_by_node"] >= 0.999
    assert by_node["replicas"] == one["replicas_for_target_by_node"] > found["replicas"]


def test_growth_says_when_the_next_node_is_due(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, *CALLS, "--growth", "5%", "--from", "2026-11-28", "--until", "2027-12")
    grown = found["growth"]
    assert grown["at_date"]["month"] == "2027-12"
    assert grown["at_date"]["times"] == pytest.approx(1.05 ** (12 + 3 / 30))  # 28 November to 1 December
    assert grown["at_date"]["gpus"] > found["gpus"]
    assert grown["next_node"]["nodes"] > found["nodes"]
    nodes = [month["nodes"] for month in grown["additions"]]
    assert nodes == sorted(set(nodes)) and nodes[-1] == grown["at_date"]["nodes"]
    each = found["usd_per_month"] / found["gpus"]
    assert grown["usd_of_last_month"] == pytest.approx(each * grown["at_date"]["gpus"])
    assert 12.1 * found["usd_per_month"] < grown["usd_in_all"] < 12.1 * grown["usd_of_last_month"]
    text = " ".join(out_of(capsys, *CALLS, "--growth", "5%", "--from", "2026-11-28", "--until", "2027-12").split())
    assert "in the last month" in text and "in all" in text and "Sure then" not in text


def test_users_of_so_many_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a demand eight GPUs serve what they can; the users are of three requests in eight hours, twice the mean at the peak."""
    asked = ("plan", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "200", "--no-verify")
    found = json_of(capsys, *asked, "--gpus", "8")
    users = found["users"]
    assert users["stated"] and users["requests_per_user_per_day"] == 3
    assert users["daily_active_users"] == pytest.approx(found["peak_requests_per_s"] * 28_800 / 3 / 2)
    fewer = json_of(capsys, *asked, "--gpus", "8", "--spare", "1")
    assert fewer["gpus"] == found["gpus"]
    assert fewer["peak_requests_per_s"] < found["peak_requests_per_s"]


def test_a_profile_gives_hours_that_follow_it(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("plan", "chat", "-g", "h100-sxm", "--tp", "2", "--dau", "500000", "--profile", "consumer", "--no-verify")
    found = json_of(capsys, *asked, "--cloud", "aws")
    hours, cloud = found["hours"], found["cloud"]
    assert [hour["hour"] for hour in hours] == list(range(24))
    assert max(hour["gpus"] for hour in hours) == found["gpus"]
    # AWS joins 8 GPUs an instance; those of 1 hold no replica of 2.
    paid = [-(-hour["gpus"] // 8) * 8 for hour in hours]
    assert (max(paid), sum(paid) / 24) == (cloud["peak_gpus"], pytest.approx(cloud["mean_gpus"]))
    assert cloud["mean_gpus"] < cloud["peak_gpus"]
    assert cloud["gpu_hours_per_day"] == pytest.approx(24 * cloud["mean_gpus"])
    assert sum(hour["requests_per_s"] for hour in hours) / 24 == pytest.approx(found["mean_requests_per_s"])
    assert all(hour["requests_per_s"] <= hour["capacity_requests_per_s"] * (1 + 1e-9) for hour in hours)
    (up,), (mix,) = cloud["scale_up"], cloud["mixes"]
    assert up["total_s"] == pytest.approx(up["node_start_s"] + up["load_s"] + up["engine_start_s"])
    assert up["weights_gb"] == pytest.approx(72.7, abs=1)  # 70.6e9 parameters in FP8, embeddings in 16 bit
    assert 0 < cloud["share_of_requests_at_risk"] < 0.01
    assert mix["usd_per_month"] <= mix["usd_per_month_all_on_demand"] <= mix["usd_per_month_peak_always_on"]
    assert found["usd_per_month"] == mix["usd_per_month"]
    assert "AWS" in mix["sources"][0]


@pytest.mark.parametrize("provider", ["aws", "lambda", "coreweave"])
def test_a_month_in_a_cloud_is_that_of_cost(provider: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same deployment at the same provider, around the clock: a twelfth of what `llmsize cost` says of the year."""
    asked = ("chat", "-g", "h100-sxm", "--no-verify", "--cloud", provider)
    plan, cost = json_of(capsys, "plan", *asked), json_of(capsys, "cost", *asked)
    always = next(option for option in cost["options"] if not option["follows_load"])
    assert plan["usd_per_month"] == pytest.approx(always["usd_per_month"])
    (mix,) = plan["cloud"]["mixes"]
    assert (mix["peak_instances"], mix["gpus_per_instance"]) == (always["units"], always["gpus_per_unit"])
    assert mix["usd_per_month_peak_always_on"] == plan["usd_per_month"]
    assert plan["workloads"][0]["usd_per_gpu_hour"] == always["usd_per_gpu_hour"]
    text = out_of(capsys, "plan", *asked)
    assert "following the load" not in text and "on demand around the clock" in " ".join(text.split())


@pytest.mark.parametrize(("gpu", "most"), [("h200-sxm", ("--tp", "2")), ("h100-sxm", ("--tp", "4"))])
def test_the_layout_is_that_of_the_fewest_gpus_with_the_reserve(
    gpu: str, most: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Few large replicas may be the fewest GPUs for the peak, and not once one of them is spare."""
    asked = ("chat", "-g", gpu, "--dau", "50000", "--no-verify", "--spare", "1")
    free = json_of(capsys, "plan", *asked)["gpus"]
    layouts = [("--tp", "1"), ("--tp", "2"), most]
    given = []
    for layout in layouts:
        if run(["plan", *asked, *layout, "-q"]) == 0:
            given.append(int(capsys.readouterr().out))
        else:
            capsys.readouterr()
    assert given and free <= min(given)


def test_a_zero_takes_a_reserve_of_the_file_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "fleet: [{name: a, workload: rag, gpu: h100-sxm, profile: office}]\nplanning: {spare: 5, spot: 50%}\n"
    )
    five, one, none = (
        json_of(capsys, "plan", str(path), "--no-verify", *given)
        for given in ((), ("--spare", "1"), ("--spare", "0", "--spot", "0"))
    )
    spare = [plan["replicas"] - plan["workloads"][0]["base_replicas"] for plan in (five, one, none)]
    assert spare == [5, 1, 0]
    assert five["cloud"]["mixes"][0]["spot_usd_per_gpu_hour"] is not None
    assert none["cloud"]["mixes"][0]["spot_usd_per_gpu_hour"] is None
    assert run(["plan", str(path), "--min-replicas", "0"]) == 2
    assert "--min-replicas: must be a whole number of at least 1" in capsys.readouterr().err
    assert run(["plan", str(path), "--isl", "0"]) == 2
    assert "--isl: is of one workload" in capsys.readouterr().err


def test_a_range_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("model: llama-3.1-8b\ntokens: {isl: 1000, osl: 200}\ndemand: {requests_per_s: 2..5}\n")
    for command in ("plan", "estimate"):
        text = " ".join(out_of(capsys, command, str(path), "-g", "h100-sxm", "--no-verify").split())
        assert "middle" in text and "2 to 5" in text and "--uncertain shows the spread" in text
        assert "as stated" not in text


@pytest.mark.parametrize("failures", ["replica", "node"])
def test_a_target_that_no_reserve_reaches_is_infeasible(failures: str, capsys: pytest.CaptureFixture[str]) -> None:
    rare = ("--availability", "50%", "--mtbf", "1h", "--mttr", "100y", "--failures", failures)
    found = json_of(capsys, *CALLS, *rare, code=1)
    assert not found["feasible"] and "no reserve of up to 2,000 replicas" in found["problems"][0]
    # The node that it names as enough is.
    needed = found["problems"][0].rpartition("nodes from ")[2].split(" %")[0]
    mttr = (
        "--availability",
        "50%",
        "--mtbf",
        f"{needed}h",
        "--mttr",
        f"{100 - float(needed)}h",
        "--failures",
        failures,
    )
    assert json_of(capsys, *CALLS, *mttr)["feasible"]


def test_no_more_certainty_is_printed_than_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    sure = ("--availability", "99.9%", "--node-availability", "99.999%")
    text = " ".join(out_of(capsys, *CALLS, *sure, "--spare", "6").split())
    assert "more than 99.9999999 % where each fails by itself" in text and "100.0000" not in text
    assert "(target 99.9 %)" in text
    verbose = " ".join(out_of(capsys, *CALLS, *sure, "--spare", "6", "--verbose").split())
    assert "availability 0.9990, node availability 0.99999," in verbose and "1.000" not in verbose
    by_node = " ".join(out_of(capsys, *CALLS, *sure, "--failures", "node").split())
    found = json_of(capsys, *CALLS, *sure, "--failures", "node")["availability"][0]
    assert by_node.partition(" replicas are up ")[2].startswith(f"{found['achieved_by_node'] * 100:.3f}"[:6])


def test_an_infeasible_plan_names_the_change_that_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("chat", "-g", "l4", "--tp", "1", "--no-verify")
    plan, estimate = json_of(capsys, "plan", *asked, code=1), json_of(capsys, "estimate", *asked, code=1)
    assert plan["suggestions"] == estimate["limiting"]["suggestions"] != []  # the only workload has no need of its name
    assert run(["plan", *asked, "--plot", str(tmp_path / "day.svg")]) == 1
    assert "day.svg: not drawn, as there is no plan" in capsys.readouterr().err


def test_a_closed_loop_can_be_planned(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "plan", "agentic", "-g", "h100-sxm", "--spare", "1", "--no-verify", "--closed-loop")
    assert found["workloads"][0]["demand_unit"] == "requests in flight"
    assert found["mean_requests_per_s"] is None and found["users"] is None
    assert found["peak_requests_per_s"] > 0


# --- uncertainty ----------------------------------------------------------------------------------------------------


def test_draws_are_the_same_for_a_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("plan", str(written(tmp_path)), "-g", "h100-sxm", "--no-verify", "--uncertain")
    text = out_of(capsys, *asked, "--json")
    assert text == out_of(capsys, *asked, "--seed", "0", "--json")
    found, other = json.loads(text)["uncertainty"], json_of(capsys, *asked, "--seed", "1")["uncertainty"]
    assert found != other
    assert found["draws"] == 10_000
    assert found["gpus"]["p10"] < found["gpus"]["p50"] < found["gpus"]["p90"]
    assert found["influences"][0]["input"] == "planning.requests_per_user_per_day"  # 2.5-fold, the peak twofold
    assert {one["input"].split()[0] for one in found["influences"]} == {
        "planning.requests_per_user_per_day", "planning.peak_to_mean", "model", "price",
    }  # fmt: skip


# --- exit codes and faults --------------------------------------------------------------------------------------------


def test_what_cannot_be_served_is_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "plan", "chat", "-g", "l4", "--tp", "1", "--no-verify", code=1)
    assert not found["feasible"] and found["gpus"] is None
    assert "GiB more per GPU" in found["problems"][0]
    over = json_of(capsys, *CALLS, "--gpus", "8", code=1)
    assert not over["feasible"] and "more than the budget of 8" in over["problems"][0]


FAULTS = {
    ("--spare", "-1"): "--spare: must be a whole number of at least 0",
    ("--availability", "99.9%"): "nothing says how often a node is up",
    ("--availability", "99.9%", "--mtbf", "5y"): "--mtbf, --mttr: one of the two is missing",
    ("--mtbf", "5000", "--mttr", "8h"): "'5000' is no duration with a unit",
    ("--node-availability", "99%", "--mtbf", "5y", "--mttr", "8h"): "says what --mtbf and --mttr say",
    ("--failures", "node"): "no meaning without --availability",
    ("--until", "2027-12"): "no meaning without growth",
    ("--growth", "5%", "--until", "2027-13"): "'2027-13' is no month or day",
    ("--growth", "5%", "--from", "2027-01", "--until", "2026-12"): "is not after the day of the plan",
    ("--growth", "5%", "--until", "9999-12"): "months ahead; allowed: at most 240 months",
    ("--growth", "900%", "--until", "2040-12"): "times the demand by 2040-12-01",
    (
        "--growth",
        "5%",
        "--until",
        "12months",
    ): "a number of months from the first day on is stated by months (--months 12)",
    ("--growth", "5%", "--until", "2027-12", "--months", "12"): "--months: says when the growth ends, as --until does",
    ("--growth", "5%", "--months", "241"): "241 months ahead; allowed: at most 240 months",
    ("--months", "12"): "--months: has no meaning without growth",
    ("--cloud", "nebius:spot"): "allowed: nebius, or --provider nebius:spot in place of --cloud",
    ("--from", "2026-12"): "--from: has no meaning without growth",
    ("--spot", "50%"): "no meaning at the same load all day",
    ("--min-replicas", "2"): "no meaning at the same load all day",
    ("--cloud", "awss"): "did you mean AWS?",
    ("--seed", "1"): "no meaning without draws",
    ("--profile", "office", "--peak-to-mean", "2"): "state one of them",
    ("--move", "chat=h200"): "'chat' is no workload here",
    ("--move", "call-centre=h999"): "--move: unknown GPU 'h999'",
    ("--plot", "day.bmp"): "'day.bmp' has no known ending",
    ("--spot", "2"): "write 2% or 0.02",
    ("--cloud", "lambda", "--price", "3"): "--price: is the price of the provider 'lambda' already",
    ("--growth", "٥%"): "'٥%' is no share from 0 up",
    ("--price", "٣"): "'٣' is no number",
    ("--from", "9999-01", "--growth", "5%"): "--from: 9999-01-01 is no day of a plan",
}


@pytest.mark.parametrize("given", FAULTS)
def test_what_is_wrong_is_one_line(given: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*CALLS, *given]) == 2
    out, err = capsys.readouterr()
    assert not out and FAULTS[given] in err
    assert len(err.splitlines()) == 1


# --- formats --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 110])
def test_no_line_is_wider_than_the_terminal(width: int, tmp_path: Path) -> None:
    from sizing.cli.plan import RULE_OPTIONS, WORKLOAD_OPTIONS, plan_question, planned
    from sizing.formats.text import render
    from sizing.question.options import GivenOptions
    from sizing.report.plan.sections import document

    options = (*WORKLOAD_OPTIONS, *RULE_OPTIONS)
    values: dict[str, Any] = dict.fromkeys(option.name for option in options)
    values |= {
        "growth": "5%",
        "availability": "99.9%",
        "node_availability": "99%",
        "uncertain": True,
        "move": "search=l40s",
    }
    found = planned(plan_question(FLEET, GivenOptions(options, values)), 0, simulated=False)
    assert max(map(len, render(document(found), width).splitlines())) <= width


def test_the_number_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert int(out_of(capsys, *CALLS, "--quiet")) == json_of(capsys, *CALLS)["gpus"]


def test_csv_has_a_row_a_workload_a_pool_and_an_hour(capsys: pytest.CaptureFixture[str]) -> None:
    lines = out_of(capsys, "plan", FLEET, "--no-verify", "--format", "csv").splitlines()
    assert [sum(line.startswith(kind) for line in lines) for kind in ("workload,", "pool,", "hour,")] == [3, 1, 168]


@pytest.mark.parametrize("arguments", [("plan", FLEET), (*CALLS[:-1], "--profile", "global"), CALLS[:-1]])
def test_the_picture_is_the_same_each_time(arguments: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for path in paths:
        assert run([*arguments, "--no-verify", "--plot", str(path)]) == 0
    one, two = (path.read_bytes() for path in paths)
    assert one == two and b"requests/s" in one and b"whole nodes for the peak" in one


def test_what_moves_nothing_is_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    """At 0.01 requests/s one replica does in all draws, so no input has an influence on the GPUs."""
    asked = ("plan", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "200", "--rps", "0.01")
    drawn = (*asked, "--no-verify", "--uncertain", "--price-uncertainty", "0")
    text = " ".join(out_of(capsys, *drawn).split())
    assert "GPUs 1, 1, 1 (P10, P50 and P90 of 10,000 draws, seed 0)" in text and "Matters most" not in text
    verbose = " ".join(out_of(capsys, *drawn, "--verbose").split())
    assert "price (--price-uncertainty 0)" in verbose
    assert "influences input model error, " in verbose and "rank correlation 0, of GPUs" in verbose
    (influence,) = json_of(capsys, *drawn)["uncertainty"]["influences"]
    assert (influence["input"], influence["rank_correlation"], influence["of"]) == ("model error", 0, "GPUs")


def test_small_shares_are_not_written_as_none(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "200", "--no-verify")
    found = json_of(capsys, "plan", *asked, "--rps", "0.1", "--peak-to-mean", "2", "--active-hours", "24")
    assert 0 < found["utilisation_mean"] < 0.005
    text = " ".join(
        out_of(capsys, "plan", *asked, "--rps", "0.1", "--peak-to-mean", "2", "--active-hours", "24").split()
    )
    assert f"{found['utilisation_mean'] * 100:.2f} % on average" in text
    assert (
        f"the load is {found['utilisation_peak'] * 100:.2f} % of the most requests/s that one GPU serves at the peak"
        in text
    )
    assert found["utilisation_peak"] == pytest.approx(2 * found["utilisation_mean"])


def test_a_confidence_sizes_a_plan_as_it_sizes_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("chat", "-g", "h100-sxm", "--no-verify", "--confidence", "90%")
    assert run(["estimate", *asked, "--json"]) == 0
    estimated = json.loads(capsys.readouterr().out)["deployment"]["gpus"]
    assert run(["plan", *asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"] == estimated
    assert run(["plan", *asked, "--uncertain"]) == 2
    assert "one of them" in capsys.readouterr().err


@pytest.mark.parametrize("confidence", ["50%", "90%"])
def test_both_shares_of_the_gpus_are_of_one_capacity(capsys: pytest.CaptureFixture[str], confidence: str) -> None:
    asked = ("-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "200", "--ttft", "1s", "--no-verify")
    load = ("--rps", "100", "--peak-to-mean", "3", "--active-hours", "24", "--spare", "1")
    found = json_of(capsys, "plan", *asked, *load, "--confidence", confidence)
    assert found["utilisation_peak"] == pytest.approx(3 * found["utilisation_mean"])


# --- what a buyer reads -----------------------------------------------------------------------------------------------


def test_latencies_of_a_plan_with_a_reserve_are_said_to_be_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "; latencies with 2 replicas down" in out_of(capsys, *CALLS, "--spare", "2")
    assert "replicas down" not in out_of(capsys, *CALLS)
    latency = [json_of(capsys, *CALLS, *more)["workloads"][0]["latency"] for more in ((), ("--spare", "2"))]
    assert latency[0] == latency[1]


def test_what_matters_most_is_said_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    said = " ".join(out_of(capsys, *CALLS, "--uncertain").split())
    assert "rank correlation" not in said
    assert "model error, the real rate over the predicted one: the higher it is, the fewer GPUs (" in said
    assert "on a scale from 0, no relation, to 1, always)" in said


def test_a_year_of_growth_is_twelve_months(capsys: pytest.CaptureFixture[str]) -> None:
    grows = (*CALLS, "--growth", "5%", "--from", "2026-11-28")
    by = {end: json_of(capsys, *grows, *end)["growth"] for end in (("--months", "12"), ("--until", "2027-11-28"))}
    year = by["--months", "12"]
    assert year == by["--until", "2027-11-28"]
    assert (year["until"], year["months"]) == ("2027-11-28", 12)
    assert year["at_date"]["times"] == pytest.approx(1.05**12)
    assert "from 2026-11-28 over 12 months: " in " ".join(out_of(capsys, *grows, "--months", "12").split())
    assert "from 2026-11-28 over 11.1 months: " in " ".join(out_of(capsys, *grows, "--until", "2027-11").split())


@pytest.mark.parametrize(("command", "option"), [("plan", "--cloud"), ("cost", "--cloud"), ("plan", "--provider")])
def test_a_price_that_is_not_known_can_be_quoted(
    command: str, option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A reserved price is told to be one's own, in the same words by every command; a GPU's file with it serves."""
    assert run([command, *CALLS[1:], option, "aws:reserved"]) == 2
    said = capsys.readouterr().err
    quote = f"--price 2.5 in place of {option}, or a GPU file (llmsize gpus NAME --yaml) that lists it under prices"
    assert (
        f"no reserved price of H100 SXM 80GB by 'aws' is known; allowed: on-demand, or your own quote: {quote}" in said
    )
    assert "of kind 1-year reserved or 3-year reserved" in said
    assert run(["gpus", "h100-sxm", "--yaml"]) == 0
    mine = "prices:\n  - {provider: AWS, sku: mine, kind: 1-year reserved, usd_per_gpu_hour: 2.5, gpus: 8, date: 2026-11, source: our quote}"
    path = tmp_path / "mine.yaml"
    path.write_text(capsys.readouterr().out.replace("\nprices:", f"\n{mine}  #", 1))
    option = "--cloud" if command == "cost" else "--provider"
    assert run([command, "call-centre", "-g", str(path), "--no-verify", option, "aws:1-year reserved"]) == 0


def test_nodes_that_the_sure_size_needs_today_are_on_the_first_screen(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "300", "--rps", "200", "--itl", "30ms",
             "--spare", "1", "--headroom", "20%", "--no-verify"]  # fmt: skip
    assert run([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    node = found["pools"][0]["gpus_per_node"]
    assert found["nodes_sure"] == -(-found["gpus_sure"] // node) > found["nodes"]
    assert run(asked) == 0
    assert f"{found['nodes']} whole nodes (16 GPUs), {found['nodes_sure']} to be sure" in capsys.readouterr().out
