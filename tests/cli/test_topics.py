"""`llmsize explain`: every topic is there, names options that exist, and fits a terminal."""

from __future__ import annotations

import ast
import csv
import json
import re
from pathlib import Path

import pytest

import sizing.report
from sizing.catalog.files import data_folder
from sizing.catalog.shelf import named
from sizing.catalog.topics import TOPICS, load_topic
from sizing.cli.main import run
from sizing.question.options import QUESTION_OPTIONS
from sizing.specs.errors import InputError

REPORT = Path(sizing.report.__file__).parent
EXPECTED = {
    "speculative", "sparsity", "prefix-caching", "quantisation", "chunked-prefill", "lora", "multimodal", "kv-offload",
    "embedding",
}  # fmt: skip
TERMS = (
    "TTFT",
    "ITL",
    "TPOT",
    "E2E",
    "TP",
    "PP",
    "EP",
    "DP",
    "headroom",
    "error band",
    "replica",
    "MFU",
    "MBU",
    "p95",
    "goodput",
)
LEAST_LINES = {"term": 8, "optimisation": 15}


@pytest.mark.parametrize("term", TERMS)
def test_terms_of_an_answer_have_a_page(term: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", term, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "term"


def test_no_two_topics_have_a_name() -> None:
    names = [TOPICS.key(name) for one in TOPICS.ids for name in {one, *named(TOPICS, one).spec.aliases}]
    assert len(names) == len(set(names)), sorted(name for name in set(names) if names.count(name) > 1)


def test_all_topics_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(TOPICS.ids) >= EXPECTED
    assert run(["explain"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in EXPECTED)


@pytest.mark.parametrize("name", TOPICS.ids)
def test_a_topic_names_options_that_exist_and_its_sources(name: str) -> None:
    topic = named(TOPICS, name).spec
    known = {flag for option in QUESTION_OPTIONS for flag in option.flags}
    mentioned = {flag for text in topic.options for flag in re.findall(r"--[a-z][a-z0-9-]*", text)}
    assert mentioned or topic.kind == "term"
    assert mentioned <= known, mentioned - known
    assert topic.sources


@pytest.mark.parametrize("name", TOPICS.ids)
def test_a_topic_is_a_page(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert run(["explain", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert LEAST_LINES[named(TOPICS, name).spec.kind] <= len(lines) <= 66
    assert all(len(line) <= 80 or line.split()[-1].startswith("https://") for line in lines)  # a link stays whole


@pytest.mark.parametrize(
    ("asked", "topic"),
    [("eagle3", "speculative"), ("2:4", "sparsity"), ("AWQ", "quantisation"), ("offload", "kv-offload")],
)
def test_a_topic_is_found_by_what_it_is_called(capsys: pytest.CaptureFixture[str], asked: str, topic: str) -> None:
    assert run(["explain", asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "llmsize.topic/1"
    assert found["topic"] == topic


def test_an_unknown_topic_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "quantum"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "topic" in line


LABELLED = {
    "Line": 1,
    "few": 0,
    "labelled": 0,
    "reasons": 0,
    "Whole": 0,
    "rate": 0,
    "Quantity": 1,
    "in_words": 1,
    "_usd": 1,
}
SCREENS = ("estimate", "memory", "plan", "compare", "cost", "measured", "parts/*")


def labels() -> set[str]:
    """The labels of lines, rows and columns on the screens: constant arguments at their places in the code, and in data."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for each in SCREENS for path in REPORT.glob(f"{each}.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    places = [(call, LABELLED.get(getattr(call.func, "id", getattr(call.func, "attr", "")))) for call in calls]
    given = [call.args[place] for call, place in places if place is not None and len(call.args) > place]
    nodes = [node for argument in given for node in ast.walk(argument)]
    conditions = {id(part) for node in nodes if isinstance(node, ast.Compare) for part in node.comparators}
    names = {id(node.slice) for node in nodes if isinstance(node, ast.Subscript)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in conditions | names]
    rows = [
        row
        for name in ("sentences", "measured")
        for row in csv.DictReader((REPORT / "parts" / f"{name}.csv").open(encoding="utf-8"))
    ]
    given = [*texts, *(row["label"] for row in rows if "{" not in row["label"])]
    return {text.strip() for text in given if isinstance(text, str) and text.strip()}


def test_every_label_of_the_screens_has_a_page() -> None:
    asked = sorted(labels() - {"at"})  # the heading "at the mean load" is written from parts
    assert len(asked) > 60 and {"most requests/s", "Instead", "Memory", "$/year"} <= set(asked)
    exact = {TOPICS.key(name) for one in TOPICS.ids for name in {one, *named(TOPICS, one).spec.aliases}}
    missing = [label for label in asked if TOPICS.key(label.replace("/", " per ")) not in exact]
    assert missing == []


GOLDEN = Path(__file__).parents[1] / "golden"
LISTS = {"explain", "deploy", "config", "init", "schema", "mcp", "llmsize", "models", "gpus", "engines", "workloads"}
LABEL = re.compile(r"([A-Z][A-Za-z0-9 /-]{1,20}?)  +\S")


def printed() -> set[str]:
    """The labels that begin a line of a recorded screen. Rows of prices begin with their provider, and are none."""
    screens = [path for path in GOLDEN.glob("*/*/text") if path.parent.parent.name not in LISTS]
    plain = [path for path in screens if "--explain" not in (path.parent / "args").read_text(encoding="utf-8")]
    lines = [line for path in plain for line in path.read_text(encoding="utf-8").splitlines()]
    found = {match[1].strip() for line in lines if (match := LABEL.match(line))}
    profiles = "".join(
        path.read_text(encoding="utf-8") for path in data_folder("hardware_profiles").glob("gpus/*.yaml")
    )
    sellers = {name.strip().lower() for name in re.findall(r"provider: ([\w.-]+)", profiles)}
    return {label for label in found if label.lower().split(" ")[0] not in sellers}


def test_every_label_that_a_recorded_screen_prints_has_a_page() -> None:
    asked = printed()
    assert len(asked) > 40
    missing = []
    for label in sorted(asked):
        try:
            load_topic(label)
        except InputError:
            missing.append(label)
    assert missing == []


@pytest.mark.parametrize(
    ("label", "topic"),
    [
        ("tco", "tco"),
        ("break even", "break-even"),
        ("full use", "full-use"),
        ("energy", "energy"),
        ("precision", "quantisation"),
        ("TTFT p95", "ttft"),
        ("requests/s of 4 GPUs", "throughput"),
        ("Memory", "memory"),
        ("$/1,000 requests", "cost-per-token"),
    ],
)
def test_a_label_of_a_row_is_explained_with_what_the_row_adds(label: str, topic: str) -> None:
    assert load_topic(label).id == topic
