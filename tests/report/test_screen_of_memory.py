"""Laws of the screen of `memory`: the bar is as long as the card, and shows what is too much of it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from screens import Capture

from sizing.cli.main import run


@pytest.mark.parametrize(("model", "gpu"), [("llama-3.1-8b", "h100-sxm"), ("llama-3.1-70b", "l40s")])
def test_the_memory_bar_is_as_long_as_the_card_and_shows_what_is_too_much(
    model: str, gpu: str, capsys: Capture
) -> None:
    run([*(arguments := ["memory", "-m", model, "-g", gpu]), "--json"])
    found = json.loads(capsys.readouterr().out)["memory"]
    run(arguments)
    bar = next(line for line in capsys.readouterr().out.splitlines() if "[" in line)
    inside, beyond = re.search(r"\[(.*)\](!*)", bar).groups()  # type: ignore[union-attr]
    assert len(inside) + len(beyond) == 60
    assert bool(beyond) == (not found["fits"])
    if not beyond:
        weights = found["weights_gib"] / max(found["visible_gib"], sum_of(found))
        assert inside.count("W") / 60 == pytest.approx(weights, abs=1 / 60)


def sum_of(memory: dict[str, Any]) -> float:
    parts = ("weights_gib", "activation_gib", "non_torch_gib", "cuda_graphs_gib", "kv_cache_gib")
    return float(sum(memory[name] for name in parts))


def test_what_is_missing_of_a_card_is_one_amount(capsys: Capture) -> None:
    assert run(["memory", "-m", "llama-3.1-8b", "-g", "t4"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    short = re.search(r"need ([\d.]+) GiB more", out)
    assert short is not None and f"too much {short[1]} GiB" in out
    assert "--precision int4 --max-model-len" in out


def of_memory(arguments: list[str], capsys: Capture) -> tuple[str, dict[str, Any]]:
    """The first screen of a memory that fits on one line, and the JSON of the same."""
    assert run(arguments) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert run([*arguments, "--json"]) == 0
    return text, json.loads(capsys.readouterr().out)


FITTING = ["memory", "--max-model-len", "8k"]

SMALL, LARGE = ["-m", "llama-3.1-8b", "-g", "h100-sxm"], ["-m", "deepseek-v3", "-g", "h200-sxm"]


@pytest.mark.parametrize(
    ("asked", "fraction_of"),
    [
        ([*SMALL, "--engine", "vllm"], "the card's memory"),
        ([*SMALL, "--engine", "sglang"], "the memory that is free before the weights load"),
        ([*LARGE, "--engine", "sglang", "--dp", "8", "--ep", "8"], "the memory that is free before the weights load"),
        ([*LARGE, "--engine", "trtllm", "--tp", "8"], "the memory that weights and activation leave free"),
    ],
)
def test_where_a_sequence_fits_the_bar_is_the_card_and_nothing_is_too_much(
    asked: list[str], fraction_of: str, capsys: Capture
) -> None:
    text, found = of_memory([*FITTING, *asked], capsys)
    left = found["memory"]["visible_gib"] - sum_of(found["memory"])
    free = re.search(r"left free ([\d.]+) GiB", text)
    assert found["fits"] and "too much" not in text and "Warning" not in text
    assert free is not None and float(free[1]) == pytest.approx(left, abs=0.06)
    assert (
        f"a memory fraction of {found['memory']['least_memory_fraction']:.3f} is enough here, of {fraction_of}" in text
    )


def test_a_share_that_leaves_no_room_for_the_activation_is_warned_of(capsys: Capture) -> None:
    text, found = of_memory([*FITTING, *SMALL, "--engine", "sglang", "--gpu-memory-utilization", "0.99"], capsys)
    over = sum_of(found["memory"]) - found["memory"]["visible_gib"]
    assert over > 0 and f"the parts take {over:.2f} GiB more than the card has" in text


def test_what_is_missing_of_a_share_without_activation_is_what_the_verdict_says(capsys: Capture) -> None:
    assert run(["memory", "-m", "llama-3.1-70b", "-g", "h100-sxm", "--engine", "sglang"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    short = re.search(r"need ([\d.]+) GiB more", out)
    assert short is not None and f"too much {short[1]} GiB" in out


def test_models_that_share_a_card_leave_the_rest_of_it_once(capsys: Capture) -> None:
    assert run(["memory", "-m", "llama-3.1-8b", "-m", "bge-m3", "-g", "h100-sxm", "--share", "0.5,0.3"]) == 0
    text = capsys.readouterr().out
    left = [float(part) for part in re.findall(r"left free ([\d.]+) GiB", text)]
    (rest, card) = map(float, re.findall(r"Together 80% of the card; ([\d.]+) of ([\d.]+) GiB are left", text)[0])
    assert left[0] == 0 and left[1] < 0.3 * card and rest == pytest.approx(0.2 * card, abs=0.1)


@pytest.mark.parametrize(("tokens", "queued"), [(("100k", "1k"), True), (("1000", "200"), False)])
def test_requests_that_a_cache_does_not_hold_wait_in_the_queue(
    tokens: tuple[str, str], queued: bool, capsys: Capture
) -> None:
    """20 in flight on 8 GPUs, each of whose caches holds fewer than two: no share of capacity, and no share of runs that serve them."""
    asked = ("-m", "llama-3.1-70b", "--precision", "fp8", "-g", "h200-sxm", "--tp", "1", "--concurrency", "20")
    assert run(["estimate", *asked, "--isl", tokens[0], "--osl", tokens[1], "--no-verify"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert ("most requests wait in the queue: the cache holds 1.87 of 2.50 in flight a replica" in shown) == queued
    assert ("of capacity" not in shown) == queued


def test_the_cache_grows_by_fewer_bytes_once_windows_are_full(capsys: Capture) -> None:
    """18 of the 36 layers of gpt-oss-120b have windows; each has 8 KV heads x 64 x 2 x 2 B = 2,048 B a token."""
    assert run(["memory", "-m", "gpt-oss-120b", "-g", "h200-sxm"]) == 0
    assert "73,728 bytes a token on each GPU, 36,864 once windows are full" in " ".join(capsys.readouterr().out.split())
    assert run(["memory", "-m", "llama-3.1-8b", "-g", "h200-sxm"]) == 0
    assert "windows are full" not in capsys.readouterr().out
