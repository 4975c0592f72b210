"""`llmsize roofline`: operations of decode and prefill steps under the roofs of the GPU, and where decode turns compute-bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from sizing.answers.deployment import Resolved, batch_faults, layout_faults, length_faults
from sizing.formats.view import (
    Assumption,
    Document,
    Facts,
    Figure,
    Line,
    Mark,
    Quantity,
    Rows,
    Section,
    Series,
    Table,
    filled,
    in_words,
    labelled,
    rows_of,
)
from sizing.formats.words import number, percent, plural
from sizing.model.extras import NOTHING
from sizing.replica import intensity
from sizing.replica import step as step_model
from sizing.replica.intensity import ComputeBound
from sizing.replica.kernels import Kernels
from sizing.replica.replica import with_extras
from sizing.replica.step import Batch, Step, TimedOperation
from sizing.report.parts import assumptions
from sizing.report.parts.question import LayoutInputs, formats_in_words, inputs_of_layout, labels, replica_lines
from sizing.report.parts.screen import assumption_lines, next_line
from sizing.report.parts.sentences import said
from sizing.specs.errors import Fault, raise_any
from sizing.specs.units import MILLI, TERA

DECODE, PREFILL = "decode", "prefill"
CONTEXT_TOKENS = 2048  # default context of decoding sequences
MOST_BATCH = 512  # largest batch shown by default
PROMPT_TOKENS = (128, 512, 2048, 8192)
MOST_STEPS = 4  # on a screen
REPLICA_LAST = 10  # a short screen drops the replica after all other spare lines
ROOF_SLACK = 1.005  # share of a roof: above it, a note says that a fitted constant exceeds the roof
ABOVE = "Above 100 % of a roof: constants fitted to measured kernels exceed the datasheet's bandwidth"
ROOF_POINTS = 200  # points of the drawn roof: more than a terminal has columns
ROOM = 3.0  # the axis extends to this factor beyond the outermost points and ridges


class Roof(NamedTuple):
    """The roof of one precision: its dense peak, the memory bandwidth, and the intensity at which they meet."""

    precision: str
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    ridge_flops_per_byte: float


class RooflinePoint(NamedTuple):
    """One operation of a step, all its executions on one GPU, under the roof.

    `phase` is decode (with `batch` sequences of the replica) or prefill (of one prompt of `prompt_tokens`). An operation that
    sends messages has no intensity and no roof. If an operation only moves bytes, `share_of_roof` is its share of the bandwidth.
    """

    phase: str
    batch: int | None
    prompt_tokens: int | None
    name: str
    precision: str | None
    flops: float
    bytes: float
    message_bytes: float
    intensity_flops_per_byte: float | None
    seconds: float
    attained_flops_per_s: float
    roof_flops_per_s: float | None
    share_of_roof: float | None
    bound: str


class RooflineStep(NamedTuple):
    """A whole step: the work of its operations on one GPU, and its duration including the host's time."""

    phase: str
    batch: int | None
    prompt_tokens: int | None
    flops: float
    bytes: float
    intensity_flops_per_byte: float
    seconds: float
    attained_flops_per_s: float
    roof_flops_per_s: float
    share_of_roof: float
    mfu: float
    mbu: float
    bound: str


class RooflineInputs(NamedTuple):
    """The resolved inputs of a roofline, and the sequences of `context_tokens` that the cache holds."""

    of_layout: LayoutInputs
    context_tokens: int
    batches: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    sequences_that_fit: float | None


class RooflineReport(NamedTuple):
    """The record of `llmsize roofline`."""

    inputs: RooflineInputs
    roofs: tuple[Roof, ...]
    compute_bound_from: ComputeBound
    steps: tuple[RooflineStep, ...]
    operations: tuple[RooflinePoint, ...]
    assumptions: tuple[Assumption, ...]
    schema: str = "llmsize.roofline/1"


class StepSizes(NamedTuple):
    """The sizes to show: decode batches, prompt lengths, and the context of decoding sequences. None means the default."""

    batches: tuple[int, ...] | None
    prompts: tuple[int, ...] | None
    context_tokens: int | None


class _Shown(NamedTuple):
    """A step to show: its labels and its batch."""

    phase: str
    size: int
    batch: Batch

    @property
    def label(self) -> dict[str, str | int | None]:
        """The phase, decode batch and prompt tokens for its records."""
        decodes = self.phase == DECODE
        sizes = (self.size, None) if decodes else (None, self.size)
        return {"phase": self.phase, **dict(zip(("batch", "prompt_tokens"), sizes, strict=True))}


def record(resolved: Resolved, sizes: StepSizes) -> RooflineReport:
    """Time steps of several sizes and place their operations under the roof.

    Raises InputError if the layout is refused, a sequence is longer than the engine's maximum, or a batch is larger than one
    step allows.
    """
    faults = list(_faults(resolved, sizes))
    raise_any(faults)
    context, batches, prompts = _usual(resolved, sizes)
    kernels = resolved.kernels()
    decoding = (Batch(decode_sequences=float(size), decode_context_tokens=float(context)) for size in batches)
    prefilling = (Batch(prefill_sequences=1.0, prefill_tokens=float(size), finishing=1.0) for size in prompts)
    shown = [_Shown(DECODE, *each) for each in zip(batches, decoding, strict=True)]
    shown += [_Shown(PREFILL, *each) for each in zip(prompts, prefilling, strict=True)]
    timed = [(one, step_model.step(kernels, one.batch)) for one in shown]
    fitting = with_extras(resolved.replica, NOTHING).memory_at(context).max_concurrency
    done, bandwidth = [one.operation for _, step in timed for one in step.operations], kernels.bandwidth_bytes_per_s
    operations = [o for one in shown for o in step_model.batch_operations(kernels.shard, one.batch)]
    return RooflineReport(
        inputs=RooflineInputs(inputs_of_layout(resolved), context, batches, prompts, fitting),
        roofs=tuple(
            Roof(name, kernels.peak(name), bandwidth, intensity.ridge_flops_per_byte(kernels.peak(name), bandwidth))
            for name in intensity.precisions(done, kernels)
        ),
        compute_bound_from=intensity.crossings(kernels, context),
        steps=tuple(_step(one, step, kernels) for one, step in timed),
        operations=tuple(point for one, step in timed for point in _points(one, step, kernels)),
        assumptions=(
            *assumptions.of_model(resolved.question, resolved.notes),
            *assumptions.of_steps(resolved.question, resolved.replica, kernels, operations),
        ),
    )


def _faults(resolved: Resolved, sizes: StepSizes) -> Iterator[Fault]:
    prompts = sizes.prompts or ()
    yield from layout_faults(resolved)
    if resolved.question.service.model.pooled and sizes.batches:
        yield Fault(f"{resolved.question.service.task} decodes nothing", field="--batch", remedy="use --prefill alone")
    lengths = [("--prefill", tokens) for tokens in prompts]
    yield from length_faults(resolved, [("--context", sizes.context_tokens or 0), *lengths])
    for batch in sizes.batches or ():
        yield from batch_faults(resolved, batch, 0, ("--batch", "--batch"))
    for tokens in prompts:
        yield from batch_faults(resolved, 0, tokens, ("--prefill", "--prefill"))


def _usual(resolved: Resolved, sizes: StepSizes) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Context, batches and prompts: the stated ones, else defaults within the engine's limits."""
    settings, longest = resolved.replica.settings, resolved.question.service.max_model_len
    tokens, groups = settings.max_num_batched_tokens, resolved.replica.layout.dp  # a prompt runs on one group
    most = min(MOST_BATCH, settings.max_num_seqs * groups, tokens * groups)
    decodes = not resolved.question.service.model.pooled
    usual_batches = tuple(2**power for power in range(most.bit_length())) if decodes else ()
    usual_prompts = tuple(length for length in PROMPT_TOKENS if length <= min(tokens, longest))
    return (
        min(CONTEXT_TOKENS, longest) if sizes.context_tokens is None else sizes.context_tokens,
        usual_batches if sizes.batches is None else sizes.batches,
        (usual_prompts or (min(tokens, longest),)) if sizes.prompts is None else sizes.prompts,
    )


def _step(shown: _Shown, step: Step, kernels: Kernels) -> RooflineStep:
    done = intensity.work((timed.operation for timed in step.operations), kernels)
    return filled(
        RooflineStep,
        done,
        step,
        **shown.label,
        intensity_flops_per_byte=done.intensity_flops_per_byte or 0.0,
        seconds=step.total_s,
        attained_flops_per_s=done.flops / step.total_s,
        roof_flops_per_s=done.roof_flops_per_s or 0.0,
        share_of_roof=done.least_s / step.total_s,
        bound=step_model.bound(done.compute_s, done.memory_s, step.total_s),
    )


def _points(shown: _Shown, step: Step, kernels: Kernels) -> Iterator[RooflinePoint]:
    named: dict[str, list[TimedOperation]] = {}
    for timed in step.operations:
        named.setdefault(timed.operation.name, []).append(timed)
    for name, group in named.items():
        operations = [timed.operation for timed in group]
        done, seconds = intensity.work(operations, kernels), sum(timed.seconds for timed in group)
        sending = (timed.bound for timed in group if float(timed.operation.message_bytes) > 0)
        yield filled(
            RooflinePoint,
            done,
            **shown.label,
            name=name,
            precision="+".join(intensity.precisions(operations, kernels)) or None,
            seconds=seconds,
            attained_flops_per_s=done.flops / seconds if seconds > 0 else 0.0,
            share_of_roof=done.least_s / seconds if done.least_s > 0 and seconds > 0 else None,
            bound=next(sending, step_model.bound(done.compute_s, done.memory_s, seconds)),
        )


LABELS = ("model", "gpu", "engine", "engine_version", "weight_precision", "kv_precision", "layout", "context_tokens")


def rows(record: RooflineReport) -> Rows:
    """A row for each operation of a step, with the labels of its step."""
    return rows_of(record.operations, RooflinePoint._fields, labels(record.inputs, LABELS))


def _tera(value: float) -> str:
    return number(value / TERA)


def _ridge(value: float) -> str:
    return number(value, 4)


SIZE = (
    in_words("phase", "phase"),
    Quantity("size", "size", "{:,}".format, lambda one: one.prompt_tokens if one.batch is None else one.batch),
)
ROOFED = (
    Quantity("intensity_flops_per_byte", "FLOP/B"),
    Quantity("attained_flops_per_s", "TFLOP/s", _tera),
    Quantity("roof_flops_per_s", "roof TFLOP/s", _tera, nothing="0"),
    Quantity("share_of_roof", "of roof", percent),
)
BOUND = in_words("bound", "bound")
STEPS = (
    *SIZE,
    Quantity("seconds", "ms", lambda seconds: number(seconds / MILLI)),
    *ROOFED,
    Quantity("mfu", "MFU", percent),
    Quantity("mbu", "MBU", percent),
    BOUND,
)


def sections(record: RooflineReport) -> Iterator[Section]:
    """Yield the smallest compute-bound decode batch, a plot, and the whole steps."""
    first, *more = verdict(record)
    yield Facts(tuple(Line(text, spare=text is more[-1]) for text in more), first)
    yield from _plot(record)
    sizes = record.steps if len(record.steps) <= MOST_STEPS else record.steps[:: -(-len(record.steps) // MOST_STEPS)]
    exceeds = any((point.share_of_roof or 0.0) > ROOF_SLACK for point in record.operations)
    yield Table(STEPS, sizes, "/steps", notes=(ABOVE,) if exceeds else ())
    of = record.inputs.of_layout
    roofs = labelled("Roof", map(_roof_words, record.roofs), spare=2)
    replica = (line._replace(spare=REPLICA_LAST) for line in replica_lines(of, of.layout))
    yield Facts((*replica, *roofs, *assumption_lines(record.assumptions), next_line()))


def verdict(record: RooflineReport) -> Iterator[str]:
    """Yield the smallest compute-bound decode batches (products, attention, the whole step) and the batch that fits."""
    found, i = record.compute_bound_from, record.inputs
    if not i.batches:
        yield f"Prompts of {_span(i.prompt_tokens)} tokens are {' to '.join(dict.fromkeys(step.bound for step in record.steps))}-bound"
        return
    yield f"Decode: products with weights are {_from_batch(found.decode_batch)}"
    for name, one in found.by_operation.items():
        if not one.grows:
            often = "never" if one.batch is None else "always"
            yield f"Attention ({name}) is {often} compute-bound: {number(one.least_flops_per_byte)} FLOP per byte at any batch"
    groups = " on each attention group" if i.of_layout.sizes.dp > 1 else ""
    yield f"The whole step at {plural(i.context_tokens, 'token')} of context is {_from_batch(found.whole_step_batch)}"
    holds = number(i.sequences_that_fit)
    yield f"The cache holds {holds} sequences of that length, the engine runs at most {i.of_layout.max_num_seqs:,}{groups}"


def _from_batch(batch: int | None) -> str:
    return "never compute-bound" if batch is None else f"compute-bound from {plural(batch, 'sequence')} on"


def _roof_words(roof: Roof) -> str:
    peak, bandwidth = roof.peak_flops_per_s / TERA, roof.bandwidth_bytes_per_s / TERA
    return said("roof", roof, peak=peak, bandwidth=bandwidth)


def figure(record: RooflineReport) -> Figure:
    """Operations with FLOPs under all roofs. Marks are filled for decode and hollow for prefill, and grow with the step."""
    shown: dict[tuple[str, str], list[RooflinePoint]] = {}
    for point in record.operations:
        if point.flops > 0 and point.intensity_flops_per_byte and point.roof_flops_per_s:
            shown.setdefault((point.name, point.phase), []).append(point)
    names, sized = list(dict.fromkeys(name for name, _ in shown)), _with_sizes(shown)

    def series(name: str, phase: str) -> Series:
        points = shown[name, phase]
        sizes = [f"{point.batch or point.prompt_tokens:,}" if (name, phase) in sized else "" for point in points]
        places = ((point.intensity_flops_per_byte or 0.0, point.attained_flops_per_s / TERA) for point in points)
        marks = tuple(Mark(*place, size) for place, size in zip(places, sizes, strict=True))
        return Series(name, marks, names.index(name), hollow=phase == PREFILL, look="growing")

    found = tuple(series(*key) for key in sorted(shown, key=lambda key: names.index(key[0])))
    ends = [mark.x for each in found for mark in each.marks] + [roof.ridge_flops_per_byte for roof in record.roofs]
    low, high = min(ends) / ROOM, max(ends) * ROOM

    def line(roof: Roof) -> Series:
        peak = f"roof, {roof.precision.upper()}: {_ridge(roof.peak_flops_per_s / TERA)} TFLOP/s,"
        ridge = f"{_tera(roof.bandwidth_bytes_per_s)} TB/s, ridge {number(roof.ridge_flops_per_byte)} FLOP/byte"
        return _roof_line(roof, (low, roof.ridge_flops_per_byte, high), f"{peak}\n{ridge}")

    names_of_axes = "arithmetic intensity (FLOP per byte of device memory)", "attained (TFLOP/s per GPU)"
    title, span = _title(record), (low, high)
    return Figure(*names_of_axes, found, tuple(map(line, record.roofs)), logarithmic="xy", title=title, span=span)


def _with_sizes(shown: Mapping[tuple[str, str], Sequence[RooflinePoint]]) -> set[tuple[str, str]]:
    """The keys of up to two operations whose marks show sizes: one of decode, and one that only prefill has.

    An operation whose intensity grows comes first, then the one that takes longest.
    """

    def weight(key: tuple[str, str]) -> tuple[bool, float]:
        found = [point.intensity_flops_per_byte or 0.0 for point in shown[key]]
        return max(found) > ROOM * min(found), sum(point.seconds for point in shown[key])

    of_decode = [key for key in shown if key[1] == DECODE]
    of_prefill = [key for key in shown if (key[0], DECODE) not in shown]
    return {max(keys, key=weight) for keys in (of_decode, of_prefill) if keys}


def _roof_line(roof: Roof, intensities: Iterable[float], name: str) -> Series:
    peak, bandwidth = roof.peak_flops_per_s, roof.bandwidth_bytes_per_s
    marks = (Mark(at, intensity.roof_flops_per_s(at, peak, bandwidth) / TERA) for at in intensities)
    return Series(name, tuple(marks), look="line")


def _title(record: RooflineReport) -> str:
    i, batch = record.inputs, record.compute_bound_from.decode_batch
    what = f"{i.of_layout.model}, {formats_in_words(i.of_layout)}, {i.of_layout.layout} on {i.of_layout.gpu}, {i.of_layout.engine_title} {i.of_layout.engine_version}"
    prompts = f"prefill (hollow) of {_span(i.prompt_tokens)} tokens"
    if not i.batches:
        return f"{what}\n{prompts}; larger is more"
    return (
        f"{what}\ndecode (filled) of {_span(i.batches)} sequences at {i.context_tokens:,} tokens of context, {prompts}\n"
        f"decode: products with weights are {_from_batch(batch)}; larger is more"
    )


def _span(sizes: Sequence[int]) -> str:
    return " to ".join(dict.fromkeys(f"{size:,}" for size in (sizes[0], sizes[-1])))


def _plot(record: RooflineReport) -> Iterator[Figure]:
    """Yield the figure for a terminal, with the first roof only, over the range of the operations."""
    drawn, roof = figure(record), record.roofs[0]
    xs = [mark.x for series in drawn.series for mark in series.marks]
    if xs:
        intensities = np.geomspace(min(xs), max(xs), ROOF_POINTS).tolist()
        over = _roof_line(roof, intensities, f"roof ({roof.precision.upper()})")
        yield drawn._replace(x_name="FLOP per byte of device memory", y_name="TFLOP/s per GPU", guides=(over,))


document = partial(Document, sections=sections, rows=rows)
