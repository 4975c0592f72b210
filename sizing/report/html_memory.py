"""The memory bar of the page: what one GPU of the tightest rank holds, as parts of what is visible."""

from __future__ import annotations

from typing import NamedTuple

from sizing.formats.words import gib, percent
from sizing.report.html_cells import Cell, Table, columns, figure, words
from sizing.report.parts.figures import MemoryFigures

WIDTH = 480.0
PARTS = (
    ("weights_gib", "weights"),
    ("activation_gib", "activation (peak of a step)"),
    ("non_torch_gib", "framework"),
    ("cuda_graphs_gib", "CUDA graphs"),
    ("kv_cache_gib", "KV cache pool"),
)
FREE = "left free"


class Part(NamedTuple):
    """A part of the bar: its name and size, its place in the SVG, and its style's number."""

    name: str
    text: str
    x: float
    width: float
    style: int


class Bar(NamedTuple):
    """The bar's parts, what it says in a sentence, and its table; `end` is where the GPU's memory ends, None where all fits."""

    parts: tuple[Part, ...]
    summary: str
    table: Table
    end: float | None
    width: float = WIDTH


def bar(document: object, memory: MemoryFigures, pointer: str) -> Bar:
    """Return the bar of memory figures that stand at a pointer of the document."""
    sizes = [(name, getattr(memory, field)) for field, name in PARTS]
    free = memory.visible_gib - sum(size for _, size in sizes)
    if free > 0:
        sizes.append((FREE, free))
    whole = max(memory.visible_gib, sum(size for _, size in sizes))
    end = None if free >= 0 else round(WIDTH * memory.visible_gib / whole, 1)
    parts, x = [], 0.0
    for style, (name, size) in enumerate(sizes):
        width = WIDTH * size / whole
        parts.append(Part(name, f"{gib(size)} GiB", round(x, 1), round(width, 1), style))
        x += width
    summary = ", ".join(f"{part.name} {part.text}" for part in parts)
    summary += f", of {gib(memory.visible_gib)} GiB visible"
    return Bar(tuple(parts), summary, _table(document, memory, pointer), end)


def _table(document: object, memory: MemoryFigures, pointer: str) -> Table:
    def row(name: str, field: str) -> tuple[Cell, ...]:
        share = getattr(memory, field) / memory.visible_gib
        return words(name), figure(document, f"{pointer}/{field}", gib), words(percent(share))

    graphs = "inside the budget" if memory.cuda_graphs_in_budget else "on top of the budget"
    rows = [row(f"{name}, {graphs}" if "graphs" in field else name, field) for field, name in PARTS]
    rows += [row("budget of the engine", "budget_gib"), row("visible to CUDA", "visible_gib")]
    note = (
        f"The pool holds {memory.kv_cache_tokens:,} tokens a replica, {memory.max_concurrency:,.0f} sequences of "
        f"{memory.max_model_len:,} tokens."
    )
    if not memory.fits:
        note = f"One sequence of {memory.max_model_len:,} tokens needs {gib(memory.deficit_gib)} GiB more."
    return Table("Memory of one GPU, tightest rank", columns("part", "GiB", "of visible"), tuple(rows), note)
