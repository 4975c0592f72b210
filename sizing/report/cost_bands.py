"""Error bands of costs at full use, which are as unsure as the highest rate that they are divided by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sizing.answers.answer import Answer
from sizing.model.extras import NOTHING
from sizing.question.question import Question, situation_of
from sizing.report import bands
from sizing.report.documents import ErrorBand
from sizing.report.documents_cost import CostOption
from sizing.specs.bands import AS_PREDICTED, Band, find, region


def band_of_rate(best: Answer, question: Question) -> Band | None:
    """Return the error band of the highest rate of an answer; none where it is on the edge of it already.

    Published runs had no optimisations and generated, so nothing says how far off rates are of what does not.
    """
    if best.pool.load.edge != AS_PREDICTED or question.service.extras != NOTHING or question.service.model.pooled:
        return None
    heaviest = best.pool.capacity.amount if question.target.concurrency is not None else best.pool.capacity.decoding
    return find(bands.known(), "throughput", situation_of(question, best.pool.replica.gpu_type.gpu, region(heaviest)))


def bands_of(options: Sequence[CostOption], of_rates: Mapping[str, Band | None]) -> dict[str, ErrorBand]:
    """Return the bands of costs by path, from those of rates by type of GPU: the report's own, and that of each option."""
    found: dict[str, ErrorBand] = {}
    for index, option in enumerate(options):
        band = of_rates.get(option.gpu or "")
        if band is not None:
            usd = option.usd_per_1k_requests.full_use
            error = ErrorBand(usd / band.high, usd / band.low, band.n)
            found |= {"usd_per_1k_requests.full_use": error} if index == 0 else {}
            found[f"options.{index}.usd_per_1k_requests.full_use"] = error
    return found
