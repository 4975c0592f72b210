"""Help and completion: headings, defaults from the data, examples that parse, and words that complete a line."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from sizing.catalog.profiles import GPUS
from sizing.catalog.shelf import only
from sizing.cli.completion import SCRIPTS, words
from sizing.cli.main import GROUPS, application, examples, known_commands, run, summary
from sizing.cli.options import PLAN_OPTIONS, SIMULATION_OPTIONS
from sizing.question.options import QUESTION_OPTIONS
from sizing.specs.workload import Defaults

TERMINAL = 80
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def commands() -> dict[str, Any]:
    app: Any = typer.main.get_command(application())
    return dict(app.commands)


def helped(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run([name, "--help"]) == 0
    return capsys.readouterr().out


def test_every_command_has_a_group_and_examples() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(known_commands()) == sorted(examples())


def test_a_summary_fits_a_line(commands: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, command in commands.items():
        assert any(re.match(rf"  {name} +{re.escape(summary(command.help))}$", line) for line in lines), name
    assert max(map(len, lines)) <= TERMINAL


@pytest.mark.parametrize("name", known_commands())
def test_help_fits_a_terminal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    listed = {f"  {line}" for example in examples()[name] for line in example.split("\n")}
    text = helped(name, capsys)
    assert listed <= set(text.splitlines())
    assert max(map(len, text.splitlines())) <= TERMINAL


def test_every_heading_of_options_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for name, options in (
        ("estimate", QUESTION_OPTIONS),
        ("plan", PLAN_OPTIONS),
        ("simulate", SIMULATION_OPTIONS),
    ):
        text = helped(name, capsys)
        for panel in {option.panel for option in options}:
            below = text.partition(f"\n{panel}:\n")[2].partition("\n\n")[0]
            shown = {word.rstrip(",") for line in below.splitlines() for word in line.split()}
            assert {option.flags[0].partition("/")[0] for option in options if option.panel == panel} <= shown, panel


def test_defaults_are_those_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    text, rules = " ".join(helped("estimate", capsys).split()), only(Defaults)
    for flag, default in (
        ("--active-hours", rules.active_hours),
        ("--max-utilisation", rules.max_utilisation),
        ("--requests-per-user", rules.requests_per_user_per_day),
    ):
        assert re.search(rf"{flag}[, ][^\[]*\[default: {default:g}\]", text), flag
    assert re.search(r"--mode [^\[]*\[default: streaming\]", text)


@pytest.mark.parametrize(("name", "example"), [(name, text) for name, texts in examples().items() for text in texts])
def test_an_example_is_a_command_line(name: str, example: str, commands: dict[str, Any]) -> None:
    found = re.search(r"llmsize ([^|)>#]*)", example.replace("\\\n", " "))
    assert found is not None
    asked, *arguments = shlex.split(found[1])
    assert asked == name
    commands[name].make_context(name, arguments)  # raises what a wrong option or value raises


# --- completion --------------------------------------------------------------------------------------------------


def completed(*line: str) -> list[str]:
    return list(words(line))


def test_commands_options_and_names_complete() -> None:
    assert completed("est") == ["estimate"]
    assert "--requests-per-user" in completed("estimate", "--requests")
    assert completed("estimate", "-g", "h100-s") == ["h100-sxm"]
    assert completed("estimate", "-g", "l4,h100-s") == ["l4,h100-sxm"]  # of a list the last name
    assert set(completed("estimate", "-g", "")) == {*GPUS.ids, "all"}
    assert completed("memory", "-m", "llama-3.1-7") == ["llama-3.1-70b"]
    assert completed("completion", "") == ["bash", "zsh", "fish", "man"]
    assert "speculative" in completed("explain", "") and "chat" in completed("estimate", "")
    assert "assistant-and-search" in completed("plan", "") and "assistant-and-search" not in completed("estimate", "")
    assert completed("cost", "chat", "--own", "hgx-h2") == ["hgx-h200"]


def test_words_that_a_field_allows_complete() -> None:
    assert completed("estimate", "--mode", "") == ["streaming", "sequential", "offline"]
    assert completed("estimate", "--prefix-routing", "") == ["affinity", "random"]
    assert completed("estimate", "--precision", "fp8,nv") == ["fp8,nvfp4"]


@pytest.mark.parametrize("line", [["nothing", "x"], ["estimate", "--isl", ""], ["memory", ""], ["estimate", "zz"]])
def test_what_is_unknown_completes_to_nothing(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "words", "--", *line]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("line", [["est"], ["estimate", "-g", "h1"], ["estimate", "--disaggregate"], ["explain", ""]])
def test_completing_loads_no_numpy_and_no_yaml(line: list[str]) -> None:
    code = (
        f"import sys; from sizing.cli.main import run; run(['completion', 'words', '--', *{line!r}])\n"
        "sys.exit(str(sorted({'numpy', 'yaml', 'rich'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


def test_an_unknown_shell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "bsh"]) == 2
    assert capsys.readouterr().err == "llmsize: 'bsh' is no shell; allowed: bash, zsh, fish, man; did you mean bash?\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes(tmp_path: Path) -> None:
    command = tmp_path / "llmsize"
    command.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m sizing "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    code = f"PATH={tmp_path}:$PATH; {SCRIPTS['bash'].read_text('utf-8')}\nCOMP_WORDS=(llmsize estimate -g l4,h100-s); COMP_CWORD=3; _llmsize\n"
    done = subprocess.run(["bash", "-c", f'{code}echo "${{COMPREPLY[@]}}"'], check=True, capture_output=True, text=True)
    assert done.stdout == "l4,h100-sxm\n"


def test_the_manual_page_has_the_help_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "man"]) == 0
    page = capsys.readouterr().out
    assert page.startswith(".TH LLMSIZE 1")
    assert "llmsize \\- how many GPUs an LLM service needs" in page
    sections = page.split("\n.SS ")
    assert [section.partition("\n")[0] for section in sections[1:]] == [
        name for names in GROUPS.values() for name in names
    ]
    for name in ("estimate", "init", "config"):
        section = next(section for section in sections if section.startswith(f"{name}\n"))
        for line in helped(name, capsys).splitlines():
            words = line.replace("-", "\\-").split()
            assert all(word in section for word in words), line


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff")
def test_the_manual_page_is_set_without_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "man"]) == 0
    page = capsys.readouterr().out
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww"], input=page, capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "error" in line or "macro" in line] == []
    assert "NAME" in done.stdout
