"""`llmsize roofline` for the terminal: where decode turns compute-bound, steps, and operations under the roof."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sizing.formats.charts import MARKS, ROOF, Dots, rows
from sizing.formats.text import Block, blocks_of
from sizing.formats.view import Line
from sizing.formats.words import number, percent, plural
from sizing.report.documents_roofline import OperationCrossing, RooflinePoint, RooflineReport, RooflineStep
from sizing.report.parts.assumptions import assumed
from sizing.report.parts.question import setup
from sizing.units import MICRO, MILLI, TERA

SHOWN_BATCHES = 3  # operations of more would fill screens; CSV and JSON have them all
ROOF_POINTS = 200  # of the roof as drawn: more than a terminal has columns
ROOF_SLACK = 1.005  # share of a roof above which a fitted constant is said to exceed it


def blocks(document: RooflineReport) -> Iterator[Block]:
    """Yield the blocks of a roofline."""
    yield Block((*verdict(document), *setup(document.inputs), *_roofs(document)))
    yield _plot(document)
    yield _crossings(document)
    yield _steps(document.steps)
    yield _operations(document)
    yield from blocks_of(assumed(document.assumptions, sources=False))


def verdict(document: RooflineReport) -> Iterator[Line]:
    """Yield from which batch on decode is compute-bound: its products, attention, the whole step; and what fits."""
    found, context = document.compute_bound_from, document.inputs["context_tokens"]
    products = "at no batch"
    if found.decode_batch is not None:
        products = f"from {plural(found.decode_batch, 'sequence')} on"
    yield Line(f"Decode: products with weights are compute-bound {products}", style="bold")
    for name, one in found.by_operation.items():
        if not one.grows:
            yield Line(_constant(name, one))
    whole = "at no batch"
    if found.whole_step_batch is not None:
        whole = f"from {plural(found.whole_step_batch, 'sequence')} on"
    fit = document.inputs["sequences_that_fit"]
    yield Line(
        f"The whole step at {context:,} tokens of context is compute-bound {whole}; the cache holds "
        f"{number(fit)} sequences of that length, the engine runs at most {document.inputs['max_num_seqs']:,}"
        + (" on each attention group" if document.inputs["dp"] > 1 else "")
    )


def _constant(name: str, one: OperationCrossing) -> str:
    """Say what an operation is whose intensity no batch changes."""
    always = "compute-bound always" if one.batch is not None else "never compute-bound"
    return (
        f"{name}: {always}; each sequence brings its own bytes, so its intensity is "
        f"{number(one.least_flops_per_byte)} FLOP per byte at any batch (ridge {number(one.ridge_flops_per_byte, 4)})"
    )


def _roofs(document: RooflineReport) -> Iterator[Line]:
    for index, roof in enumerate(document.roofs):
        yield Line(
            f"{roof.precision.upper()} {number(roof.peak_flops_per_s / TERA, 4)} TFLOP/s dense, memory "
            f"{number(roof.bandwidth_bytes_per_s / TERA)} TB/s, ridge at {number(roof.ridge_flops_per_byte, 4)} FLOP per byte",
            "Roof" if index == 0 else " ",
        )


def _plot(document: RooflineReport) -> Block:
    """Draw decode's operations and prefill's attention as text, both axes logarithmic: a letter each, under the roof."""
    shown: dict[str, list[tuple[float, float]]] = {}
    for point in document.operations:
        if point.flops > 0 and point.intensity_flops_per_byte and point.roof_flops_per_s:
            shown.setdefault(point.name, []).append((point.intensity_flops_per_byte, point.attained_flops_per_s / TERA))
    names = list(shown)[: len(MARKS)]
    if not names:
        return Block()
    lines = [Dots(*(tuple(values) for values in zip(*shown[name], strict=True))) for name in names]
    xs = [x for line in lines for x in line.x]
    roof = document.roofs[0]
    steps = np.geomspace(min(xs), max(xs), ROOF_POINTS)
    height = np.minimum(roof.peak_flops_per_s, steps * roof.bandwidth_bytes_per_s) / TERA
    over = Dots(tuple(steps.tolist()), tuple(height.tolist()))
    marks = (*MARKS[: len(lines)], ROOF)
    keys = "; ".join(f"{mark} {name}" for mark, name in zip(MARKS, names, strict=False))
    return Block(
        (
            Line("TFLOP/s per GPU over FLOP per byte of device memory", style="bold"),
            *(Line(row) for row in rows([*lines, over], None, None, marks=marks, logarithmic=True)),
            Line(f"{keys}; {ROOF} roof ({roof.precision.upper()})", style="dim"),
        )
    )


def _crossings(document: RooflineReport) -> Block:
    """From which batch each operation is compute-bound."""
    rows = tuple(
        (
            name,
            f"{one.batch:,}" if one.batch is not None else "never",
            number(one.least_flops_per_byte),
            number(one.most_flops_per_byte),
            number(one.ridge_flops_per_byte, 4),
        )
        for name, one in document.compute_bound_from.by_operation.items()
    )
    columns = ("decode operation", "compute-bound from batch", "FLOP/B alone", "FLOP/B at most", "ridge FLOP/B")
    return Block(columns=columns, right=(False, True, True, True, True), rows=rows)


def _steps(steps: Sequence[RooflineStep]) -> Block:
    rows = tuple(
        (
            *size(one),
            number(one.seconds / MILLI),
            number(one.intensity_flops_per_byte),
            number(one.attained_flops_per_s / TERA),
            number(one.roof_flops_per_s / TERA),
            percent(one.share_of_roof),
            percent(one.mfu),
            percent(one.mbu),
            one.bound,
        )
        for one in steps
    )
    columns = ("phase", "size", "ms", "FLOP/B", "TFLOP/s", "roof TFLOP/s", "of roof", "MFU", "MBU", "bound")
    return Block(columns=columns, right=(False, *[True] * 8, False), rows=rows)


def size(one: RooflineStep | RooflinePoint) -> tuple[str, str]:
    """Write what a step is of: its phase, and its sequences or prompt tokens."""
    return one.phase, f"{one.batch:,}" if one.batch is not None else f"{one.prompt_tokens:,}"


def _operations(document: RooflineReport) -> Block:
    """Operations that multiply, at a few sizes: the first, a middle and the last decode batch, and the longest prompt."""
    batches, prompts = document.inputs["batches"], document.inputs["prompt_tokens"]
    picked = {batches[0], batches[len(batches) // 2], batches[-1]} if len(batches) > SHOWN_BATCHES else set(batches)
    shown = [
        one
        for one in document.operations
        if one.flops > 0 and (one.batch in picked if one.batch is not None else one.prompt_tokens == prompts[-1])
    ]
    rows = tuple(
        (
            *size(one),
            one.name,
            number(one.seconds / MICRO),
            number(one.intensity_flops_per_byte),
            number(one.attained_flops_per_s / TERA),
            number((one.roof_flops_per_s or 0.0) / TERA),
            percent(one.share_of_roof),
            one.bound,
        )
        for one in shown
    )
    columns = ("phase", "size", "operation", "us in all", "FLOP/B", "TFLOP/s", "roof TFLOP/s", "of roof", "bound")
    notes = [Line("--format csv has every size, and the operations that only move data", style="dim")]
    if any((one.share_of_roof or 0.0) > ROOF_SLACK for one in document.operations):
        notes.append(
            Line("Above 100 %: the constants fitted to measured kernels exceed the datasheet's bandwidth", style="dim")
        )
    return Block(tuple(notes), columns, (False, True, False, *[True] * 5, False), rows)
