"""`--set PATH=VALUE` and `-`: a workload changed by path, or written to the command."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from sizing.cli.main import run

CHAT = ROOT / "workloads" / "traffic" / "chat.yaml"
ESTIMATE = ("estimate", "chat", "-g", "h100-sxm", "--no-verify")


def inputs(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) in (0, 1)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["inputs"]
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(list(arguments)) == 2
    return capsys.readouterr().err


def test_a_value_is_what_the_workload_says(capsys: pytest.CaptureFixture[str]) -> None:
    found = inputs(capsys, *ESTIMATE, "--set", "demand.requests_per_s=80", "--set", "limits.itl=p99:40ms")
    assert found["demand"]["requests_per_s"] == 80.0  # in place of the 100,000 users of the file
    assert found["demand"]["kind"] == "requests_per_s"
    assert found["limits"]["itl_ms"] == {"statistic": "p99", "ms": 40.0}
    assert found["limits"]["ttft_ms"] == {"statistic": "p95", "ms": 1000.0}


def test_what_no_option_says_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    found = inputs(capsys, *ESTIMATE, "--set", "demand.calls_per_year={calls: 1000000, requests_per_call: 10}")
    assert found["demand"]["kind"] == "calls_per_year"


def test_a_range_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    found = inputs(capsys, *ESTIMATE, "--set", "demand.requests_per_s=10..30")
    assert found["demand"]["requests_per_s"] == 20.0
    assert found["demand"]["ranges"] == {"demand.requests_per_s": {"low": 10.0, "high": 30.0}}


def test_several_gpu_types_are_written_as_for_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    found = inputs(capsys, "estimate", "chat", "--no-verify", "--set", "gpu=[h100-sxm, h200-sxm]")
    assert found["gpu_ids"] == ["h100-sxm", "h200-sxm"]


def test_options_need_no_workload_to_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    of_options = ("estimate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--no-verify", "--rps", "3")
    found = inputs(capsys, *of_options, "--set", "tokens.isl=900", "--set", "tokens.osl=100")
    assert (found["isl"], found["osl"]) == (900, 100)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tokens.isl", "--set: 'tokens.isl' sets no field; allowed: PATH=VALUE"),
        ("tokens.isl=", "--set tokens.isl: states no value"),
        ("tokens.isl=many", "--set tokens.isl: must be a whole number"),
        ("demand.requsts_per_s=3", "did you mean requests_per_s?"),
        ("serving.tensor_parallel=3", "--set serving.tensor_parallel: unknown key"),
        ("model=no-such-model", "--set model: unknown model"),
        ("gpu=h100-smx", "--set gpu: unknown GPU"),
        ("limits.ttft=[", "--set limits.ttft: "),
    ],
)
def test_what_is_wrong_is_named_by_its_path(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = () if text.startswith("gpu") else ("-g", "h100-sxm")
    said = refused(capsys, "estimate", "chat", *options, "--set", text)
    assert words in said
    assert said.count("\n") == 1


def test_contradictions_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    two = ("--set", "demand.requests_per_s=3", "--set", "demand.concurrency=3")
    assert "exactly one" in refused(capsys, *ESTIMATE, *two)
    twice = ("--set", "mode=offline", "--set", "mode=streaming")
    assert "--set mode: contradicts another --set" in refused(capsys, *ESTIMATE, *twice)
    assert "--set tokens.isl: contradicts --isl" in refused(capsys, *ESTIMATE, "--isl", "5", "--set", "tokens.isl=6")
    assert "exactly one" in refused(capsys, *ESTIMATE, "--rps", "5", "--set", "demand.concurrency=3")
    assert "--set demand: contradicts --rps" in refused(capsys, *ESTIMATE, "--rps", "5", "--set", "demand=3")
    offline = ("--mode", "offline", "--set", "limits.itl=40ms")
    assert "--set limits.itl: has no meaning for offline work" in refused(capsys, *ESTIMATE, *offline)


def test_gpus_to_replace_say_what_the_demand_is(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("compare", "chat", "-g", "h200-sxm", "--no-verify", "--replace", "8xh100-sxm")
    assert "--set: states a demand" in refused(capsys, *asked, "--set", "demand.requests_per_s=3")


def test_a_comparison_takes_the_demand_that_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "900", "--osl", "100", "--no-verify", "--jobs", "1")
    assert inputs(capsys, "compare", *model, "--set", "demand.requests_per_s=3")["demand"]["requests_per_s"] == 3.0


class StartFiles(io.TextIOWrapper):
    """Standard input with a text."""

    def __init__(self, text: str) -> None:
        super().__init__(io.BytesIO(text.encode()), encoding="utf-8")


def test_a_workload_comes_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = inputs(capsys, *ESTIMATE)
    monkeypatch.setattr("sys.stdin", StartFiles(CHAT.read_text(encoding="utf-8")))
    assert inputs(capsys, "estimate", "-", *ESTIMATE[2:]) == {**plain, "workload": "stdin"}


def test_a_fault_on_standard_input_has_its_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StartFiles("model: llama-3.1-8b\ntokens: {isl: 5, osl: 6}\nmodus: streaming\n"))
    assert "standard input:3: modus: unknown key" in refused(capsys, "estimate", "-", "-g", "h100-sxm")
    monkeypatch.setattr("sys.stdin", StartFiles(""))
    assert "standard input: is empty" in refused(capsys, "estimate", "-", "-g", "h100-sxm")


def test_several_workloads_are_lines_in_their_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ("-g", "h100-sxm", "--no-verify", "--format", "jsonl")
    monkeypatch.setenv("LLMSIZE_RPS", "3")  # none of these, which say their own demand
    assert run(["estimate", "rag", "chat", "agentic", *plain]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["inputs"]["workload"] for line in lines] == ["rag", "chat", "agentic"]
    assert {line["schema"] for line in lines} == {"llmsize.estimate/1"}
    assert lines[2]["inputs"]["demand"]["kind"] == "concurrency"
    assert run(["estimate", "chat", *plain]) == 0
    assert json.loads(capsys.readouterr().out) == lines[1]


def test_a_trace_is_replayed_beside_other_workloads_as_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{i / 40 + 20 * (i > 400)},900,30\n" for i in range(800))
    (tmp_path / "log.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    traced = tmp_path / "traced.yaml"
    traced.write_text("model: llama-3.1-8b\ndemand: {trace: log.csv}\nlimits: {ttft: p95:1s}\n")
    plain = ("-g", "h100-sxm", "--no-verify", "--format", "jsonl")
    assert run(["estimate", str(traced), *plain]) == 0
    alone = capsys.readouterr().out
    assert run(["estimate", str(traced), "chat", *plain]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert json.loads(alone)["trace"]["minute_requests"] == 800
    assert json.loads(first) == json.loads(alone)
    assert json.loads(second)["trace"] is None


def test_several_workloads_fail_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("estimate", "rag", "chat", "-g", "h100-sxm", "--no-verify")
    assert "--format: several workloads are a line of JSON each; allowed: jsonl" in refused(capsys, *asked)
    assert "--quiet: is of one workload" in refused(capsys, *asked, "-q")
    assert "unknown workload 'chta'" in refused(capsys, "estimate", "rag", "chta", "--format", "jsonl")
    assert run([*asked, "--gpus", "1", "--format", "jsonl"]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_read_once_where_settings_ask_what_it_says(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = f"{sys.executable} -m sizing estimate <(cat {CHAT}) -g h100-sxm --no-verify -q"
    env = {**os.environ, "LLMSIZE_ITL": "9ms", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", line], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert run([*ESTIMATE, "-q"]) == 0
    assert done.stdout == capfd.readouterr().out
