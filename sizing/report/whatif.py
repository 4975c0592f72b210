"""From tried optimisations to the document of `llmsize whatif`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sizing.answers.answer import Answer
from sizing.answers.whatif import Combination, Tried, Varied, is_better
from sizing.formats.view import Assumption
from sizing.planning import cost
from sizing.question.question import Question
from sizing.report.documents_whatif import NotTried, OptionReport, Sensitivity, Sized, Together, WhatIfReport
from sizing.report.parts import assumptions
from sizing.report.parts.answers import cache_called, gpus_called, shape, weights_called
from sizing.report.parts.question import inputs
from sizing.specs.units import MILLI


class Answered(NamedTuple):
    """An answer, None for none, and whether a simulation confirmed it."""

    best: Answer | None
    verified: bool


class Bases(NamedTuple):
    """The answer without any trial: as the closed form has it, which trials are held against, and as it is shown."""

    compared: Answer | None
    shown: Answered


def build(
    question: Question,
    base: Bases,
    tried: Sequence[Tried],
    best: Combination,
    after: Answered,
    flags: Mapping[str, str],
) -> WhatIfReport:
    """Return the document; `after` is the best combination as it is shown, `flags` the options' spellings on the command line."""
    before = base.shown.best
    rests_on = before if before is not None else after.best
    whole = None if before is None or before.separate else before.pool  # whose layout is that of the question
    return WhatIfReport(
        inputs=inputs(question, None) if whole is None else inputs(whole.question(question), whole.replica),
        base=None if before is None else _sized(before, question.service.output_tokens, base.shown.verified),
        base_closed_form=None
        if base.compared is None or not base.shown.verified
        else _sized(base.compared, question.service.output_tokens, verified=False),
        options=tuple(_option(one, one.best, base.compared, question, flags) for one in tried if one.best is not None),
        best=None
        if after.best is None or not best.names
        else Together(
            names=best.names,
            options=_spelled(best.options, flags),
            answer=_sized(after.best, question.service.output_tokens, after.verified),
            gpus_saved=None if before is None else before.gpus - after.best.gpus,
        ),
        not_possible=tuple(NotTried(one.name, one.why_not or "") for one in tried if one.best is None),
        assumptions=tuple(dict.fromkeys(_assumptions(rests_on, question))),
    )


def _assumptions(found: Answer | None, question: Question) -> Iterator[Assumption]:
    yield from assumptions.of_model(question, question.origin.notes)
    for pool in found.pools if found is not None else ():
        yield from assumptions.of_part(question, pool)


def _spelled(options: Mapping[str, Any], flags: Mapping[str, str]) -> str:
    return " ".join(f"{flags[name]} {value}" for name, value in options.items())


def _mean_ms(found: Answer, name: str) -> float:
    return found.latency_s(name)["mean"] / MILLI


def _itl_ms(found: Answer, osl: int) -> float | None:
    return _mean_ms(found, "itl") if osl > 1 else None


def _usd(found: Answer, osl: int) -> float | None:
    usd = found.usd_per_hour
    return None if usd is None or not osl else cost.usd_per_million_tokens(usd, found.requests_per_s * osl)


def _sized(found: Answer, osl: int, verified: bool) -> Sized:
    return Sized(
        gpus=found.gpus,
        gpu=gpus_called(found),
        layout=shape(found),
        weight_precision=weights_called(found),
        kv_precision=cache_called(found),
        requests_per_s_per_gpu=found.requests_per_s / found.gpus,
        max_requests_per_s_per_gpu=found.most_per_gpu,
        ttft_ms=_mean_ms(found, "ttft"),
        itl_ms=_itl_ms(found, osl),
        e2e_ms=_mean_ms(found, "e2e"),
        usd_per_hour=found.usd_per_hour,
        usd_per_million_output_tokens=_usd(found, osl),
        verified=verified,
    )


def _option(
    one: Tried, found: Answer, unaided: Answer | None, question: Question, flags: Mapping[str, str]
) -> OptionReport:
    trial, osl = one.trial, question.service.osl
    return OptionReport(
        name=one.name,
        title=trial.title,
        options=_spelled(trial.values(), flags),
        helps=is_better(found, unaided, question),
        gpus=found.gpus,
        gpu=gpus_called(found),
        gpus_saved=None if unaided is None else unaided.gpus - found.gpus,
        layout=shape(found),
        requests_per_s_per_gpu=found.requests_per_s / found.gpus,
        max_requests_per_s_per_gpu=found.most_per_gpu,
        ttft_ms=_mean_ms(found, "ttft"),
        itl_ms=_itl_ms(found, osl),
        e2e_ms=_mean_ms(found, "e2e"),
        usd_per_hour=found.usd_per_hour,
        usd_per_million_output_tokens=_usd(found, question.service.output_tokens),
        needs=trial.needs,
        risk=trial.risk,
        source=trial.source,
        assumes=f"{trial.assumed.what} {trial.assumed.value:g}" if trial.assumed else None,
        sensitivity=tuple(_sensitivity(trial.assumed.what, varied, osl) for varied in one.sensitivity)
        if trial.assumed
        else (),
    )


def _sensitivity(assumption: str, varied: Varied, osl: int) -> Sensitivity:
    found = varied.best
    return Sensitivity(
        assumption=assumption,
        value=varied.value,
        gpus=found.gpus if found else None,
        max_requests_per_s_per_gpu=found.most_per_gpu if found else None,
        ttft_ms=_mean_ms(found, "ttft") if found else None,
        itl_ms=_itl_ms(found, osl) if found else None,
    )
