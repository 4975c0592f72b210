"""Listings of the catalogue for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sizing.formats.text import Block
from sizing.formats.words import stated
from sizing.report.documents_listing import Listing

UNLISTED = ("aliases",)  # wide, and in the entry itself and in JSON
HEADINGS = {
    "memory_gib": "GiB",
    "bandwidth_gb_per_s": "GB/s",
    "bf16_tflops": "BF16 TFLOPS",
    "fp8_tflops": "FP8 TFLOPS",
    "parameters_b": "billion parameters",
    "active_parameters_b": "active",
    "isl": "ISL",
    "osl": "OSL",
}


def blocks(document: Listing) -> Iterator[Block]:
    """Yield the blocks of a listing: its columns."""
    kept = [i for i, name in enumerate(document.columns) if name not in UNLISTED]
    rows = tuple(tuple(cell(row[i]) for i in kept) for row in document.rows)
    numeric = tuple(all(isinstance(row[i], (int, float, type(None))) for row in document.rows) for i in kept)
    names = tuple(HEADINGS.get(document.columns[i], document.columns[i]) for i in kept)
    yield Block(columns=names, right=numeric, rows=rows)


def cell(value: Any) -> str:
    """Write one value of a file."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return stated(value) if isinstance(value, (int, float)) else str(value)
