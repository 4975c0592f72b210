"""What a proposed change says."""

from __future__ import annotations

from typing import Any

import pytest

from sizing import ask
from sizing.answers.advice import ADVICE, _changes, _looser, nearly_idle
from sizing.answers.answer import Outcome
from sizing.answers.search import search
from sizing.catalog import shelf
from sizing.model.precision import narrower
from sizing.specs.data import Formats

ASKED: dict[str, Any] = {"gpu": "h100-sxm", "isl": 1000, "osl": 100, "rps": 1, "ttft": "p95:1s", "itl": "30ms"}


def test_a_proposed_limit_names_the_percentile_that_it_bounds() -> None:
    outcome = Outcome(ask(model="llama-3.1-70b", **ASKED), (), ())
    said = {name: what for name, what, _ in _looser(outcome)}
    assert said["ttft"].startswith("TTFT limit (p95) ") and said["itl"].startswith("ITL limit ")
    assert "(" not in said["itl"]


@pytest.mark.parametrize(
    ("model", "narrow"),
    [("openai/gpt-oss-120b", []), ("deepseek-v3", ["int4"]), ("llama-3.1-70b", ["fp8", "int4"])],
)
def test_a_proposed_precision_has_fewer_bits_than_the_checkpoint(model: str, narrow: list[str]) -> None:
    outcome = Outcome(ask(model=model, **ASKED), (), ())
    proposed = [what.split()[1] for what, _ in _changes(outcome) if what.startswith("--precision ")]
    assert proposed == narrow


def test_scales_do_not_make_a_format_narrower() -> None:
    formats = shelf.only(Formats)
    assert narrower(4.25, formats) == [] and narrower(8.0, formats) == ["int4"]


@pytest.mark.parametrize(("gpu", "idle"), [("l40s", True), ("h100-sxm", False)])
def test_a_limit_that_leaves_replicas_nearly_idle_is_said(gpu: str, idle: bool) -> None:
    """p95 of TTFT within 1 s: on L40S only while a request is nearly alone.

    What three times the limit takes is the answer to that question, of any layout.
    """
    question = ask(model="llama-3.3-70b", precision="fp8", gpu=gpu, isl=2000, osl=300, rps=20, ttft="p95:1s")
    best = search(question).best
    assert best is not None
    found = nearly_idle(best, question, lambda asked: search(asked).best)
    assert (found is not None) == idle
    if found is not None:
        most = best.pool.capacity.requests_per_s
        assert found.share == most / best.pool.timed.highest_per_s < ADVICE.nearly_idle
        again = search(question.with_(limits=question.target.limits.at("ttft", found.times))).best
        assert found.looser is not None and again is not None
        assert found.looser.gpus == again.gpus < best.gpus
