"""One deployment at one load has one range, with or without a demand, and in every command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sizing.cli.main import run

ASKED = (
    "-m", "llama-3.1-70b", "-g", "h100-sxm", "--tp", "4", "--isl", "2000", "--osl", "200",
    "--ttft", "p95:2s", "--itl", "50ms", "--no-verify", "--json",
)  # fmt: skip
LATENCIES = ("ttft_ms", "itl_ms", "e2e_ms")


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_ranges_are_the_same_with_a_demand_and_without_and_in_a_curve(capsys: pytest.CaptureFixture[str]) -> None:
    without = answered(capsys, "estimate", *ASKED, "--gpus", "4")
    rate = without["load"]["requests_per_s"]
    demanded = answered(capsys, "estimate", *ASKED, "--gpus", "4", "--rps", str(rate * (1 - 1e-6)))
    curve = answered(capsys, "curve", *ASKED)
    (point,) = [point for line in curve["lines"] for point in line["points"] if point["heaviest"]]
    assert point["requests_per_s"] == pytest.approx(rate, rel=1e-3)
    for name in LATENCIES:
        path = f"latency.{name}.mean"
        for end in ("low", "high"):
            known = without["bands"][path][end]
            assert demanded["bands"][path][end] == pytest.approx(known, rel=1e-3), path
            assert point["bands"][name][end] == pytest.approx(known, rel=1e-2), path


@pytest.mark.parametrize("limits", [(), ("--itl", "50ms"), ("--e2e", "20s")])
def test_the_rate_of_a_closed_loop_is_as_uncertain_as_its_e2e(
    limits: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("-m", "llama-3.1-8b", "-g", "l4", "--isl", "1000", "--osl", "200", "--no-verify", "--json", *limits)
    found = answered(capsys, "curve", *words, "--closed-loop", "--concurrency", "1,4")
    assert len(found["lines"][0]["points"]) >= 2
    for point in found["lines"][0]["points"]:
        rate, e2e = point["bands"]["requests_per_s"], point["bands"]["e2e_ms"]
        assert rate["low"] < point["requests_per_s"] < rate["high"]
        assert rate["low"] * e2e["high"] == pytest.approx(point["requests_per_s"] * point["e2e_ms"])
