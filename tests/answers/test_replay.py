"""A trace that is sized for: its busiest minute by hand, the size that a replay keeps its limits with, what contradicts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sizing.answers.replay import AFTER_S, BEFORE_S, busiest_minute
from sizing.cli.main import run
from sizing.report.parts.screen import limits_verdict
from sizing.specs.errors import InputError

Capture = pytest.CaptureFixture[str]
ASKED = ("estimate", "-m", "llama-3.1-8b", "-g", "l40s", "--tp", "1", "--ttft", "p95:800ms")


def rows(arrivals: list[float], isl: int = 900, osl: int = 60) -> np.ndarray[Any, Any]:
    return np.array([(at, isl, osl) for at in arrivals], dtype=float)


def written(path: Path, arrivals: np.ndarray[Any, Any], isl: int = 900, osl: int = 60) -> str:
    lines = "".join(f"{at:.3f},{isl},{osl}\n" for at in arrivals)
    path.write_text(f"arrival_s,input_tokens,output_tokens\n{lines}")
    return str(path)


def answered(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_the_busiest_minute_is_the_one_with_most_requests() -> None:
    """Every 10 s for 500 s, and five more right after 200 s: 11 requests in any minute around these, and none is lost."""
    arrivals = sorted([10.0 * n for n in range(51)] + [201.0, 202.0, 203.0, 204.0, 205.0])
    found = busiest_minute("trace", rows(arrivals))
    assert found.end - found.start == 11 and found.start_s <= 201 < 205 < found.start_s + 60
    assert found.per_s == pytest.approx(11 / 60)
    assert found.mean_per_s == pytest.approx(56 / 500)
    sent = found.traffic()
    assert sent.count - sent.warm_up - sent.cool_down == 11
    assert sent.trace is not None and sent.trace.arrival[-1] <= BEFORE_S + 60 + AFTER_S


def test_a_trace_shorter_than_a_minute_is_taken_whole() -> None:
    found = busiest_minute("trace", rows([0.0, 5.0, 10.0]))
    assert found.per_s == pytest.approx(0.3)
    with pytest.raises(InputError, match="one moment"):
        busiest_minute("trace", rows([0.0, 0.0]))


def test_clumps_take_more_than_the_mean_of_their_minute(tmp_path: Path, capsys: Capture) -> None:
    """600 requests of a minute evenly, or in ten clumps of 60 at one moment: the same rate, and the clumps need more GPUs.

    `simulate` finds the limit kept with the size that the replay ended at.
    """
    even = written(tmp_path / "even.csv", np.arange(0, 120, 0.1))
    clumps = written(tmp_path / "clumps.csv", np.repeat(np.arange(0, 120, 6.0), 60))
    plain, found = (answered(capsys, *ASKED, "--trace", trace) for trace in (even, clumps))
    assert plain["load"]["requests_per_s"] == pytest.approx(found["load"]["requests_per_s"], rel=0.02)
    assert plain["trace"]["minute_requests"] == 600
    assert plain["deployment"]["gpus"] < found["deployment"]["gpus"]
    assert found["latency"]["ttft_ms"]["p95"] <= 800
    size = str(found["deployment"]["replicas"])
    alone = ("simulate", *ASKED[1:], "--replicas", size, "--trace", clumps)
    assert answered(capsys, *alone)["ttft_ms"]["p95"] == pytest.approx(found["latency"]["ttft_ms"]["p95"], rel=0.15)


@pytest.mark.parametrize("more", [("--rps", "3"), ("--isl", "9"), ("--dau", "9000"), ("--set", "tokens.isl=9")])
def test_what_a_trace_has_is_not_asked_twice(more: tuple[str, str], tmp_path: Path, capsys: Capture) -> None:
    trace = written(tmp_path / "even.csv", np.arange(0, 70, 1.0))
    assert run([*ASKED, "--trace", trace, *more]) == 2
    option = more[0] if more[0] != "--set" else "--set tokens.isl"
    assert f"{option}: contradicts --trace" in capsys.readouterr().err


@pytest.mark.parametrize("more", [("--disaggregate", "auto"), ("--mode", "offline")])
def test_what_is_no_pool_of_served_requests_is_not_replayed(
    more: tuple[str, str], tmp_path: Path, capsys: Capture
) -> None:
    trace = written(tmp_path / "even.csv", np.arange(0, 70, 1.0))
    assert run(["estimate", "-m", "llama-3.1-8b", "-g", "l40s", "--trace", trace, *more]) == 2
    assert "--trace: cannot size " in capsys.readouterr().err


def test_a_size_is_that_of_the_rate_where_nothing_is_replayed(tmp_path: Path, capsys: Capture) -> None:
    trace = written(tmp_path / "even.csv", np.arange(0, 120, 0.1))
    traced = answered(capsys, *ASKED, "--trace", trace, "--no-verify")
    lengths = ("--isl", "900", "--osl", "60", "--max-model-len", "960")
    stated = answered(capsys, *ASKED, *lengths, "--rps", str(traced["load"]["requests_per_s"]), "--no-verify")
    assert traced["deployment"] == stated["deployment"]
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        assert traced["latency"][name]["p95"] == pytest.approx(stated["latency"][name]["p95"], rel=1e-6)


def test_a_trace_in_a_file_is_the_trace_of_the_option(tmp_path: Path, capsys: Capture) -> None:
    """The same minute, lengths and size; an option's own rate replaces the trace, and tokens beside it are a fault of every command."""
    trace = written(tmp_path / "clumps.csv", np.repeat(np.arange(0, 120, 6.0), 60))
    file = tmp_path / "w.yaml"
    asked = "model: llama-3.1-8b\ngpu: l40s\nserving: {tp: 1}\nlimits: {ttft: p95:800ms}\ndemand: {trace: clumps.csv}\n"
    option = answered(capsys, *ASKED, "--trace", trace, "--no-verify")
    file.write_text(asked + "tokens: {isl: 9, osl: 9}\n")
    for command in ("estimate", "cost", "deploy"):
        assert run([command, str(file), "--no-verify"]) == 2
        assert "w.yaml:6: tokens: contradicts demand.trace" in capsys.readouterr().err
    file.write_text(asked)
    for command in ("plan", "whatif"):
        assert run([command, str(file), "--no-verify", "--isl", "9"]) == 2
        assert "--isl: contradicts demand.trace" in capsys.readouterr().err
    found = answered(capsys, "estimate", str(file), "--no-verify")
    for name in ("trace", "deployment", "latency", "load"):
        assert found[name] == option[name]
    assert answered(capsys, "estimate", str(file), "--rps", "1", "--no-verify")["trace"] is None
    for command in ("cost", "plan", "compare"):
        assert run([command, str(file), "--no-verify"]) == 0
        verdict = " ".join(capsys.readouterr().out.split())
        assert (
            "(--no-verify); bursts and single lengths of the trace are not replayed: llmsize estimate FILE" in verdict
        )
    for command in (("whatif", str(file), "--no-verify"), ("sweep", str(file), "--vary", "headroom=0,0.1")):
        assert run([*command]) == 0
        assert "single lengths of the trace are not replayed" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "command", [("compare",), ("whatif",), ("cost", "--own", "hgx-h100"), ("estimate",), ("plan",)]
)
def test_gpus_that_are_given_and_not_needed_are_to_spare(command: tuple[str, ...], capsys: Capture) -> None:
    one, *more = command
    asked = ("-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "300", "--rps", "20", "--gpus", "8")
    assert run([one, *asked, *more, "--no-verify"]) == 0
    assert "6 of 8 to spare" in " ".join(capsys.readouterr().out.split())


def test_only_a_simulation_that_ran_has_random_arrivals() -> None:
    assert limits_verdict(True, True) == "Every limit is kept, confirmed by simulation"
    assert limits_verdict(True, True, "no") == "Every limit is kept, confirmed by simulation of random arrivals; no"


def test_measured_rows_take_no_trace(tmp_path: Path, capsys: Capture) -> None:
    trace = written(tmp_path / "even.csv", np.arange(0, 70, 1.0))
    assert run([*ASKED, "--trace", trace, "--from", trace]) == 2
    assert "--trace: has no effect with --from" in capsys.readouterr().err


def test_the_answer_is_the_fewest_that_the_replay_keeps(tmp_path: Path, capsys: Capture) -> None:
    """One replica less misses the limit that binds, by the looser limit that is said to save it; the capacity says so too.

    A budget of one GPU less is infeasible, by less than one replica.
    """
    clumps = written(tmp_path / "clumps.csv", np.repeat(np.arange(0, 120, 6.0), 60))
    found = answered(capsys, *ASKED, "--trace", clumps)
    count = found["deployment"]["replicas"]
    less = ("simulate", *ASKED[1:], "--replicas", str(count - 1), "--trace", clumps, "--json")
    assert run([*less]) == 1
    missed_ms = json.loads(capsys.readouterr().out)["ttft_ms"]["p95"]
    assert missed_ms > 800
    assert found["limiting"]["limit"] == "ttft"
    assert found["limiting"]["relaxed_limit_ms"] == pytest.approx(missed_ms, rel=0.15)
    assert (count - 1) / count < found["load"]["requests_per_s"] / found["load"]["max_requests_per_s"] < 1
    assert run([*ASKED, "--trace", clumps, "--gpus", str(count - 1), "--json"]) == 1
    refused = json.loads(capsys.readouterr().out)["limiting"]
    assert "TTFT reaches its limit" in refused["detail"]
    looser, larger = refused["suggestions"]
    assert looser.startswith("TTFT limit (p95) ") and f": {count - 1} x " in looser and f": {count} x " in larger
    file = tmp_path / "w.yaml"
    file.write_text(
        "model: llama-3.1-8b\ngpu: l40s\nserving: {tp: 1}\nlimits: {ttft: p95:800ms}\ndemand: {trace: clumps.csv}\n"
    )
    assert run(["deploy", str(file), "--for", "vllm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replicas"] == count
    line = "vllm serve meta-llama/Llama-3.1-8B --max-model-len 960"
    given = ("-g", "l40s", "--engine", "vllm", "--demand", str(file), "--json")
    assert run(["check", line, *given, "--replicas", str(count - 1)]) == 1
    (held,) = json.loads(capsys.readouterr().out)["deployments"]
    assert held["needed_gpus"] == count and held["ttft_ms"] == pytest.approx(missed_ms, rel=0.15)
    assert held["max_requests_per_s"] < found["load"]["requests_per_s"]


def test_what_was_not_replayed_is_no_alternative(tmp_path: Path, capsys: Capture) -> None:
    """Every layout beside the answer is replayed too, and takes at least as many GPUs."""
    clumps = written(tmp_path / "clumps.csv", np.repeat(np.arange(0, 120, 6.0), 60))
    free = tuple(word for word in ASKED if word not in ("--tp", "1"))
    found = answered(capsys, *free, "--trace", clumps)
    assert found["deployment"]["gpus"] <= answered(capsys, *ASKED, "--trace", clumps)["deployment"]["gpus"]
    for other in found["alternatives"]:
        assert other["gpus"] >= found["deployment"]["gpus"]
        assert other["limited"]["ttft"]["ms"] <= 800
