"""From tried optimisations to the document of `llmsize whatif`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sizing import cost
from sizing.report import assumptions
from sizing.report.documents_whatif import NotTried, OptionReport, Sensitivity, Sized, Together, WhatIfReport
from sizing.report.inputs import Asked, inputs
from sizing.search import Evaluated, Outcome
from sizing.units import MILLI
from sizing.whatif import Combination, Tried, Varied, is_better


class Answered(NamedTuple):
    """An outcome, and whether a simulation confirmed it."""

    outcome: Outcome
    verified: bool


def build(
    asked: Asked,
    base: Answered,
    tried: Sequence[Tried],
    best: Combination,
    verified: bool,
    flags: Mapping[str, str],
) -> WhatIfReport:
    """Return the document; `flags` are the options' spellings on the command line."""
    before, request = base.outcome.best, base.outcome.request
    after = best.outcome.best
    return WhatIfReport(
        inputs=inputs(asked, request, before.candidate if before else None),
        base=None if before is None else _sized(before, request.output_tokens, base.verified),
        options=tuple(_option(one, one.best, base.outcome, flags) for one in tried if one.best is not None),
        best=None
        if after is None or not best.names
        else Together(
            names=best.names,
            options=_spelled(best.options, flags),
            answer=_sized(after, request.output_tokens, verified),
            gpus_saved=None if before is None else before.gpus - after.gpus,
        ),
        not_possible=tuple(NotTried(one.name, one.why_not or "") for one in tried if one.best is None),
        assumptions=tuple(_assumptions(before or after, base.outcome, asked)),
    )


def _assumptions(found: Evaluated | None, outcome: Outcome, asked: Asked) -> Iterator[Any]:
    yield from assumptions.of_model(outcome.request, asked.notes)
    if found is not None:
        yield from assumptions.of_memory(outcome.request, found.candidate)
        yield from assumptions.of_time(outcome.request, found.candidate, found.load.kernels)
        yield from assumptions.of_planning(outcome.request, asked, found.candidate)


def _spelled(options: Mapping[str, Any], flags: Mapping[str, str]) -> str:
    return " ".join(f"{flags[name]} {value}" for name, value in options.items())


def _mean_ms(found: Evaluated, name: str) -> float:
    return found.latency_s(name)["mean"] / MILLI


def _itl_ms(found: Evaluated) -> float | None:
    return _mean_ms(found, "itl") if found.load.service.osl > 1 else None


def _most(found: Evaluated) -> float:
    return found.most_requests_per_s / found.candidate.layout.gpus


def _usd(found: Evaluated, osl: int) -> float | None:
    usd = found.usd_per_hour
    return None if usd is None or not osl else cost.usd_per_million_tokens(usd, found.requests_per_s * osl)


def _sized(found: Evaluated, osl: int, verified: bool) -> Sized:
    plan = found.candidate.plan
    return Sized(
        gpus=found.gpus,
        gpu=found.candidate.option.name,
        layout=_layout(found),
        weight_precision=plan.weight_format,
        kv_precision=plan.kv_format,
        requests_per_s_per_gpu=found.requests_per_s / found.gpus,
        max_requests_per_s_per_gpu=_most(found),
        ttft_ms=_mean_ms(found, "ttft"),
        itl_ms=_itl_ms(found),
        e2e_ms=_mean_ms(found, "e2e"),
        usd_per_hour=found.usd_per_hour,
        usd_per_million_output_tokens=_usd(found, osl),
        verified=verified,
    )


def _layout(found: Evaluated) -> str:
    return f"{found.replicas} x {found.candidate.layout}"


def _option(one: Tried, found: Evaluated, unaided: Outcome, flags: Mapping[str, str]) -> OptionReport:
    trial, before, request = one.trial, unaided.best, unaided.request
    return OptionReport(
        name=one.name,
        title=trial.title,
        options=_spelled(trial.values(), flags),
        helps=is_better(found, before, request),
        gpus=found.gpus,
        gpu=found.candidate.option.name,
        gpus_saved=None if before is None else before.gpus - found.gpus,
        layout=_layout(found),
        requests_per_s_per_gpu=found.requests_per_s / found.gpus,
        max_requests_per_s_per_gpu=_most(found),
        ttft_ms=_mean_ms(found, "ttft"),
        itl_ms=_itl_ms(found),
        e2e_ms=_mean_ms(found, "e2e"),
        usd_per_hour=found.usd_per_hour,
        usd_per_million_output_tokens=_usd(found, request.output_tokens),
        needs=trial.needs,
        risk=trial.risk,
        source=trial.source,
        assumes=f"{trial.assumed.what} {trial.assumed.value:g}" if trial.assumed else None,
        sensitivity=tuple(_sensitivity(trial.assumed.what, varied) for varied in one.sensitivity)
        if trial.assumed
        else (),
    )


def _sensitivity(assumption: str, varied: Varied) -> Sensitivity:
    found = varied.best
    return Sensitivity(
        assumption=assumption,
        value=varied.value,
        gpus=found.gpus if found else None,
        max_requests_per_s_per_gpu=_most(found) if found else None,
        ttft_ms=_mean_ms(found, "ttft") if found else None,
        itl_ms=_itl_ms(found) if found else None,
    )
