"""`--set PATH=VALUE`: any field of a workload by its path, as its file would state it."""

from __future__ import annotations

import pytest

import sizing
from sizing.cli.main import run

SIZE = ("-g", "h100-sxm", "--no-verify", "-q")


def asked(*settings: str) -> sizing.question.question.Question:
    return sizing.ask("chat", gpu="h100-sxm", set=list(settings))


def test_a_demand_takes_the_place_of_the_workload_s() -> None:
    question = asked("demand.requests_per_s=500")
    assert question.target.requests_per_s == 500
    assert question == sizing.ask("chat", gpu="h100-sxm", rps=500)


def test_other_fields_of_the_workload_stay() -> None:
    question = asked("tokens.isl=500", "limits.ttft=p95:700ms", "serving={tp: 4}")
    assert question.service.isl == 500 and question.service.osl == 211
    assert question.target.limits.ttft is not None and question.target.limits.ttft.seconds == pytest.approx(0.7)
    assert question.target.limits.itl is not None and question.service.serving.tp == 4


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("demand.reqests_per_s=5", "did you mean requests_per_s?"),
        ("tokens.isl=x", "--set tokens.isl: must be a whole number"),
        ("demand.rps=5", "--set demand.rps: is no field"),
        ("demand.rps=5", "did you mean demand.requests_per_s?"),
        ("rps=5", "did you mean demand.requests_per_s?"),
        ("limits.ttft.x=5", "--set limits.ttft.x: a limit is one duration"),
        ("foo", "'foo' sets no field"),
        ("name={", "is not valid YAML"),
    ],
)
def test_a_wrong_one_is_named(setting: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "chat", *SIZE, "--set", setting]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("other", [("--rps", "5"), ("--set", "demand.requests_per_s=6")])
def test_a_field_is_stated_once(other: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "chat", *SIZE, "--set", "demand.requests_per_s=5", *other]) == 2
    assert "contradicts" in capsys.readouterr().err


def test_it_counts_as_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    for stated in (("--rps", "500"), ("--set", "demand.requests_per_s=500")):
        assert run(["estimate", "chat", *SIZE, *stated]) == 0
    first, second = capsys.readouterr().out.split()
    assert first == second
