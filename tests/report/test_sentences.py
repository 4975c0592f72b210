"""Templates of sentences: what a part in brackets needs, and that every row of the data files is of use."""

from __future__ import annotations

import csv
import re

import pytest
from places import ROOT
from screens import NEVER_SAID

from sizing.formats.sentences import FIGURE, paths, sentence
from sizing.specs import optimisations

PARTS = ROOT / "sizing" / "report" / "parts"
FILES = {"assumptions.csv": "assumed", "explanations.csv": "derived", "sentences.csv": "line|said"}
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "sizing" / "report").rglob("*.py")))
BY_PREFIX = ("with ", "year ", "cache by ", "binds ", "requests of ")  # rows whose key has a name of the question in it
IN_A_LOOP = ("capital", "network", "hosting", "power", "licence", "staff")  # parts of a server's year, by their fields


def keys(file: str) -> list[str]:
    with (PARTS / file).open(encoding="utf-8", newline="") as lines:
        return [row["key"] for row in csv.DictReader(lines)]


TEMPLATES = [
    (f"{file.name}, {row.get('key')}", text)
    for file in sorted((ROOT / "sizing" / "report").rglob("*.csv"))
    for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    for name, text in row.items()
    if name not in ("key", "spare", "pointer", "form")
]
UNSEEMLY = re.compile(rf"  |\( | \)| [,;:.]|[,;:][,;:]|{NEVER_SAID.pattern}")

OPTIMISATIONS = {
    "speculative": "Speculative",
    "prefix": "Prefix",
    "lora": "Lora",
    "images": "Images",
    "kv_offload": "KvOffload",
}


class Figures:
    """A source that has every name, also on a path: the same figure, or None."""

    def __init__(self, figure: int | None) -> None:
        self.figure = figure

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("several", "many"):
            return self.figure not in (None, 1)
        return None if self.figure is None else Figure(self.figure)


class Figure(int):
    """A number that has itself under every name, so that a path through it ends at it."""

    def __getattr__(self, name: str) -> Figure:
        if name.startswith("_"):
            raise AttributeError(name)
        return self


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


def test_also_a_part_that_is_left_out_has_known_names() -> None:
    with pytest.raises(AttributeError, match="absent"):
        sentence("[{sure?}of {absent}]", sure=False)
    with pytest.raises(AttributeError, match="absent"):
        sentence("[{of.absent}]", of={"ms": 1})


def test_counts_have_their_noun_in_its_number() -> None:
    assert (
        sentence("{n:*GPU}, {x:*token}, {y:.4g*request}", n=1234, x=1.0, y=0.5) == "1,234 GPUs, 1 token, 0.5 requests"
    )


def test_templates_have_whole_parts_and_no_other_braces() -> None:
    for where, text in TEMPLATES:
        depth = [
            text[: found.end()].count("[") - text[: found.end()].count("]") for found in re.finditer(r"[][]", text)
        ]
        assert min(depth, default=0) >= 0, where
        assert depth[-1:] in ([], [0]), where
        assert not re.search("[{}]", FIGURE.sub("", text)), where


@pytest.mark.parametrize("figure", [None, 0, 1, 2])
def test_templates_read_well_whatever_is_left_out_and_however_few_there_are(figure: int | None) -> None:
    filled = {where: sentence(text, Figures(figure)) for where, text in TEMPLATES}
    assert {where: text for where, text in filled.items() if UNSEEMLY.search(text)} == {}


def test_words_of_an_optimisation_have_the_names_of_its_fields() -> None:
    known = {name: set(vars(optimisations)[kind].model_fields) for name, kind in OPTIMISATIONS.items()}
    rows = dict(TEMPLATES)
    asked = {name: paths(rows[f"sentences.csv, with {name}"]) for name in known}
    assert [name for name, found in asked.items() if found - known[name]] == []


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
