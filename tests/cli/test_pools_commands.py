"""Which commands take separate pools, and what the others say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer

from sizing.cli.main import application, run
from sizing.question.options import DISAGGREGATE, POOLED
from sizing.specs.units import HOURS_PER_MONTH

COMMANDS = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
WITHOUT = sorted(set(COMMANDS) - set(POOLED))
WORKLOAD = """
model: llama-3.1-8b
gpu: [h100-sxm]
tokens: {isl: 2000, osl: 300}
demand: {requests_per_s: 5}
serving: {tp: 1}
optimisations: {disaggregate: auto}
"""


def test_the_commands_that_are_named_are_those_that_take_the_option() -> None:
    taking = {name for name, command in COMMANDS.items() if any(DISAGGREGATE in each.opts for each in command.params)}
    assert taking == set(POOLED) and WITHOUT


@pytest.mark.parametrize("command", WITHOUT)
@pytest.mark.parametrize("value", [[], ["auto"], ["prefill=tp2"]])
def test_the_others_name_them(command: str, value: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, DISAGGREGATE, *value]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"llmsize: --disaggregate: {command} takes no separate pools")
    assert all(name in line for name in POOLED)
    assert run([command, "=".join((DISAGGREGATE, *(value or ["auto"])))]) == 2
    assert capsys.readouterr().err.splitlines() == [line]


@pytest.mark.parametrize("command", [["plan"], ["report", "--growth", "5%", "-o", "-"]])
def test_a_workload_that_asks_for_pools_is_told_where(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(WORKLOAD, encoding="utf-8")
    assert run([*command, str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path}:7: optimisations.disaggregate: this command takes no separate pools" in line
    assert all(name in line for name in POOLED)


POOLS = ("", "prefill=h100-sxm,decode=h200-sxm", "prefill=4xtp2,decode=2xtp1")


@pytest.mark.parametrize("pools", POOLS)
def test_cost_and_report_have_the_gpus_and_the_dollars_of_an_estimate(
    pools: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "2000", "--osl", "300", "--rps", "40", "--ttft", "500ms"]
    asked += ["--no-verify", DISAGGREGATE, *([pools] if pools else [])]
    assert run(["estimate", *asked, "--json"]) == 0
    both = json.loads(capsys.readouterr().out)["disaggregated"]
    assert run(["cost", *asked, "--json"]) == 0
    bill = json.loads(capsys.readouterr().out)
    (sized,), option = bill["pools"], bill["options"][0]
    for name in ("prefill", "decode"):
        assert {key: both[name][key] for key in ("gpu", "replicas", "tp", "gpus")}.items() <= sized[name].items()
    assert option["gpus"] == both["gpus"] and option["usd_per_hour"] == pytest.approx(both["usd_per_hour"])
    assert bill["full_use_requests_per_s"] == pytest.approx(
        min(both[n]["most_requests_per_s"] for n in ("prefill", "decode"))
    )
    tokens = option["usd_per_million_tokens"]
    of_inputs = (
        tokens["input"]["full_use"] * 2000 / (tokens["input"]["full_use"] * 2000 + tokens["output"]["full_use"] * 300)
    )
    usd = {
        pool: both[pool]["gpus"] * (7.9125 if "H200" in both[pool]["gpu"] else 6.155) for pool in ("prefill", "decode")
    }
    assert of_inputs == pytest.approx(usd["prefill"] / sum(usd.values()), rel=1e-3)  # each kind of token pays its pool


def test_the_page_shows_both_pools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(WORKLOAD, encoding="utf-8")
    assert run(["estimate", str(path), "--no-verify", "--json"]) == 0
    both = json.loads(capsys.readouterr().out)["disaggregated"]
    assert run(["report", str(path), "--no-verify", "--cloud", "lambda", "-o", "-"]) == 0
    page = capsys.readouterr().out
    record = json.loads(page.partition('id="document">')[2].partition("</script>")[0])
    assert (
        record["decision"]["gpus"]
        == both["gpus"]
        == record["cost"]["pools"][0]["prefill"]["gpus"] + both["decode"]["gpus"]
    )
    assert record["decision"]["usd_per_month"] == pytest.approx(both["usd_per_hour"] * HOURS_PER_MONTH)
    assert "Both pools" in page and "Most requests/s of prefill" in page


def test_servers_of_one_type_hold_no_pools_of_two(capsys: pytest.CaptureFixture[str]) -> None:
    pools = [DISAGGREGATE, "prefill=h100-sxm,decode=h200-sxm", "--no-verify"]
    assert run(["cost", "chat", "-g", "h100-sxm", *pools, "--own", "hgx-h100", "--cloud", "aws"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in said] == ["--own", "--cloud"] and all(
        "these pools have two" in s for s in said
    )


@pytest.mark.parametrize("command", ["estimate", "compare", "curve", "whatif", "sweep", "cost"])
def test_a_workload_may_ask_for_pools(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(WORKLOAD, encoding="utf-8")
    options = ["--vary", "rps=5,6"] if command == "sweep" else ["--no-verify"]
    assert run([command, str(path), *options]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert re.search(r"prefill \d+ x TP\d+.* decode \d+", words)  # a table's cell may fold behind the number


def test_the_way_of_tokens_to_their_experts_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["estimate", "-m", "deepseek-r1", "-g", "h200-sxm", "--isl", "4000", "--osl", "1000", "--rps", "2"]
    layouts = ["--disaggregate", "prefill=tp4dp2ep8,decode=dp16ep16", "--no-verify"]
    assert run([*asked, *layouts, "--json"]) == 0
    pools = json.loads(capsys.readouterr().out)["disaggregated"]
    assert [pools[name]["all2all_backend"] for name in ("prefill", "decode")] == ["allgather", "low_latency"]
    assert run([*asked, *layouts]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "tokens go to experts by allgather Decode" in said and "tokens go to experts by low_latency" in said
    whole = ["--tp", "1", "--dp", "16", "--ep", "16", "--no-verify"]
    assert run([*asked, *whole, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"]["serving"]["all2all_backend_in_force"] == "low_latency"
    assert run([*asked, *whole]) == 0
    assert "tokens go to experts by low_latency" in " ".join(capsys.readouterr().out.split())
