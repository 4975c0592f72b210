"""The command line: exit codes, one line a mistake, results alone on stdout, and a quick start."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from processes import said

from sizing import __version__
from sizing.answers.advice import rounded_up_readably
from sizing.cli.main import known_commands, run

ASKED = ["estimate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "200"]
FEASIBLE = [*ASKED, "--rps", "20"]
INFEASIBLE = ["estimate", "-m", "llama-3.1-70b", "-g", "l4", "--tp", "1", "--isl", "1000", "--osl", "200", "--rps", "5"]  # fmt: skip


def process(*arguments: str, code: str | None = None, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command (or `code`) in a process of its own, from the checkout."""
    command = [sys.executable, "-m", "sizing", *arguments] if code is None else [sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, capture_output=True, env=env, timeout=60, check=False)


def read_one_line(*arguments: str) -> tuple[bytes, int, bytes]:
    """Run the command, read its first line and close the pipe, as `| head -1` does; return line, exit code, stderr."""
    with subprocess.Popen(
        [sys.executable, "-m", "sizing", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        line = child.stdout.readline()
        child.stdout.close()
        stderr = child.stderr.read()
        return line, child.wait(timeout=60), stderr


# --- exit codes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (FEASIBLE, 0),
        (INFEASIBLE, 1),
        ([*FEASIBLE, "--gpus", "1", "--rps", "5000"], 1),  # a budget that is too small
        (["memory", "-m", "llama-3.1-8b", "-g", "h100-sxm"], 0),
        (["memory", "-m", "llama-3.1-70b", "-g", "l4"], 1),
        (["step", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--decode", "8", "--context", "500"], 0),
        (["gpus"], 0),
        (["engines", "vllm"], 0),
        (["estimate"], 2),
        (["estimat"], 2),
        (["gpus", "h100-sxn"], 2),
        (["step", "-m", "llama-3.1-8b", "-g", "h100-sxm"], 2),
    ],
)
def test_the_exit_code_says_how_it_went(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == code
    out, err = capsys.readouterr()
    # A result goes to stdout, also one that says no; a mistake goes to stderr, one line a fault.
    assert bool(out) == (code < 2)
    assert bool(err) == (code == 2)
    assert all(line.startswith("llmsize: ") for line in err.splitlines())


@pytest.mark.parametrize("command", known_commands())
def test_an_unknown_option_is_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--no-such-option"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and "--no-such-option" in err


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--ttft", "500"], ["--ttft", "unit"]),
        (["--gpu", "h100-sxn"], ["h100-sxn", "did you mean h100-sxm?"]),
        (["--format", "jsom"], ["--format", "did you mean json?"]),
        (["--format", "csv", "--json"], ["contradicts --json"]),
        (["--precision", "fp9"], ["--precision", "fp8"]),
        (["--isl", "0"], ["--isl"]),
        (["--tp", "x"], ["--tp", "whole number"]),
        (["--price", "-1"], ["--price", "from 0.001 to 1,000"]),
        (["--gpus", "0"], ["--gpus", "above 0"]),
        (["--engine", "vllm:99"], ["99"]),
        (["--max-utilisation", "80"], ["80"]),
    ],
)
def test_a_mistake_names_its_option_and_what_is_allowed(
    extra: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*FEASIBLE, *extra]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


def test_every_mistake_is_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*FEASIBLE, "--isl", "0", "--osl", "-5", "--itl", "30"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(sum(option in line for line in lines) == 1 for option in ("--isl", "--osl", "--itl"))


def test_a_mistake_in_a_file_has_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("name: w\nmodel: llama-3.1-8b\ntokens: {isl: 10, osl: 10}\nlimts: {ttft: 1s}\n")
    assert run(["estimate", str(path), "--rps", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"llmsize: {path}:4:") and "did you mean limits?" in line


# --- what would help -------------------------------------------------------------------------------------------


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["estimate", *arguments, "--no-verify", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("asked", "limit", "statistic"),
    [
        (["-g", "h100-sxm", "--rps", "200"], "--itl", ""),
        (["-g", "h100-sxm", "--concurrency", "500", "--closed-loop"], "--ttft", ""),
        (["-g", "h100-sxm,l40s", "--rps", "200", "--headroom", "10%"], "--itl", "p95:"),
        # One GPU alone is too slow for the limit: what was turned down comes back under a looser one.
        (["-m", "llama-3.1-70b", "-g", "h200", "--rps", "1"], "--itl", ""),
        (["-g", "h100-sxm,l40s,a100-sxm-80gb", "--rps", "60", "--objective", "cost"], "--e2e", ""),
    ],
)
def test_a_relaxed_limit_is_the_threshold_at_which_fewer_gpus_do(
    asked: list[str], limit: str, statistic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tight = {"--itl": "15ms", "--ttft": "1s", "--e2e": "2.2s"}[limit]
    base = ["-m", "llama-3.1-8b", "--isl", "1000", "--osl", "200", *asked]
    found = answer(capsys, *base, limit, f"{statistic}{tight}")
    limiting, gpus = found["limiting"], found["deployment"]["gpus"]
    relaxed_ms = limiting["relaxed_limit_ms"]
    assert limiting["limit"] == limit.removeprefix("--")
    assert relaxed_ms > limiting["limit_ms"] and limiting["relaxed_gpus"] < gpus
    at_limit = answer(capsys, *base, limit, f"{statistic}{relaxed_ms:g}ms")
    assert at_limit["deployment"]["gpus"] == limiting["relaxed_gpus"]
    assert at_limit["deployment"]["gpu"] == limiting["relaxed_gpu"]
    tighter = answer(capsys, *base, limit, f"{statistic}{relaxed_ms * 0.97:g}ms")
    assert tighter["deployment"]["gpus"] == gpus


@pytest.mark.parametrize(
    ("value", "figure"),
    [(44.83, 45.0), (45.0, 45.0), (16.21, 16.3), (99.7, 100.0), (62.5, 62.5), (1.004, 1.01), (0.04483, 0.045)],
)
def test_a_legible_figure_is_the_next_of_few_digits(value: float, figure: float) -> None:
    # 44.83: a hundredth is 0.4483, the step below it 0.2; 99.7: 0.997, 0.5; 62.5: 0.625, 0.5; 16.21: 0.1621, 0.1
    assert rounded_up_readably(value) == figure


@pytest.mark.parametrize(
    "asked",
    [
        ["-g", "h100-sxm", "--rps", "40", "--itl", "p95:30ms", "--kv-precision", "fp8", "--max-num-seqs", "200"],
        ["-g", "h100-sxm", "--concurrency", "100", "--engine", "sglang", "--precision", "fp8"],
        ["-g", "h100-sxm", "--mode", "offline"],
        ["-g", "h100-sxm", "--gpus", "2", "--tp", "2"],
        ["-m", "qwen3-30b-a3b", "-g", "h100-sxm", "--dau", "100000", "--isl-max", "2000", "--osl-max", "400"],
        ["-g", "{copy}", "--rps", "1000"],
    ],
)
def test_the_command_that_checks_an_answer_runs(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "my card.yaml"
    copy.write_bytes((ROOT / "hardware_profiles" / "gpus" / "h100-sxm.yaml").read_bytes())
    base = ["-m", "llama-3.1-8b", "--isl", "1000", "--osl", "200", *(part.format(copy=copy) for part in asked)]
    found = answer(capsys, *base)
    program, command, *options = shlex.split(found["simulate_command"])
    assert (program, command) == ("llmsize", "simulate")
    assert run([command, *options, "--requests", "50", "--json"]) in (0, 1)
    simulated = json.loads(capsys.readouterr().out)
    same = (
        "weight_precision",
        "kv_precision",
        "engine",
        "engine_version",
        "isl",
        "osl",
        "max_model_len",
        "max_num_seqs",
    )
    stated = {**found["inputs"], **{"max_num_seqs": found["inputs"]["serving"]["max_num_seqs"]}}
    assert {key: simulated["inputs"][key] for key in same} == {key: stated[key] for key in same}
    for size in ("tp", "pp", "ep", "dp"):
        assert simulated["inputs"][size] == found["deployment"][size]
    assert simulated["completed"] == 50
    # All replicas under the whole demand, or one of many under its share.
    replicas = int(options[options.index("--replicas") + 1]) if "--replicas" in options else 1
    assert replicas == found["deployment"]["replicas"] or (replicas == 1 and found["deployment"]["replicas"] > 16)
    if "--rps" in options:
        rate = float(options[options.index("--rps") + 1]) / replicas
        assert rate == pytest.approx(found["throughput"]["requests_per_s_per_replica"], rel=1e-5)


def test_profiles_of_one_name_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "mine.yaml"
    copy.write_bytes((ROOT / "hardware_profiles" / "gpus" / "h100-sxm.yaml").read_bytes())
    found = answer(capsys, *FEASIBLE[1:], "-g", f"h100-sxm,{copy},l40s")
    names = found["inputs"]["gpus_considered"]
    assert names[0].endswith(" (h100-sxm)") and names[1].endswith(" (mine)") and "(" not in names[2]
    assert {found["deployment"]["gpu"], *(a["gpu"] for a in found["alternatives"])} >= set(names[:2])
    assert answer(capsys, *FEASIBLE[1:])["inputs"]["gpus_considered"] == [names[0].removesuffix(" (h100-sxm)")]


def test_a_step_does_not_rest_on_what_happens_outside_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["step", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--decode", "8", "--context", "500", "--json"]) == 0
    told = [a["what"] for a in json.loads(capsys.readouterr().out)["assumptions"]]
    assert any(what.endswith(" host") for what in told)
    assert not any(what.endswith(" front_end") for what in told)
    assert any(a["what"].endswith(" front_end") for a in answer(capsys, *FEASIBLE[1:])["assumptions"])


# --- output ----------------------------------------------------------------------------------------------------


def test_quiet_prints_the_count_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*FEASIBLE, "--quiet"]) == 0
    quiet = capsys.readouterr().out
    assert run([*FEASIBLE, "--json"]) == 0
    assert int(quiet) == json.loads(capsys.readouterr().out)["deployment"]["gpus"]


def test_quiet_says_nothing_on_stdout_where_there_is_no_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*INFEASIBLE, "--quiet"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and err.startswith("llmsize: infeasible: ")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"llmsize {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    out = capsys.readouterr().out
    groups = out.partition("--help  Show")[2].splitlines()[1:-1]  # headings, and below each its commands
    listed = {line.split()[0] for line in groups if line.startswith("  ")}
    assert listed == set(known_commands())


@pytest.mark.parametrize("name", ["gpus", "models", "engines", "workloads"])
def test_what_a_listing_names_can_be_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["schema"] == "llmsize.listing/1"
    first = listed["rows"][0][0]
    assert run([name, first, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == first
    assert run([name]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_formats_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    for name, start in (("json", "{"), ("csv", "model,"), ("markdown", "| model |"), ("table", "1 x ")):
        assert run([*FEASIBLE, "--format", name]) == 0
        out, err = capsys.readouterr()
        assert out.startswith(start) and out.endswith("\n") and not out.endswith("\n\n")
        assert err == ""


# --- processes -------------------------------------------------------------------------------------------------


def test_help_starts_without_numpy_yaml_and_rich() -> None:
    code = (
        "import sys; from sizing.cli.main import run; run(['--help'])\n"
        "sys.exit(str(sorted({'numpy', 'yaml', 'rich', 'pydantic'} & set(sys.modules))))"
    )
    assert process(code=code).stderr.decode().strip() == "[]"


def test_output_that_is_no_terminal_is_plain_but_where_colour_is_forced() -> None:
    """Colour that is forced (FORCE_COLOR) changes no word and no line; NO_COLOR wins over it."""
    capable = {"TERM": "xterm-256color", "COLUMNS": "200", "FORCE_COLOR": "", "NO_COLOR": ""}
    found = process(*FEASIBLE, **capable)
    assert found.returncode == 0 and said(found.stderr) == ""
    assert b"\x1b" not in found.stdout
    assert max(map(len, found.stdout.decode().splitlines())) <= 80
    forced = process(*FEASIBLE, **{**capable, "FORCE_COLOR": "1"})
    assert forced.returncode == 0 and said(forced.stderr) == ""
    words = re.sub(rb"\x1b\[[0-9;]*m", b"", forced.stdout)
    assert words != forced.stdout and [line.rstrip() for line in words.splitlines()] == found.stdout.splitlines()
    assert process(*FEASIBLE, **{**capable, "FORCE_COLOR": "1", "NO_COLOR": "1"}).stdout == found.stdout


def test_an_ascii_terminal_gets_ascii() -> None:
    found = process("gpus", "mi300x", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert found.returncode == 0 and said(found.stderr) == ""
    assert found.stdout.isascii()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["gpus"], 0), (["gpus", "h100-sxm", "--json"], 0), (FEASIBLE, 0), (INFEASIBLE, 1)],
)
def test_a_reader_that_leaves_is_no_error(arguments: list[str], code: int) -> None:
    line, returned, stderr = read_one_line(*arguments)
    assert line.strip() or arguments == ["gpus"]
    assert (returned, said(stderr)) == (code, "")


def test_a_bug_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("sizing.catalog.workloads.override", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        run(FEASIBLE)
