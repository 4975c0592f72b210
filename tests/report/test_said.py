"""Every row of the data files of sentences is filled by a test, which finds a name that nothing has; and outputs read well."""

from __future__ import annotations

import csv
import re
import shlex

import pytest
from places import ROOT
from screens import NEVER_SAID

from sizing.cli.main import run
from sizing.formats import sentences
from sizing.report.parts.sentences import SOLE, assumed

FILES = ("assumptions.csv", "explanations.csv", "sentences.csv", "askable.csv", "measured.csv")
NO_TEMPLATES = ("key", "spare", "kind", "unit", "about")
NEED_MORE = ("arrivals of own runs", "warm-up")  # a profile of runs in a closed loop, and a card that is nearly full
COMMANDS = (ROOT / "tests" / "data" / "said_commands.txt").read_text(encoding="utf-8").splitlines()


def recorded(*, pages: bool) -> str:
    """The recorded outputs of all commands, with or without the pages of `report`."""
    paths = (path for path in (ROOT / "tests" / "golden").glob("*/*/*") if pages or path.parent.parent.name != "report")
    return "\n".join(path.read_text(encoding="utf-8") for path in paths if path.name in ("text", "out.json"))


def templates() -> dict[str, tuple[str, str]]:
    """The longest template of each row, with the row's key and its longest part that is no figure."""
    found = {}
    for file in FILES:
        with (ROOT / "sizing" / "report" / "parts" / file).open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                texts = [text for name, text in row.items() if name not in NO_TEMPLATES and not SOLE.fullmatch(text)]
                if any(texts):
                    pieces = (piece for text in texts for piece in re.split(r"\{[^{}]*\}|[][]", text))
                    found[max(texts, key=len)] = row["key"], max(pieces, key=len)
    return found


def test_every_row_is_said_by_a_recorded_output_or_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = "".join(recorded(pages=True).split())
    unsaid = {text: key for text, (key, piece) in templates().items() if "".join(piece.split()) not in known}
    filled = sentences.paths

    def paths(template: str) -> set[str]:
        unsaid.pop(template.removesuffix("[ ({note})]"), None)
        return filled(template)

    monkeypatch.setattr(sentences, "paths", paths)
    monkeypatch.chdir(ROOT)
    for key in NEED_MORE:
        assert assumed(key, source="a source", value=1.5).source == "a source"
    for line in COMMANDS:
        assert run(shlex.split(line)) in (0, 1), line
        said = capsys.readouterr()
        assert not NEVER_SAID.search(said.out), line
        assert said.err == "", line
    assert unsaid == {}


def test_recorded_outputs_say_no_missing_value_and_no_single_thing_in_the_plural() -> None:
    assert NEVER_SAID.findall(recorded(pages=False)) == []
