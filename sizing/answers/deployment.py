"""A deployment as the question states it, without a search: one layout on one GPU type, and why it may be refused.

Also the memory that an engine's start-up log states, compared with the prediction for the log's settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from sizing.formats.words import gib
from sizing.model.architecture import Layout
from sizing.model.memory import MemoryUse, over_gib
from sizing.question.ask import ask_layout, layout_of
from sizing.question.question import PoolSpace, Question, with_longest
from sizing.replica import replica as replicas
from sizing.replica.kernels import Kernels
from sizing.replica.replica import Replica, started
from sizing.specs.bisection import smallest
from sizing.specs.errors import Fault, InputError
from sizing.specs.gpu import GpuType

if TYPE_CHECKING:
    from sizing.catalog.imports.engine_logs import EngineFacts
    from sizing.catalog.imports.run import RunSettings


def memory(question: Question) -> MemoryUse:
    """The memory use of one GPU in the question's layout, on its first GPU type, and the longest sequence that fits.

    Raises InputError for a layout that the engine or the hardware refuses.

    >>> from sizing import ask_layout
    >>> held = memory(ask_layout(model="llama-3.1-8b", gpu="h100-sxm", max_model_len=8192))
    >>> held.fits, round(held.weights_gib, 2)
    (True, 14.99)
    >>> held.max_model_len_that_fits
    131072
    """
    found = deployment(question)
    if found.refused is not None:
        raise InputError(f"{found.replica.layout} is refused: {found.refused}", remedy="use another layout")
    return found.memory._replace(max_model_len_that_fits=longest(found))


def deployment(question: Question, pool: PoolSpace | None = None) -> Resolved:
    """The question's layout on its first GPU type; with `pool`, the layout of that pool."""
    serving = question.service.serving if pool is None else pool.serving(question.service.serving)
    gpu_types = question.space.gpu_types if pool is None else pool.gpu_types
    precision = question.space.precisions[0]
    return one_layout(question, gpu_types[0], layout_of(serving), precision, notes=question.origin.notes)


def running(question: Question, pool: PoolSpace | None = None) -> Resolved:
    """The deployment as it runs; where no number of sequences is stated, the engine's own at start-up."""
    found = deployment(question, pool)
    return found._replace(replica=started(found.replica))


class Resolved(NamedTuple):
    """A question for one layout. `refusals` say why hardware or engine won't run it; `notes` are about the model's name."""

    question: Question
    replica: Replica
    refusals: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()

    @property
    def refused(self) -> str | None:
        """Why hardware or engine won't run the layout; None where they do."""
        return "; ".join(detail for _, detail in self.refusals) or None

    @property
    def memory(self) -> MemoryUse:
        """The memory of the replica."""
        return self.replica.memory

    def kernels(self) -> Kernels:
        """The timing constants of the replica."""
        return Kernels.of(self.replica)


def one_layout(
    question: Question,
    gpu_type: GpuType,
    layout: Layout,
    precision_name: str | None,
    *,
    notes: tuple[str, ...] = (),
) -> Resolved:
    """Resolve one layout. Refusals by hardware or engine are returned, not raised: the memory use is still of interest."""
    replica, refused = replicas.unchecked(question.service, gpu_type, layout, precision_name)
    return Resolved(question.with_(extras=replica.service.extras), replica, refused, notes)


def longest(resolved: Resolved) -> int:
    """Tokens of the longest single sequence that fits the cache, at most the model's maximum, whether or not the engine starts."""
    most = resolved.question.service.model.max_position

    def holds(tokens: int) -> bool:
        question = with_longest(resolved.question, tokens)
        return one_layout(
            question, resolved.replica.gpu_type, resolved.replica.layout, resolved.replica.precision
        ).memory.fits

    return most if holds(most) else smallest(lambda tokens: not holds(tokens), 0, most) - 1


# --- beside an engine's log ----------------------------------------------------------------------------------------------

# Options by the setting of a log that states them; the user's values take precedence.
SAME = ("tp", "pp", "ep", "memory_fraction", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_precision")
SETTINGS = {"dp": "attention_dp", "precision": "weight_precision", "speculative": "drafts", **{k: k for k in SAME}}
ANY_ACCEPTANCE = 0.5  # drafts take the same memory, however many are accepted
NEEDED = {"model": "--model", "gpu": "--gpu"}


class Logged(NamedTuple):
    """The facts of a log and the predicted memory, its cache that of one rank, or why there is no prediction."""

    facts: EngineFacts
    predicted: MemoryUse | None
    why_not: str | None


def logged(facts: EngineFacts, settings: RunSettings) -> Logged:
    """A log with its prediction; `why_not` names the options that neither log nor user states."""
    names = {"model": settings.model or facts.model, "gpu": settings.gpu}
    absent = [option for name, option in NEEDED.items() if not names[name]]
    if absent:
        return Logged(facts, None, f"a prediction needs {' and '.join(absent)}")
    version = settings.engine_version or facts.engine_version
    options = {
        **names,
        "engine": f"{facts.engine}:{version}" if version else facts.engine,
        **{option: getattr(settings, name, None) or getattr(facts, name) or None for option, name in SETTINGS.items()},
    }
    drafts = options["speculative"]
    if drafts and "@" not in drafts:
        options["speculative"] = f"{drafts}@{ANY_ACCEPTANCE}"
    try:
        use = memory(ask_layout(**{name: value for name, value in options.items() if value is not None}))
    except InputError as error:
        return Logged(facts, None, "; ".join(map(str, error.faults)))
    ranks = settings.attention_dp or facts.attention_dp or 1
    of_rank = use._replace(kv_cache_tokens=use.kv_cache_tokens // ranks, max_concurrency=use.max_concurrency / ranks)
    return Logged(facts, of_rank, None)


OPTION_OF_REASON = {"sparsity": "--sparsity", "engine": "--engine"}  # all other reasons belong to the layout


def layout_faults(resolved: Resolved) -> Iterator[Fault]:
    """Yield the faults of a layout that the hardware or the engine refuses."""
    for reason, detail in resolved.refusals:
        if reason in OPTION_OF_REASON:
            yield Fault(detail, field=OPTION_OF_REASON[reason])
        else:
            yield Fault(f"{resolved.replica.layout} is refused: {detail}", field="--tp, --pp, --ep, --dp, --cp, --dcp")


def length_faults(resolved: Resolved, lengths: Iterable[tuple[str, int]]) -> Iterator[Fault]:
    """Yield the faults of `lengths` (tokens by option) that exceed the engine's maximum."""
    longest, model = resolved.question.service.max_model_len, resolved.question.service.model
    maximum = f"the model's {longest:,} positions" if longest == model.max_position else f"--max-model-len {longest:,}"
    for option, tokens in lengths:
        if tokens > longest:
            yield Fault(f"{tokens:,} tokens exceed {maximum}", field=option, allowed=f"at most {longest:,}")


def batch_faults(resolved: Resolved, decode: int, prefill: int, options: tuple[str, str]) -> Iterator[Fault]:
    """Yield the faults of a batch that exceeds one step of an engine's replica.

    Each attention group has its own limits, and a prompt runs on one group. `options` names the option of the sequences and
    the option of the tokens.
    """
    groups, settings = resolved.replica.layout.dp, resolved.replica.settings
    of_sequences, of_tokens = options
    verified = resolved.question.service.extras.verified
    for option, amount, noun, name, most in (
        (of_sequences, decode + bool(prefill), "sequences", "max-num-seqs", settings.max_num_seqs),
        (of_tokens, decode * verified + prefill, "tokens", "max-num-batched-tokens", settings.max_num_batched_tokens),
    ):
        if amount > most * groups:
            maximum = f"{most:,}" + (f" on each of {groups} groups" if groups > 1 else "")
            yield Fault(
                f"{amount:,} {noun} are more than the engine takes in a step ({maximum})",
                field=option,
                allowed=f"at most {most * groups:,}, or a larger --{name}",
            )
        elif noun == "tokens" and prefill > most:
            yield Fault(
                f"a prompt's {prefill:,} tokens are more than its attention group takes in a step ({most:,})",
                field=option,
                allowed=f"at most {most:,}, or a larger --{name}",
            )


def warning_of(m: MemoryUse) -> str | None:
    """What the start of an engine may fail for, though its parts fit its share, and what to lower; None for nothing."""
    if m.start_gib:
        missing = f"{gib(m.start_gib)} GiB may be missing as the engine starts"
        stops = "it stops where less than its memory fraction of the card is free beside its own context"
        return f"{missing}: {stops}; lower --gpu-memory-utilization"
    if m.warm_up_gib:
        missing = f"{gib(m.warm_up_gib)} GiB are missing outside the memory fraction for CUDA graphs and the sampler's warm-up"
        return f"{missing}: the start may run out of memory; lower --gpu-memory-utilization or --max-num-seqs"
    if m.fits and over_gib(m) > 0:
        over = f"the parts take {gib(over_gib(m))} GiB more than the card has"
        return f"{over}: the engine may run out of memory; lower --gpu-memory-utilization or the cache"
    return None
