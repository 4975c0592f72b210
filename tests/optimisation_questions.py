"""A question with optimisations, by the command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sizing.cli.main import run

MODEL = "llama-3.1-8b"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = run([*arguments, "--json"])
    printed = capsys.readouterr()
    assert code in (0, 1), printed.err
    found: dict[str, Any] = json.loads(printed.out)
    return found
