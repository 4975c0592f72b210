"""From the outcomes of many searches to the rows of `llmsize sweep`: figures are those of `estimate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sizing.answers.search import Evaluated, Outcome, within_budget
from sizing.report.documents_sweep import NUMBERS, SweepRow
from sizing.report.estimate import cost_figures
from sizing.report.parts.figures import throughput
from sizing.report.parts.limiting import unmet
from sizing.specs.errors import InputError
from sizing.specs.units import MILLI

if TYPE_CHECKING:  # the simulator need not be loaded to report
    from sizing.answers.verify import Verified

INPUT = "input"


def row(varied: dict[str, Any], outcome: Outcome, checked: Verified | None = None) -> SweepRow:
    """Return the row of a combination that was searched for; `checked` is the simulation of its answer, None without one."""
    best = outcome.best
    if best is None or not within_budget(outcome) or (checked is not None and not checked.passed):
        nearest = unmet(outcome, (), checked)
        return without_answer(varied, nearest.limit, nearest.detail)
    layout, rates, money = best.replica.layout, throughput(best, outcome), cost_figures(best, outcome)
    return SweepRow(
        varied=varied,
        feasible=True,
        gpu=best.replica.gpu_type.name,
        weight_precision=best.replica.plan.weight_format,
        gpus=best.gpus,
        replicas=best.replicas,
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
        itl_ms=_mean_ms(best, "itl") if best.load.service.osl > 1 else None,
        e2e_ms=_mean_ms(best, "e2e"),
        usd_per_hour=money.usd_per_hour,
        usd_per_million_output_tokens=money.usd_per_million_output_tokens,
        power_w=money.power_w,
        limit=best.binding,
        detail="",
    )


def invalid(varied: dict[str, Any], error: InputError) -> SweepRow:
    """Return the row of a combination that is wrong in itself, with what is wrong."""
    return without_answer(varied, INPUT, "; ".join(map(str, error.faults)))


def without_answer(varied: dict[str, Any], limit: str, detail: str) -> SweepRow:
    """Return the row of a combination that nothing serves, with what stands in the way."""
    return SweepRow(varied, False, **dict.fromkeys(NUMBERS), limit=limit, detail=detail)


def _mean_ms(best: Evaluated, name: str) -> float:
    return best.latency_s(name)["mean"] / MILLI


def shared(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entries that are the same in all of some inputs."""
    first, *others = found or [{}]
    return {name: value for name, value in first.items() if all(other[name] == value for other in others)}
