"""What a proposed change says."""

from __future__ import annotations

from typing import Any

import pytest

from sizing import ask
from sizing.answers.advice import _changes, _looser
from sizing.answers.answer import Outcome
from sizing.catalog import shelf
from sizing.model.precision import narrower
from sizing.specs.workload import Formats

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
