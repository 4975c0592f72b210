"""A comparison as one row a candidate, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sizing.formats.view import Rows, plain
from sizing.report import table_pools
from sizing.report.documents_compare import Compare, CompareCandidate
from sizing.report.parts.question import LABELS

OWN = ("limited", "bands", "limit", "reason", "notes", "pools")  # written in columns of their own
FIGURES = tuple(name for name in CompareCandidate._fields if name not in OWN)
LIMITED = ("ttft_ms", "itl_ms", "e2e_ms")
BANDS = (*LIMITED, "requests_per_s", "max_requests_per_s")


def of(document: Compare) -> Rows:
    """Return the candidates, each with the labels that its numbers are of; a limited latency adds its statistic's column."""
    shown = tuple(key for key in LABELS if key != "weight_precision")
    shared = tuple(document.inputs.get(key) for key in shown)
    limits = {name: limit["statistic"] for name in LIMITED if (limit := document.inputs["limits"][name]) is not None}
    columns = (
        *shown,
        *FIGURES,
        *(f"{name.removesuffix('_ms')}_{statistic}_ms" for name, statistic in limits.items() if statistic != "mean"),
        *(f"{name}_{edge}" for name in BANDS for edge in ("low", "high")),
        "limit",
        "reason",
        "notes",
        "pools",
    )
    rows = tuple(tuple(plain([*shared, *_cells(line, limits)])) for line in document.candidates)
    return Rows(columns, rows)


def _cells(line: CompareCandidate, limits: dict[str, str]) -> Iterator[Any]:
    yield from (getattr(line, name) for name in FIGURES)
    for name, statistic in limits.items():
        limited = line.limited[name]
        if statistic != "mean":
            yield limited.ms if limited is not None else None
    for name in BANDS:
        band = line.bands.get(name)
        yield from (band.low, band.high) if band is not None else (None, None)
    yield from (line.limit, line.reason, "; ".join(line.notes), table_pools.shapes(line.pools) if line.pools else None)
