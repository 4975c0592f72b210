"""A GPU profile of the user's own, which extends another by own runs: deployed, read back and checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import ROOT

import sizing
from sizing.cli.main import run
from sizing.launch.check import check
from sizing.launch.deploy import deploy
from sizing.launch.identity import UserFacts
from sizing.question.options import SET_OPTIONS, GivenOptions, options_of
from sizing.specs.launch import Policy

OWN = str(ROOT / "tests" / "data" / "my-h100.yaml")
LOAD = ("--isl", "500", "--osl", "100", "--rps", "1")
DEMAND = options_of(GivenOptions(SET_OPTIONS, {"set": ["demand.requests_per_s=1", "tokens.isl=500", "tokens.osl=100"]}))


@pytest.mark.parametrize("target", ["vllm", "kubernetes", "compose"])
@pytest.mark.parametrize("stated", [{}, {"engine": "vllm"}])
def test_every_target_has_the_engine_of_the_runs_and_a_gpu_that_others_know(
    tmp_path: Path, target: str, stated: dict[str, str]
) -> None:
    question = sizing.ask(model="llama-3.1-8b", gpu=OWN, isl=500, osl=100, rps=1, **stated)
    written = deploy(sizing.estimate(question, simulated=False), target)
    assert written.engine_version == "0.19.0" and "0.33.0" not in written.text
    assert "my-h100" not in written.text.replace("the profile my-h100", "")
    if target == "kubernetes":
        assert "nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3" in written.text
    file = tmp_path / "started.sh"
    file.write_text(written.text)
    (plain,), (own,) = (
        check(str(file), options=DEMAND, simulated=False, filled=UserFacts(gpu=gpu)) for gpu in (None, OWN)
    )
    assert plain.parts[0].launched.gpu == "h100-sxm" and own.parts[0].launched.gpu == OWN
    assert plain.usd_per_hour == own.usd_per_hour is not None


def test_a_check_says_whose_runs_keep_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    filled, policy = UserFacts(gpu=OWN), Policy(confidence=0.5, max_usd_per_million_tokens=1000)
    (found,) = check("vllm serve llama-3.1-8b", options=DEMAND, simulated=False, filled=filled, policy=policy)
    assert found.parts[0].launched.serving.engine == "vllm:0.19.0"
    (sure,) = (each.message for each in found.findings if each.rule == "confidence")
    assert "of runs as far off as your own" in sure
    assert run(["check", "vllm serve llama-3.1-8b", "-g", OWN, *LOAD, "--no-verify"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "of runs as far off as your own" in shown and "published" not in shown and "$" in shown


@pytest.mark.parametrize("command", [("estimate", "-m", "llama-3.1-8b"), ("check", "vllm serve llama-3.1-8b")])
@pytest.mark.parametrize(("version", "other"), [("0.19.0", False), ("0.12.0", True)])
def test_own_runs_of_another_version_are_told(
    command: tuple[str, ...], version: str, other: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "-g", OWN, "--engine", f"vllm:{version}", *LOAD, "--no-verify"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (f"own runs of vLLM 0.19.0 hold for {version}" in shown) is other


def test_a_gpu_type_that_no_profile_has_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "start.sh"
    file.write_text("# llmsize/gpu=nonsuch llmsize/replicas=1\nvllm serve llama-3.1-8b\n")
    assert run(["check", str(file), *LOAD, "--no-verify"]) == 2
    assert "the GPU type nonsuch, which is not known" in capsys.readouterr().err
    assert run(["check", str(file), *LOAD, "--no-verify", "-g", "h100-sxm"]) == 0


def test_the_headroom_asked_may_be_more_than_the_demand(capsys: pytest.CaptureFixture[str]) -> None:
    def asked(headroom: str) -> int:
        return run(["check", "vllm serve llama-3.1-8b", "-g", "h100-sxm", *LOAD, "--no-verify", "--min-headroom", headroom])  # fmt: skip

    assert asked("200%") == 0 and asked("-5%") == 2
    assert "no share from 0 up" in capsys.readouterr().err


@pytest.mark.parametrize("listed", ["h100-sxm,h200-sxm", "h100-sxm"])
def test_a_setting_of_several_gpu_types_waits(
    listed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLMSIZE_GPU", listed)
    line = ["check", "vllm serve llama-3.1-8b", *LOAD, "--no-verify"]
    assert run(line) == (2 if "," in listed else 0)
    assert ("does not say the GPU type" in capsys.readouterr().err) is ("," in listed)
    assert run([*line, "-g", "h100-sxm"]) == 0


def test_what_cannot_serve_has_rows_of_its_limits_and_no_cost_of_the_demand() -> None:
    filled = UserFacts(gpu="h100-sxm")
    text = ["tokens.isl=500", "tokens.osl=100", "limits.ttft=p95:500ms", "limits.itl=50ms"]
    found = [
        check("vllm serve llama-3.1-8b", options=options_of(GivenOptions(SET_OPTIONS, {"set": [*text, f"demand.requests_per_s={rate}"]})),
              simulated=False, filled=filled)[0] for rate in (1, 5000)
    ]  # fmt: skip
    served, beyond = ([each.rule for each in one.findings] for one in found)
    assert served == beyond and {"ttft", "itl"} <= set(beyond)
    assert found[0].usd_per_million_tokens is not None and found[1].usd_per_million_tokens is None
