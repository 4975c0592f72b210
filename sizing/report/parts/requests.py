"""The requests of simulated runs: a CSV file with a row for each request, and a figure of their latencies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sizing.engine.requests import Requests
from sizing.formats.tables import csv_lines
from sizing.formats.view import Mark, Series

COLUMNS = ("arrival", "admitted", "first_token", "finished", "isl", "osl", "preemptions")
TIMES = COLUMNS[:4]
P95, WINDOW = 0.95, 50  # the running percentile, and its number of measurements
MOST_POINTS = 2000  # points of a latency in a figure; of more requests, every n-th is drawn


def requests_csv(runs: Mapping[str, Requests], unit: str) -> str:
    """Write the requests of runs by policy as CSV, with a column for the policy if there are several.

    Times are in `unit`, which also ends the names of their columns. A time is empty if the event never happened.
    """
    names = (f"{name}_{unit}" if name in TIMES else name for name in COLUMNS)
    rows: list[tuple[Any, ...]] = [("policy", "number", *names)]
    for policy, requests in runs.items():
        columns = (getattr(requests, name) for name in COLUMNS)
        for number, entry in enumerate(zip(*columns, strict=True)):
            # NaN means never; only NaN differs from itself.
            rows.append((policy, number, *("" if value != value else value for value in entry)))
    return csv_lines(rows if len(runs) > 1 else [row[1:] for row in rows]) + "\n"


def latencies(requests: Requests, until: float = math.inf) -> Iterator[Series]:
    """Yield TTFT and E2E over the time when each was measured, up to `until`, and the running p95 of each."""
    for name, times, style in (("TTFT", requests.first_token, 1), ("E2E", requests.finished, 2)):
        # NaN means never; no comparison with NaN is true.
        found = [Mark(at, at - start) for at, start in zip(times, requests.arrival, strict=True) if at <= until]
        every = max(1, -(-len(found) // MOST_POINTS))
        yield Series(name, tuple(found[::every]), style, look="points")
        if len(found) >= WINDOW:
            yield Series(f"{name} p95 of the last {WINDOW}", tuple(_running(sorted(found), every)), style, look="line")


def _running(marks: Sequence[Mark], every: int) -> Iterator[Mark]:
    """Yield the 95th percentile of the last `WINDOW` marks at every n-th of them, from the first full window on."""
    for end in range(WINDOW, len(marks) + 1, every):
        last = sorted(mark.y for mark in marks[end - WINDOW : end])
        yield Mark(marks[end - 1].x, last[math.ceil(P95 * WINDOW) - 1])
