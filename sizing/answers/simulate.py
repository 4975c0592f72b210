"""A given deployment under a load, request by request: one run in real time for each policy of its scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

from sizing.answers.deployment import Resolved
from sizing.engine import simulation
from sizing.engine.run import Progress, Routing
from sizing.engine.simulation import ReplicaSet, Run, Traffic
from sizing.specs.workload import Limits

if TYPE_CHECKING:  # loaded where pools are asked for
    from sizing.engine.transfer import Handed, Transfer
    from sizing.specs.optimisations import HandOver

Watch = Callable[[str, int], AbstractContextManager[Progress | None]]  # of a policy and its number of requests


class PrefillPool(NamedTuple):
    """The prefill pool of a deployment with separate pools, and how its caches get to the decode pool."""

    resolved: Resolved
    deployed: ReplicaSet
    transfer: Transfer
    facts: HandOver


class Scenario(NamedTuple):
    """What to simulate: a deployment, its replicas under each policy, the traffic, and when to stop.

    Without `counted`, the requests are all that arrive until `limit_s`. With a `prefill` pool, the deployment is that of the
    decode pool.
    """

    resolved: Resolved
    policies: Mapping[str, ReplicaSet]
    traffic: Traffic
    limits: Limits
    routing: Routing
    limit_s: float | None
    trace: str | None
    counted: bool
    replicas_stated: bool
    prefill: PrefillPool | None = None

    @property
    def deployed(self) -> ReplicaSet:
        """The replicas under the first policy."""
        return next(iter(self.policies.values()))

    @property
    def fits(self) -> bool:
        """Whether there is room, and the engine takes the layout, in every pool."""
        pools = (self.resolved,) if self.prefill is None else (self.resolved, self.prefill.resolved)
        return all(pool.memory.fits and pool.refused is None for pool in pools)

    @property
    def routed(self) -> bool:
        """Whether a router has replicas to choose among."""
        return self.deployed.count > 1 or (self.prefill is not None and self.prefill.deployed.count > 1)

    @property
    def gpus(self) -> int:
        """GPUs of all replicas in all pools."""
        own = self.resolved.layout.gpus * self.deployed.count
        return own if self.prefill is None else own + self.prefill.resolved.layout.gpus * self.prefill.deployed.count


class Runs(NamedTuple):
    """What each policy served, empty where the deployment does not fit; `pools` is what each of separate pools served."""

    served: Mapping[str, Run]
    pools: Handed | None = None


def _unwatched(policy: str, requests: int) -> AbstractContextManager[None]:
    return nullcontext()


def simulate(scenario: Scenario, watch: Watch = _unwatched) -> Runs:
    """Drive the traffic through the deployment under each policy; `watch` follows the progress of a run.

    >>> from sizing import Driving, ask, scenario
    >>> runs = simulate(scenario(ask("chat", gpu="h100-sxm", rps=2), Driving(requests=50)))
    >>> len(runs.served["engine"].requests)
    50
    """
    if not scenario.fits:
        return Runs({})
    limit_s = math.inf if scenario.limit_s is None else scenario.limit_s
    limits, routing = scenario.limits, scenario.routing
    if scenario.prefill is not None:
        from sizing.engine import transfer

        prefill, ((name, decode),) = scenario.prefill, scenario.policies.items()
        pools = transfer.simulate(
            prefill.deployed,
            decode,
            prefill.transfer,
            scenario.traffic,
            limits=limits,
            routing=routing,
            limit_s=limit_s,
        )
        return Runs({name: pools.whole}, pools)
    served = {}
    for name, deployed in scenario.policies.items():
        with watch(name, scenario.traffic.count) as progress:
            served[name] = simulation.simulate(
                deployed, scenario.traffic, limits=limits, routing=routing, limit_s=limit_s, progress=progress
            )
    return Runs(served)
