"""`llmsize step --disaggregate` for the terminal: a step of each pool, and the way of a prompt's cache between them."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.report import table_step
from sizing.report.documents_pools import StepPools
from sizing.report.footnotes import assumed
from sizing.report.lines import Block, Line, milliseconds
from sizing.report.table_pools import way


def blocks(document: StepPools) -> Iterator[Block]:
    """Yield the blocks of both steps, each under the name of its pool."""
    if document.prefill is not None:
        yield from table_step.blocks_of(document.prefill, "Prefill pool")
    if document.kv_transfer is not None:
        yield Block(
            (Line(f"{milliseconds(document.kv_transfer_ms)} a prompt: {way(document.kv_transfer)}", "KV transfer"),)
        )
    if document.decode is not None:
        yield from table_step.blocks_of(document.decode, "Decode pool")
    yield assumed(document.assumptions, sources=False)
