"""The record of `llmsize report`."""

from __future__ import annotations

from typing import NamedTuple

from sizing.answers.answer import Answer
from sizing.answers.lines import LineByRate
from sizing.answers.whatif import Effect
from sizing.report.compare_record import Compare
from sizing.report.curve.record import CurveRecord
from sizing.report.estimate import Estimate
from sizing.report.parts.layouts import sizes
from sizing.report.parts.limiting import unmet
from sizing.specs.units import Statistics


class ChangedInput(NamedTuple):
    """One input changed by a share to a value, and the new answer, sized like the original; null without an answer."""

    what: str
    share: float
    value: float
    unit: str
    feasible: bool
    gpu: str | None
    weight_precision: str | None
    gpus: int | None
    extra_gpus: int | None
    layout: str | None
    requests_per_s: float | None
    usd_per_hour: float | None
    reason: str | None


def changed_input(effect: Effect, now: Answer | None) -> ChangedInput:
    """The record of an input's effect on the answer; `now` is the answer without the change."""
    change, outcome = effect
    best = None if outcome is None else outcome.answer
    pool = None if best is None else best.pool
    return ChangedInput(
        what=change.what,
        share=change.share,
        value=change.value,
        unit=change.unit,
        feasible=best is not None,
        gpu=pool.replica.gpu_type.name if pool else None,
        weight_precision=pool.replica.plan.weight_format if pool else None,
        gpus=best.gpus if best else None,
        extra_gpus=best.gpus - now.gpus if best and now else None,
        layout=f"{pool.count} x {pool.replica.layout}" if pool else None,
        requests_per_s=best.requests_per_s if best else None,
        usd_per_hour=best.usd_per_hour if best else None,
        reason=change.reason if outcome is None else unmet(outcome).detail if best is None else None,
    )


class RatePoint(NamedTuple):
    """One replica under Poisson arrivals at a rate; `share_of_stable` is of the highest rate at which queues end.

    `is_answer` marks the load that the answer's replicas run at.
    """

    requests_per_s_per_replica: float | None
    requests_per_s_per_gpu: float | None
    requests_per_s_per_8_gpus: float | None
    share_of_stable: float
    in_flight: float
    ttft_ms: Statistics
    itl_ms: Statistics
    e2e_ms: Statistics
    feasible: bool
    is_answer: bool


class RateLine(NamedTuple):
    """A layout with its points by rate; `gpus` are those of one replica."""

    gpu: str
    weight_precision: str
    tp: int
    pp: int
    ep: int
    dp: int
    cp: int
    dcp: int
    gpus: int
    points: tuple[RatePoint, ...]


class Report(NamedTuple):
    """The document of `llmsize report`; `simulated` says whether each size in it was confirmed by simulation.

    `rates` are latencies by rate, of a demand that arrives as Poisson traffic; `curve` is that of the `curve` command, by
    requests in flight, of one in flight and of offline work. `comparison` is that of the `compare` command, null where
    there is one candidate or no demand.
    """

    title: str
    command: str
    simulated: bool
    estimate: Estimate
    sensitivity: tuple[ChangedInput, ...]
    rates: tuple[RateLine, ...]
    curve: CurveRecord | None
    comparison: Compare | None
    schema: str = "llmsize.report/1"


def rate_line(found: LineByRate) -> RateLine:
    """The record of a line by rate; its chosen point is the load of the answer."""
    line, layout = found.line, found.line.layout
    assert layout is not None and line.gpus is not None
    points = [
        RatePoint(
            requests_per_s_per_replica=point.requests_per_s,
            requests_per_s_per_gpu=point.requests_per_s_per_gpu,
            requests_per_s_per_8_gpus=point.requests_per_s_per_8_gpus,
            share_of_stable=share,
            in_flight=point.concurrency,
            ttft_ms=point.latency_ms.ttft,
            itl_ms=point.latency_ms.itl,
            e2e_ms=point.latency_ms.e2e,
            feasible=point.feasible,
            is_answer=point.chosen,
        )
        for share, point in zip(found.shares, line.points, strict=True)
    ]
    return RateLine(
        gpu=line.gpu, weight_precision=line.weight_precision, **sizes(layout), gpus=line.gpus, points=tuple(points)
    )
