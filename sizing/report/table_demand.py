"""How a rate to size for came about, in words."""

from __future__ import annotations

from typing import Any

from sizing.report.lines import Line, number

OWN_WORDS = (
    "requests_per_s",
    "concurrency",
    "daily_active_users",
)  # said elsewhere, unless a profile or chance comes on top


def steps_line(demand: dict[str, Any], *, always: bool = False) -> Line | None:
    """Return the steps from what was stated to the peak; None where there is nothing to tell."""
    steps = demand["steps"]
    plain = demand["kind"] in OWN_WORDS and demand["profile"] is None and demand["poisson_percentile"] is None
    if not steps or (plain and not always):
        return None
    told = [f"{step['what']} {number(step['requests_per_s'], 4)} requests/s ({step['how']})" for step in steps]
    return Line("; ".join(told), "Demand")
