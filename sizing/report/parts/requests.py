"""The requests of simulated runs, one row each, for a file of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sizing.engine.requests import Requests
from sizing.formats.tables import csv_lines

COLUMNS = ("arrival", "admitted", "first_token", "finished", "isl", "osl", "preemptions")
TIMES = COLUMNS[:4]


def requests_csv(runs: Mapping[str, Requests], unit: str) -> str:
    """Write the requests of runs by policy as CSV, with a column for the policy where there are several.

    Times are in `unit`, which the names of their columns end with. A time is empty where the event never happened.
    """
    names = (f"{name}_{unit}" if name in TIMES else name for name in COLUMNS)
    rows: list[tuple[Any, ...]] = [("policy", "number", *names)]
    for policy, requests in runs.items():
        columns = (getattr(requests, name) for name in COLUMNS)
        for number, entry in enumerate(zip(*columns, strict=True)):
            # Only NaN, which stands for never, differs from itself.
            rows.append((policy, number, *("" if value != value else value for value in entry)))
    return csv_lines(rows if len(runs) > 1 else [row[1:] for row in rows]) + "\n"
