"""What tests of `llmsize plan` ask for, and its answer as a document."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sizing.cli.main import run

FLEET = "assistant-and-search"

CALLS = ("plan", "call-centre", "-g", "h100-sxm", "--no-verify")


def refused(constant: str) -> float:
    raise AssertionError(f"JSON holds {constant}")


def out_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run(list(arguments)) == code
    out, err = capsys.readouterr()
    assert not err
    return out


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out_of(capsys, *arguments, "--json", code=code), parse_constant=refused)
    return found
