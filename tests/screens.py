"""How long a screen may be, what it never says, and what a test captures of it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from test_report import widest

from sizing.cli.main import run

MOST_LINES = 24
COUNTED = (
    "GPU|token|sequence|request|replica|cache|draw|tick|byte|slot|image|pixel|run|group|node|stage|server|hour|user|row|"
    "chunk|measurement"
)
# A missing value, an empty bracket, a power of ten, and one thing in the plural, but for units (`1 requests/s`) and factors.
NEVER_SAID = re.compile(rf"\bNone\b|\bnan\b|\(\)|\de\+\d|(?<![\w.,])(?<!x )1 (?:(?!by )[a-z]+ )?(?:{COUNTED})s\b(?!/)")

Capture = pytest.CaptureFixture[str]


def printed(arguments: list[str], capsys: Capture) -> tuple[str, dict[str, Any]]:
    """The first screen on one line, which fits, and the JSON of the same."""
    assert run([*arguments, "--no-verify"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= MOST_LINES and widest(text) <= 80
    assert run([*arguments, "--no-verify", "--json"]) == 0
    return " ".join(text.split()), json.loads(capsys.readouterr().out)
