"""README and docs: every block runs, every link leads somewhere, and outputs that are shown have the lines of today.

Figures that a model of time changes are not held: `python tests/write_docs.py` writes them anew. TESTS_GOLDEN_EXACT=1 holds them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from places import DATA, ROOT
from write_docs import DOCS, OUTPUT, SUMMARY, glossary, output, pages, pictured

from sizing.calibration.docs import accuracy_page, short_table
from sizing.catalog.fleets import find_fleet
from sizing.catalog.servers import load_server
from sizing.launch.deployment import existing
from sizing.launch.identity import UserFacts
from sizing.question.names import workload_at

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LANGUAGES = {"bash", "yaml", "python", "text"}
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
FOUND = [(path, *found) for path in pages() for found in BLOCK.findall(path.read_text(encoding="utf-8"))]
BY_LANGUAGE = {
    language: [
        pytest.param(path, text, id=f"{path.stem}-{index}")
        for index, (path, kind, text) in enumerate(FOUND)
        if kind == language
    ]
    for language in ("yaml", "python")
}
INPUTS = ROOT / "tests" / "golden" / "inputs"
FILES = {
    "service.yaml": ROOT / "workloads" / "traffic" / "chat.yaml",
    "rag.yaml": ROOT / "workloads" / "traffic" / "rag.yaml",
    "config.json": INPUTS / "config.json",
    "requests.csv": INPUTS / "requests.csv",
    "measured.csv": DATA / "measured_sample.csv",
    "measured_sample.csv": DATA / "measured_sample.csv",
}
MOST_LINES = 130  # of the README
EXACT = os.environ.get("TESTS_GOLDEN_EXACT", "") not in ("", "0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that pages name, and with the command on the path."""
    for name, source in FILES.items():
        shutil.copy(source, tmp_path / name)
    (tmp_path / "my-model").mkdir()
    shutil.copy(FILES["config.json"], tmp_path / "my-model" / "config.json")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "genai.json").write_text("{}", encoding="utf-8")
    command = tmp_path / "bin" / "llmsize"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m sizing "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    return tmp_path


def held(text: str) -> str:
    """A text without figures, unless they are held."""
    return text if EXACT else re.sub(r"[ \d.,]+", " ", text)


def test_every_block_has_a_language() -> None:
    assert [(path.name, kind) for path, kind, _ in FOUND if kind not in LANGUAGES] == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_commands_run(path: Path, folder: Path) -> None:
    """The blocks of a page run one after another in one folder: what one writes another reads."""
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    for text in (text for where, kind, text in FOUND if where == path and kind == "bash"):
        if "pip install" in text:  # .ci/run runs these in environments of their own
            assert path.name == "README.md"
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text], cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{text}\n{done.stderr}"


@pytest.mark.parametrize(("path", "text"), BY_LANGUAGE["yaml"])
def test_files_are_read(path: Path, text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, keys = folder / "shown.yaml", yaml.safe_load(text)
    file.write_text(text, encoding="utf-8")
    if "jobs" in keys:
        steps = [step["run"] for job in keys["jobs"].values() for step in job["steps"] if "run" in step]
        assert any(step.startswith("llmsize ") for step in steps)
    elif "fleet" in keys:
        assert find_fleet(str(file)) is not None
    elif "deployments" in keys:
        assert existing(str(file), UserFacts())
    elif "price_usd" in keys:
        assert load_server(str(file)).spec.price_usd
    else:
        assert workload_at(str(file)).spec.model


@pytest.mark.parametrize(("path", "text"), BY_LANGUAGE["python"])
def test_python_runs(path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(text, path.name, "exec"), {})
    assert re.fullmatch(r"\d+ [\d.]+ [\d.]+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("command", "shown"),
    [(found[1], found[2]) for path in pages() for found in OUTPUT.findall(path.read_text(encoding="utf-8"))],
)
def test_outputs_have_the_lines_of_today(command: str, shown: str) -> None:
    now = output(command)
    assert now.strip(), command
    if EXACT:
        assert shown == now
    else:  # answers may change a line's figures, and how many other layouts there are
        labels = [line.split("  ")[0] for line in now.splitlines() if re.match(r"[A-Z][a-z]+  ", line)]
        assert labels == [line.split("  ")[0] for line in shown.splitlines() if re.match(r"[A-Z][a-z]+  ", line)]


def test_the_pages_from_data_are_those_of_the_data() -> None:
    assert held((DOCS / "glossary.md").read_text(encoding="utf-8")) == held(glossary())
    found = (DOCS / "accuracy.md").read_text(encoding="utf-8")
    headings = [line for line in accuracy_page().splitlines() if line.startswith("#")]
    assert found == accuracy_page() if EXACT else headings == [one for one in found.splitlines() if one.startswith("#")]


def test_the_readme_shows_errors_and_a_picture_of_today() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (summary,) = SUMMARY.finditer(readme)
    assert held(summary[0]) == held(f"<!-- accuracy -->\n\n{short_table()}")
    shown = (DOCS / "answer.svg").read_text(encoding="utf-8")
    assert "</svg>" in shown and "Every limit is kept" in shown
    assert not EXACT or shown == pictured()


def test_the_readme_is_short_and_has_the_headings_that_are_run() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= MOST_LINES
    assert "\n## Run it\n" in readme and "\n## Test it\n" in readme


@pytest.mark.parametrize("path", [*pages(), CONTRIBUTING], ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_the_changes_that_contributors_are_shown_add_what_they_say(tmp_path: Path) -> None:
    shown = [text for kind, text in BLOCK.findall(CONTRIBUTING.read_text(encoding="utf-8")) if kind == "diff"]
    assert len(shown) == 3 and all(text.count("+++ ") == 1 for text in shown)  # one file each
    for name in ("sizing", "hardware_profiles", "workloads"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", "--unidiff-zero", "-"], cwd=tmp_path, input="".join(shown), text=True, check=True)
    asked = ["memory", "-m", "example/Example-1B", "-g", "example", "--engine", "vllm:0.34.0", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "sizing", *asked], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["inputs"]["gpu"] == "Example 64GB" and found["inputs"]["memory_fraction"] == 0.95


def test_contributors_are_sent_to_files_that_exist() -> None:
    named = re.findall(r"`([\w./]+\.(?:py|csv|yaml|j2|txt|sh))[`:]", CONTRIBUTING.read_text(encoding="utf-8"))
    folders = ("sizing", "hardware_profiles", "workloads", "tests")
    files = [path.as_posix() for folder in folders for path in (ROOT / folder).rglob("*.*")]
    assert len(named) > 30
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in files)] == []


def test_the_walk_of_an_estimate_names_functions_that_exist() -> None:
    walk = CONTRIBUTING.read_text(encoding="utf-8").partition("## One estimate")[2].partition("## To add")[0]
    named = re.findall(r"`([\w/]+\.py):(\w+)`", walk)
    missing = [
        f"{file}:{name}"
        for file, name in named
        if f"def {name}(" not in (ROOT / "sizing" / file).read_text(encoding="utf-8")
    ]
    assert named and missing == []
