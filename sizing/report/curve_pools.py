"""Lines of a curve that are of separate pools, under the names of the document."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.answers.answer import Answer
from sizing.answers.curve import Seen
from sizing.answers.pool_curve import BUDGET, MOST_LINES, PoolLine, Unpaired
from sizing.formats.view import Assumption
from sizing.question.question import Question
from sizing.report.curve_predicted import decode_share, figures
from sizing.report.documents_curve import CurveLine, CurvePoint
from sizing.report.parts import pools
from sizing.report.parts.answers import cache_called, gpus_called, weights_called
from sizing.report.parts.pools import why_not

HELD = (
    "layouts and replicas of both pools. Those that --disaggregate leaves open are of the pair that serves the most within the "
    f"limits on {BUDGET} GPUs (the fastest alone where none keeps them): its layouts, and the {MOST_LINES} ratios of prefill "
    "to decode replicas nearest to its own"
)


def lines(
    found: Sequence[PoolLine | Unpaired], seen: Sequence[Sequence[Seen]], question: Question
) -> tuple[CurveLine, ...]:
    """Return the document's lines in their order; `seen` has a row for each pair of pools."""
    rows = iter(seen)
    return tuple(
        _line(one.pair, tuple(_point(one.pair, load, question) for load in next(rows)), question)
        if isinstance(one, PoolLine)
        else _undrawn(one, question)
        for one in found
    )


def held() -> Assumption:
    """Return what does not change along a line."""
    return Assumption("fixed along a line of pools", HELD, "", "assumed", "both pools under Poisson arrivals")


def _line(pair: Answer, points: tuple[CurvePoint, ...], question: Question) -> CurveLine:
    return _bare(question)._replace(
        gpu=gpus_called(pair),
        weight_precision=weights_called(pair),
        kv_precision=cache_called(pair),
        gpus=pair.gpus,
        fits=True,
        points=points,
        pools=pools.shapes(pair),
    )


def _undrawn(found: Unpaired, question: Question) -> CurveLine:
    options = (found.asked.prefill.options[0], found.asked.decode.options[0])
    return _bare(question)._replace(
        gpu=" + ".join(dict.fromkeys(option.name for option in options)),
        weight_precision=found.precision or question.service.model.quantisation.precision,
        reason=why_not(found.found, found.asked),
    )


def _bare(question: Question) -> CurveLine:
    """Return a line with what a replica has left empty."""
    return CurveLine(
        origin="predicted",
        gpu="",
        weight_precision="",
        kv_precision=None,
        tp=None,
        pp=None,
        ep=None,
        dp=None,
        cp=None,
        dcp=None,
        gpus=None,
        engine=question.service.engine.title,
        engine_version=question.service.engine_version,
        fits=False,
        reason=None,
        slots=None,
        slots_bound=None,
        cache_holds=None,
        source=None,
        points=(),
    )


def _point(pair: Answer, seen: Seen, question: Question) -> CurvePoint:
    """Return the figures of one load; the decode step is that of one of the pool's replicas."""
    decode = pair.decode
    each = None if seen.decoding is None else seen.decoding / decode.count
    mbu, mfu = decode_share(decode.replica, decode.load, each, question)
    return figures(seen, pair.gpus, question)._replace(mbu=mbu, mfu=mfu, beyond_slots=seen.requests_per_s is None)
