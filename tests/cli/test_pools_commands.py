"""Which commands take separate pools, and what the others say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer

from sizing.cli.main import application, run
from sizing.question.fields import DISAGGREGATE, POOLED

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


@pytest.mark.parametrize("command", [["plan"], ["cost"], ["report", "-o", "-"]])
def test_a_workload_that_asks_for_pools_is_told_where(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(WORKLOAD, encoding="utf-8")
    assert run([*command, str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path}:7: optimisations.disaggregate: this command takes no separate pools" in line
    assert all(name in line for name in POOLED)


@pytest.mark.parametrize("command", ["estimate", "compare", "curve", "whatif", "sweep"])
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
