"""What the listings print: `gpus`, `models`, `engines`, `workloads`, and one entry of them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Listing(NamedTuple):
    """A list of what is known: column names and rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    schema: str = "llmsize.listing/1"


class Entry(NamedTuple):
    """One entry of the catalogue as its file states it."""

    name: str
    file: str
    entry: dict[str, Any]
    schema: str = "llmsize.entry/1"
