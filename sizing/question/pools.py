"""Separate pools of a question: GPU types and sizes of each pool, and work that cannot be split."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sizing.catalog import gpus, shelf
from sizing.question.names import SEPARATE, Names
from sizing.question.question import PoolSpace, SeparatePools
from sizing.specs.errors import Fault, InputError
from sizing.specs.optimisations import HandOver
from sizing.specs.workload import Workload

Check = Callable[[Workload], Fault | None]


def separate_pools(names: Names, checks: Sequence[Check]) -> SeparatePools | None:
    """The pools to consider; None without separate pools.

    Raises InputError for an unknown GPU type, and for work that the checks find cannot be split.
    """
    workload = names.workload.value
    wanted = workload.optimisations.disaggregate
    if wanted is None:
        return None
    considered = names.gpu_types
    faults = [fault for check in checks if (fault := check(workload)) is not None]
    faults += _of_turns(workload)
    sides = {}
    for phase, pool in (("prefill", wanted.prefill), ("decode", wanted.decode)):
        try:
            sides[phase] = PoolSpace(considered if pool.gpu is None else (names.priced(gpus.load_gpu(pool.gpu)),), pool)
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    return SeparatePools(sides["prefill"], sides["decode"], shelf.only(HandOver))


def _of_turns(workload: Workload) -> Sequence[Fault]:
    """The fault of conversations in separate pools; None without conversations."""
    prefix = workload.optimisations.prefix
    if prefix is None or (prefix.turns or 1) == 1 or (prefix.routing == "affinity" and prefix.think_time_s is None):
        return ()
    message = "turns over separate pools are sized where each finds its cache, without a think time"
    return (Fault(message, field="optimisations.prefix.turns", allowed="--prefix-routing affinity; or --prefix-hit"),)


def decodes(workload: Workload) -> Fault | None:
    """The fault of a workload without decode steps."""
    if workload.tokens.osl > 1:
        return None
    return Fault("nothing decodes with OSL 1", field=SEPARATE, allowed="an output of two tokens and more")


def rated(workload: Workload) -> Fault | None:
    """The fault of a workload without a request rate, by which pools are sized."""
    demand = workload.demand
    if demand is not None and demand.concurrency is not None:
        what = "pools are sized by a rate, and requests in flight state none"
        return Fault(what, field=SEPARATE, allowed="with --rps or --dau")
    if demand is None and workload.mode == "offline":
        return Fault("pools are sized by a rate, which offline work has none of", field=SEPARATE, allowed="with --rps")
    return None
