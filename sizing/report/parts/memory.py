"""The memory of one GPU under a layout, why sequences do not fit it, and the changes that make them fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sizing.answers import memory_changes as changes
from sizing.answers.answer import Answer, Outcome
from sizing.answers.deployment import Resolved, longest
from sizing.formats.view import Assumption
from sizing.formats.words import number
from sizing.model.memory import MemoryUse
from sizing.replica.replica import unstarted
from sizing.report.parts import assumptions, evidence
from sizing.report.parts.evidence import Predicted
from sizing.report.parts.figures import Latency, latency, load_figures, memory_of
from sizing.report.parts.sentences import said
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


def suggestions(resolved: Sequence[Resolved], sequences: int) -> tuple[str, ...]:
    """The options with which the sequences of all models of a card fit; each holds for all of them."""
    return tuple(change.options(resolved[0].replica.layout) for change in changes.suggested(resolved, sequences))


def _reason(resolved: Resolved, used: MemoryUse, sequences: int) -> str:
    serving, several, wanted = resolved.question.service.serving, sequences > 1, {"sequences": sequences}
    if resolved.refused is not None:
        return said("refused", resolved, layout=resolved.replica.layout if resolved.replica.layout.gpus > 1 else None)
    stated, beyond = (serving.kv_cache_bytes or 0.0) / GIB, used.beyond_card_gib
    if beyond and beyond < stated:
        return said("cache too large", stated=stated, missing=missing_gib(beyond), left=stated - beyond)
    if used.fits and not used.starts:
        return unstarted(resolved.replica)
    slots = serving.max_mamba_cache_size
    if slots is not None and changes.state_slots(resolved.replica, sequences) > slots:
        held = (used.most_num_seqs or 0) * resolved.replica.layout.dp
        return said("states too few", several=several, slots=slots, held=held, **wanted)
    if used.fits and used.max_concurrency < sequences:
        return said("cache too small", used, **wanted)
    if used.fits:
        return said("slots too few", slots=changes.slots(resolved.replica), **wanted)
    if beyond:
        parts = used.weights_gib + used.activation_gib + used.non_torch_gib + used.cuda_graphs_gib
        return said("card too small", used, more=parts - used.visible_gib)
    before = used.deficit_gib - used.sequence_gib - used.shared_prefix_gib
    if before > 0:
        return said("share too small", used, more=before, shorter=(used.max_model_len_that_fits or 0) > 0)
    return said("sequence too long", used, several=several, missing=missing_gib(used.deficit_gib), **wanted)


def queue_of(best: Answer, outcome: Outcome) -> str:
    """Write that most requests in flight of an answer without limits wait in the queue; empty where they do not."""
    target, service = outcome.question.target, outcome.question.service
    if best.separate or target.offline or target.limits.stated:
        return ""
    in_flight = load_figures(best, outcome).concurrency_per_replica
    return queued_words(memory_of(best.pool.replica), in_flight, service.isl + service.osl, latency(best))


def queued_words(memory: MemoryUse | None, in_flight: float, tokens: float, latency: Latency | None) -> str:
    """Write that most requests in flight on a replica wait in the queue; empty where the cache holds them.

    The cache is counted in requests of a mean number of `tokens`. A request that waits has most of its E2E before its first
    token.
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
