"""The row of `llmsize sweep` for a combination that asks for separate pools: figures are those of `estimate --disaggregate`."""

from __future__ import annotations

from typing import Any

from sizing.answers.answer import Outcome
from sizing.answers.pools import Asked
from sizing.planning import cost
from sizing.report import pools
from sizing.report.documents_sweep import SweepRow
from sizing.report.parts.answers import gpus_called, shape, weights_called
from sizing.report.parts.pools import UNSERVED, binding_limit
from sizing.report.sweep import without_answer


def row(varied: dict[str, Any], found: Outcome, asked: Asked) -> SweepRow:
    """Return the row."""
    one, best = pools.build(found, asked, None), found.confirmed
    if not one.feasible or best is None:
        return without_answer(varied, UNSERVED, one.why)
    usd, tokens_per_s = best.usd_per_hour, best.requests_per_s * found.question.service.osl
    ttft_ms, itl_ms, e2e_ms = (pools.mean_ms(best, name) for name in ("ttft", "itl", "e2e"))
    return SweepRow(
        varied=varied,
        feasible=True,
        gpu=gpus_called(best),
        weight_precision=weights_called(best),
        gpus=best.gpus,
        replicas=None,
        tp=None,
        pp=None,
        ep=None,
        dp=None,
        cp=None,
        dcp=None,
        pools=shape(best),
        requests_per_s=best.requests_per_s,
        requests_per_s_per_gpu=best.requests_per_s / best.gpus,
        ttft_ms=ttft_ms,
        itl_ms=itl_ms,
        e2e_ms=e2e_ms,
        usd_per_hour=usd,
        usd_per_million_output_tokens=None if usd is None else cost.usd_per_million_tokens(usd, tokens_per_s),
        power_w=best.power_w,
        limit=binding_limit(best),
        detail="",
    )
