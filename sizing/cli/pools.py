"""From `--disaggregate` to what is asked of the two pools of a disaggregated deployment."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.catalog import gpus, pools
from sizing.cli.named import Named
from sizing.disaggregation import Asked, Side
from sizing.errors import Fault, InputError
from sizing.prices import typical_price
from sizing.request import GpuOption
from sizing.specs.pools import Pool
from sizing.specs.workload import Workload

FIELD = "optimisations.disaggregate"


def asked_of(names: Named) -> Asked | None:
    """Return what is asked of each pool, None where a deployment serves as one.

    Raises InputError for an unknown GPU type, and for work that pools cannot be sized for.
    """
    workload = names.workload.value
    wanted = workload.optimisations.disaggregate
    if wanted is None:
        return None
    faults = list(_faults(workload))
    sides = {}
    for phase, pool in (("prefill", wanted.prefill), ("decode", wanted.decode)):
        try:
            sides[phase] = Side(_options(pool, names), pool)
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    return Asked(sides["prefill"], sides["decode"], pools.load_hand_over().spec)


def _options(pool: Pool, names: Named) -> tuple[GpuOption, ...]:
    """Return the GPU types of a pool: its own, else all that are considered."""
    if pool.gpu is None:
        return names.options
    found, price = gpus.load_gpu(pool.gpu), names.price.value
    priced = (price, "as asked") if price is not None else typical_price(found.spec)
    return (GpuOption(found.id, found.spec, *priced),)


def _faults(workload: Workload) -> Sequence[Fault]:
    """Say what keeps work from being split: nothing to decode, or no rate to size by."""
    if workload.tokens.osl == 1:
        return (Fault("nothing decodes with OSL 1", field=FIELD, allowed="an output of two tokens and more"),)
    demand = workload.demand
    if demand is not None and demand.concurrency is not None:
        return (
            Fault(
                "pools are sized by a rate, and requests in flight state none",
                field=FIELD,
                allowed="with --rps or --dau",
            ),
        )
    if demand is None and workload.mode == "offline":
        return (Fault("pools are sized by a rate, which offline work has none of", field=FIELD, allowed="with --rps"),)
    return ()
