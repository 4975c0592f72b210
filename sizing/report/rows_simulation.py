"""A simulation as one row a policy, in real time or in ticks."""

from __future__ import annotations

from typing import Any

from sizing.formats.view import Rows, plain
from sizing.report.documents_simulation import SimulationReport, TickReport
from sizing.report.parts.question import labels


def of(document: SimulationReport | TickReport) -> Rows:
    """One row a policy; what has parts (a latency, the queue) has a column for each."""
    shared = {} if isinstance(document, TickReport) else {**labels(document.inputs), "tp": document.inputs["tp"]}
    rows = [{**shared, **_parts(plain(run))} for run in document.runs]
    for row in rows:
        row.pop("timeline", None)
    return Rows(tuple(rows[0]), tuple(tuple(row.values()) for row in rows))


def _parts(values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{name}_{part}": entry for part, entry in value.items()}
        else:
            flat[name] = "; ".join(value) if isinstance(value, list) else value
    return flat
