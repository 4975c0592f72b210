"""Every command's output is as it was recorded, case by case (`record.py` records, `golden_cases.py` compares).

Numbers may differ by 1e-9 (relative) in JSON and CSV, by one unit of the last digit shown in text. With
TESTS_GOLDEN_EXACT=1 every byte must be equal: that is for changes of the code which must not change any answer.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from golden_cases import Outcome, differences, folders, formats, name_of, outcomes, recorded, run_case

CASES = [(folder, form) for folder in folders() for form in formats(folder)]
# The first case of each command, by format: the others' JSON and CSV are written from the document of their text.
ASKED = {(folder.parent.name, form): folder for folder, form in reversed(CASES) if form != "text"}


@pytest.mark.parametrize(("folder", "form"), CASES, ids=[f"{name_of(folder)}-{form}" for folder, form in CASES])
def test_output_is_as_recorded(folder: Path, form: str) -> None:
    compare(folder, form, outcomes(folder)[form])


@pytest.mark.parametrize(("command", "form"), ASKED)
def test_a_format_that_is_asked_for_is_as_recorded(command: str, form: str) -> None:
    """With `--json` and `--format csv`, as users ask for it."""
    compare(ASKED[command, form], form, run_case(ASKED[command, form], form))


def compare(folder: Path, form: str, now: Outcome) -> None:
    exact = os.environ.get("TESTS_GOLDEN_EXACT", "") not in ("", "0")
    if found := list(differences(recorded(folder, form), now, form, exact=exact)):
        pytest.fail("\n\n".join([(folder / "args").read_text(encoding="utf-8").strip(), *found]), pytrace=False)


def test_every_case_is_recorded() -> None:
    assert [name_of(folder) for folder in folders() if not formats(folder)] == []
