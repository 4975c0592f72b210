"""The recorded screens: nothing is cut, and no line is wider than a terminal of 80 columns."""

from __future__ import annotations

from pathlib import Path

from sizing.formats.text import _cell_lines

GOLDEN = Path(__file__).parents[1] / "golden"
WIDTH = 80
RAW = {"--format", "--json", "--yaml", "-o", "--script", "schema", "config"}  # documents of another kind
WHOLE = {"deploy", "schema", "init"}  # commands that print a file


def screens() -> list[tuple[str, list[str]]]:
    found = []
    for path in sorted(GOLDEN.glob("*/*/text")):
        words = set((path.parent / "args").read_text(encoding="utf-8").split())
        if path.parent.parent.name not in WHOLE and not words & RAW:
            found.append((str(path.relative_to(GOLDEN)), path.read_text(encoding="utf-8").splitlines()))
    return found


def test_no_figure_or_name_is_cut() -> None:
    assert [(name, line) for name, lines in screens() for line in lines if "\u2026" in line] == []


def test_no_line_is_wider_than_the_terminal_but_for_a_path_or_a_command() -> None:
    for name, lines in screens():
        wide = [line for line in lines if len(line) > WIDTH and max(map(len, line.split())) < WIDTH // 2]
        assert [line for line in wide if not line.lstrip().startswith(("llmsize ", "python "))] == [], name


def test_a_cell_folds_between_words_and_a_path_after_its_slashes() -> None:
    assert _cell_lines("owner TCO (hyper-scaler)", 14) == ["owner TCO", "(hyper-scaler)"]
    assert _cell_lines("/a-b/some-folder/file.yaml:1: gpu", 14) == ["/a-b/", "some-folder/", "file.yaml:1:", "gpu"]
    assert _cell_lines("a-b-c-long", 6) == ["a-b-c-", "long"]
