"""Files that `llmsize simulate` writes, and its progress bar."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path

import pytest
from simulate_builders import COURSE, LLAMA, OPEN, SAMPLE, SERVED, Capture, answer, mistakes

from sizing.cli import output
from sizing.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "unit"), [(OPEN, "s"), ([*COURSE, "--requests", "100", "--limit", "100"], "tick")]
)
def test_every_request_is_a_row_in_the_order_of_its_life(
    arguments: list[str], unit: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("old")
    found = answer([*arguments, "--requests-out", str(path)], capsys)
    with path.open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == [
        "number", f"arrival_{unit}", f"admitted_{unit}", f"first_token_{unit}", f"finished_{unit}", "isl", "osl", "preemptions",
    ]  # fmt: skip
    assert len(rows) == found["arrived"] and [int(row["number"]) for row in rows] == list(range(len(rows)))
    lives = [[float(row[f"{event}_{unit}"]) for event in ("arrival", "admitted", "first_token", "finished")] for row in rows if row[f"finished_{unit}"]]  # fmt: skip
    assert all(life == sorted(life) for life in lives)
    assert found["completed"] <= len(lives) <= found["completed"] + 4  # a tick run does not count its very last step
    if unit == "s":
        mean = sum(life[2] - life[0] for life in lives) / len(lives)
        assert found["ttft_ms"]["mean"] == pytest.approx(1000 * mean)


def test_several_policies_are_told_apart_in_the_file(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "requests.csv"
    answer([*COURSE, "--requests", "5", "--policy", "static,inflight", "--requests-out", str(path)], capsys)
    with path.open() as stream:
        assert [row["policy"] for row in csv.DictReader(stream)] == ["static"] * 5 + ["inflight"] * 5


@pytest.mark.parametrize("arguments", [OPEN, [*COURSE, "--requests", "5"]], ids=["seconds", "ticks"])
@pytest.mark.parametrize("way", ["same", "spelling", "symbolic link", "hard link"])
def test_two_outputs_are_not_one_file(arguments: list[str], way: str, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    plot, rows = tmp_path / "x.svg", tmp_path / "rows.csv"
    plot.write_text("old")
    if way == "symbolic link":
        rows.symlink_to(plot)
    elif way == "hard link":
        rows.hardlink_to(plot)
    else:
        rows = plot if way == "same" else tmp_path / ".." / tmp_path.name / "x.svg"
    (line,) = mistakes([*arguments, "--plot", str(plot), "--requests-out", str(rows)], capsys)
    assert line.startswith("llmsize: --requests-out: ") and "the file of --plot too" in line
    assert plot.read_text() == "old"


def test_what_is_read_is_not_written_over(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "sample.csv"
    path.write_text(SAMPLE)
    (line,) = mistakes([*LLAMA, "--trace", str(path), "--requests-out", str(path)], capsys)
    assert "--requests-out" in line and "the file of --trace too" in line
    assert path.read_text() == SAMPLE


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_may_not_be_written_is_a_fault(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("")
    path.chmod(0o400)
    assert run([*COURSE, "--requests", "5", "--requests-out", str(path)]) == 2
    assert "--requests-out" in capsys.readouterr().err


def test_csv_and_markdown_have_one_row_a_policy(capsys: Capture) -> None:
    for arguments in (OPEN, [*COURSE, "--requests", "9"]):
        assert run([*arguments, "--policy", "static,inflight", "--format", "csv"]) in (0, 1)
        rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
        assert [row["policy"] for row in rows] == ["static", "inflight"]
        assert run([*arguments, "--policy", "static", "--format", "markdown"]) in (0, 1)
        assert "| static |" in capsys.readouterr().out


class Terminal:
    """A stderr that says whether it is a terminal and keeps what is written."""

    def __init__(self, is_terminal: bool) -> None:
        self.is_terminal, self.text, self.encoding = is_terminal, "", "utf-8"

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(
    ("is_terminal", "patience_s", "shown"), [(True, -1, True), (False, -1, False), (True, 60, False)]
)
def test_the_bar_shows_itself_on_a_terminal_after_a_while(
    is_terminal: bool, patience_s: float, shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    stderr = Terminal(is_terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(output, "PATIENCE_S", patience_s)
    monkeypatch.setenv("TERM", "xterm")
    assert run([*SERVED, "--osl-std", "50", "--rps", "10", "--requests", "3000", "--json"]) == 0
    assert ("engine" in stderr.text) == shown
    assert bool(stderr.text) == shown
    assert json.loads(capsys.readouterr().out)["completed"] == 3000


def test_progress_never_goes_back_and_stays_within_the_total() -> None:
    from engine_builders import driven

    for load in ({"rate_per_s": 10.0}, {"in_flight": 16}, {}):
        told: list[int] = []
        driven(1500, progress=told.append, **load)
        assert told and told == sorted(told) and told[0] >= 0 and told[-1] <= 1500
