"""What tests of `llmsize simulate` ask for, its answer as a document and its faults as lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sizing.cli.main import run

COURSE = ["simulate", "--ticks", "--slots", "4", "--prefill", "2", "--itl", "1", "--osl-mean", "10", "--osl-std", "5", "--seed", "42"]  # fmt: skip

LLAMA = ["simulate", "-m", "llama-3.1-8b", "-g", "h100-sxm"]

SERVED = [*LLAMA, "--isl", "1000", "--osl", "200"]

OPEN = [*SERVED, "--rps", "10", "--requests", "400"]

SAMPLE = "arrival_s,input_tokens,output_tokens\n" + "".join(
    f"{n / 4},{100 * n + 100},{10 * n + 10}\n" for n in range(10)
)

Capture = pytest.CaptureFixture[str]


def answer(arguments: list[str], capsys: Capture, code: int = 0) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == code
    out, err = capsys.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def mistakes(arguments: list[str], capsys: Capture) -> list[str]:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()
