"""Options that make sequences fit which do not fit yet. Each change is evaluated with exactly the options that it prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import get_args

from sizing.answers.deployment import Resolved, one_layout
from sizing.catalog import shelf
from sizing.model import footprint
from sizing.model.architecture import SIZES, Layout
from sizing.model.precision import narrower
from sizing.question.question import with_longest
from sizing.replica.replica import Replica, candidates, most_sequences, sure_sequences
from sizing.specs.bisection import smallest
from sizing.specs.data import Formats
from sizing.specs.frozen import Frozen
from sizing.specs.units import GIB, GIGA
from sizing.specs.workload import Reach

USUAL_REACHES: tuple[Reach, ...] = get_args(Reach)[
    :-1
]  # reaches of suggested layouts: none that only a full search tries
FRACTIONS = 1_000  # steps of a memory fraction
CACHES_A_GIGABYTE = 10  # steps of a stated cache in a GB


class MemoryChange(Frozen):
    """Options that replace those of a question, the same for all models of a card; None leaves an option as it is.

    `fractions` has the memory fraction of each model; on a card of several models they are its shares.
    """

    fractions: tuple[float, ...] | None = None
    kv_cache_bytes: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_mamba_cache_size: int | None = None
    layout: Layout | None = None
    precision: str | None = None
    kv_precision: str | None = None

    def of(self, resolved: Sequence[Resolved]) -> tuple[Resolved, ...]:
        """The deployments with the change."""
        fractions = self.fractions or (None,) * len(resolved)
        return tuple(self._of(each, fraction) for each, fraction in zip(resolved, fractions, strict=True))

    def _of(self, resolved: Resolved, fraction: float | None) -> Resolved:
        question, layout = resolved.question, self.layout or resolved.replica.layout
        if self.max_model_len is not None:
            question = with_longest(question, self.max_model_len)
        if self.kv_precision is not None:
            question = question.with_(kv_precision=self.kv_precision)
        given = {
            "memory_fraction": fraction,
            "kv_cache_bytes": self.kv_cache_bytes,
            "max_num_seqs": self.max_num_seqs,
            "max_mamba_cache_size": self.max_mamba_cache_size,
            **{name: getattr(layout, name) for name in self._sizes(resolved.replica.layout)},
        }
        stated = {name: value for name, value in given.items() if value is not None}
        question = question.with_(serving=question.service.serving.model_copy(update=stated))
        precision = self.precision or resolved.replica.precision
        return one_layout(question, resolved.replica.gpu_type, layout, precision, notes=resolved.notes)

    def _sizes(self, now: Layout) -> list[str]:
        return [name for name in SIZES if self.layout is not None and getattr(self.layout, name) != getattr(now, name)]

    def options(self, now: Layout) -> str:
        """The options on a command line, for a deployment that has the layout `now`."""
        shares = ",".join(f"{fraction:g}" for fraction in self.fractions or ())
        cache = self.kv_cache_bytes
        written = (
            ("--share" if "," in shares else "--gpu-memory-utilization", shares or None),
            ("--kv-cache-memory-bytes", None if cache is None else f"{cache / GIGA:.10g}g"),
            *((f"--{name}", getattr(self.layout, name)) for name in self._sizes(now)),
            ("--precision", self.precision),
            ("--max-model-len", self.max_model_len),
            ("--max-num-seqs", self.max_num_seqs),
            ("--max-mamba-cache-size", self.max_mamba_cache_size),
            ("--kv-precision", self.kv_precision),
        )
        return " ".join(f"{flag} {value}" for flag, value in written if value is not None)


AS_ASKED = MemoryChange()


def fit(deployed: Sequence[Resolved], sequences: int) -> bool:
    """Whether each deployment starts, holds `sequences` sequences of the longest length, and runs as many at once."""
    return all(
        each.refused is None
        and each.memory.fits
        and each.memory.starts
        and each.memory.max_concurrency >= sequences
        and slots(each.replica) >= sequences
        for each in deployed
    )


def slots(replica: Replica) -> int:
    """The sequences that the engine runs at once, whatever its memory holds."""
    return replica.settings.most_sequences(replica.layout.pp) * replica.layout.dp


def state_slots(replica: Replica, sequences: int) -> int:
    """The recurrent states that `sequences` sequences at once take of an engine that keeps a pool of states; else 0."""
    rule = replica.settings.states.rule
    if rule != "split" or not replica.memory.state_bytes_per_sequence:
        return 0
    return -(-sequences // replica.layout.dp) * (footprint.states_held(replica.shard) or 1)


def starting(
    change: MemoryChange,
    resolved: Sequence[Resolved],
    sequences: int,
    most: Callable[[Replica], int | None] = sure_sequences,
) -> MemoryChange:
    """The change; with another number of sequences where an engine runs fewer than are asked for, or does not start with so many.

    Where fewer recurrent states are stated than the sequences take, the change has as many.
    An engine that checks its blocks for recurrent states gets the number that `most` finds.
    """
    tried = change.of(resolved)
    if min(slots(each.replica) for each in tried) < sequences:
        change = replace(change, max_num_seqs=_least_of(tried, sequences))
        tried = change.of(resolved)
    needed = max(state_slots(each.replica, sequences) for each in tried)
    stated = [each.question.service.serving.max_mamba_cache_size for each in tried]
    if any(count is not None and count < needed for count in stated):
        change = replace(change, max_mamba_cache_size=needed)
        tried = change.of(resolved)
    found = [most(each.replica) for each in tried if not (each.memory.fits and each.memory.starts)]
    fewest = min((count for count in found if count), default=None)
    return change if fewest is None else replace(change, max_num_seqs=fewest)


def _least_of(deployed: Sequence[Resolved], sequences: int) -> int:
    """The least `max_num_seqs` with which each deployment runs `sequences` sequences at once."""
    return -(-sequences // min(slots(each.replica) // each.replica.settings.max_num_seqs for each in deployed))


def suggested(resolved: Sequence[Resolved], sequences: int) -> Iterator[MemoryChange]:
    """Yield the changes with which `sequences` sequences of each model fit: of the engine, the length, layout and formats."""
    whole = all(each.refused is None for each in resolved)
    own = (change for change in _of_the_engine(resolved, sequences) if whole and fit(change.of(resolved), sequences))
    for change in islice(own, 1):
        yield change
        if change.fractions is None and all(each.memory.fits for each in resolved):
            return
    if whole:
        yield from _shorter(AS_ASKED, resolved, sequences)
    yield from _larger(resolved, sequences)
    yield from _narrower(resolved, sequences)
    if whole:
        yield from _fewer(resolved, sequences)
    cache = starting(MemoryChange(kv_precision="fp8"), resolved, sequences)
    if all(each.replica.plan.kv_bits > 8 for each in resolved) and fit(cache.of(resolved), sequences):
        yield cache


def _of_the_engine(resolved: Sequence[Resolved], sequences: int) -> Iterator[MemoryChange]:
    """Yield changes of what the engine takes and admits, which leave the question as it is."""
    other = starting(AS_ASKED, resolved, sequences)
    if other != AS_ASKED:
        yield other
    yield from _caches(resolved, sequences)
    shares = _shares(resolved, sequences)
    if shares is not None:
        yield shares


def _fewer(resolved: Sequence[Resolved], sequences: int) -> Iterator[MemoryChange]:
    """Yield the largest `max_num_seqs` with which `sequences` fit, if a larger one takes too much for activation and CUDA graphs."""
    least = _least_of(resolved, sequences)
    most = max(each.replica.settings.max_num_seqs for each in resolved)
    if least < most and not fit(resolved, sequences) and fit(MemoryChange(max_num_seqs=least).of(resolved), sequences):
        found = (
            smallest(lambda count: not fit(MemoryChange(max_num_seqs=count).of(resolved), sequences), least, most) - 1
        )
        yield MemoryChange(max_num_seqs=found)


def _caches(resolved: Sequence[Resolved], sequences: int) -> Iterator[MemoryChange]:
    """Yield the largest stated cache that every card holds, or the smallest that holds the sequences, in steps of 0.1 GB."""
    stated = [each.question.service.serving.kv_cache_bytes for each in resolved]
    rooms = [
        size - each.memory.beyond_card_gib * GIB
        for each, size in zip(resolved, stated, strict=True)
        if size is not None
    ]
    if len(rooms) < len(resolved):
        return

    def at(steps: int) -> MemoryChange:
        return starting(MemoryChange(kv_cache_bytes=steps * GIGA / CACHES_A_GIGABYTE), resolved, sequences)

    def steps_in(size: float) -> int:
        return int(size / GIGA * CACHES_A_GIGABYTE)

    if any(each.memory.beyond_card_gib for each in resolved):
        if steps_in(min(rooms)):
            yield at(steps_in(min(rooms)))
        return
    card = steps_in(min(each.memory.visible_gib for each in resolved) * GIB)

    def holds(steps: int) -> bool:
        tried = at(steps).of(resolved)
        return fit(tried, sequences) or any(each.memory.beyond_card_gib for each in tried)

    yield at(smallest(holds, steps_in(min(rooms)), card))


def least_fraction(resolved: Resolved, sequences: int) -> tuple[float, int | None] | None:
    """The smallest memory fraction with which the sequences fit, in steps of 0.001, and the number of sequences to start with.

    The number is None where the engine starts with its own. The whole is None if even all memory is too small, if the layout
    is refused, or if the size of the cache is stated.
    """
    if resolved.question.service.serving.kv_cache_bytes is not None or resolved.refused is not None:
        return None

    def at(steps: int) -> MemoryChange:
        change = starting(MemoryChange(fractions=(steps / FRACTIONS,)), [resolved], sequences, most_sequences)
        return replace(change, max_mamba_cache_size=None)

    def fits(steps: int) -> bool:
        return fit(at(steps).of([resolved]), sequences)

    steps = smallest(fits, 0, FRACTIONS)
    return (steps / FRACTIONS, at(steps).max_num_seqs) if fits(steps) else None


def _shares(resolved: Sequence[Resolved], sequences: int) -> MemoryChange | None:
    """The least memory fraction of a model; on a card of several, their shares, the least of those that do not fit."""
    if len(resolved) == 1 and not resolved[0].memory.fits:
        return None  # what one sequence needs stands in its own line
    least = [found[0] for each in resolved if (found := least_fraction(each, sequences)) is not None]
    if len(least) < len(resolved):
        return None
    kept = tuple(
        each.replica.settings.memory_fraction or fraction if fit([each], sequences) else fraction
        for each, fraction in zip(resolved, least, strict=True)
    )
    shares = kept if sum(kept) <= 1 else tuple(least)
    if len(resolved) > 1 and sum(shares) > 1:
        return None
    return starting(MemoryChange(fractions=shares), resolved, sequences)


def _shorter(change: MemoryChange, resolved: Sequence[Resolved], sequences: int) -> Iterator[MemoryChange]:
    """Yield a change with the longest sequences that then fit, if there are any."""

    def at(tokens: int) -> MemoryChange:
        return starting(replace(change, max_model_len=tokens), resolved, sequences)

    def fits(tokens: int) -> bool:
        return fit(at(tokens).of(resolved), sequences)

    services = [each.question.service for each in resolved]
    longest = max(service.max_model_len for service in services)
    most = min(longest, *(each.model.max_position for each in services))
    tokens = most if fits(most) else smallest(lambda tokens: not fits(tokens), 0, most) - 1
    if 0 < tokens < longest and fits(tokens) and all(each.extras.cached.within(tokens) for each in services):
        yield at(tokens)


def _narrower(resolved: Sequence[Resolved], sequences: int) -> Iterator[MemoryChange]:
    """Yield the widest weights with fewer bits that fit. If none fit, yield each format with the longer length that then fits."""
    narrowest = min(each.replica.plan.weight_bits for each in resolved)
    names = narrower(narrowest, shelf.only(Formats))
    tried = [starting(MemoryChange(precision=name), resolved, sequences) for name in names]
    alone = next((change for change in tried if fit(change.of(resolved), sequences)), None)
    if alone is not None:
        yield alone
        return
    longest = [change.max_model_len or 0 for change in _shorter(AS_ASKED, resolved, sequences)]
    for name in names:
        found = _shorter(MemoryChange(precision=name), resolved, sequences)
        yield from (change for change in found if (change.max_model_len or 0) > max(longest, default=0))


def _larger(resolved: Sequence[Resolved], sequences: int) -> Iterator[MemoryChange]:
    """Yield the layout with the fewest GPUs that fits: with more tensor parallelism, else the smallest of any kind."""
    first, now = resolved[0], resolved[0].replica.layout

    def fitting(layouts: Iterator[Layout]) -> Iterator[MemoryChange]:
        changes = (starting(MemoryChange(layout=layout), resolved, sequences) for layout in layouts)
        return islice((change for change in changes if fit(change.of(resolved), sequences)), 1)

    wider = range(now.tp + 1, first.replica.gpu_type.gpu.datasheet.island_gpus + 1)
    found = tuple(fitting(now._replace(tp=tp) for tp in wider))
    if not found:
        question = first.question
        unsized = question.with_(serving=question.service.serving.model_copy(update=dict.fromkeys(SIZES)))
        layouts = {
            replica.layout
            for reach in USUAL_REACHES
            for replica in candidates(unsized.service, first.replica.gpu_type, first.replica.precision, reach)
            if isinstance(replica, Replica)
        }

        def nearest(layout: Layout) -> tuple[int, int, Layout]:
            return layout.gpus, sum(one != other for one, other in zip(layout, now, strict=True)), layout

        found = tuple(fitting(iter(sorted(layouts, key=nearest))))
    yield from found
