"""The requests of simulated runs, one row each, for a file of their own."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

from sizing.engine.requests import Requests

COLUMNS = ("number", "arrival", "admitted", "first_token", "finished", "isl", "osl", "preemptions")
TIMES = COLUMNS[1:5]


def render(runs: Mapping[str, Requests], unit: str) -> str:
    """Return the requests of runs by policy as CSV, with the policy where there are several.

    Times are in `unit`, which their columns name, and empty where something never happened.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    several = len(runs) > 1
    names = (f"{name}_{unit}" if name in TIMES else name for name in COLUMNS)
    writer.writerow(("policy", *names) if several else tuple(names))
    for policy, requests in runs.items():
        rows = _rows(requests)
        writer.writerows(((policy, *row) for row in rows) if several else rows)
    return out.getvalue()


def _rows(r: Requests) -> Iterator[tuple[Any, ...]]:
    columns = (r.arrival, r.admitted, r.first_token, r.finished, r.isl, r.osl, r.preemptions)
    for number, entry in enumerate(zip(*columns, strict=True)):
        yield (number, *("" if value != value else value for value in entry))  # only NaN differs from itself: never
