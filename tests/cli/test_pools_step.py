"""`llmsize step --disaggregate`: each pool's step is that of `step` on its layout alone; the cache between takes the link's time."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from sizing.cli.main import run

Capsys = pytest.CaptureFixture[str]
MODEL = ["-m", "llama-3.1-8b"]
PROMPT = ["--prefill", "1500", "--prior", "500"]
SEQUENCES = ["--decode", "64", "--context", "2150"]
BASE = ["step", *MODEL, *PROMPT, *SEQUENCES, "--disaggregate"]


def document(capsys: Capsys, *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("extra", [[], ["--kv-precision", "fp8", "--precision", "fp8"], ["--lora", "4x16"]])
def test_both_steps_are_those_of_each_layout_alone(extra: list[str], capsys: Capsys) -> None:
    found = document(capsys, *BASE, "prefill=2xh100-sxm:tp2,decode=h200-sxm:tp4pp2", *extra)
    for pool in ("prefill", "decode"):  # what was asked of both stays with each
        assert found[pool]["inputs"]["optimisations"].pop("disaggregate")
    step = ["step", *MODEL, *extra]
    assert found["prefill"] == document(capsys, *step, "-g", "h100-sxm", "--tp", "2", *PROMPT)
    assert found["decode"] == document(capsys, *step, "-g", "h200-sxm", "--tp", "4", "--pp", "2", *SEQUENCES)
    assert found["schema"] == "llmsize.step_pools/1"
    assert found["inputs"]["optimisations"]["disaggregate"]["prefill"] == {"gpu": "h100-sxm", "replicas": 2, "tp": 2}


def test_sizes_that_a_pool_does_not_state_are_those_of_both(capsys: Capsys) -> None:
    found = document(capsys, *BASE, "decode=tp4", "-g", "h100-sxm", "--tp", "2")
    assert (found["prefill"]["inputs"]["tp"], found["decode"]["inputs"]["tp"]) == (2, 4)


def test_the_cache_of_the_whole_prompt_takes_the_links_time(capsys: Capsys) -> None:
    """131,072 B a token * (1,500 + 500) = 0.262 GB, which one GPU of TP1 sends: in a node over 0.6 * 450 GB/s = 0.971 ms, between
    nodes over 0.72 * 50 GB/s = 7.282 ms, and the start-up of each, some microseconds. H100 and H200 stand in two nodes; so do 5 + 4 GPUs.
    """
    near = document(capsys, *BASE, "prefill=tp1,decode=tp4", "-g", "h100-sxm")
    assert near["kv_transfer"]["within_node"] and near["kv_transfer"]["gb_per_gpu"] == pytest.approx(0.262144)
    assert near["kv_transfer_ms"] == pytest.approx(0.9709, abs=0.02)
    for pools in ("prefill=h100-sxm:tp1,decode=h200-sxm:tp4", "prefill=5xtp1,decode=tp4"):
        far = document(capsys, *BASE, pools, "-g", "h100-sxm")
        assert not far["kv_transfer"]["within_node"] and far["kv_transfer_ms"] == pytest.approx(7.282, abs=0.05)


def test_a_pool_without_work_has_no_step(capsys: Capsys) -> None:
    decoding = document(capsys, "step", *MODEL, "-g", "h100-sxm", *SEQUENCES, "--disaggregate")
    assert decoding["prefill"] is decoding["kv_transfer"] is decoding["kv_transfer_ms"] is None and decoding["decode"]
    prompt = document(capsys, "step", *MODEL, "-g", "h100-sxm", *PROMPT, "--disaggregate")
    assert prompt["decode"] is None and prompt["kv_transfer_ms"] > 0


def test_every_form_has_both_steps(capsys: Capsys) -> None:
    pools = "prefill=tp1,decode=tp4"
    found = document(capsys, *BASE, pools, "-g", "h100-sxm")
    assert run([*BASE, pools, "-g", "h100-sxm", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    for pool in ("prefill", "decode"):
        told = sum(float(row["seconds"]) for row in rows if row["pool"] == pool)
        assert told == pytest.approx(found[pool]["gpu_s"])
    (way,) = (row for row in rows if row["name"] == "kv_transfer")
    assert float(way["seconds"]) * 1000 == pytest.approx(found["kv_transfer_ms"])
    assert run([*BASE, pools, "-g", "h100-sxm"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert out.index("Prefill pool: ") < out.index("Transfer") < out.index("Decode pool: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*BASE, "prefill=mi300x"], ["--gpu", "is needed"]),
        ([*BASE, "prefill=mi300x,decode=h100-sxm"], ["--disaggregate", "no cache connector"]),
        ([*BASE, "prefill=tp3,decode=tp1", "-g", "h100-sxm"], ["TP3 is refused"]),
        ([*BASE, "serve=tp2", "-g", "h100-sxm"], ["--disaggregate", "names no pool"]),
        (["step", *MODEL, "-g", "h100-sxm", "--disaggregate"], ["the step is empty"]),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], said: list[str], capsys: Capsys) -> None:
    assert run(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and all(words in lines[0] for words in said), lines
