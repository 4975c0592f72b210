"""How a rate to size for came about, in words."""

from __future__ import annotations

from typing import Any

from sizing.report.lines import Line, number

OWN_WORDS = (
    "requests_per_s",
    "concurrency",
    "daily_active_users",
)  # said elsewhere, unless a profile or chance comes on top

STATED_RATES = ("requests_per_s", "mean_requests_per_s")  # whose first step says that it is the middle of a range


def steps_line(demand: dict[str, Any], *, always: bool = False) -> Line | None:
    """Return the steps from what was stated to the peak; None where there is nothing to tell."""
    steps = demand["steps"]
    plain = demand["kind"] in OWN_WORDS and demand["profile"] is None and demand["poisson_percentile"] is None
    told = [f"{step['what']} {number(step['requests_per_s'], 4)} requests/s ({step['how']})" for step in steps]
    if plain and not always:
        told = []
    ranges = demand["ranges"]
    said = f"demand.{demand['kind']}" if told and demand["kind"] in STATED_RATES else None
    if ranges and set(ranges) == {said}:
        told.append("llmsize plan --uncertain shows the spread")
    elif ranges:
        spans = ", ".join(
            f"{name.partition('.')[2]} {span['low']:g} to {span['high']:g}"
            for name, span in ranges.items()
            if name != said
        )
        told.append(f"of {spans} the middle counts; llmsize plan --uncertain shows the spread")
    return Line("; ".join(told), "Demand") if told else None
