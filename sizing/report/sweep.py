"""From the outcomes of many searches to the rows of `llmsize sweep`: figures are those of `estimate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sizing.answers.answer import Answer, Outcome
from sizing.report.documents_sweep import NUMBERS, SweepRow
from sizing.report.estimate import cost_figures
from sizing.report.parts.figures import throughput
from sizing.report.parts.limiting import unmet
from sizing.report.parts.question import Asked
from sizing.specs.errors import InputError
from sizing.specs.units import MILLI

INPUT = "input"


def row(varied: dict[str, Any], outcome: Outcome, asked: Asked) -> SweepRow:
    """Return the row of a combination that was searched for."""
    best = outcome.answer
    if best is None:
        nearest = unmet(outcome, ())
        return without_answer(varied, nearest.limit, nearest.detail)
    layout, rates, money = best.pool.replica.layout, throughput(best, outcome), cost_figures(best, outcome, asked)
    return SweepRow(
        varied=varied,
        feasible=True,
        gpu=best.pool.replica.gpu_type.name,
        weight_precision=best.pool.replica.plan.weight_format,
        gpus=best.gpus,
        replicas=best.pool.count,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        cp=layout.cp,
        dcp=layout.dcp,
        pools=None,
        requests_per_s=best.requests_per_s,
        requests_per_s_per_gpu=rates.requests_per_s_per_gpu,
        ttft_ms=_mean_ms(best, "ttft"),
        itl_ms=_mean_ms(best, "itl") if best.pool.load.service.osl > 1 else None,
        e2e_ms=_mean_ms(best, "e2e"),
        usd_per_hour=money.usd_per_hour,
        usd_per_million_output_tokens=money.usd_per_million_output_tokens,
        power_w=money.power_w,
        limit=best.pool.capacity.binding,
        detail="",
    )


def invalid(varied: dict[str, Any], error: InputError) -> SweepRow:
    """Return the row of a combination that is wrong in itself, with what is wrong."""
    return without_answer(varied, INPUT, "; ".join(map(str, error.faults)))


def without_answer(varied: dict[str, Any], limit: str, detail: str) -> SweepRow:
    """Return the row of a combination that nothing serves, with what stands in the way."""
    return SweepRow(varied, False, **dict.fromkeys(NUMBERS), limit=limit, detail=detail)


def _mean_ms(best: Answer, name: str) -> float:
    return best.latency_s(name)["mean"] / MILLI


def shared(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entries that are the same in all of some inputs."""
    first, *others = found or [{}]
    return {name: value for name, value in first.items() if all(other[name] == value for other in others)}
