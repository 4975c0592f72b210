"""From a deployment to replicas that can be simulated: clock, rules, pool and batch of each.

Simulated service of a deployment: a load driven through the engine's scheduler, and what came out, in seconds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.engine import run
from sizing.engine.batch import DecodeBatch, KvCache
from sizing.engine.clock import step_clock, windows_of
from sizing.engine.requests import Arrivals, Lengths, Requests, Watch, arrival_times
from sizing.engine.rules import SchedulerRules, of_engine
from sizing.engine.run import History, Meter, Progress, Record, Routing, Sample
from sizing.engine.scheduler import Scheduler
from sizing.model.architecture import Shard
from sizing.model.extras import NOTHING
from sizing.model.memory import ONE_BY_ONE, MemoryUse, block_tokens, growing_bytes, lost_bytes, sequence_bytes
from sizing.replica.kernels import Kernels
from sizing.replica.timing import Timed
from sizing.specs.engine import FrontEnd
from sizing.specs.model import Model
from sizing.specs.units import GIB
from sizing.specs.workload import LATENCIES, Limits

AT_ONCE = 2**16  # rows of a trace
MOST_TABLED = 2**17  # tokens of a step that a table is made for; longer ones extend its last slope


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """Equal replicas: a shard with its timing constants, the memory of one GPU, the scheduler's rules of one attention-data rank."""

    kernels: Kernels
    memory: MemoryUse
    rules: SchedulerRules
    count: int = 1

    @property
    def shard(self) -> Shard:
        """What each replica runs."""
        return self.kernels.shard


def set_of(timed: Timed, count: int = 1) -> ReplicaSet:
    """Equal replicas that are scheduled as their engine does."""
    replica = timed.replica
    rules = of_engine(replica.settings, verified=replica.service.extras.verified)
    return ReplicaSet(timed.kernels, replica.memory, rules, count)


def kv_cache(of: ReplicaSet, longest: int) -> KvCache:
    """The cache of the tightest stage's GPU: blocks for layers that keep everything, a fixed part for others.

    Prefixes that sequences share are taken out of it once, and are none of a sequence's own. A windowed layer keeps its
    window of every sequence; what it keeps of prompts in prefill beyond that is bounded by the token budget of a step, for
    all of them together, and taken out once.
    """
    settings, extras = of.shard.settings, of.shard.extras
    prefilling = replace(of.shard, extras=replace(extras, cached=NOTHING.cached))
    decoding = replace(prefilling, settings=settings.model_copy(update=ONE_BY_ONE))
    stage = max(of.shard.stages, key=lambda s: sequence_bytes(decoding, s, longest))
    growing, block = growing_bytes(of.shard, stage), block_tokens(of.shard, stage)
    whole = sequence_bytes(decoding, stage, longest)
    in_prefill = sequence_bytes(prefilling, stage, longest) - whole
    blocks = -(-(longest + extras.verified - 1) // block)
    shared = extras.cached.shared_tokens // block
    lost = lost_bytes(of.shard, stage)
    return KvCache(
        size_bytes=of.memory.kv_cache_gib * GIB - lost - in_prefill - extras.cached.distinct * shared * growing * block,
        block_bytes=growing * block,
        block_tokens=block,
        fixed_bytes=max(0.0, whole - blocks * block * growing),
        shared_blocks=shared,
    )


def schedulers(
    of: ReplicaSet, requests: Requests, *, longest: int, one_by_one: bool = False, handed: bool = False
) -> tuple[Scheduler, ...]:
    """The schedulers of equal replicas for requests of up to `longest` tokens.

    A replica has the slots and the cache of all of its ranks in one: what each rank's own scheduler would turn away while
    another has room is not seen. What is `handed` over to them has been in a front end before.
    """
    shard, rules = of.shard, of.rules
    most = int(min(rules.budget + rules.slots * rules.tokens_per_decode, MOST_TABLED))
    ticking = step_clock(of.kernels, most_tokens=most, most_rows=min(rules.slots, MOST_TABLED) + 1)
    if handed:
        ticking = replace(ticking, front_end=FrontEnd(per_request_ms=0.0, per_prompt_token_us=0.0))
    of_rank, windows = kv_cache(of, longest), windows_of(shard.model)
    template = replace(of_rank, size_bytes=of_rank.size_bytes * shard.layout.dp)
    return tuple(
        Scheduler(
            requests,
            ticking,
            rules.over(shard.layout.dp, shard.layout.pp),
            replace(template),
            DecodeBatch(windows),
            prefix_hit=shard.extras.cached.share,
            finds=shard.extras.cached.finds,
            tokens_per_step=shard.extras.tokens_per_step,
            one_by_one=one_by_one,
            handed=handed,
        )
        for _ in range(of.count)
    )


ROUNDS = 10  # of a closed loop without a number of requests: each place is filled so often, as benchmark tools do
QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
# A run is unstable when, over its second half, more than this share of what arrives stays behind, and that is more than
# chance brings (three standard deviations of as many Poisson arrivals).
GROWTH_SHARE = 0.02
CHANCE_SIGMAS = 3.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests to send: lengths, how many, and either a rate, a number in flight, all at once, or a trace.

    Exactly one of `rate_per_s`, `in_flight` and `trace` is set, or none for a batch; `trace` holds arrival in s, prompt
    and output tokens, one row a request. Drawn lengths are cut to `longest` tokens together, rows of a trace beyond it
    are refused, as an engine does. Of a rate, the first `warm_up` and the last `cool_down` requests are served but not
    measured, and `exact_rate` stretches what chance brought to the rate asked, so that a short run is not a lighter one
    (means vary a third as much, without bias).
    """

    isl: Lengths
    osl: Lengths
    count: int
    rate_per_s: float | None = None
    in_flight: int | None = None
    trace: NDArray[np.float64] | None = None
    arrivals: Arrivals = "poisson"
    burstiness: float = 1.0
    longest: int | None = None
    warm_up: int = 0
    cool_down: int = 0
    exact_rate: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """What a run served, over the requests that are measured.

    Rates and means over time are over the same `duration_s`: from the start, or the first arrival after a warm-up, to the
    last end, or the first arrival of a cool-down, or the limit that cut the run. `latencies_s` maps ttft, itl and e2e to {mean, p50, ... max}; ITL is a request's mean over its tokens after the first.
    `stable` is False when the queue kept growing: then latencies depend on how long the run was. `busy` is the share of
    time in which a step ran, `wasted` that of slot time left empty while requests waited, slots being the most that were
    used at once. `measured_s` are the latencies of each
    measured request of a steady load, in the order of arrival. Queues are those of all replicas but for `queue_max`, batches are of one (on average), `samples` the first's.
    """

    arrived: int
    completed: int
    refused: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    latencies_s: dict[str, dict[str, float]]
    queue_mean: float
    queue_max: int
    queue_end: int
    batch_mean: float
    batch_max: int
    cache_mean: float
    cache_max: float
    busy: float
    preemptions: int
    goodput_per_s: float
    stable: bool
    wasted: float
    measured_s: dict[str, NDArray[np.float64]] = field(repr=False, compare=False)
    samples: tuple[Sample, ...] = field(repr=False, compare=False)
    requests: Requests = field(repr=False, compare=False)


def simulate(
    deployed: ReplicaSet,
    traffic: Traffic,
    *,
    limits: Limits | None = None,
    routing: Routing = "random",
    limit_s: float = math.inf,
    one_by_one: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Drive the traffic through the deployment and measure. Deterministic for a seed."""
    rng = np.random.default_rng(traffic.seed)
    longest = traffic.longest or longest_of(traffic, deployed.shard.model)
    requests, turned_away = _to_send(traffic, longest, rng, limit_s)
    replicas = schedulers(deployed, requests, longest=longest, one_by_one=one_by_one)
    meter = Meter(replicas, progress) if progress is not None else None
    for replica in replicas:
        replica.observer = Record(replica, meter)
    sending = meter.sending if meter is not None else None
    if traffic.in_flight is not None:
        finished = _closed(traffic, requests, replicas, rng, longest=longest, limit_s=limit_s, progress=sending)
        return measure(finished, traffic, limits, limit_s=limit_s)
    if meter is not None and traffic.rate_per_s is None and traffic.trace is None:
        meter.sent = len(requests)
    finished = run.open_loop(
        requests,
        replicas,
        routing=routing,
        seed=traffic.seed,
        limit=limit_s,
        watched=watched(traffic),
        progress=sending,
    )
    return measure(finished, traffic, limits, limit_s=limit_s, turned_away=turned_away)


def _to_send(traffic: Traffic, longest: int, rng: np.random.Generator, limit_s: float) -> tuple[Requests, int]:
    """The requests that come until a limit but for those that are too long, and how many these are; none of a closed loop."""
    requests, turned_away, rows = Requests(), 0, traffic.trace
    if traffic.in_flight is not None:
        return requests, 0
    if rows is not None and rows[-1, 0] < limit_s and (rows[:, 1] + rows[:, 2]).max() <= longest:
        return Requests.of_rows(rows), 0
    for arrival, isl, osl in open_requests(traffic, longest, rng):
        if arrival >= limit_s:
            break
        if isl + osl > longest:
            turned_away += 1
        else:
            requests.add(arrival, isl, osl)
    return requests, turned_away


def watched(traffic: Traffic) -> tuple[int, int] | None:
    """(first measured request, first request after the measured ones), or None where all are measured."""
    if not traffic.warm_up and not traffic.cool_down:
        return None
    return traffic.warm_up, traffic.count - traffic.cool_down


def longest_of(traffic: Traffic, model: Model) -> int:
    """The longest sequence in tokens: of a trace its own, else the model's maximum where lengths vary."""
    if traffic.trace is not None:
        return int(np.max(traffic.trace[:, 1] + traffic.trace[:, 2]))
    if traffic.isl.shape == "fixed" and traffic.osl.shape == "fixed":
        return int(traffic.isl.mean + traffic.osl.mean)
    return model.max_position


def open_requests(traffic: Traffic, longest: int, rng: np.random.Generator) -> Iterator[tuple[float, int, int]]:
    """Yield (arrival in s, prompt tokens, output tokens) of each request that is not sent by the end of another."""
    if traffic.trace is not None:
        for start in range(0, len(traffic.trace), AT_ONCE):  # a list of all rows would be many times as large
            for arrival, isl, osl in traffic.trace[start : start + AT_ONCE].tolist():
                yield arrival, max(1, int(isl)), max(1, int(osl))
        return
    isl, osl = _drawn(traffic, traffic.count, longest, rng)
    if traffic.rate_per_s is None:
        arrivals = np.zeros(traffic.count)
    else:
        arrivals = arrival_times(
            traffic.count, traffic.rate_per_s, traffic.arrivals, rng, burstiness=traffic.burstiness
        )
        if traffic.exact_rate:
            arrivals = _at_rate(arrivals, traffic)
    yield from zip(arrivals.tolist(), isl, osl, strict=True)


def _at_rate(arrivals: NDArray[np.float64], traffic: Traffic) -> NDArray[np.float64]:
    """Stretch what chance brought so that warm-up, measured part and cool-down each have the mean rate exactly."""
    assert traffic.rate_per_s is not None
    parts = (0, traffic.warm_up, traffic.count - traffic.cool_down, traffic.count)
    ends = np.unique([part for part in parts if 0 <= part <= traffic.count])
    at = np.concatenate([[0.0], arrivals])[ends]
    return np.interp(arrivals, at, ends / traffic.rate_per_s)


def _drawn(traffic: Traffic, count: int, longest: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Draw prompt and output lengths, cut to `longest` tokens together."""
    isl, osl = traffic.isl.draw(count, rng), traffic.osl.draw(count, rng)
    osl = np.minimum(osl, longest - 1)
    return np.minimum(isl, longest - osl).tolist(), osl.tolist()


def _closed(
    traffic: Traffic,
    requests: Requests,
    replicas: tuple[Scheduler, ...],
    rng: np.random.Generator,
    *,
    longest: int,
    limit_s: float,
    progress: Progress | None,
) -> History:
    """A closed loop over several replicas: clients stay with theirs, and are spread as evenly as they go."""
    assert traffic.in_flight is not None
    isl, osl = _drawn(traffic, traffic.count, longest, rng)
    lengths = iter(zip(isl, osl, strict=True))
    clients = [traffic.in_flight * n // len(replicas) for n in range(len(replicas) + 1)]
    sent = [traffic.count * n // traffic.in_flight for n in clients]  # requests in proportion to clients
    ended = [
        run.closed_loop(
            requests,
            replica,
            in_flight=clients[n + 1] - clients[n],
            count=sent[n + 1] - sent[n],
            lengths=lengths,
            limit=limit_s,
            progress=_after(sent[n], progress),
        )
        for n, replica in enumerate(replicas)
    ]
    return History(
        requests,
        replicas,
        max(history.ended for history in ended),
        tuple(w for history in ended for w in history.watches),
    )


def _after(sent: int, progress: Progress | None) -> Progress | None:
    """The progress of a replica's requests, counted after the `sent` requests of earlier replicas."""
    return None if progress is None else lambda number: progress(sent + number)


def measure(
    finished: History,
    traffic: Traffic,
    limits: Limits | None,
    *,
    limit_s: float = math.inf,
    turned_away: int = 0,
    refused: Sequence[int] | None = None,
) -> Run:
    """Measure a run that a limit may have cut. `turned_away` requests were longer than the engine takes: refused.

    `refused` are the numbers of those that the replicas refused, by their own account where they are not given.
    """
    requests = finished.requests
    arrival, end, first = map(np.asarray, (requests.arrival, requests.finished, requests.first_token))
    osl = np.asarray(requests.osl)
    refused = finished.refused if refused is None else refused
    taken: slice | NDArray[np.bool_] = slice(None)  # which copies nothing
    if refused:
        taken = np.ones(arrival.size, dtype=bool)
        taken[list(refused)] = False
    clumps = max(1.0, 1 / traffic.burstiness) if traffic.arrivals == "gamma" else 1.0
    stable = traffic.in_flight is not None or is_stable(
        arrival[taken], np.asarray(requests.admitted)[taken], end[taken], clumps=clumps
    )
    stop = min(limit_s, _ended(finished, end[taken]))
    done = end <= stop
    done[: traffic.warm_up] = False
    done[max(0, arrival.size - traffic.cool_down) :] = False
    started = float(arrival[traffic.warm_up]) if 0 < traffic.warm_up < arrival.size else 0.0
    if traffic.cool_down and arrival.size > traffic.cool_down:
        stop = float(arrival[-traffic.cool_down])
    duration = max(stop - started, 0.0)
    measured = _MeasuredRequests(arrival, first, end, osl, done)
    per_s = 1 / duration if duration > 0 else 0.0
    watches = finished.watches
    spans = [_span(watch, max(stop, replica.now)) for watch, replica in zip(watches, finished.replicas, strict=True)]
    sizes = [replica.pool.size_bytes for replica in finished.replicas]
    records = [replica.observer for replica in finished.replicas if isinstance(replica.observer, Record)]
    filled = [(watch, size, span) for watch, size, span in zip(watches, sizes, spans, strict=True) if size > 0]
    return Run(
        arrived=arrival.size + turned_away,
        completed=int(done.sum()),
        refused=len(refused) + turned_away,
        duration_s=duration,
        requests_per_s=float(done.sum()) * per_s,
        output_tokens_per_s=float(osl[done].sum()) * per_s,
        latencies_s={name: statistics(measured.of(name)) for name in LATENCIES},
        queue_mean=sum(w.queue / span for w, span in zip(watches, spans, strict=True)),
        queue_max=max(w.queue_max for w in watches),
        queue_end=sum(len(replica.queue) for replica in finished.replicas),
        batch_mean=sum(w.batch / span for w, span in zip(watches, spans, strict=True)) / len(watches),
        batch_max=max(w.batch_max for w in watches),
        cache_mean=sum(w.cache / size / span for w, size, span in filled) / len(watches),
        cache_max=max((w.cache_max / size for w, size, _ in filled), default=0.0),
        busy=sum(w.busy / span for w, span in zip(watches, spans, strict=True)) / len(watches),
        preemptions=sum(replica.preempted for replica in finished.replicas),
        goodput_per_s=_good(limits, measured) * per_s,
        stable=stable,
        wasted=sum(record.wasted(stop) for record in records) / len(watches),
        measured_s={name: measured.of(name) for name in LATENCIES} if traffic.warm_up else {},
        samples=tuple(records[0].samples) if records else (),
        requests=requests,
    )


class _MeasuredRequests(NamedTuple):
    """Requests that are measured: times by request, and which are `done`. A latency is made when it is asked for: they are long."""

    arrival: NDArray[np.float64]
    first: NDArray[np.float64]
    end: NDArray[np.float64]
    osl: NDArray[np.int64]
    done: NDArray[np.bool_]

    def of(self, name: str) -> NDArray[np.float64]:
        """TTFT, E2E, or ITL as the mean over the tokens after the first, of those with any, in the order of arrival."""
        if name == "ttft":
            return _where(self.first - self.arrival, self.done)
        if name == "e2e":
            return _where(self.end - self.arrival, self.done)
        after_first, tokens = self.end - self.first, self.osl - 1
        after_first /= np.maximum(tokens, 1, out=tokens)
        return _where(after_first, self.done & self.decodes)

    @property
    def decodes(self) -> NDArray[np.bool_]:
        """Which requests have a token after the first."""
        decoding: NDArray[np.bool_] = self.osl > 1
        return decoding


def _where(values: NDArray[np.float64], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    return values if chosen.all() else values[chosen]


def _span(watch: Watch, ended: float) -> float:
    """Time that a replica was watched, above 0: a divisor of integrals."""
    return max((ended if math.isnan(watch.until) else watch.until) - watch.since, sys.float_info.min)


def _ended(finished: History, end: NDArray[np.float64]) -> float:
    """The end of a run: the end of its last request where all have ended, before any time limit."""
    return finished.ended if end.size == 0 or np.isnan(end).any() else float(end.max())


def statistics(values: NDArray[np.float64]) -> dict[str, float]:
    """Mean, percentiles and maximum of `values`, whose order is lost; an empty mapping for no values."""
    if values.size == 0:
        return {}
    found = {"mean": float(values.mean()), "max": float(values.max())}
    quantiles = np.quantile(values, list(QUANTILES.values()), overwrite_input=True)
    return {**found, **{name: float(value) for name, value in zip(QUANTILES, quantiles, strict=True)}}


def _good(limits: Limits | None, measured: _MeasuredRequests) -> float:
    """Count the requests that each meet every limit, whatever statistic the limit bounds (DistServe's goodput)."""
    good = np.ones(int(measured.done.sum()), dtype=bool)
    for name in LATENCIES:
        limit = None if limits is None else getattr(limits, name)
        if limit is None:
            continue
        met = measured.of(name) <= limit.seconds
        if name == "itl":
            good[measured.decodes[measured.done]] &= met
        else:
            good &= met
    return float(good.sum())


def is_stable(
    arrival: NDArray[np.float64], admitted: NDArray[np.float64], end: NDArray[np.float64], *, clumps: float = 1.0
) -> bool:
    """Whether departures keep up with arrivals: the number in the system does not grow over the run's second half.

    While a run is shorter than two requests take, the system fills. Then only requests that wait for admission count.
    `clumps` is the squared coefficient of variation of the times between arrivals, 1 for Poisson. The variance of the
    counts grows with `clumps`.
    """
    if arrival.size < 4 or arrival[-1] <= arrival[0]:
        return True
    middle, last = arrival[arrival.size // 2], arrival[-1]
    times = _where(end - arrival, ~np.isnan(end))
    fills = times.size == 0 or float(np.median(times, overwrite_input=True)) > last - middle
    del times
    left = admitted[~np.isnan(admitted)] if fills else end[~np.isnan(end)]
    left.sort()
    came = arrival.size - arrival.size // 2
    grown = came - float(np.searchsorted(left, last, "right") - np.searchsorted(left, middle, "right"))
    return grown <= max(GROWTH_SHARE * came, CHANCE_SIGMAS * math.sqrt(clumps * came))
