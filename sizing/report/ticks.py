"""The document of `llmsize simulate --ticks`: the figures of each policy's run; no model stands behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sizing.engine.ticks import TickResult
from sizing.report.documents_simulation import TickFigures, TickReport
from sizing.report.timeline_text import slot_rows


def build(inputs: dict[str, Any], results: Mapping[str, TickResult]) -> TickReport:
    """Return the document of runs in ticks by policy.

    Policies draw the same lengths in the order of arrival; the mean drawn is that of the run in which most arrived.
    """
    osl = max((result.requests.osl for result in results.values()), key=len)
    drawn = sum(osl) / len(osl) if osl and inputs["osl_std"] else None
    inputs = {**inputs, "osl_drawn_mean": drawn}
    return TickReport(inputs, tuple(_ticks(policy, result) for policy, result in results.items()))


def _ticks(policy: str, result: TickResult) -> TickFigures:
    return TickFigures(
        policy=policy,
        arrived=result.arrived,
        completed=result.completed,
        end_tick=result.end_tick,
        mean_ttft=result.mean_ttft,
        mean_e2e=result.mean_e2e,
        mean_itl=result.mean_itl,
        requests_per_1k_ticks=result.requests_per_1k_ticks,
        tokens_per_1k_ticks=result.tokens_per_1k_ticks,
        queue_end=result.queue_end,
        queue_max=result.queue_max,
        gpu_utilisation=result.busy,
        wasted_slot_share=result.wasted,
        timeline=slot_rows(result.timeline),
    )
