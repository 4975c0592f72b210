"""`llmsize memory` for the terminal, and the memory line that other reports share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sizing.report import table_bands
from sizing.report.documents import MemoryFigures, MemoryReport
from sizing.report.footnotes import assumed, explained
from sizing.report.lines import Block, Line, gib, number
from sizing.report.table_optimised import optimised


def memory_line(m: MemoryFigures) -> Line:
    """One GPU's memory on a line: parts, pool, budget, visible."""
    graphs = f"CUDA graphs {gib(m.cuda_graphs_gib)}" + ("" if m.cuda_graphs_in_budget else " on top")
    beside = f" ({gib(m.beside_gib)} of them beside the model)" if m.beside_gib else ""
    shared = f" (shared prefixes {gib(m.shared_prefix_gib)})" if m.shared_prefix_gib else ""
    return Line(
        f"weights {gib(m.weights_gib)}{beside}, activation {gib(m.activation_gib)}, other {gib(m.non_torch_gib)}, {graphs}, "
        f"KV cache {gib(m.kv_cache_gib)}{shared} of {gib(m.budget_gib)} GiB budget ({gib(m.visible_gib)} visible)",
        "Memory per GPU",
    )


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
        table_bands.of_memory(document.bands),
        Line(
            f"{m.kv_bytes_per_token:,.0f} bytes a token per GPU"
            + (f", {m.state_bytes_per_sequence:,.0f} bytes a sequence" if m.state_bytes_per_sequence else ""),
            "Cache grows",
        ),
    ]
    lines += [Line(text, "What would help" if n == 0 else " ") for n, text in enumerate(document.suggestions)]
    yield Block(tuple(lines))
    yield from explained(document.explanations)
    yield assumed(document.assumptions, sources=bool(document.explanations))


def setup(inputs: dict[str, Any]) -> tuple[Line, ...]:
    """Model, engine and optimisations of a report about one layout."""
    i = inputs
    return (
        Line(
            f"{i['model']}, {i['weight_precision'].upper()} weights, {i['kv_precision'].upper()} KV cache",
            "Model",
        ),
        Line(f"{i['engine_title']} {i['engine_version']}, {i['layout']} on {i['gpu']}", "Engine"),
        *optimised(i),
    )
