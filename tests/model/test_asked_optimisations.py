"""Optimisations as a user asks for them: how they are written, refused and repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optimisation_questions import MODEL, answer

from sizing.cli.main import run
from sizing.specs.optimisations import Optimisations


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ({"speculative": "eagle3"}, {"speculative": {"method": "eagle3"}}),
        ({"speculative": "EAGLE3:3@75%"}, {"speculative": {"method": "eagle3", "tokens": 3, "acceptance": 0.75}}),
        (
            {"speculative": "draft:llama-3.2-1b:4@0.7"},
            {"speculative": {"method": "draft", "model": "llama-3.2-1b", "tokens": 4, "acceptance": 0.7}},
        ),
        ({"prefix": "60%"}, {"prefix": {"hit": 0.6}}),
        ({"lora": "16x64"}, {"lora": {"slots": 16, "rank": 64}}),
        ({"images": "2x1024x768"}, {"images": {"count": 2, "height": 1024, "width": 768}}),
        ({"kv_offload": "0.5@40"}, {"kv_offload": {"hit": 0.5, "gb_per_s": 40.0}}),
    ],
)
def test_short_forms_mean_what_the_long_ones_say(text: dict[str, Any], meant: dict[str, Any]) -> None:
    assert Optimisations.model_validate(text).asked() == meant
    assert Optimisations.model_validate(meant).asked() == meant


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--speculative", "eagle9", "no method of speculative decoding"),
        ("--speculative", "eagle3:x", "is not a whole number"),
        ("--speculative", "eagle3:3@2", "'2' is above 1: write 2% or 0.02"),
        ("--speculative", "draft", "needs its name"),
        ("--speculative", "draft:no-such-model", "no-such-model"),
        ("--speculative", "ngram", "no published acceptance"),
        ("--sparsity", "3:4", "allowed: 2:4"),
        ("--prefix-hit", "2", "'2' is above 1: write 2% or 0.02"),
        ("--prefix-hit", "200%", "not between 0 and 1"),
        ("--lora", "16", "SLOTSxRANK"),
        ("--images", "2x2", "NxHxW"),
        ("--kv-offload", "0.5@x", "GB/s"),
        ("--kv-offload", "0.5@\u0664\u0660", "GB/s"),  # 40 in Arabic digits
        ("--speculative", "eagle3@\u0660.\u0665", "no share from 0 up, as 0.2 or 20%"),
        ("--prefix-hit", "\u0665\u0660%", "no share from 0 up, as 0.2 or 20%"),
        ("--prefix-shared", "100", "needs the hit rate too"),
        ("--prefix-distinct", "2", "needs the hit rate too"),
    ],
)
def test_what_is_written_wrong_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], option: str, value: str, said: str
) -> None:
    assert run(["estimate", "rag", "-g", "h100-sxm", option, value]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert option in line


@pytest.mark.parametrize("stated", ["speculative: 3", "lora: 16", "images: [1, 2, 3]", "speculative: true"])
def test_what_is_no_text_in_a_file_is_told_the_form_of_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, stated: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"model: {MODEL}\ntokens: {{isl: 1000, osl: 100}}\ndemand: {{requests_per_s: 2.0}}\noptimisations: {{{stated}}}\n"
    )
    assert run(["estimate", str(file), "-g", "h100-sxm"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "mine.yaml:4: optimisations." in line
    assert "is not of the form" in line


def test_a_shared_prefix_is_part_of_what_is_in_cache(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("rag", "-g", "h100-sxm", "--prefix-hit", "0.5", "--prefix-shared", "1501")
    assert run(["estimate", *arguments]) == 2  # half of 3,000
    assert "1,501 shared tokens are more than the 1,500" in capsys.readouterr().err


def test_the_page_of_a_report_names_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    asked = ("--speculative", "eagle3", "--prefix-hit", "0.5", "--lora", "1x16")
    assert run(["report", "chat", "-g", "h100-sxm", *asked, "--no-verify", "-o", str(page)]) == 0
    text = "eagle3; 50 % of each prompt is found in the prefix cache; 1 LoRA adapter of rank 16"
    answered, told = page.read_text().split("What was asked", 1)
    assert text in answered  # once below the answer, once with what was asked
    assert text in told


@pytest.mark.parametrize(
    "command",
    [
        ("estimate", "-m", MODEL, "-g", "h100-sxm", "--isl", "1000", "--osl", "100", "--rps", "2", "--no-verify"),
        ("simulate", "-m", MODEL, "-g", "h100-sxm", "--isl", "1000", "--osl", "100", "--rps", "2", "--requests", "20"),
        ("step", "-m", MODEL, "-g", "h100-sxm", "--decode", "4", "--context", "500"),
        ("memory", "-m", MODEL, "-g", "h100-sxm"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_takes_them_and_repeats_them(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    asked = ("--speculative", "eagle3:3@0.75", "--sparsity", "2:4", "--lora", "4x16")
    found: dict[str, float] = {} if command[0] == "step" else {"hit": 0.5}  # a step's tokens are all computed
    if command[0] == "memory":  # what requests find in cache changes memory only where they share it
        found["shared_tokens"] = 100
    options = {"hit": "--prefix-hit", "shared_tokens": "--prefix-shared"}
    of_prompts = [text for name, value in found.items() for text in (options[name], str(value))]
    assert answer(capsys, *command, *asked, *of_prompts)["inputs"]["optimisations"] == {
        "speculative": {"method": "eagle3", "tokens": 3, "acceptance": 0.75},
        "sparsity": "2:4",
        "lora": {"slots": 4, "rank": 16},
        **({"prefix": found} if found else {}),
    }
    assert answer(capsys, *command)["inputs"]["optimisations"] == {}


def test_options_stand_over_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"model: {MODEL}\ntokens: {{isl: 1000, osl: 100}}\ndemand: {{requests_per_s: 2.0}}\n"
        "optimisations: {prefix: 0.2, speculative: eagle3}\n"
    )
    found = answer(capsys, "estimate", str(file), "-g", "h100-sxm", "--no-verify", "--prefix-hit", "0.6")
    assert found["inputs"]["optimisations"] == {"prefix": {"hit": 0.6}, "speculative": {"method": "eagle3"}}


def test_the_command_that_repeats_an_estimate_has_its_optimisations(capsys: pytest.CaptureFixture[str]) -> None:
    asked = {
        "--speculative": "draft:llama-3.2-1b:4@0.7", "--sparsity": "2:4", "--prefix-hit": "0.5", "--prefix-shared": "160",
        "--prefix-distinct": "3", "--lora": "4x16", "--images": "1x560x560", "--kv-offload": "0.2@40",
    }  # fmt: skip
    words = [word for pair in asked.items() for word in pair]
    where = ("-m", MODEL, "-g", "h100-sxm", "--isl", "600", "--osl", "50", "--rps", "2", "--tp", "1")
    found = answer(capsys, "estimate", *where, *words)
    command = found["simulate_command"]
    for name, value in asked.items():
        assert f"{name} {value}" in command
    again = answer(capsys, *command.split()[1:], "--requests", "50")
    assert again["inputs"]["optimisations"] == found["inputs"]["optimisations"]
    assert again["inputs"]["isl"] == found["inputs"]["isl"] == 1000


@pytest.mark.parametrize("asked", [("--prefix-hit", "0", "--prefix-distinct", "5"), ("--kv-offload", "0@40")])
def test_nothing_asked_in_more_words_is_nothing_asked(
    capsys: pytest.CaptureFixture[str], asked: tuple[str, ...]
) -> None:
    arguments = ("estimate", "rag", "-g", "h100-sxm", "--no-verify")
    plain, found = answer(capsys, *arguments), answer(capsys, *arguments, *asked)
    for field in ("bands", "latency", "deployment", "memory"):
        assert found[field] == plain[field]


@pytest.mark.parametrize("asked", [("--speculative", "eagle3"), ("--prefix-hit", "0.5"), ("--sparsity", "2:4")])
def test_no_error_band_claims_published_runs_that_there_are_not(
    capsys: pytest.CaptureFixture[str], asked: tuple[str, ...]
) -> None:
    arguments = ("estimate", "rag", "-g", "h100-sxm", "--no-verify")
    plain, found = answer(capsys, *arguments)["bands"], answer(capsys, *arguments, *asked)["bands"]
    assert "latency.ttft_ms.mean" in plain
    assert found
    assert all(path.startswith("memory.") for path in found)
