"""Templates of sentences: what a part in brackets needs, and that every row of the data files is of use."""

from __future__ import annotations

import csv
import re

import pytest
from places import ROOT

from sizing.formats.sentences import sentence

PARTS = ROOT / "sizing" / "report" / "parts"
FILES = {"assumptions.csv": "assumed", "explanations.csv": "derived", "sentences.csv": "line|said"}
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "sizing" / "report").rglob("*.py")))
BY_PREFIX = ("with ", "year ", "cache by ", "binds ", "requests of ")  # rows whose key has a name of the question in it
IN_A_LOOP = ("capital", "network", "hosting", "power", "licence", "staff")  # parts of a server's year, by their fields


def keys(file: str) -> list[str]:
    with (PARTS / file).open(encoding="utf-8", newline="") as lines:
        return [row["key"] for row in csv.DictReader(lines)]


@pytest.mark.parametrize(
    ("template", "figures", "said"),
    [
        ("{gpus:*GPU}[ = {layout}][, {usd:$}/h]", {"gpus": 1, "layout": "TP2", "usd": 3.0}, "1 GPU = TP2, $3.00/h"),
        ("{gpus:*GPU}[ = {layout}][, {usd:$}/h]", {"gpus": 2, "layout": "", "usd": None}, "2 GPUs"),
        ("[{sure?}sure][{sure!}not sure]", {"sure": True}, "sure"),
        ("[{sure?}sure][{sure!}not sure]", {"sure": 0}, "not sure"),
        ("[, {share:%} of {names}][; {why}]", {"share": 0.0, "names": ("a", "b"), "why": "c"}, "0 % of a, b; c"),
        ("[, {share:%}][; {why}]", {"share": None, "why": "c"}, "c"),
        ("{of.ms:ms} [and [{more}]]", {"of": {"ms": 1200.0}, "more": None}, "1.20 s and "),
    ],
)
def test_a_template_is_filled(template: str, figures: dict[str, object], said: str) -> None:
    assert sentence(template, **figures) == said


def test_a_figure_that_nothing_has_is_a_mistake() -> None:
    with pytest.raises(AttributeError, match="absent"):
        sentence("{absent}", (1, 2))


@pytest.mark.parametrize("file", FILES)
def test_every_row_is_used_and_keys_differ(file: str) -> None:
    found = keys(file)
    assert len(found) == len(set(found))
    quoted = [key for key in found if not key.startswith(BY_PREFIX) and key not in IN_A_LOOP]
    assert [key for key in quoted if f'"{key}"' not in SOURCE] == []


@pytest.mark.parametrize("file", FILES)
def test_every_key_has_a_row(file: str) -> None:
    called = set(re.findall(rf'\b(?:{FILES[file]})\(\s*"([^"]+)"', SOURCE))
    assert called - set(keys(file)) == set()
