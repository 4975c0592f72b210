"""`llmsize memory` for the terminal, and the memory line that other reports share."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.formats.text import Block, blocks_of
from sizing.formats.view import Line
from sizing.formats.words import gib, number
from sizing.report.documents import MemoryReport
from sizing.report.parts import bands
from sizing.report.parts.assumptions import assumed
from sizing.report.parts.explain import explained
from sizing.report.parts.memory import memory_line
from sizing.report.parts.question import setup


def blocks(document: MemoryReport) -> Iterator[Block]:
    """Yield the blocks of a memory report."""
    m = document.memory
    verdict = f"Fits: one sequence of {m.max_model_len:,} tokens takes {gib(m.sequence_gib)} GiB of the pool per GPU"
    if not document.fits:
        reason = document.reason or f"does not fit: {gib(m.deficit_gib)} GiB more per GPU are needed"
        verdict = reason[0].upper() + reason[1:]
    yield Block((Line(verdict, style="bold"), *setup(document.inputs)))
    lines = [
        memory_line(m),
        Line(
            f"{m.kv_cache_tokens:,} tokens; {number(m.max_concurrency)} sequences of {m.max_model_len:,} tokens; longest "
            f"that fits {m.max_model_len_that_fits:,}",
            "Cache holds",
        ),
        bands.memory_words(document.bands),
        Line(
            f"{m.kv_bytes_per_token:,.0f} bytes a token per GPU"
            + (f", {m.state_bytes_per_sequence:,.0f} bytes a sequence" if m.state_bytes_per_sequence else ""),
            "Cache grows",
        ),
    ]
    lines += [Line(text, "What would help" if n == 0 else " ") for n, text in enumerate(document.suggestions)]
    yield Block(tuple(lines))
    yield from (block for section in explained(document.explanations) for block in blocks_of(section))
    yield from blocks_of(assumed(document.assumptions, sources=bool(document.explanations)))
