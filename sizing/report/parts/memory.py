"""The memory of one GPU under a layout, and the changes that make a sequence fit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple, get_args

from sizing.answers.deployment import Resolved, resolve
from sizing.formats.view import Assumption
from sizing.formats.words import gib, number
from sizing.model.architecture import SIZES, Layout
from sizing.model.memory import MemoryUse
from sizing.replica.replica import Replica, candidates, sure_sequences, unstarted, with_fraction, with_length
from sizing.report.parts import assumptions, bands
from sizing.report.parts.bands import Predicted
from sizing.report.parts.figures import memory_of
from sizing.specs.units import missing_gib
from sizing.specs.workload import Reach

NARROWER = {"fp8": 8, "int4": 4}  # weights with fewer bits, in the order of suggestions
REACHES: tuple[Reach, ...] = get_args(Reach)[:-1]  # reaches of suggested layouts: none that only a full search tries


class LayoutMemory(NamedTuple):
    """The memory of one layout. If a sequence does not fit, the `reason`, and `suggestions` that make it fit."""

    fits: bool
    memory: MemoryUse
    predicted: tuple[Predicted, ...]
    reason: str | None
    suggestions: tuple[str, ...]
    assumptions: tuple[Assumption, ...]


def layout_memory(resolved: Resolved, sequences: int = 1) -> LayoutMemory:
    """The memory of one GPU under a layout that must hold `sequences` sequences of the longest length."""
    replica, used = resolved.replica, resolved.memory
    least = replica.least_fraction(sequences)
    starting = None if least is None else _sequences_to_start(with_fraction(replica, least))
    figures = memory_of(replica)._replace(least_memory_fraction=least, least_fraction_num_seqs=starting)
    fits = used.fits and used.starts and resolved.refused is None
    if sequences > 1:
        fits = fits and used.max_concurrency >= sequences
    return LayoutMemory(
        fits=fits,
        memory=figures,
        predicted=tuple(bands.of_memory(figures, bands.memory_situation(resolved.question, replica))),
        reason=_reason(resolved, sequences),
        suggestions=() if fits else tuple(_suggestions(resolved, sequences)),
        assumptions=(
            *assumptions.of_model(resolved.question, resolved.notes),
            *assumptions.of_memory(resolved.question, resolved.replica),
        ),
    )


def _reason(resolved: Resolved, sequences: int) -> str | None:
    if resolved.refused is not None:
        return f"{resolved.layout} is refused: {resolved.refused}"
    if resolved.memory.fits:
        if not resolved.memory.starts:
            return unstarted(resolved.replica)
        if sequences > 1 and resolved.memory.max_concurrency < sequences:
            tokens, most = resolved.memory.max_model_len, resolved.memory.max_concurrency
            return f"does not fit: {sequences:,} sequences of {tokens:,} tokens, where the cache holds {number(most)}"
        return None
    before = resolved.memory.deficit_gib - resolved.memory.sequence_gib - resolved.memory.shared_prefix_gib
    if before > 0:
        return (
            f"does not fit: the weights and the engine alone need {gib(before)} GiB more per GPU than the "
            f"{gib(resolved.memory.budget_gib)} GiB that the engine takes, before any sequence"
        )
    sequence = f"one sequence of {resolved.memory.max_model_len:,} tokens needs"
    if resolved.memory.shared_prefix_gib:
        sequence = f"{sequence.removesuffix(' needs')} and {resolved.memory.shared_prefix_gib:,.1f} GiB of shared prefixes need"
    return f"does not fit: {sequence} {missing_gib(resolved.memory.deficit_gib)} GiB more per GPU"


def _suggestions(resolved: Resolved, sequences: int) -> Iterator[str]:
    """Yield the changes that make a sequence fit, each checked: a shorter length, more GPUs, FP8 or INT4 weights, an FP8 cache."""
    if resolved.memory.fits and not resolved.memory.starts:
        yield f"--max-num-seqs {sure_sequences(resolved.replica)}"
        return
    if resolved.memory.fits and resolved.refused is None:  # too many sequences for the cache
        least = resolved.replica.least_fraction(sequences)
        if least is not None:
            yield f"--gpu-memory-utilization {least:g}{_with_sequences(with_fraction(resolved.replica, least))}"
    longest = resolved.replica.longest_that_fits()
    if (
        not resolved.memory.fits
        and resolved.refused is None
        and longest > 0
        and resolved.question.service.extras.cached.within(longest)
    ):
        yield f"--max-model-len {longest}{_with_sequences(with_length(resolved.replica, longest))}"
    yield from _larger(resolved, sequences)
    yield from _narrower(resolved, sequences)
    if resolved.plan.kv_bits > 8 and _fits(resolved, sequences, kv_precision="fp8"):
        yield "--kv-precision fp8"


def _sequences_to_start(changed: Replica) -> int | None:
    """The number of sequences with which an engine starts that does not with its own; None where it starts."""
    return None if changed.memory.starts else sure_sequences(changed)


def _with_sequences(changed: Replica) -> str:
    """The option that a change needs besides, where the engine would not start with its number of sequences."""
    sequences = _sequences_to_start(changed)
    return "" if sequences is None else f" --max-num-seqs {sequences}"


def _narrower(resolved: Resolved, sequences: int) -> Iterator[str]:
    """Yield the widest weights with fewer bits that fit. If none fit, yield each format with the length that then fits."""
    names = [name for name, bits in NARROWER.items() if bits < resolved.plan.weight_bits]
    alone = next((name for name in names if _fits(resolved, sequences, precision=name)), None)
    if alone is not None:
        yield f"--precision {alone}"
    for name in names if alone is None and sequences == 1 else ():
        tried = resolve(resolved.question, resolved.gpu_type, resolved.layout, name, resolved.data)
        longest = 0 if tried.refused is not None else tried.replica.longest_that_fits()
        if longest > 0 and resolved.question.service.extras.cached.within(longest):
            yield f"--precision {name} --max-model-len {longest}{_with_sequences(with_length(tried.replica, longest))}"


def _larger(resolved: Resolved, sequences: int) -> Iterator[str]:
    """Yield the options of a layout with more GPUs that fits: more tensor parallelism, else the smallest layout of any kind."""
    for tp in range(resolved.layout.tp + 1, resolved.gpu_type.gpu.datasheet.island_gpus + 1):
        if _fits(resolved, sequences, layout=resolved.layout._replace(tp=tp)):
            yield f"--tp {tp}"
            return
    question, weights, now = resolved.question, resolved.plan.weight_format, resolved.layout
    service = question.with_(serving=question.service.serving.model_copy(update=dict.fromkeys(SIZES))).service
    for reach in REACHES:
        found = candidates(service, resolved.gpu_type, weights, resolved.data, reach)
        layouts = sorted((of.layout for of in found if isinstance(of, Replica)), key=lambda layout: layout.gpus)
        fitting = (layout for layout in layouts if _fits(resolved, sequences, layout=layout))
        for layout in islice(fitting, 1):
            changed = [name for name in SIZES if getattr(layout, name) != getattr(now, name)]
            yield " ".join(f"--{name} {getattr(layout, name)}" for name in changed)
            return


def _fits(
    resolved: Resolved,
    sequences: int,
    *,
    layout: Layout | None = None,
    precision: str | None = None,
    kv_precision: str | None = None,
) -> bool:
    request = resolved.question if kv_precision is None else resolved.question.with_(kv_precision=kv_precision)
    tried = resolve(
        request, resolved.gpu_type, layout or resolved.layout, precision or resolved.plan.weight_format, resolved.data
    )
    held = sequences == 1 or tried.memory.max_concurrency >= sequences
    return tried.refused is None and tried.memory.fits and tried.memory.starts and held
