"""The document of `llmsize roofline`: operations of decode and prefill steps under the roofs of the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sizing import intensity, memory
from sizing import step as step_model
from sizing.deployment import Resolved
from sizing.errors import Fault, InputError
from sizing.intensity import Crossings, Work
from sizing.kernels import Kernels
from sizing.report.documents_roofline import (
    ComputeBound,
    OperationCrossing,
    Roof,
    RooflinePoint,
    RooflineReport,
    RooflineStep,
)
from sizing.report.parts import assumptions
from sizing.report.parts.question import candidate_of, inputs_of_layout
from sizing.report.parts.refusals import batch_faults, layout_faults, length_faults
from sizing.step import Batch, Step, TimedOperation

DECODE, PREFILL = "decode", "prefill"
CONTEXT_TOKENS = 2048  # of the decoding sequences where nothing states them
MOST_BATCH = 512  # of the sizes shown where none are asked for
PROMPT_TOKENS = (128, 512, 2048, 8192)


class Sizes(NamedTuple):
    """What to look at: decode batches, prompt lengths, and the context that sequences decode at; None for the usual ones."""

    batches: tuple[int, ...] | None
    prompts: tuple[int, ...] | None
    context_tokens: int | None


class _Shown(NamedTuple):
    """A step that is shown: what it is of, and its batch."""

    phase: str
    size: int
    batch: Batch

    @property
    def label(self) -> tuple[str, int | None, int | None]:
        """Phase, decode batch, prompt tokens: the first fields of its documents."""
        decodes = self.phase == DECODE
        return self.phase, self.size if decodes else None, None if decodes else self.size


def build(resolved: Resolved, sizes: Sizes) -> RooflineReport:
    """Time steps of several sizes and return where their operations are under the roof.

    Raises InputError where the layout is refused, a sequence is longer than the engine takes, or a batch is more than
    it runs in one step.
    """
    faults = list(_faults(resolved, sizes))
    if faults:
        raise InputError(faults)
    context, batches, prompts = _usual(resolved, sizes)
    model, layout, kernels = resolved.request.model, resolved.layout, resolved.kernels()
    shown = [_decode(size, context) for size in batches] + [_prefill(size) for size in prompts]
    timed = [(one, step_model.step(model, layout, kernels, one.batch)) for one in shown]
    found = intensity.crossings(model, layout, kernels, context)
    stated = {
        "context_tokens": context,
        "batches": batches,
        "prompt_tokens": prompts,
        "sequences_that_fit": _sequences_that_fit(resolved, context),
    }
    return RooflineReport(
        inputs={**inputs_of_layout(resolved), **stated},
        roofs=_roofs([step for _, step in timed], kernels),
        compute_bound_from=_compute_bound(found),
        steps=tuple(_step(one, step, kernels) for one, step in timed),
        operations=tuple(point for one, step in timed for point in _points(one, step, kernels)),
        assumptions=(
            *assumptions.of_model(resolved.request, resolved.notes),
            *assumptions.of_steps(resolved.request, candidate_of(resolved), kernels),
        ),
    )


def _faults(resolved: Resolved, sizes: Sizes) -> Iterator[Fault]:
    prompts = sizes.prompts or ()
    yield from layout_faults(resolved)
    lengths = [("--prefill", tokens) for tokens in prompts]
    yield from length_faults(resolved, [("--context", sizes.context_tokens or 0), *lengths])
    for batch in sizes.batches or ():
        yield from batch_faults(resolved, batch, 0, ("--batch", "--batch"))
    for tokens in prompts:
        yield from batch_faults(resolved, 0, tokens, ("--prefill", "--prefill"))


def _usual(resolved: Resolved, sizes: Sizes) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return context, batches and prompts: those asked for, else the usual ones that the engine takes."""
    settings, longest = resolved.settings, resolved.request.max_model_len
    tokens, groups = settings.max_num_batched_tokens, resolved.layout.dp  # a prompt is on one group
    most = min(MOST_BATCH, settings.max_num_seqs * groups, tokens * groups)
    usual_batches = tuple(2**power for power in range(most.bit_length()))
    usual_prompts = tuple(length for length in PROMPT_TOKENS if length <= min(tokens, longest))
    return (
        min(CONTEXT_TOKENS, longest) if sizes.context_tokens is None else sizes.context_tokens,
        usual_batches if sizes.batches is None else sizes.batches,
        (usual_prompts or (min(tokens, longest),)) if sizes.prompts is None else sizes.prompts,
    )


def _decode(sequences: int, context_tokens: int) -> _Shown:
    batch = Batch(decode_sequences=float(sequences), decode_context_tokens=float(context_tokens))
    return _Shown(DECODE, sequences, batch)


def _prefill(tokens: int) -> _Shown:
    return _Shown(PREFILL, tokens, Batch(prefill_sequences=1.0, prefill_tokens=float(tokens), finishing=1.0))


def _sequences_that_fit(resolved: Resolved, context_tokens: int) -> float:
    """Return how many sequences of the context the pool of the replica holds."""
    request = resolved.request
    used = memory.use(
        request.model,
        resolved.option.gpu,
        resolved.layout,
        resolved.plan,
        resolved.settings,
        max_model_len=context_tokens,
        cuda_graphs_gib=request.serving.cuda_graphs_gib,
    )
    return used.max_concurrency


def _roofs(timed: Sequence[Step], kernels: Kernels) -> tuple[Roof, ...]:
    operations = [one.operation for step in timed for one in step.operations]
    bandwidth = kernels.bandwidth_bytes_per_s
    return tuple(
        Roof(name, kernels.peak(name), bandwidth, intensity.ridge_flops_per_byte(kernels.peak(name), bandwidth))
        for name in intensity.precisions(operations, kernels)
    )


def _compute_bound(found: Crossings) -> ComputeBound:
    named = {
        name: OperationCrossing(
            batch=one.sequences,
            ridge_flops_per_byte=one.ridge_flops_per_byte,
            least_flops_per_byte=one.least_flops_per_byte,
            most_flops_per_byte=one.most_flops_per_byte,
            grows=one.grows,
        )
        for name, one in found.by_operation.items()
    }
    return ComputeBound(found.products, found.whole_step, named)


def _step(shown: _Shown, step: Step, kernels: Kernels) -> RooflineStep:
    done = intensity.work((one.operation for one in step.operations), kernels)
    return RooflineStep(
        *shown.label,
        flops=done.flops,
        bytes=done.bytes,
        intensity_flops_per_byte=done.intensity_flops_per_byte or 0.0,
        seconds=step.total_s,
        attained_flops_per_s=done.flops / step.total_s,
        roof_flops_per_s=done.roof_flops_per_s or 0.0,
        share_of_roof=done.least_s / step.total_s,
        mfu=step.mfu,
        mbu=step.mbu,
        bound=step_model.bound(done.compute_s, done.memory_s, step.total_s),
    )


def _points(shown: _Shown, step: Step, kernels: Kernels) -> Iterator[RooflinePoint]:
    named: dict[str, list[TimedOperation]] = {}
    for one in step.operations:
        named.setdefault(one.operation.name, []).append(one)
    for name, group in named.items():
        operations = [one.operation for one in group]
        done, seconds = intensity.work(operations, kernels), sum(one.seconds for one in group)
        yield RooflinePoint(
            *shown.label,
            name=name,
            precision="+".join(intensity.precisions(operations, kernels)) or None,
            flops=done.flops,
            bytes=done.bytes,
            message_bytes=done.message_bytes,
            intensity_flops_per_byte=done.intensity_flops_per_byte,
            seconds=seconds,
            attained_flops_per_s=done.flops / seconds if seconds > 0 else 0.0,
            roof_flops_per_s=done.roof_flops_per_s,
            share_of_roof=_share(done, seconds),
            bound=_bound(group, done, seconds),
        )


def _share(done: Work, seconds: float) -> float | None:
    return done.least_s / seconds if done.least_s > 0 and seconds > 0 else None


def _bound(group: Iterable[TimedOperation], done: Work, seconds: float) -> str:
    if done.message_bytes > 0:
        return next(one.bound for one in group if float(one.operation.message_bytes) > 0)
    return step_model.bound(done.compute_s, done.memory_s, seconds)
