"""Lines of latency by rate, in the units of the document."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.answers.answer import Answer
from sizing.answers.curve import AtRate
from sizing.report.curve_predicted import GPUS_COMPARED
from sizing.report.documents_report import RateLine, RatePoint
from sizing.report.parts.figures import latency


def line(best: Answer, found: Sequence[AtRate], own: AtRate | None) -> RateLine:
    """Return a layout's line; `own` is the load of the answer, where this is its layout."""
    layout = best.pool.replica.layout
    points = [_point(one, is_answer=False) for one in found]
    points += [] if own is None else [_point(own, is_answer=True)]
    return RateLine(
        gpu=best.pool.replica.gpu_type.name,
        weight_precision=best.pool.replica.plan.weight_format,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        cp=layout.cp,
        dcp=layout.dcp,
        gpus=layout.gpus,
        points=tuple(sorted(points, key=lambda point: point.requests_per_s_per_replica)),
    )


def _point(one: AtRate, *, is_answer: bool) -> RatePoint:
    size, times = one.size, latency(one.size)
    rate = size.requests_per_s / size.pool.count
    per_gpu = rate / size.pool.replica.layout.gpus
    return RatePoint(
        requests_per_s_per_replica=rate,
        requests_per_s_per_gpu=per_gpu,
        requests_per_s_per_8_gpus=per_gpu * GPUS_COMPARED,
        share_of_stable=one.share,
        in_flight=rate * size.latency_s("e2e")["mean"],
        ttft_ms=times.ttft_ms,
        itl_ms=times.itl_ms,
        e2e_ms=times.e2e_ms,
        feasible=one.feasible,
        is_answer=is_answer,
    )
