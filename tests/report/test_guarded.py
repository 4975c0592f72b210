"""What others open: spreadsheets take no cell as a formula, Markdown no name as markup, a terminal no endless line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sizing.cli.main import run
from sizing.formats.tables import csv_lines, markdown_cell


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "@SUM(A1)", "-2+3", "  =HYPERLINK(1)"])
def test_a_cell_is_no_formula(text: str) -> None:
    assert csv_lines([[text]]).strip('"').startswith("'")


@pytest.mark.parametrize("value", ["-5", "-1.5e3", -5, -0.5, "h100-sxm"])
def test_a_negative_number_stays_a_number(value: object) -> None:
    assert csv_lines([[value]]).strip('"') == str(value)


def test_a_name_is_no_markup() -> None:
    assert markdown_cell("[x](http://a)|<b>`*") == r"\[x\](http://a)\|\<b\>\`\*"
    assert markdown_cell("max_num_seqs") == "max_num_seqs"


def test_very_many_faults_are_ten_and_a_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "many.yaml"
    path.write_text(
        "model: llama-3.1-8b\ntokens: {isl: 1, osl: 1}\n" + "".join(f"key{index}: 1\n" for index in range(1000))
    )
    assert run(["estimate", str(path), "-g", "h100-sxm"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11 and lines[-1] == "llmsize: and 990 more faults"


def test_endless_values_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "9" * 5000]) == 2
    assert len(capsys.readouterr().err) < 300
