"""`llmsize step` for the terminal: operations in order, their time and what binds each."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.formats.text import Block, blocks_of
from sizing.formats.view import Line
from sizing.formats.words import number, percent
from sizing.report.documents_step import StepReport
from sizing.report.parts.assumptions import assumed
from sizing.report.parts.question import setup
from sizing.units import GIGA, MEGA, MICRO, MILLI


def blocks(document: StepReport) -> Iterator[Block]:
    """Yield the blocks of a step report."""
    yield from blocks_for(document)
    yield from blocks_of(assumed(document.assumptions, sources=False))


def _spread(document: StepReport) -> str:
    """Say where the batch is where attention groups share it."""
    groups = document.inputs["dp"]
    if groups == 1:
        return ""
    return f"; sequences spread over {groups} attention groups, the prompt on one, times of the fullest"


def blocks_for(document: StepReport, pool: str = "") -> Iterator[Block]:
    """Yield the blocks of one step, under the name of its pool where there are two, and not what it rests on."""
    batch = document.inputs["batch"]
    launches = f", launches {number(document.launch_s / MILLI)} (beside it)" if document.launch_s else ""
    yield Block(
        (
            Line(
                f"{pool}{': ' if pool else ''}{number(document.total_s / MILLI, 4)} ms: GPU "
                f"{number(document.gpu_s / MILLI, 4)}{launches}, host "
                f"{number(document.host_s / MILLI)} ({document.inputs['host']}); MFU {percent(document.mfu)}, MBU "
                f"{percent(document.mbu)}",
                style="bold",
            ),
            *setup(document.inputs),
            Line(
                f"{batch['decode']:,} decoding at {batch['context']:,} tokens; {batch['prefill']:,} new prompt tokens "
                f"after {batch['prior']:,} cached{_spread(document)}",
                "Batch",
            ),
        )
    )
    rows = [
        (
            o.name,
            number(o.count),
            number(o.seconds / MICRO),
            percent(o.share),
            number(o.flops / GIGA),
            number(o.bytes / MEGA),
            number(o.message_bytes / MEGA) if o.message_bytes else "",
            o.bound,
        )
        for o in document.operations
    ]
    columns = ("operation", "times", "us in all", "share", "GFLOP", "MB", "MB sent", "bound")
    yield Block(columns=columns, right=(False, True, True, True, True, True, True, False), rows=tuple(rows))
