"""How long a screen may be, and what a test captures of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_report import widest

from sizing.cli.main import run

MOST_LINES = 24

Capture = pytest.CaptureFixture[str]


def printed(arguments: list[str], capsys: Capture) -> tuple[str, dict[str, Any]]:
    """The first screen on one line, which fits, and the JSON of the same."""
    assert run([*arguments, "--no-verify"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= MOST_LINES and widest(text) <= 80
    assert run([*arguments, "--no-verify", "--json"]) == 0
    return " ".join(text.split()), json.loads(capsys.readouterr().out)
