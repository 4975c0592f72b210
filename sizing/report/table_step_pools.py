"""`llmsize step --disaggregate` for the terminal: a step of each pool, and the way of a prompt's cache between them."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.formats.text import Block, blocks_of
from sizing.formats.view import Line
from sizing.formats.words import milliseconds
from sizing.report import table_step
from sizing.report.documents_pools import StepPools
from sizing.report.parts.assumptions import assumed
from sizing.report.parts.pools import transfer_words as way


def blocks(document: StepPools) -> Iterator[Block]:
    """Yield the blocks of both steps, each under the name of its pool."""
    if document.prefill is not None:
        yield from table_step.blocks_for(document.prefill, "Prefill pool")
    if document.kv_transfer is not None:
        yield Block(
            (Line(f"{milliseconds(document.kv_transfer_ms)} a prompt: {way(document.kv_transfer)}", "KV transfer"),)
        )
    if document.decode is not None:
        yield from table_step.blocks_for(document.decode, "Decode pool")
    yield from blocks_of(assumed(document.assumptions, sources=False))
