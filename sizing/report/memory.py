"""`llmsize memory`: the memory of one GPU under a layout and, where a sequence does not fit, changes that make it fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from sizing.answers.deployment import Resolved, warning_of
from sizing.formats.view import Assumption, Document, Explanation, Facts, Line, Rows, Section, filled, rows_of
from sizing.formats.words import between, gib, number
from sizing.model.memory import MemoryUse
from sizing.report.parts import derivations, evidence, screen
from sizing.report.parts.memory import layout_memory, suggestions
from sizing.report.parts.question import LayoutInputs, inputs_of_layout, labels, replica_lines
from sizing.report.parts.sentences import line
from sizing.specs.bands import ErrorBand
from sizing.specs.workload import GENERATE

# What an engine's memory fraction is a fraction of, by the rule of its pool.
FRACTION_OF = {
    "utilisation": "the card's memory",
    "free_before_load": "the memory that is free before the weights load",
    "free_after_load": "the memory that weights and activation leave free",
}
UNHELPED = "no change suffices of those that were tried: shorter sequences, more GPUs, fewer bits; take a larger GPU"
RESIDENT_SHARE = 0.99  # resident share of the reserved memory: from here on, both count as the same


class MemoryReport(NamedTuple):
    """The record of `llmsize memory`. `image_tokens` counts the tokens of the images of a request, where images are stated."""

    fits: bool
    inputs: LayoutInputs
    memory: MemoryUse
    bands: dict[str, ErrorBand]
    reason: str | None
    suggestions: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    explanations: tuple[Explanation, ...] = ()
    model_max_len: int | None = None
    memory_fraction_of: str = FRACTION_OF["utilisation"]
    bands_of: str = "engine logs like this"
    refused: str | None = None
    image_tokens: int | None = None
    schema: str = "llmsize.memory/1"


class SharedReport(NamedTuple):
    """The record of several models on one card, each with its share of the memory."""

    fits: bool
    share: float
    models: tuple[MemoryReport, ...]
    suggestions: tuple[str, ...]
    schema: str = "llmsize.memory-shared/1"


def record(resolved: Resolved, sequences: int = 1, *, explained: bool = False, shared: bool = False) -> MemoryReport:
    """The memory of one layout. If the longest sequences do not fit, the reason and changes that make them fit.

    Changes of a model on a `shared` card stand in the record of the card.
    """
    layout = layout_memory(resolved, sequences, shared=shared)
    of_memory = derivations.of_memory(layout.memory, resolved.replica)
    encoder = resolved.question.service.extras.encoder
    return filled(
        MemoryReport,
        layout,
        inputs=inputs_of_layout(resolved),
        bands=evidence.bounds(layout.predicted),
        explanations=(*of_memory, *evidence.explanations(layout.predicted)) if explained else (),
        model_max_len=resolved.question.service.model.max_position,
        memory_fraction_of=FRACTION_OF[resolved.replica.settings.pool_rule],
        bands_of=evidence.memory_logs(layout.predicted),
        image_tokens=None if encoder is None else encoder.tokens,
    )


def on_one_card(deployed: Sequence[Resolved], sequences: int = 1, *, explained: bool = False) -> SharedReport:
    """The record of several models that share a card. If one does not fit, the changes with which all do."""
    records = tuple(record(each, sequences, explained=explained, shared=True) for each in deployed)
    fits, share = all(each.fits for each in records), sum(each.inputs.memory_fraction for each in records)
    return SharedReport(fits, share, records, () if fits else suggestions(deployed, sequences))


def _of_all(record: SharedReport) -> Iterator[Section]:
    for model in record.models:
        yield from sections(model, shared=True)
    card, taken = record.models[0].memory.visible_gib, sum(screen.share_gib(model.memory) for model in record.models)
    rest = f"; {gib(card - taken)} of {gib(card)} GiB are left" if taken < card else ""
    helps = tuple(screen.first_lines("Try", record.suggestions, "change"))
    yield Facts(helps, f"Together {record.share:.0%} of the card{rest}")


def _rows_of_all(record: SharedReport) -> Rows:
    found = [rows(model) for model in record.models]
    return found[0]._replace(rows=tuple(row for each in found for row in each.rows))


def rows(record: MemoryReport) -> Rows:
    """One row: labels, every figure, and whether a sequence fits."""
    return rows_of((record.memory._replace(fits=record.fits),), MemoryUse._fields, labels(record.inputs))


def sections(record: MemoryReport, *, shared: bool = False) -> Iterator[Section]:
    """Yield whether a sequence fits, the memory as a bar, what the cache holds, and changes that would help.

    On a card that is `shared`, the bar is the model's share. A refused layout never runs, so it has no bar and no figures.
    """
    m, i = record.memory, record.inputs
    taken = f"fits: one sequence of {m.max_model_len:,} tokens takes {gib(m.sequence_gib)} GiB of cache"
    if not m.sequence_gib:
        taken = f"fits: prompts of up to {m.max_model_len:,} tokens, and no KV cache"
    reason = record.reason or taken
    yield Facts((screen.verdict(reason[0].upper() + reason[1:], good=record.fits), *replica_lines(i, i.layout)))
    if record.refused is None:
        yield screen.memory_bar(m, i.optimisations, shared=shared)
        yield Facts(tuple(_figures(record)))
    lacking = m.deficit_gib > 0 or (record.refused is None and not record.fits)
    helps = record.suggestions or (UNHELPED,) * lacking
    tried = () if shared else screen.first_lines("Try", helps, "change")
    after = screen.next_line(screen.DERIVED, *([] if record.explanations else [screen.EXPLAINS]))
    yield Facts((*tried, *screen.assumption_lines(record.assumptions), after))


def _cache(m: MemoryUse, maximum: int | None) -> Iterator[Line]:
    sequences = f"{number(m.max_concurrency)} sequences of {m.max_model_len:,}"
    longest = f"; the longest sequence that fits has {m.max_model_len_that_fits:,} tokens"
    if 0 < m.kv_cache_tokens < (m.max_model_len_that_fits or 0):
        longest += ", as a longer one takes fewer bytes a token (sliding windows, chunks of its prompt)"
    if m.max_model_len_that_fits and not m.kv_cache_tokens:  # a shorter one leaves room for a cache
        longest = f"; with --max-model-len {m.max_model_len_that_fits} one of that length fits"
    if not m.max_model_len_that_fits:
        longest = "; no sequence fits" + ", as its recurrent states do not" * (m.most_num_seqs == 0)
    if m.max_model_len_that_fits == maximum:
        is_longest = m.max_model_len == maximum
        longest = ", the model's longest" if is_longest else f"; one of {maximum:,}, the model's longest, fits"
    yield Line(f"{m.kv_cache_tokens:,} tokens on a replica, {sequences}{longest}", "Cache holds")
    beyond = round(m.kv_bytes_per_token_beyond)
    yield line("cache grows", m, beyond=beyond if beyond < round(m.kv_bytes_per_token) else None)


def _figures(record: MemoryReport) -> Iterator[Line]:
    m = record.memory
    yield line("engine takes", m)
    if m.sequence_gib and not m.beyond_card_gib:
        yield from _cache(m, record.model_max_len)
    if record.image_tokens is not None:
        yield line("images", m, images=record.image_tokens)
    if m.resident_gib < RESIDENT_SHARE * m.sequence_gib and record.inputs.task == GENERATE:
        yield line("reserved", m)
    if m.least_memory_fraction is not None:
        yield line("least fraction", m, of=record.memory_fraction_of)
    if (warning := warning_of(m)) is not None:
        yield Line(warning, "Warning")
    spans = [(q.heading, record.bands.get(q.key), q.write) for q in evidence.MEMORY]
    said = [f"{name} {between(band.low, band.high, write)}" for name, band, write in spans if band is not None]
    yield Line(f"{', '.join(said)} in 8 of 10 {record.bands_of}" if said else screen.UNKNOWN, "Range")


document = partial(Document, sections=sections, rows=rows)
shared = partial(Document, sections=_of_all, rows=_rows_of_all)
