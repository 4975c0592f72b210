"""`llmsize memory`: the memory of one GPU under a layout and, where a sequence does not fit, changes that make it fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sizing.answers.resolved import Resolved
from sizing.formats.view import Assumption, Document, Explanation, Facts, Line, Rows, Section, labelled, rows_of
from sizing.formats.words import gib, number
from sizing.report.parts import assumptions, bands, explain
from sizing.report.parts.figures import MemoryFigures
from sizing.report.parts.memory import layout_memory, memory_line
from sizing.report.parts.question import inputs_of_layout, labels, setup
from sizing.specs.bands import ErrorBand

RESIDENT_SHARE = 0.99  # of what is reserved: above it both are one


class MemoryReport(NamedTuple):
    """The record of `llmsize memory`."""

    fits: bool
    inputs: dict[str, Any]
    memory: MemoryFigures
    bands: dict[str, ErrorBand]
    reason: str | None
    suggestions: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    explanations: tuple[Explanation, ...] = ()
    schema: str = "llmsize.memory/1"


class SharedReport(NamedTuple):
    """The record of several models on one card, each with its share of it."""

    fits: bool
    share: float
    models: tuple[MemoryReport, ...]
    schema: str = "llmsize.memory-shared/1"


def record(resolved: Resolved, sequences: int = 1, *, explained: bool = False) -> MemoryReport:
    """The memory of one layout; where the longest sequences do not fit, the reason and the changes that make them fit."""
    layout = layout_memory(resolved, sequences)
    found = (
        ()
        if not explained
        else (
            *explain.of_memory(layout.memory, resolved.settings, resolved.plan.kv_format),
            *bands.explanations(layout.predicted),
        )
    )
    return MemoryReport(
        fits=layout.fits,
        inputs=inputs_of_layout(resolved),
        memory=layout.memory,
        bands=bands.bounds(layout.predicted),
        reason=layout.reason,
        suggestions=layout.suggestions,
        assumptions=layout.assumptions,
        explanations=found,
    )


def document(record: MemoryReport) -> Document[MemoryReport]:
    """The document of one GPU's memory."""
    return Document(record, sections, rows)


def shared(records: Sequence[MemoryReport]) -> Document[SharedReport]:
    """The document of several models that share a card."""
    whole = sum(record.inputs["memory_fraction"] for record in records)
    return Document(SharedReport(all(record.fits for record in records), whole, tuple(records)), _of_all, _rows_of_all)


def _of_all(record: SharedReport) -> Iterator[Section]:
    for model in record.models:
        yield from sections(model)
    yield Facts((), f"Together {record.share:.0%} of the card")


def _rows_of_all(record: SharedReport) -> Rows:
    found = [rows(model) for model in record.models]
    return found[0]._replace(rows=tuple(row for each in found for row in each.rows))


def rows(record: MemoryReport) -> Rows:
    """One row: labels, every figure, and whether a sequence fits."""
    return rows_of((record.memory._replace(fits=record.fits),), MemoryFigures._fields, labels(record.inputs))


def sections(record: MemoryReport) -> Iterator[Section]:
    """Yield whether a sequence fits, the parts of the memory, the cache capacity, and changes that would help."""
    yield Facts(setup(record.inputs), _verdict(record))
    yield Facts((*_figures(record), *labelled("What would help", record.suggestions)))
    yield from explain.explained(record.explanations)
    yield assumptions.assumed(record.assumptions, sources=bool(record.explanations))


def _verdict(record: MemoryReport) -> str:
    m = record.memory
    if record.fits:
        return f"Fits: one sequence of {m.max_model_len:,} tokens takes {gib(m.sequence_gib)} GiB of the pool per GPU"
    reason = str(record.reason)
    return reason[0].upper() + reason[1:]


def _figures(record: MemoryReport) -> Iterator[Line]:
    m = record.memory
    yield memory_line(m)
    yield Line(
        f"{m.kv_cache_tokens:,} tokens; {number(m.max_concurrency)} sequences of {m.max_model_len:,} tokens; longest "
        f"that fits {m.max_model_len_that_fits:,}",
        "Cache holds",
    )
    yield bands.memory_words(record.bands)
    if m.resident_gib < RESIDENT_SHARE * m.sequence_gib:
        yield Line(
            f"{gib(m.sequence_gib)} GiB a sequence at its admission, with a whole chunk of its prompt; "
            f"{gib(m.resident_gib)} while it decodes",
            "Engine reserves",
        )
    if m.least_memory_fraction is not None:
        yield Line(f"{m.least_memory_fraction:.3f} of the card's memory for this load", "Least fraction")
    if m.warm_up_gib:
        yield Line(
            f"{gib(m.warm_up_gib)} GiB are missing outside the memory fraction for CUDA graphs and the sampler's warm-up: "
            "it may run out of memory at start; lower --gpu-memory-utilization or --max-num-seqs",
            "Warning",
        )
    sequence = f", {m.state_bytes_per_sequence:,.0f} bytes a sequence" if m.state_bytes_per_sequence else ""
    yield Line(f"{m.kv_bytes_per_token:,.0f} bytes a token per GPU{sequence}", "Cache grows")
