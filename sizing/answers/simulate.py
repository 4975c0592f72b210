"""Simulate a given deployment under a load, request by request, once for each scheduling policy.

A scenario is the deployment that a question describes, and the traffic of its load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from numpy.typing import NDArray

from sizing.answers import replica_counts
from sizing.answers.answer import Answer, Pool, unwatched
from sizing.answers.confidence import likely
from sizing.answers.deployment import Resolved, running
from sizing.answers.verify import turns_of
from sizing.engine import simulation
from sizing.engine.deployment import Deployment
from sizing.engine.requests import Arrivals, Lengths, Planned, enough_within
from sizing.engine.rules import POLICIES, of_engine, with_policy
from sizing.engine.run import ROUTINGS, Progress, Routing
from sizing.engine.simulation import Run, Traffic
from sizing.model.architecture import SIZES, Layout
from sizing.question.names import SEPARATE
from sizing.question.question import Question, SeparatePools
from sizing.replica.capacity import Capacity, points_of
from sizing.replica.replica import with_extras
from sizing.replica.timing import timed
from sizing.specs.bands import Band
from sizing.specs.demand import LEAST_REQUESTS_PER_S
from sizing.specs.errors import Fault, InputError, Part, check, listed, not_above_0, not_known, not_whole, raise_any
from sizing.specs.optimisations import MOST_REPLICAS
from sizing.specs.units import MOST_DURATION_S
from sizing.specs.workload import Limits

if TYPE_CHECKING:
    from sizing.answers.pools import PairOfLayouts  # loaded where pools are asked for
    from sizing.specs.workload import Workload

Watch = Callable[[str, int], AbstractContextManager[Progress | None]]  # takes a policy and its number of requests


class Scenario(NamedTuple):
    """What to simulate: a deployment, its replicas under each policy, the traffic, and when to stop.

    `counted` says that the number of requests is given; otherwise all requests until `limit_s` are sent. With a `pair` of
    pools, `resolved` is the decode pool. `asked` is the question before its demand is made a rate.
    """

    resolved: Resolved
    policies: Mapping[str, Deployment]
    traffic: Traffic
    limits: Limits
    routing: Routing
    limit_s: float | None
    trace: str | None
    counted: bool
    replicas_stated: bool
    pair: PairOfLayouts | None = None
    asked: Question | None = None

    @property
    def deployed(self) -> Deployment:
        """The replicas under the first policy."""
        return next(iter(self.policies.values()))

    @property
    def fits(self) -> bool:
        """Whether every pool has enough memory and a layout that the engine accepts."""
        pools = (self.resolved,) if self.pair is None else (self.resolved, self.pair.prefill)
        return all(pool.memory.fits and pool.refused is None for pool in pools)

    @property
    def routed(self) -> bool:
        """Whether a pool has several replicas, so that a router has to choose."""
        return any(part.count > 1 for part in self.deployed.parts)

    @property
    def gpus(self) -> int:
        """GPUs of all replicas in all pools."""
        return self.deployed.gpus


class Runs(NamedTuple):
    """The run of each policy; empty where the deployment does not fit."""

    served: Mapping[str, Run]


def simulate(scenario: Scenario, watch: Watch = unwatched) -> Runs:
    """Simulate the traffic on the deployment under each policy; `watch` follows the progress of a run.

    >>> from sizing import Driving, ask, scenario
    >>> runs = simulate(scenario(ask("chat", gpu="h100-sxm", rps=2), Driving(requests=50)))
    >>> len(runs.served["engine"].requests)
    50
    """
    if not scenario.fits:
        return Runs({})
    limit_s = math.inf if scenario.limit_s is None else scenario.limit_s
    limits, routing = scenario.limits, scenario.routing
    served = {}
    for name, deployed in scenario.policies.items():
        with watch(name, scenario.traffic.count) as progress:
            served[name] = simulation.simulate(
                deployed, scenario.traffic, limits=limits, routing=routing, limit_s=limit_s, progress=progress
            )
    return Runs(served)


OWN = "engine"  # the engine version's own scheduling policy
WINDOW_S = 0.1  # the longest wait of a dynamic batch
MOST_REQUESTS = 10_000_000  # more would not fit in memory
REQUESTS = 10_000  # default number at a rate: a hundred requests lie above the 99th percentile
SECONDS_AND_TOKENS = ("batch_window_s", "limit_s", "isl_std", "osl_std")  # fields of a driving that are above 0
SPARE_SHARE = 0.1  # extra requests of a closed loop with a time limit: random lengths may need more than the mean
Shape = Literal["lognormal", "normal"]


class Arriving(NamedTuple):
    """The arrival process where a rate is stated; `kind` None sends all requests at once."""

    kind: Arrivals | None
    burstiness: float = 1.0


class Driving(NamedTuple):
    """The parameters of a simulation: policies, replicas, arrivals, lengths, seed; None where workload or engine decide."""

    policies: tuple[str, ...] = (OWN,)
    stated_replicas: int | None = None
    slots: int | None = None
    batch_size: int | None = None
    batch_window_s: float = WINDOW_S
    arriving: Arriving = Arriving("poisson")
    requests: int | None = None
    isl_std: float | None = None
    osl_std: float | None = None
    length_shape: Shape = "lognormal"
    length_ratio: float | None = None
    routing: Routing = "random"
    seed: int = 0
    limit_s: float | None = None

    @property
    def replicas(self) -> int:
        """The number of engine instances, by default 1."""
        return self.stated_replicas or 1


AS_IT_IS = Driving()


class EstimatedSize(NamedTuple):
    """The layout and replicas of an estimate. `unstated` has the sizes that the question leaves open; `has_layout`: it states one."""

    layout: Layout
    replicas: int
    unstated: Mapping[str, int]
    has_layout: bool


def estimated_size(question: Question, *, simulated: bool = True) -> EstimatedSize | None:
    """The size that `estimate` finds for the demand of a question, to simulate where none is stated.

    None without a demand, for several GPU types and separate pools, where nothing serves the demand, and for the default, which
    is one replica of the stated layout.

    >>> from sizing import ask
    >>> size = estimated_size(ask("chat", gpu="h100-sxm"), simulated=False)
    >>> size.unstated, size.replicas
    ({'tp': 2}, 4)
    """
    if question.target.amount is None or len(question.space.gpu_types) != 1 or question.space.pools is not None:
        return None
    from sizing.answers.estimate import answer  # loaded where no size is stated

    best = answer(question, simulated=simulated).answer
    if best is None or best.pool.count > MOST_REPLICAS:
        return None
    layout, count, serving = best.pool.replica.layout, best.pool.count, question.service.serving
    unstated = {name: getattr(layout, name) for name in SIZES if getattr(layout, name) != (getattr(serving, name) or 1)}
    if not unstated and count == 1:
        return None
    return EstimatedSize(layout, count, unstated, any(getattr(serving, name) is not None for name in SIZES))


def check_driving(driving: Driving) -> None:
    """Raise InputError with every invalid field of `driving`."""
    raise_any(_invalid(driving))


def _invalid(driving: Driving) -> Iterator[Fault]:
    yield from listed("policies", driving.policies, not_known, (OWN, *POLICIES))
    for name in ("stated_replicas", "slots", "batch_size", "requests"):
        yield from not_whole(name, getattr(driving, name))
    yield from not_above_0("arriving.burstiness", driving.arriving.burstiness)
    for name in SECONDS_AND_TOKENS:
        yield from not_above_0(name, getattr(driving, name))
    yield from not_above_0("length_ratio", driving.length_ratio, most=1.0)
    yield from not_known("arriving.kind", ("poisson", "even", "gamma"), driving.arriving.kind)
    yield from not_known("length_shape", ("lognormal", "normal"), driving.length_shape)
    yield from not_known("routing", ROUTINGS, driving.routing)
    yield from not_whole("seed", driving.seed, least=0)


def check_lengths(workload: Workload, driving: Driving, *, traced: bool) -> None:
    """Raise InputError for lengths of `driving` or a trace where turns, or a task without output tokens, say the lengths."""
    prefix = workload.optimisations.prefix
    if prefix is not None and prefix.turns is not None:
        others = {"a trace": traced, "--isl-std": driving.isl_std, "--length-ratio": driving.length_ratio}
        other = next((name for name, value in others.items() if value), None)
        if other is not None:
            twice, remedy = (
                f"turns say how long prompts are, and so does {other}",
                "state one of them; of a trace --prefix-hit",
            )
            raise InputError(twice, field="optimisations.prefix.turns", remedy=remedy)
    if workload.pooled and driving.osl_std is not None:
        raise InputError(f"{workload.task} gives no tokens", field="--osl-std", allowed="none")


class Trace(NamedTuple):
    """Arrivals and lengths from a file: its name, and a row for each request."""

    name: str
    rows: NDArray[Any]


def scenario(
    question: Question,
    driving: Driving = AS_IT_IS,
    *,
    trace: Trace | None = None,
    placed: Callable[[Fault], Fault] = lambda fault: fault,
) -> Scenario:
    """The question's deployment on its first GPU type, under its load.

    A `trace` replaces the load and the lengths. `placed` adds the place of an input to its fault. Raises InputError where no
    load is stated, and for a load that the replicas or the simulation clock cannot take.

    >>> from sizing import ask
    >>> found = scenario(ask("chat", gpu="h100-sxm", rps=2), Driving(requests=50))
    >>> found.gpus, found.traffic.count, found.traffic.rate_per_s
    (1, 50, 2.0)
    """
    check_driving(driving)
    check_lengths(question.origin.workload, driving, traced=trace is not None)
    pools = question.space.pools
    if pools is not None:
        driving = driving._replace(stated_replicas=pools.given[1] or 1)
    decode = _keeping(running(question, None if pools is None else pools.decode), driving.replicas)
    asked, decode = decode.question, _at_rate(decode, driving.replicas)
    policies = _policies(decode, driving)
    rows = None if trace is None else trace.rows
    traffic = Part(lambda: _traffic(decode, driving, rows, policies), placed)
    pair = Part(lambda: None if pools is None else _pair(pools, decode, traffic.value), placed)
    check(traffic, pair)
    if pools is not None and pair.value is not None:
        before, transfer = _deployed(pair.value.prefill, pools.given[0] or 1), pair.value.transfer
        policies = {name: replace(each, prefill=before, transfer=transfer) for name, each in policies.items()}
    _check_share(traffic.value, driving.replicas)
    return Scenario(
        resolved=decode,
        policies=policies,
        traffic=traffic.value,
        limits=question.origin.workload.limits,
        routing=driving.routing,
        limit_s=driving.limit_s,
        trace=None if trace is None else trace.name,
        counted=trace is not None or driving.requests is not None or driving.limit_s is None,
        replicas_stated=driving.stated_replicas is not None,
        pair=pair.value,
        asked=asked,
    )


def ranges(scenario: Scenario) -> tuple[Band, ...]:
    """The ranges of measured over predicted that an answer of this deployment under this demand has.

    They are by the runs of the sure count; empty without a stated demand that arrives at random.
    """
    asked, resolved, count = scenario.asked, scenario.resolved, scenario.deployed.count
    traffic, question = scenario.traffic, scenario.resolved.question
    if scenario.pair is not None or asked is None or traffic.rate_per_s is None or question.target.amount is None:
        return ()
    load = timed(resolved.replica)
    most = Capacity(question.target.amount, 0.0, load.most_decoding, "")
    (point,) = points_of([load], [question.target], [most], [count])
    return likely(Answer((Pool(load, count, most, point),)), asked)


def _keeping(resolved: Resolved, replicas: int) -> Resolved:
    """The deployment with the cache hit rate that its load allows between turns, where a think time is stated."""
    question = resolved.question
    if question.service.extras.cached.think_time_s is None or resolved.refused is not None or not resolved.memory.fits:
        return resolved
    if question.target.amount is None:
        message, remedy = "needs a load to say how many talks are idle", "use it with --rps, --users or --concurrency"
        raise InputError(message, field="--think-time", remedy=remedy)
    extras = replica_counts.extras_at(resolved.replica, question.target, replicas)
    return resolved._replace(question=question.with_(extras=extras), replica=with_extras(resolved.replica, extras))


def _at_rate(resolved: Resolved, replicas: int) -> Resolved:
    """A deployment for users, or for random requests in flight, at the rate that follows from its E2E."""
    question = resolved.question
    population = question.target.population
    if population is None:
        return resolved
    rate = population / (question.target.think_time_s or 1.0)  # a placeholder for a deployment that does not fit
    if resolved.refused is None and resolved.memory.fits:
        load = timed(resolved.replica)
        most = Capacity(0.0, 0.0, load.most_decoding, "")
        (point,) = points_of([load], [question.target], [most], [replicas])
        rate = point.requests_per_s * replicas
    return resolved._replace(question=question.with_(requests_per_s=rate, population=None, think_time_s=0.0))


def _policies(resolved: Resolved, driving: Driving) -> dict[str, Deployment]:
    """The deployment under each policy, with shared timing constants."""
    whole = _deployed(resolved, driving.replicas, driving.slots)
    own, size = whole.rules, driving.batch_size or whole.rules.slots
    return {
        name: whole
        if name == OWN
        else replace(
            whole, rules=with_policy(own, name, ticks=False, batch_size=size, batch_window=driving.batch_window_s)
        )
        for name in driving.policies
    }


def _deployed(resolved: Resolved, replicas: int, slots: int | None = None) -> Deployment:
    rules = of_engine(resolved.replica.settings, slots, verified=resolved.question.service.extras.verified)
    return Deployment(resolved.kernels(), resolved.memory, rules, replicas)


def _traffic(
    resolved: Resolved, driving: Driving, trace: NDArray[Any] | None, policies: Mapping[str, Deployment]
) -> Traffic:
    """The traffic: a trace, a rate, a number in flight, or all requests at once. Raises InputError without a load."""
    request, arriving, count = resolved.question, driving.arriving, driving.requests
    asked = request.origin.workload
    tokens = asked.tokens
    isl = turns_of(tokens) or _lengths(tokens.isl, driving.isl_std or tokens.isl_std, tokens.isl_max, driving)
    osl = _lengths(tokens.osl, driving.osl_std or tokens.osl_std, tokens.osl_max, driving)
    base = Traffic(isl, osl, count or REQUESTS, seed=driving.seed)
    if trace is not None:
        return replace(base, count=len(trace), trace=Planned.of_rows(trace), longest=request.service.max_model_len)
    base = replace(base, longest=_longest(asked, base, request))
    if request.target.concurrency is not None and arriving.kind is not None:
        closed = replace(
            base, in_flight=request.target.concurrency, count=count or simulation.ROUNDS * request.target.concurrency
        )
        if count is not None or driving.limit_s is None or not resolved.memory.fits or resolved.refused is not None:
            return closed
        return replace(closed, count=_within_limit(_most_closed(closed, driving.limit_s, policies)))
    if request.target.requests_per_s is not None and arriving.kind is not None:
        rate = request.target.requests_per_s
        open_ = replace(base, rate_per_s=rate, arrivals=arriving.kind, burstiness=arriving.burstiness)
        return replace(open_, count=_count_of_rate(open_, rate, driving))
    if count is None:
        remedy = "use --rps, --users, --concurrency, --dau, --trace, or --requests alone for all at once"
        raise InputError("nothing says what to send", field="--requests", remedy=remedy)
    return base


def _count_of_rate(traffic: Traffic, rate: float, driving: Driving) -> int:
    """The number of requests to send at a rate: as stated, all until the time limit, or enough for percentiles.

    Raises InputError for a rate too low, or a number of requests too high, for the resolution of the simulation clock.
    """
    if rate < LEAST_REQUESTS_PER_S:
        message = f"brings {rate:g} requests/s, too few for a clock to tell steps apart"
        raise InputError(message, field="demand", allowed=f"at least {LEAST_REQUESTS_PER_S:g}")
    within = max(1, math.floor(rate * MOST_DURATION_S))
    if driving.limit_s is not None:
        if driving.requests is not None:
            return driving.requests
        return _within_limit(enough_within(driving.limit_s, rate, traffic.arrivals, burstiness=traffic.burstiness))
    if driving.requests is not None and driving.requests > within:
        message = f"{driving.requests:,} at {rate:g}/s take longer than a year to arrive"
        raise InputError(message, field="--requests", allowed=f"at most {within:,}, or a --limit")
    return driving.requests or min(REQUESTS, within)


def _most_closed(traffic: Traffic, limit_s: float, policies: Mapping[str, Deployment]) -> float:
    """The most requests of a closed loop that can end within `limit_s`: none is faster than a lone request."""
    assert traffic.in_flight is not None
    alone = replace(traffic, isl=Lengths(traffic.isl.mean), osl=Lengths(traffic.osl.mean))
    ends_s = [
        simulation.simulate(replace(deployed, count=1), replace(alone, in_flight=1, count=1)).latencies_s["e2e"]
        for deployed in policies.values()
    ]
    shortest_s = min((end["mean"] for end in ends_s if end), default=limit_s)
    return math.ceil(traffic.in_flight * (1 + (1 + SPARE_SHARE) * limit_s / shortest_s))


def _within_limit(count: float) -> int:
    """`count` as the number of requests until the time limit. Raises InputError for more than fit in memory."""
    if count > MOST_REQUESTS:
        message = f"up to {count:,.0f} requests may come until then"
        allowed = f"a shorter one (for at most {MOST_REQUESTS:,}), or with --requests"
        raise InputError(message, field="--limit", allowed=allowed)
    return int(count)


def _lengths(mean: int, std: float | None, longest: int | None, driving: Driving) -> Lengths:
    if driving.length_ratio is not None:
        return Lengths(mean, shape="uniform", low_share=driving.length_ratio)
    return Lengths(mean, std, driving.length_shape, longest=longest) if std else Lengths(mean)


def _longest(workload: Workload, traffic: Traffic, question: Question) -> int:
    """The longest sequence: the service's, or the model's maximum where the length distributions are unbounded."""
    if workload.serving.max_model_len:
        return question.service.max_model_len
    endless = any(length.std and length.longest is None for length in (traffic.isl, traffic.osl))
    return question.service.model.max_position if endless else question.service.max_model_len


def _check_share(traffic: Traffic, replicas: int) -> None:
    if traffic.in_flight is not None and traffic.in_flight < replicas:
        message = f"{traffic.in_flight} in flight leave some of {replicas} replicas idle"
        raise InputError(message, field="--concurrency", allowed=f"at least {replicas}")


def _pair(pools: SeparatePools, decode: Resolved, traffic: Traffic) -> PairOfLayouts:
    """The decode pool with its prefill pool. Raises InputError for a closed loop, and as `pools.paired` does."""
    from sizing.answers.pools import paired  # loaded where separate pools are asked for

    if traffic.in_flight is not None:
        remedy = "use it with --rps, --dau, --trace, or --requests alone"
        raise InputError("a closed loop is not simulated over two pools", field=SEPARATE, remedy=remedy)
    question = decode.question.with_(precisions=(decode.replica.plan.weight_format,))
    return paired(pools, running(question, pools.prefill), decode)
