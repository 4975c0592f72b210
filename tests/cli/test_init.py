"""`llmsize init`: questions, answers that are piped in, and files that can be pasted and edited."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from places import ROOT

from sizing.catalog import fleets
from sizing.catalog.fleets import find_fleet
from sizing.catalog.profiles import ENGINES, GPUS, load_engine, load_gpu
from sizing.catalog.shelf import only
from sizing.catalog.workloads import SHELF, load_workload
from sizing.cli.main import run
from sizing.question.discovery import QUESTIONS, tokens
from sizing.specs.workload import TextLengths


class StartFiles(io.TextIOWrapper):
    """Standard input with a text, at a terminal or not."""

    def __init__(self, text: str, *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(text.encode()), encoding="utf-8")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def answered(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str, terminal: bool = False) -> int:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", StartFiles(text, terminal=terminal))
    return run(["init", *(() if terminal else ("--answers", "-")), *options])


@pytest.mark.parametrize("name", [*SHELF.ids, "other"])
def test_what_is_suggested_is_the_ready_workload(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answered(f"{name}\n...\n", tmp_path, monkeypatch, "-o", "-") == 0
    (tmp_path / "mine.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    mine, like = (
        load_workload(str(tmp_path / "mine.yaml")).spec,
        load_workload("chat" if name == "other" else name).spec,
    )
    assert (mine.model, mine.precision, mine.demand, mine.mode) == (like.model, like.precision, like.demand, like.mode)
    assert (mine.tokens, mine.planning) == (like.tokens, like.planning)
    assert mine.limits == like.limits or name == "other"


def test_answers_of_a_few_lines_write_a_file_and_estimate_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "call centre\nyes\nllama-3.1-8b\n3 pages\n200 words\n200 users\np95:1s\n50ms\nnone\naws\nh100-sxm\n"
    assert answered(lines, tmp_path, monkeypatch, "-o", "mine.yaml") == 0
    out, err = capsys.readouterr()
    assert "H100 SXM" in out
    assert "wrote mine.yaml" in err
    text = (tmp_path / "mine.yaml").read_text(encoding="utf-8")
    assert "isl: 2000  # 3 pages, 500 words a page, 1.33 tokens a word" in text
    assert "--provider aws" in text
    assert "as suggested" not in text + err
    mine = load_workload(str(tmp_path / "mine.yaml")).spec
    assert (mine.tokens.osl, mine.gpu) == (267, ("h100-sxm",))
    assert mine.demand is not None
    assert mine.demand.concurrent_users == 200
    assert run(["estimate", "mine.yaml", "-q", "--no-verify"]) == 0
    assert answered("chat\n...\n", tmp_path, monkeypatch, "-o", "mine.yaml") == 2
    assert "'mine.yaml' exists; use another file, or --force" in capsys.readouterr().err


def test_what_was_only_suggested_is_told_in_the_file_and_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "chat\nyes\nllama-3.1-8b\n2000\n\n2 rps\np95:1s\n\nnone\nany\nh100-sxm\n"
    assert answered(given, tmp_path, monkeypatch, "-o", "mine.yaml") == 0
    told = [line for line in (tmp_path / "mine.yaml").read_text(encoding="utf-8").splitlines() if "suggested" in line]
    assert [line.split(":")[0].strip() for line in told] == ["osl", "itl"]
    assert "assumed as suggested: tokens out, itl\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "count"),
    [("2000", 2000), ("2k", 2000), ("1,500 tokens", 1500), ("750 words", 1000), ("1 page", 667), ("3 pages", 2000)],
)
def test_lengths_are_read_as_people_say_them(text: str, count: int) -> None:
    assert tokens(text).length == count


def test_a_sample_is_counted(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("one two three\nfour five six " * 50, encoding="utf-8")
    found = tokens(str(tmp_path / "prompt.txt"))
    assert found.length == round(300 * only(TextLengths).tokens_per_word)
    assert found.said is not None
    assert found.said.startswith("300 words of ")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("chta\n", "standard input:1: use case: 'chta' is no use case"),
        ("chta\n", "did you mean chat?"),
        ("chat\nmaybe\n", "standard input:2: mode: 'maybe' is neither yes, no nor offline"),
        ("chat\nyes\nllama-3.1-9b\n", "standard input:3: model: unknown model"),
        ("chat\n\n\nlong\n", "standard input:4: tokens in: 'long' is no length"),
        ("chat\n\n\n\n\n80\n", "standard input:6: demand: '80' is no demand: 50 requests/s"),
        ("chat\n\n\n\n\n5/s\n500\n", "standard input:7: ttft: "),
        ("chat\n\n\n\n\n9k a day\n0.5\n", "standard input:7: peak: '0.5': a peak is at least the mean"),
        ("chat\n\n\n\n\n5/s\n\n\n\naws2\n", "standard input:10: place: 'aws2' is no place"),
        ("chat\n\n\n\n\n5/s\n\n\n\n\nh100-smx\n", "standard input:11: gpus: unknown GPU"),
        (
            "chat\nyes\n",
            "standard input:3: model: has no answer; allowed: an empty line for what is suggested, ... for all",
        ),
        ("", "standard input:1: use case: has no answer"),
        ("chat\n...\nmore\n", "standard input:3: 'more' answers no question"),
    ],
)
def test_a_wrong_answer_is_named_with_its_line(
    lines: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answered(lines, tmp_path, monkeypatch, "-o", "-") == 2
    assert words in capsys.readouterr().err


def test_nobody_is_asked_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", StartFiles("chat\n"))
    assert run(["init"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "nobody is at a terminal to answer; use --answers FILE" in err


def test_a_person_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answered("chta\nchat\n\n\n100 words\n...\n", tmp_path, monkeypatch, "-o", "-", terminal=True) == 0
    out, err = capsys.readouterr()
    assert out.count(QUESTIONS[0].text) == 2
    assert "did you mean chat?" in err
    assert "133 100 words, 1.33 tokens a word" in err
    assert "isl: 133" in out
    assert QUESTIONS[-1].text not in out  # ... takes what is suggested


@pytest.mark.parametrize("name", [*SHELF.ids, *fleets.SHELF.ids])
def test_a_workload_is_printed_as_a_file_that_loads_again(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["workloads", name, "--yaml"]) == 0
    path = tmp_path / f"{name}.yaml"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    if name in SHELF.ids:
        assert load_workload(str(path)).spec == load_workload(name).spec
    else:
        again, shipped = find_fleet(str(path)), find_fleet(name)
        assert again is not None
        assert shipped is not None
        assert again.spec == shipped.spec


@pytest.mark.parametrize("name", ["h100-sxm", "l40s", "mi300x"])
def test_a_gpu_is_printed_as_a_file_that_loads_again(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["gpus", name, "--yaml"]) == 0
    (tmp_path / "my.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    assert load_gpu(str(tmp_path / "my.yaml")).spec == load_gpu(name).spec


@pytest.mark.parametrize("name", ENGINES.ids)
def test_an_engine_is_printed_as_a_file_that_loads_again(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["engines", name, "--yaml"]) == 0
    (tmp_path / "my.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    assert load_engine(str(tmp_path / "my.yaml"))[0].spec == load_engine(name)[0].spec


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gpus", "--yaml"), "--yaml: is of one entry"),
        (("engines", "--yaml"), "--yaml: is of one entry"),
        (("workloads", "--yaml"), "--yaml: is of one entry"),
        (("gpus", "l40s", "--yaml", "--json"), "--yaml: contradicts --json"),
        (("gpus", "h100-sxm:3g.40gb", "--yaml"), "has no file of its own"),
        (("models", "llama-9", "--yaml"), "unknown model"),
    ],
)
def test_what_has_no_file_is_refused(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(list(arguments)) == 2
    assert words in capsys.readouterr().err


def test_the_ratio_is_that_of_the_data() -> None:
    facts = only(TextLengths)
    assert facts.tokens_per_word == pytest.approx(1 / 0.75, rel=1e-3)
    assert "_text.yaml" in TextLengths.FILE
    assert json.dumps(facts.source)
    assert (ROOT / TextLengths.FILE).exists()
    assert GPUS.ids
