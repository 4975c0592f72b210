"""Predicted lines of a curve: what was seen of each load, with its figures in the units of the document."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.answers.curve import Line, Seen
from sizing.model.extras import NOTHING
from sizing.question.question import Question, situation_of
from sizing.replica import step as step_model
from sizing.replica.capacity import Load
from sizing.replica.replica import Refusal, Replica
from sizing.replica.step import Batch
from sizing.report.documents_curve import CurveLine, CurvePoint, Percentiles
from sizing.report.parts.bands import ErrorBand, known
from sizing.report.parts.figures import Statistics
from sizing.specs.bands import Band, BandMetric, find, region
from sizing.specs.units import MILLI

GPUS_COMPARED = 8  # the usual server: throughput is compared per so many GPUs
BANDED: dict[str, BandMetric] = {"ttft_ms": "ttft", "itl_ms": "itl", "requests_per_s": "throughput"}


def lines(found: Sequence[Line | Refusal], seen: Sequence[Sequence[Seen]], question: Question) -> tuple[CurveLine, ...]:
    """Return the document's lines in their order; `seen` has a row for each line that fits."""
    rows, bands = iter(seen), known()
    return tuple(
        _line(one, tuple(point(one, load, question, bands) for load in next(rows)), question)
        if isinstance(one, Line)
        else _refused(one, question)
        for one in found
    )


def _line(line: Line, points: tuple[CurvePoint, ...], question: Question) -> CurveLine:
    chosen = line.replica
    layout = chosen.layout
    return CurveLine(
        origin="predicted",
        gpu=chosen.gpu_type.name,
        weight_precision=chosen.plan.weight_format,
        kv_precision=chosen.plan.kv_format,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        cp=layout.cp,
        dcp=layout.dcp,
        gpus=layout.gpus,
        engine=question.service.engine.title,
        engine_version=question.service.engine_version,
        fits=True,
        reason=None,
        slots=line.load.slots,
        slots_bound=line.load.slots_bound,
        cache_holds=line.cache_holds,
        source=None,
        points=points,
    )


def _refused(found: Refusal, question: Question) -> CurveLine:
    layout = found.layout
    return CurveLine(
        origin="predicted",
        gpu=found.gpu_type.name,
        weight_precision=found.precision,
        kv_precision=None,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        cp=layout.cp,
        dcp=layout.dcp,
        gpus=layout.gpus,
        engine=question.service.engine.title,
        engine_version=question.service.engine_version,
        fits=False,
        reason=found.detail,
        slots=None,
        slots_bound=None,
        cache_holds=None,
        source=None,
        points=(),
    )


def point(line: Line, seen: Seen, question: Question, bands: Sequence[Band]) -> CurvePoint:
    """Return the figures of one load; limits and marks are for the whole document to add."""
    mbu, mfu = decode_share(line.replica, line.load, seen.decoding, question)
    found = figures(seen, line.replica.layout.gpus, question)._replace(
        mbu=mbu,
        mfu=mfu,
        memory_used_gib=_memory_used_gib(line, seen),
        beyond_slots=seen.in_flight > line.load.slots,
        cache_full=is_full(line, seen),
    )
    return found._replace(bands=_bands(found, line, question, bands))


def figures(seen: Seen, gpus: int, question: Question) -> CurvePoint:
    """Return what any deployment of so many GPUs has of one load."""
    rate = seen.requests_per_s
    return CurvePoint(
        concurrency=seen.in_flight,
        ttft_ms=_mean_ms(seen, "ttft"),
        itl_ms=_mean_ms(seen, "itl"),
        e2e_ms=_mean_ms(seen, "e2e"),
        x_ms=None,
        requests_per_s=rate,
        requests_per_s_per_gpu=per_gpus(rate, gpus, 1),
        requests_per_s_per_8_gpus=per_gpus(rate, gpus, GPUS_COMPARED),
        output_tokens_per_s_per_gpu=None if rate is None else rate * question.service.output_tokens / gpus,
        output_tokens_per_s_per_user=None if rate is None else rate * question.service.output_tokens / seen.in_flight,
        mbu=None,
        mfu=None,
        kv_cache_utilisation=seen.cache_used,
        memory_used_gib=None,
        waiting=seen.waiting,
        beyond_slots=None,
        cache_full=None,
        limits_met={},
        feasible=True,
        latency_ms=Percentiles(*(_statistics(seen.latencies_s[name]) for name in ("ttft", "itl", "e2e"))),
        bands={},
    )


def per_gpus(requests_per_s: float | None, gpus: int, of: int) -> float | None:
    """Return the rate of so many GPUs (`of`) where a replica of `gpus` serves `requests_per_s`."""
    return None if requests_per_s is None else requests_per_s / gpus * of


def is_full(line: Line, seen: Seen) -> bool | None:
    """Tell whether a cache was so full that no further request of mean length had room, or that some were thrown out."""
    if seen.cache_used is None:
        return None
    return seen.preemptions > 0 or seen.cache_used + 1 / line.cache_holds > 1


def _mean_ms(seen: Seen, name: str) -> float | None:
    found = seen.latencies_s[name]
    return found["mean"] / MILLI if found else None


def _statistics(found: dict[str, float]) -> Statistics:
    return Statistics(*(found[name] / MILLI if name in found else None for name in Statistics._fields))


def _memory_used_gib(line: Line, seen: Seen) -> float | None:
    """GiB of one GPU: all but the cache, and of the cache what was in use at most."""
    used = line.replica.memory
    if seen.cache_used is None:
        return None
    fixed = used.weights_gib + used.activation_gib + used.non_torch_gib + used.cuda_graphs_gib
    return fixed + seen.cache_used * used.kv_cache_gib


def decode_share(
    chosen: Replica, load: Load, decoding: float | None, question: Question
) -> tuple[float | None, float | None]:
    """Return MBU and MFU of a step in which the sequences that decode on a replica do so at their mean context."""
    if decoding is None or question.service.osl <= 1:
        return None, None
    micro = max(1.0, decoding / load.service.pp)
    batch = Batch(decode_sequences=micro, decode_context_tokens=question.service.isl + question.service.osl / 2)
    timed = step_model.step(question.service.model, chosen.layout, load.kernels, batch)
    return timed.mbu, timed.mfu


def _bands(found: CurvePoint, line: Line, question: Question, bands: Sequence[Band]) -> dict[str, ErrorBand]:
    """Return the error bands of a point; none of what published runs were not: they had no optimisations, and generated."""
    if question.service.extras != NOTHING or question.service.model.pooled:
        return {}
    situation = situation_of(question, line.replica.gpu_type.gpu, region(found.concurrency))
    bounds: dict[str, ErrorBand] = {}
    for name, metric in BANDED.items():
        band, value = find(bands, metric, situation), getattr(found, name)
        if band is not None and value is not None:
            bounds[name] = ErrorBand(value * band.low, value * band.high, band.n)
    return bounds
