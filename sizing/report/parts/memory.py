"""The memory of one GPU under a layout, why sequences do not fit it, and the changes that make them fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sizing.answers import memory_changes as changes
from sizing.answers.answer import Answer, Outcome
from sizing.answers.deployment import Resolved, longest
from sizing.formats.view import Assumption
from sizing.formats.words import gib, number
from sizing.model.memory import MemoryUse
from sizing.replica.replica import unstarted
from sizing.report.parts import assumptions, evidence
from sizing.report.parts.evidence import Predicted
from sizing.report.parts.figures import Latency, latency, load_figures, memory_of
from sizing.specs.units import GIB, missing_gib


class LayoutMemory(NamedTuple):
    """The memory of one layout. If a sequence does not fit, the `reason`, and `suggestions` that make it fit.

    A layout that hardware or engine `refused` does not start, whatever its memory holds.
    """

    fits: bool
    memory: MemoryUse
    predicted: tuple[Predicted, ...]
    reason: str | None
    suggestions: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    refused: str | None = None


def layout_memory(resolved: Resolved, sequences: int = 1, *, shared: bool = False) -> LayoutMemory:
    """The memory of one GPU under a layout that must hold `sequences` sequences of the longest length.

    The changes for a model on a `shared` card are those of all its models (`suggestions`).
    """
    fits = changes.fit([resolved], sequences)
    least, with_sequences = changes.least_fraction(resolved, sequences) or (None, None)
    figures = resolved.memory._replace(
        max_model_len_that_fits=longest(resolved),
        least_memory_fraction=least,
        least_fraction_num_seqs=with_sequences,
        starts=resolved.memory.starts and resolved.refused is None,
    )
    stated = resolved.question.service.serving.kv_cache_bytes is not None
    situation = evidence.memory_situation(resolved.question, resolved.replica)
    return LayoutMemory(
        fits=fits,
        memory=figures,
        predicted=tuple(evidence.of_memory(figures, situation, stated=stated)),
        reason=None if fits else _reason(resolved, figures, sequences),
        suggestions=() if fits or shared else suggestions([resolved], sequences),
        assumptions=(
            *assumptions.of_model(resolved.question, resolved.notes),
            *assumptions.of_memory(resolved.question, resolved.replica),
        ),
        refused=resolved.refused,
    )


def suggestions(asked: Sequence[Resolved], sequences: int) -> tuple[str, ...]:
    """The options with which the sequences of all models of a card fit; each holds for all of them."""
    return tuple(change.options(asked[0].layout) for change in changes.suggested(asked, sequences))


def _reason(resolved: Resolved, used: MemoryUse, sequences: int) -> str:
    replica = resolved.replica
    if resolved.refused is not None:
        return f"{f'{resolved.layout} is ' if resolved.layout.gpus > 1 else ''}refused: {resolved.refused}"
    stated = (resolved.question.service.serving.kv_cache_bytes or 0.0) / GIB
    if used.beyond_card_gib and used.beyond_card_gib < stated:
        return (
            f"does not start: the stated cache of {gib(stated)} GiB is {missing_gib(used.beyond_card_gib)} GiB more than the "
            f"{gib(stated - used.beyond_card_gib)} GiB that the weights and the engine leave on the card"
        )
    if used.fits and not used.starts:
        return unstarted(replica)
    slots = resolved.question.service.serving.max_mamba_cache_size
    if slots is not None and changes.state_slots(replica, sequences) > slots:
        held = (used.most_num_seqs or 0) * replica.layout.dp
        counted = "one sequence" if sequences == 1 else f"{sequences:,} sequences"
        return f"does not fit: {counted}, where --max-mamba-cache-size {slots:,} has recurrent states for {held:,}"
    if used.fits and used.max_concurrency < sequences:
        tokens, most = used.max_model_len, used.max_concurrency
        return f"does not fit: {sequences:,} sequences of {tokens:,} tokens, where the cache holds {number(most)}"
    if used.fits:
        return f"does not fit: {sequences:,} sequences at once, where max_num_seqs lets the engine run {changes.slots(replica):,}"
    if used.beyond_card_gib:
        parts = used.weights_gib + used.activation_gib + used.non_torch_gib + used.cuda_graphs_gib
        return (
            f"does not fit: the weights and the engine alone need {gib(parts - used.visible_gib)} GiB more per GPU than the "
            f"{gib(used.visible_gib)} GiB of the card, before any cache"
        )
    before = used.deficit_gib - used.sequence_gib - used.shared_prefix_gib
    if before > 0:
        need = f"need {gib(before)} GiB more per GPU than the {gib(used.budget_gib)} GiB that the engine takes"
        if (fits := used.max_model_len_that_fits) > 0:
            lengths = f"lengths of up to {used.max_model_len:,} tokens, for which it makes room"
            return f"does not fit: the weights and the engine's work on {lengths}, {need}; {fits:,} tokens fit"
        return f"does not fit: the weights and the engine alone {need}, before any sequence"
    sequence = f"one sequence of {used.max_model_len:,} tokens needs"
    if used.shared_prefix_gib:
        sequence = f"{sequence.removesuffix(' needs')} and {used.shared_prefix_gib:,.1f} GiB of shared prefixes need"
    wanted = f"{sequences:,} sequences, where not one fits: " if sequences > 1 else ""
    return f"does not fit: {wanted}{sequence} {missing_gib(used.deficit_gib)} GiB more per GPU"


def queue_of(best: Answer, outcome: Outcome) -> str:
    """Write that most requests in flight of an answer without limits wait in the queue; empty where they do not."""
    target, service = outcome.question.target, outcome.question.service
    if best.separate or target.offline or target.limits.stated:
        return ""
    in_flight = load_figures(best, outcome).concurrency_per_replica
    return queued_words(memory_of(best.pool.replica), in_flight, service.isl + service.osl, latency(best))


def queued_words(memory: MemoryUse | None, in_flight: float, tokens: float, latency: Latency | None) -> str:
    """Write that most requests in flight on a replica wait in the queue; empty where the cache holds them.

    The cache is counted in requests of a mean number of `tokens`. A request that waits has most of its E2E before its first token.
    """
    if memory is None or latency is None or not memory.sequence_gib:
        return ""
    room, ttft_ms, e2e_ms = (
        memory.max_concurrency * memory.max_model_len / tokens,
        latency.ttft_ms.mean,
        latency.e2e_ms.mean,
    )
    if in_flight <= room or not ttft_ms or not e2e_ms or ttft_ms < e2e_ms / 2:
        return ""
    held = f"the cache holds {number(room)} of {number(in_flight)} in flight a replica"
    return f"most requests wait in the queue: {held}"
