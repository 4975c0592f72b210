"""The document of `llmsize step --disaggregate`: a prompt's step in one pool, its cache on the way, a decode step in the other."""

from __future__ import annotations

from typing import NamedTuple

from sizing.engine.transfer import Transfer
from sizing.replica.replica import Resolved
from sizing.report import pools, step
from sizing.report.documents_pools import StepPools
from sizing.report.documents_step import StepReport
from sizing.specs.errors import Fault, InputError
from sizing.specs.optimisations import HandOver
from sizing.specs.units import MILLI


class Both(NamedTuple):
    """A layout of each pool, and how a prompt's cache goes from one to the other."""

    prefill: Resolved
    decode: Resolved
    transfer: Transfer
    facts: HandOver


def build(both: Both, *, decode: int, context: int, prefill: int, prior: int) -> StepPools:
    """Time a step of each pool that has work: a prompt in the one, sequences that decode in the other, as `step` times each.

    Raises InputError with what keeps either from being run.
    """
    faults: list[Fault] = []

    def timed(
        pool: Resolved, *, decode: int = 0, context: int = 0, prefill: int = 0, prior: int = 0
    ) -> StepReport | None:
        if not decode and not prefill:
            return None
        try:
            return step.build(pool, decode=decode, context=context, prefill=prefill, prior=prior)
        except InputError as error:
            faults.extend(error.faults)
            return None

    first = timed(both.prefill, prefill=prefill, prior=prior)
    second = timed(both.decode, decode=decode, context=context)
    if faults:
        raise InputError(faults)
    prompt, request = prefill + prior, both.decode.question
    parts = [part for part in (first, second) if part is not None]
    return StepPools(
        inputs={
            "model": request.service.model.name,
            "engine": request.service.engine.name,
            "engine_title": request.service.engine.title,
            "engine_version": request.service.engine_version,
            "batch": {"decode": decode, "context": context, "prefill": prefill, "prior": prior},
            "optimisations": request.service.optimisations.asked(),
        },
        prefill=first,
        decode=second,
        kv_transfer_ms=float(both.transfer.seconds(prompt)) / MILLI if prefill else None,
        kv_transfer=pools.transfer_figures(both.transfer, prompt) if prefill else None,
        assumptions=tuple(
            dict.fromkeys([entry for part in parts for entry in part.assumptions] + [*pools.assumptions(both.facts)])
        ),
    )
