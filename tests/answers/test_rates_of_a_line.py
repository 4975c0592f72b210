"""A line by rate puts its replica under the rates that it states, whatever the demand is counted in."""

from __future__ import annotations

from typing import Any

import pytest

from sizing import ask, estimate
from sizing.answers.curve_lines import by_rate

LOADS = {"rate": {"rps": 4}, "people": {"users": 150}, "in flight": {"concurrency": 40}}


@pytest.mark.parametrize("demand", LOADS)
def test_points_of_a_line_have_rates_of_their_own(demand: str) -> None:
    given: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "l40s", "isl": 1000, "osl": 200, **LOADS[demand]}
    question = ask(**given)
    best = estimate(question, simulated=False, relaxed=False).best
    assert best is not None
    found = by_rate(best, question, simulates=True, is_answer=False)
    rates = [point.requests_per_s or 0.0 for point in found.line.points]
    ttfts_ms = [point.ttft_ms or 0.0 for point in found.line.points]
    assert rates == sorted(set(rates))
    assert ttfts_ms[-1] > 1.2 * ttfts_ms[0]
