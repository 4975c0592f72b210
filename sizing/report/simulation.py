"""The document of `llmsize simulate`: what was simulated, and the figures of each policy's run in real time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sizing.engine.requests import Lengths
from sizing.engine.run import Routing
from sizing.engine.simulation import Deployed, Served, Traffic
from sizing.engine.transfer import Handed, Transfer
from sizing.formats.view import Assumption
from sizing.model import extras
from sizing.question.question import situation_of
from sizing.replica.replica import Resolved
from sizing.report.documents_pools import SimulatedPool, SimulatedPools
from sizing.report.documents_simulation import Extent, QueueFigures, SimulatedRun, SimulationReport, Spread
from sizing.report.parts import assumptions, bands, pools
from sizing.report.parts.assumptions import NO_ITL
from sizing.report.parts.memory import LayoutMemory, layout_memory
from sizing.report.parts.question import candidate_of, inputs_of_layout
from sizing.specs.bands import Situation, region
from sizing.specs.optimisations import HandOver
from sizing.specs.units import MILLI
from sizing.specs.workload import Limits

LATENCIES = ("ttft", "itl", "e2e")
OWN = "engine"  # the policy that the engine itself has
SPREAD_OUT = "--replicas N spreads the load, which one replica is driven with here, over N; llmsize estimate finds N for a demand"
NOTHING = Spread(*[None] * len(Spread._fields))


class Split(NamedTuple):
    """The prefill pool of a disaggregated deployment, and how its caches get to the decode pool."""

    resolved: Resolved
    deployed: Deployed
    transfer: Transfer
    facts: HandOver


class Simulated(NamedTuple):
    """What was simulated: a resolved deployment, its replicas under each policy, the traffic and how it was driven.

    Where the requests are not `counted`, they are all that come until the limit. With `split` pools the deployment is that of
    the decode pool.
    """

    resolved: Resolved
    policies: Mapping[str, Deployed]
    traffic: Traffic
    limits: Limits
    routing: Routing
    limit_s: float | None
    trace: str | None
    counted: bool
    replicas_stated: bool
    split: Split | None = None

    @property
    def fits(self) -> bool:
        """Whether there is room, and the engine takes the layout, in every pool."""
        pools = (self.resolved,) if self.split is None else (self.resolved, self.split.resolved)
        return all(pool.memory.fits and pool.refused is None for pool in pools)

    @property
    def replicas(self) -> int:
        """Engine instances."""
        return next(iter(self.policies.values())).replicas

    @property
    def routed(self) -> bool:
        """Whether a router has replicas to choose among."""
        return self.replicas > 1 or (self.split is not None and self.split.deployed.replicas > 1)

    @property
    def gpus(self) -> int:
        """GPUs of all replicas, those of both pools where they are split."""
        own = self.resolved.layout.gpus * self.replicas
        return own if self.split is None else own + self.split.resolved.layout.gpus * self.split.deployed.replicas


def build(asked: Simulated, served: Mapping[str, Served], handed: Handed | None = None) -> SimulationReport:
    """Return the document of runs by policy; of a deployment that does not fit, for which there are none, its deficit.

    `handed` is what each pool of a split deployment did.
    """
    held = _held(asked)
    runs = tuple(
        _run(policy, served[policy], asked) if policy in served else _not_run(policy) for policy in asked.policies
    )
    return SimulationReport(
        passed=held.fits and all(run.completed and run.stable and not run.refused and not run.missed for run in runs),
        inputs=_inputs(asked, served),
        runs=runs,
        memory=held.memory,
        bands=bands.bounds(held.predicted) | bands.bounds(_predicted(asked, served, runs)),
        reason=held.reason,
        suggestions=held.suggestions or _suggestions(asked, runs),
        assumptions=_assumptions(asked, runs) if served else held.assumptions,
        disaggregated=_pools(asked, handed) if handed is not None else None,
    )


def _held(asked: Simulated) -> LayoutMemory:
    """Return the memory of a deployment; of split pools that of the prefill pool where it is what lacks room."""
    held = layout_memory(asked.resolved)
    if asked.split is None:
        return held
    pool = "decode"
    if held.fits and not asked.fits:
        held, pool = layout_memory(asked.split.resolved), "prefill"
    return held if held.reason is None else held._replace(reason=f"the {pool} pool: {held.reason}")


def _pools(asked: Simulated, handed: Handed) -> SimulatedPools:
    assert asked.split is not None
    split = asked.split
    prefill = _pool(split.resolved, split.deployed.replicas, handed.prefill)
    decode = _pool(asked.resolved, asked.replicas, handed.decode)
    return SimulatedPools(
        prefill=prefill,
        decode=decode,
        kv_transfer_ms=handed.transfer_s / MILLI,
        kv_transfer=pools.transfer_figures(split.transfer, _mean(asked.traffic, 1, asked.traffic.isl)),
        ratio=prefill.gpus / decode.gpus,
    )


def _pool(resolved: Resolved, replicas: int, served: Served) -> SimulatedPool:
    layout = resolved.layout
    return SimulatedPool(
        gpu=resolved.gpu_type.name,
        gpu_id=resolved.gpu_type.id,
        replicas=replicas,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        cp=layout.cp,
        dcp=layout.dcp,
        gpus=replicas * layout.gpus,
        requests_per_s=served.requests_per_s,
        gpu_utilisation=min(1.0, served.busy),
        queue_mean=served.queue_mean,
        queue_max=served.queue_max,
        batch_mean=served.batch_mean,
        batch_max=served.batch_max,
        kv_utilisation_mean=served.cache_mean,
        kv_utilisation_max=served.cache_max,
    )


def _predicted(
    asked: Simulated, served: Mapping[str, Served], runs: tuple[SimulatedRun, ...]
) -> Iterator[bands.Predicted]:
    """Yield the predictions of the engine's own policy, serving as one: others are not what published measurements ran."""
    if asked.split is not None:
        return
    if asked.resolved.question.service.extras != extras.NOTHING or asked.resolved.question.service.model.pooled:
        return  # nothing published says how far off times with optimisations are
    at_a_rate = asked.traffic.rate_per_s is not None or asked.traffic.trace is not None
    for number, run in enumerate(runs):
        if run.policy == OWN and OWN in served:
            prefix = f"runs.{number}." if len(runs) > 1 else ""  # a single run's figures stand in the document itself
            yield from bands.of_run(run, _situation(asked, served[OWN]), prefix, rate_is_asked=at_a_rate)


def _situation(asked: Simulated, served: Served) -> Situation:
    """Return what a run's numbers are of: all at once is how an engine is driven offline."""
    traffic = asked.traffic
    at_once = traffic.rate_per_s is None and traffic.in_flight is None and traffic.trace is None
    in_flight = traffic.in_flight or served.requests_per_s * served.latencies_s["e2e"].get("mean", 0.0)
    situation = situation_of(asked.resolved.question, asked.resolved.gpu_type.gpu, region(in_flight / asked.replicas))
    return situation._replace(mode="offline" if at_once else "served")


def _suggestions(asked: Simulated, runs: tuple[SimulatedRun, ...]) -> tuple[str, ...]:
    """Return what would help where a whole demand, meant for many replicas, is more than the single one can take."""
    grows = any(run.stable is False for run in runs)
    return (SPREAD_OUT,) if grows and not asked.replicas_stated else ()


def _run(policy: str, served: Served, asked: Simulated) -> SimulatedRun:
    tokens_per_s = 0.0 if asked.resolved.question.service.model.pooled else served.output_tokens_per_s
    spreads = {name: _spread(served.latencies_s[name]) for name in LATENCIES}
    has_limits = any(getattr(asked.limits, name) is not None for name in LATENCIES)
    return SimulatedRun(
        policy=policy,
        arrived=served.arrived,
        completed=served.completed,
        refused=served.refused,
        duration_s=served.duration_s,
        requests_per_s=served.requests_per_s,
        requests_per_s_per_gpu=served.requests_per_s / asked.gpus,
        output_tokens_per_s=tokens_per_s,
        output_tokens_per_s_per_gpu=tokens_per_s / asked.gpus,
        ttft_ms=spreads["ttft"],
        itl_ms=spreads["itl"],
        e2e_ms=spreads["e2e"],
        queue=QueueFigures(served.queue_mean, served.queue_max, served.queue_end),
        batch=Extent(served.batch_mean, served.batch_max),
        kv_utilisation=Extent(served.cache_mean, served.cache_max),
        preemptions=served.preemptions,
        goodput_requests_per_s=served.goodput_per_s if has_limits else None,
        gpu_utilisation=served.busy,
        wasted_slot_share=served.wasted,
        stable=served.stable,
        missed=tuple(name for name in LATENCIES if _misses(spreads[name], asked.limits, name)),
    )


def _not_run(policy: str) -> SimulatedRun:
    nothing = SimulatedRun(policy, *[None] * (len(SimulatedRun._fields) - 1))  # type: ignore[arg-type]
    return nothing._replace(
        ttft_ms=NOTHING,
        itl_ms=NOTHING,
        e2e_ms=NOTHING,
        queue=QueueFigures(None, None, None),
        batch=Extent(None, None),
        kv_utilisation=Extent(None, None),
        missed=(),
    )


def _spread(seconds: dict[str, float]) -> Spread:
    return Spread(**{key: seconds[key] / MILLI for key in Spread._fields}) if seconds else NOTHING


def _misses(spread: Spread, limits: Limits, name: str) -> bool:
    """Return whether a statistic is above its limit; one without any measurement keeps it."""
    limit = getattr(limits, name)
    value = getattr(spread, limit.statistic) if limit is not None else None
    return value is not None and value > limit.seconds / MILLI


def _inputs(asked: Simulated, served: Mapping[str, Served]) -> dict[str, Any]:
    traffic = asked.traffic
    sent = next((run.requests for run in served.values()), None)
    found: dict[str, Any] = {
        "clock": "seconds",
        **inputs_of_layout(asked.resolved),
        "replicas": asked.replicas,
        "gpus": asked.gpus,
        "policies": list(asked.policies),
        "slots": next(iter(asked.policies.values())).rules.slots,
        "isl": _mean(traffic, 1, traffic.isl),
        "osl": 0.0 if asked.resolved.question.service.model.pooled else _mean(traffic, 2, traffic.osl),
        "isl_lengths": None if traffic.trace is not None else _lengths(traffic.isl, sent.isl if sent else ()),
        "osl_lengths": None if traffic.trace is not None else _lengths(traffic.osl, sent.osl if sent else ()),
        "load": _load(asked),
        "prefix_hit": next(iter(asked.policies.values())).prefix_hit,
        "routing": asked.routing if asked.routed and traffic.in_flight is None else None,
        "seed": traffic.seed,
        "limit_s": asked.limit_s,
        "limits": _limits(asked.limits),
    }
    dynamic = asked.policies.get("dynamic")
    if dynamic is not None:
        found |= {"batch_size": dynamic.rules.batch_size, "batch_window_s": dynamic.rules.batch_window}
    return found


def _load(asked: Simulated) -> dict[str, Any]:
    """Return the load: its kind, and what states it; the rest is null."""
    t = asked.traffic
    kind = "batch"
    if t.trace is not None:
        kind = "trace"
    elif t.rate_per_s is not None:
        kind = "open_loop"
    elif t.in_flight is not None:
        kind = "closed_loop"
    return {
        "kind": kind,
        "requests": t.count if asked.counted else None,
        "requests_per_s": t.rate_per_s,
        "arrivals": t.arrivals if kind == "open_loop" else None,
        "burstiness": t.burstiness if kind == "open_loop" and t.arrivals == "gamma" else None,
        "concurrency": t.in_flight,
        "trace": asked.trace,
    }


def _mean(traffic: Traffic, column: int, lengths: Lengths) -> float:
    if traffic.trace is not None:
        return float(traffic.trace[:, column].mean())
    return lengths.mean * (1 + lengths.low_share) / 2 if lengths.shape == "uniform" else lengths.mean


def _lengths(lengths: Lengths, sent: Sequence[int]) -> dict[str, Any]:
    """Return a distribution, and the mean of what was drawn from it: chance, cuts and whole tokens move it."""
    spread = lengths.std if lengths.shape in ("normal", "lognormal") else None
    low = lengths.low_share if lengths.shape == "uniform" else None
    drawn = sum(sent) / len(sent) if sent and lengths.shape != "fixed" else None
    return {"shape": lengths.shape, "mean": lengths.mean, "std": spread, "low_share": low, "drawn_mean": drawn}


def _limits(limits: Limits) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in LATENCIES:
        limit = getattr(limits, name)
        found[f"{name}_ms"] = None if limit is None else {"statistic": limit.statistic, "ms": limit.seconds / MILLI}
    return found


def _assumptions(asked: Simulated, runs: tuple[SimulatedRun, ...]) -> tuple[Assumption, ...]:
    resolved = asked.resolved
    candidate = candidate_of(resolved)
    kernels = next(iter(asked.policies.values())).kernels
    found = [
        *assumptions.of_model(resolved.question, resolved.notes),
        *assumptions.of_memory(resolved.question, candidate),
        *assumptions.of_time(resolved.question, candidate, kernels),
    ]
    if asked.traffic.in_flight is not None and asked.replicas > 1:
        share = max(1, round(asked.traffic.in_flight / asked.replicas))
        found.append(
            Assumption("requests in flight", share, "per replica", "assumed", "replicas are alike; one is simulated")
        )
    if asked.split is not None:
        found += pools.assumptions(asked.split.facts)
    if asked.limits.itl is not None and any(run.completed for run in runs) and not any(run.itl_ms.mean for run in runs):
        found.append(NO_ITL)
    return tuple(found)
