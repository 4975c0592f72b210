"""Simulated service of a deployment: drives a load through the engine's scheduler and measures the result in seconds."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sizing.engine import run
from sizing.engine.deployment import Deployment, schedulers
from sizing.engine.requests import Arrivals, Lengths, Planned, Requests, Watch, arrival_times
from sizing.engine.run import History, Meter, Progress, Record, Routing, Sample
from sizing.engine.scheduler import Scheduler
from sizing.specs.frozen import Frozen
from sizing.specs.model import Model
from sizing.specs.units import PERCENTILES
from sizing.specs.workload import LATENCIES, Limits

ROUNDS = 10  # requests per client in a closed loop without a given number of requests, as in benchmark tools
# A run is unstable if more than GROWTH_SHARE of the arrivals in its second half stay behind, and if this is more than
# chance (three standard deviations of as many Poisson arrivals).
GROWTH_SHARE = 0.02
CHANCE_SIGMAS = 3.0
BATCH_STEADY = 0.5, 0.9  # the shares of a batch's ends between which its rate is steady: caches fill first


class Traffic(Frozen):
    """Requests to send: lengths, how many, and either a rate, a number in flight, all at once, or a trace.

    Exactly one of `rate_per_s`, `in_flight` and `trace` is set, or none for a batch. Drawn lengths are cut so that prompt and output have at most `longest`
    tokens; longer requests of a trace are refused, as engines do. With a rate, the first `warm_up` and the last `cool_down`
    requests are served but not measured. `exact_rate` stretches the random arrivals to the exact rate, so that a short run
    is not a lighter one; means then vary a third as much, without bias.
    """

    isl: Lengths
    osl: Lengths
    count: int
    rate_per_s: float | None = None
    in_flight: int | None = None
    trace: Planned | None = None
    arrivals: Arrivals = "poisson"
    burstiness: float = 1.0
    longest: int | None = None
    warm_up: int = 0
    cool_down: int = 0
    exact_rate: bool = False
    seed: int = 0

    @property
    def at_once(self) -> bool:
        """Whether all requests arrive at the start."""
        return self.rate_per_s is None and self.in_flight is None and self.trace is None


class Run(Frozen):
    """What a run served, over the requests that are measured.

    All rates and means over time are over `duration_s`. It begins at the start, or at the first arrival after a warm-up. It
    ends at the last end, at the first arrival of a cool-down, or at the limit that cut the run. `latencies_s` maps ttft,
    itl and e2e to {mean, p50, ... max}; the ITL of a request is its mean over the tokens after the first. `stable` is False
    when the queue kept growing: latencies then depend on the length of the run.

    `busy` is the share of time in which a step ran. `wasted` is the share of slot time that was empty while requests
    waited; the number of slots is the most that were used at once. Queues count all replicas, but `queue_max` is of one.
    Batches are the average of one replica, and `samples` are those of the first. For a steady load, `measured_s` has the
    latencies of each measured request in the order of arrival, and the `gap` since the previous arrival. With prefill and
    decode pools, `parts` has what each pool served by itself, and `transfer_s` is the mean time of a cache transfer.
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
    parts: tuple[Run, ...] = field(default=(), repr=False)
    transfer_s: float = 0.0

    def batch_s(self, requests: float) -> float:
        """Seconds in which `requests` that are all offered at once are done, in a run of such a batch.

        Requests beyond those of the run are done at its steady rate.
        """
        finished_s = np.asarray(self.requests.finished)
        ended_s = np.sort(finished_s[~np.isnan(finished_s)])
        more = math.ceil(requests) - ended_s.size
        if more <= 0:
            return float(ended_s[more - 1])
        steady = slice(*(int(share * ended_s.size) for share in BATCH_STEADY))
        per_request_s, _ = np.polyfit(np.arange(ended_s.size)[steady], ended_s[steady], 1)
        return float(ended_s[-1] + more * per_request_s)

    @property
    def from_admission(self) -> Run:
        """This run with the TTFT and the E2E of each request from its admission on, without its wait in the queue."""
        sent = self.requests
        since_s, first_s, ended_s = (np.asarray(of) for of in (sent.admitted, sent.first_token, sent.finished))
        done = ~np.isnan(ended_s)
        own_s = {"ttft": (first_s - since_s)[done], "e2e": (ended_s - since_s)[done]}
        return replace(self, latencies_s={**self.latencies_s, **{name: statistics(of) for name, of in own_s.items()}})

    def continued(self, again: Run) -> Run:
        """This run and another of the same load as one: rates and means over both durations, and the extremes of both."""
        spans_s = self.duration_s, again.duration_s
        figures = {name: getattr(self, name) + getattr(again, name) for name in COUNTS}
        figures |= {name: max(getattr(self, name), getattr(again, name)) for name in MAXIMA}
        for name in MEANS:
            first, second = getattr(self, name), getattr(again, name)
            figures[name] = (first * spans_s[0] + second * spans_s[1]) / sum(spans_s)
        measured_s = {name: np.concatenate((of, again.measured_s[name])) for name, of in self.measured_s.items()}
        return replace(
            self,
            duration_s=sum(spans_s),
            latencies_s={name: statistics(measured_s[name].copy()) for name in LATENCIES},
            queue_end=again.queue_end,
            stable=self.stable and again.stable,
            measured_s=measured_s,
            parts=tuple(map(Run.continued, self.parts, again.parts)),
            **figures,
        )


COUNTS = ("arrived", "completed", "refused", "preemptions")
MAXIMA = ("queue_max", "batch_max", "cache_max")
MEANS = (
    *("requests_per_s", "output_tokens_per_s", "goodput_per_s", "queue_mean", "batch_mean", "cache_mean"),
    *("busy", "wasted", "transfer_s"),
)


def simulate(
    deployed: Deployment,
    traffic: Traffic,
    *,
    limits: Limits | None = None,
    routing: Routing = "random",
    limit_s: float = math.inf,
    one_by_one: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Drive the traffic through the deployment and measure it. Deterministic for a seed.

    With a prefill part, every request first ends there with its first token. It then arrives at the decode replicas,
    delayed by the transfer of its cache. Its TTFT ends when its cache arrives, because the decode replica answers from then
    on; a wait for a slot there counts to ITL. The TTFT of the prefill part excludes the transfer, and the ITL of the decode
    part starts at the arrival of the cache.
    """
    rng = np.random.default_rng(traffic.seed)
    longest = traffic.longest or longest_of(traffic, deployed.shard.model)
    requests, turned_away = _to_send(traffic, longest, rng, limit_s)
    lengths = (requests.isl, requests.osl) if traffic.in_flight is None else _drawn(traffic, longest, rng)
    sent_longest = int(np.add(*lengths).max(initial=1))  # windows hold no more than the longest that is sent

    def driven(deployment: Deployment, sent: Requests) -> History:
        replicas = schedulers(deployment, sent, longest=sent_longest, one_by_one=one_by_one)
        meter = Meter(replicas, progress, len(sent) if traffic.at_once else 0) if progress is not None else None
        for replica in replicas:
            replica.observer = Record(replica, meter)
        sending = meter.sending if meter is not None else None
        if traffic.in_flight is not None:
            return _closed(traffic, sent, replicas, lengths, limit_s=limit_s, progress=sending)
        return run.open_loop(
            sent,
            replicas,
            routing=routing,
            seed=traffic.seed + (deployment.prefill is not None),  # the second router draws independently
            limit=limit_s,
            watched=watched(traffic),
            progress=sending,
        )

    if deployed.prefill is None or deployed.transfer is None:
        return measure(driven(deployed, requests), traffic, limits, limit_s=limit_s, turned_away=turned_away)
    first = driven(deployed.prefill, replace(requests, osl=[1] * len(requests)))
    prefill = measure(first, traffic, None, limit_s=limit_s, turned_away=turned_away)
    arrived = deployed.transfer.handed_over(first, requests.osl, deployed.prefill.shard.layout.dp)
    second = driven(deployed, arrived.requests)
    decode = measure(second, traffic, None, limit_s=limit_s)
    refused = [*first.refused, *(arrived.numbers[number] for number in second.refused)]
    arrived.land(requests)
    seen = replace(second, requests=requests)
    whole = measure(seen, traffic, limits, limit_s=limit_s, turned_away=turned_away, refused=refused)
    return _joined(whole, prefill, decode, arrived.taken_s)


def _joined(whole: Run, prefill: Run, decode: Run, taken_s: list[float]) -> Run:
    """The run of both parts together, with the queues of both."""
    return replace(
        whole,
        queue_mean=prefill.queue_mean + decode.queue_mean,
        queue_max=max(prefill.queue_max, decode.queue_max),
        queue_end=prefill.queue_end + decode.queue_end,
        stable=prefill.stable and decode.stable,
        parts=(prefill, decode),
        transfer_s=float(np.mean(taken_s)) if taken_s else 0.0,
    )


def _to_send(traffic: Traffic, longest: int, rng: np.random.Generator, limit_s: float) -> tuple[Requests, int]:
    """(requests that arrive before the limit and are not too long, number of too long ones); none for a closed loop."""
    if traffic.in_flight is not None:
        return Requests(), 0
    plan = _drawn_plan(traffic, longest, rng) if traffic.trace is None else traffic.trace
    plan = plan.only(np.asarray(plan.arrival) < limit_s)
    fits = plan.length <= longest
    return Requests.of_plan(plan.only(fits)), int((~fits).sum())


def watched(traffic: Traffic) -> tuple[int, int] | None:
    """(first measured request, first request after the measured ones), or None if all are measured."""
    if not traffic.warm_up and not traffic.cool_down:
        return None
    return traffic.warm_up, traffic.count - traffic.cool_down


def longest_of(traffic: Traffic, model: Model) -> int:
    """The longest sequence in tokens: that of a trace, the fixed lengths, or the model's maximum where lengths vary."""
    if traffic.trace is not None:
        return int(traffic.trace.length.max())
    if traffic.isl.shape == "fixed" and traffic.osl.shape == "fixed":
        return int(traffic.isl.mean + traffic.osl.mean)
    return model.max_position


def _drawn_plan(traffic: Traffic, longest: int, rng: np.random.Generator) -> Planned:
    """Draw the requests of a rate or of a batch."""
    isl, osl = _drawn(traffic, longest, rng)
    arrivals = np.zeros(traffic.count)
    if (rate := traffic.rate_per_s) is not None:
        arrivals = arrival_times(traffic.count, rate, traffic.arrivals, rng, burstiness=traffic.burstiness)
        if traffic.exact_rate:
            arrivals = _at_rate(arrivals, traffic)
    return Planned.of_rows(np.column_stack([arrivals, isl, osl]))


def _at_rate(arrivals: NDArray[np.float64], traffic: Traffic) -> NDArray[np.float64]:
    """Stretch random arrivals so that warm-up, measured part and cool-down each have exactly the mean rate."""
    assert traffic.rate_per_s is not None
    parts = (0, traffic.warm_up, traffic.count - traffic.cool_down, traffic.count)
    ends = np.unique([part for part in parts if 0 <= part <= traffic.count])
    at = np.concatenate([[0.0], arrivals])[ends]
    return np.interp(arrivals, at, ends / traffic.rate_per_s)


def _drawn(traffic: Traffic, longest: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw prompt and output lengths, cut to `longest` tokens together."""
    isl, osl = traffic.isl.draw(traffic.count, rng), traffic.osl.draw(traffic.count, rng)
    osl = np.minimum(osl, longest - 1)
    return np.minimum(isl, longest - osl), osl


def _closed(
    traffic: Traffic,
    requests: Requests,
    replicas: tuple[Scheduler, ...],
    drawn: tuple[ArrayLike, ArrayLike],
    *,
    limit_s: float,
    progress: Progress | None,
) -> History:
    """A closed loop over several replicas. Clients stay with their replica and are spread as evenly as possible."""
    assert traffic.in_flight is not None
    lengths = zip(*(np.asarray(of).tolist() for of in drawn), strict=True)
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
    watches = tuple(watch for history in ended for watch in history.watches)
    return History(requests, replicas, max(history.ended for history in ended), watches)


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
    """Measure a run that a limit may have cut.

    `turned_away` is the number of requests longer than the engine takes, which count as refused. `refused` has the numbers
    of the requests that replicas refused; by default they are taken from the replicas.
    """
    requests = finished.requests
    arrival, end, first = map(np.asarray, (requests.arrival, requests.finished, requests.first_token))
    osl = np.asarray(requests.osl)
    refused = finished.refused if refused is None else refused
    taken: slice | NDArray[np.bool_] = slice(None)  # a slice copies nothing
    if refused:
        taken = np.ones(arrival.size, dtype=bool)
        taken[list(refused)] = False
    stable = _keeps_up(traffic, arrival[taken], np.asarray(requests.admitted)[taken], end[taken])
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
        measured_s={name: measured.of(name) for name in (*LATENCIES, "gap")} if traffic.warm_up else {},
        samples=tuple(records[0].samples) if records else (),
        requests=requests,
    )


def _keeps_up(
    traffic: Traffic, arrival: NDArray[np.float64], admitted: NDArray[np.float64], end: NDArray[np.float64]
) -> bool:
    """Whether departures keep up with arrivals; clients of a closed loop wait for them, and a batch has no later arrivals."""
    if traffic.in_flight is not None or traffic.at_once:
        return True
    clumps = max(1.0, 1 / traffic.burstiness) if traffic.arrivals == "gamma" else 1.0
    return is_stable(arrival, admitted, end, clumps=clumps)


class _MeasuredRequests(NamedTuple):
    """Times by request, and which requests are measured (`done`). Latencies are computed on demand to save memory."""

    arrival: NDArray[np.float64]
    first: NDArray[np.float64]
    end: NDArray[np.float64]
    osl: NDArray[np.int64]
    done: NDArray[np.bool_]

    def of(self, name: str) -> NDArray[np.float64]:
        """TTFT, E2E, `gap` or ITL of the measured requests, in the order of arrival.

        ITL is the mean over the tokens after the first, for requests that have any.
        """
        if name == "gap":
            return _where(np.diff(self.arrival, prepend=0.0), self.done)
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
    """Time that a replica was watched, above 0 because integrals are divided by it."""
    return max((ended if math.isnan(watch.until) else watch.until) - watch.since, sys.float_info.min)


def _ended(finished: History, end: NDArray[np.float64]) -> float:
    """The end of a run: the end of its last request if all have ended, which may be before a time limit."""
    return finished.ended if end.size == 0 or np.isnan(end).any() else float(end.max())


def statistics(values: NDArray[np.float64]) -> dict[str, float]:
    """Mean, percentiles and maximum of `values`, which are reordered in place; empty for no values."""
    if values.size == 0:
        return {}
    found = {"mean": float(values.mean()), "max": float(values.max())}
    quantiles = np.quantile(values, list(PERCENTILES.values()), overwrite_input=True)
    return {**found, **{name: float(value) for name, value in zip(PERCENTILES, quantiles, strict=True)}}


def _good(limits: Limits | None, measured: _MeasuredRequests) -> float:
    """Count the requests that meet every limit, whatever statistic the limit is for (DistServe's goodput)."""
    good = np.ones(int(measured.done.sum()), dtype=bool)
    for name, limit in limits.stated.items() if limits is not None else ():
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

    In a run shorter than two requests take, the system is still filling; then only requests that wait for admission count.
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
