"""`llmsize step` for the terminal: operations in order, their time and what binds each."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.report.documents import StepReport
from sizing.report.footnotes import assumed
from sizing.report.lines import Block, Line, number, percent
from sizing.units import MICRO, MILLI


def blocks(document: StepReport) -> Iterator[Block]:
    """Yield the blocks of a step report."""
    i = document.inputs
    batch = i["batch"]
    yield Block(
        (
            Line(
                f"{number(document.total_s / MILLI, 4)} ms: GPU {number(document.gpu_s / MILLI, 4)}, host "
                f"{number(document.host_s / MILLI, 3)} ({i['host']}); MFU {percent(document.mfu)}, MBU "
                f"{percent(document.mbu)}",
                style="bold",
            ),
            Line(
                f"{i['model']}  {i['weight_precision'].upper()} (KV {i['kv_precision'].upper()})  {i['layout']}  "
                f"{i['gpu']}  {i['engine']} {i['engine_version']}"
            ),
            Line(
                f"{batch['decode']:,} decoding at {batch['context']:,} tokens; {batch['prefill']:,} new prompt tokens "
                f"after {batch['prior']:,} cached"
            ),
        )
    )
    rows = [
        (
            o.name,
            number(o.count),
            number(o.seconds / MICRO, 4),
            percent(o.share),
            number(o.flops / 1e9),
            number(o.bytes / 1e6),
            number(o.message_bytes / 1e6) if o.message_bytes else "",
            o.bound,
        )
        for o in document.operations
    ]
    columns = ("operation", "times", "us in all", "share", "GFLOP", "MB", "MB sent", "bound")
    yield Block(columns=columns, right=(False, True, True, True, True, True, True, False), rows=tuple(rows))
    yield Block(tuple(assumed(document.assumptions)))
