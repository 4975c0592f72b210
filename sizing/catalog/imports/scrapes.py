"""Prometheus metrics of a running vLLM or SGLang, in the text format of `/metrics`.

Counters and histograms count from the start of the engine. One scrape gives averages since then. Two scrapes of one engine give
averages between them, also from one file. A service has the requests that arrive, so a row has a rate of arrivals. Names:
vllm/v1/metrics/loggers.py, sglang/srt/metrics/collector.py, old and new spellings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sizing.catalog.imports.run import PERCENTS, SHOWN, BenchmarkRun, LatencyFigures, MalformedRunError, keys, parsed
from sizing.catalog.shelf import only
from sizing.specs.measurements import Conventions
from sizing.specs.units import MILLI

SAMPLE = re.compile(r"((?:vllm|sglang):\w+)(?:\{(.*)\})?\s+(\S+)(?:\s+(-?\d+))?\s*")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
ENGINES = ("vllm", "sglang")
PREFIXES = tuple(f"{name}:" for name in ENGINES)
RANKS = ("engine", "dp_rank", "instance")  # labels of engines or ranks that count by themselves
# The gap between tokens is the mean per request if a version counts it, otherwise per token: its spellings have that order.
METRICS = {key.field: key for key in keys("Prometheus")}
RATIOS = {
    path for key in METRICS.values() if key.kind == "ratio" for path in key.paths
}  # averaged over ranks, others are summed
GAUGES = RATIOS | {path for key in METRICS.values() if key.kind == "gauge" for path in key.paths}

MOST_SCRAPES = 10_000  # of a file: a week, one a minute
TIMES = "use --seconds since the start of the engine, or between two scrapes"


class MetricSample(NamedTuple):
    """The texts of a line: name, labels, value, and the time in ms since 1970; None where they are absent."""

    name: str
    labels: str | None
    value: str
    at_ms: str | None


class Scrape(NamedTuple):
    """The samples of a scrape over the ranks of an engine: counters and gauges by name, histograms by name and bound.

    Counts are summed, and ratios are averaged. `ranks` is the number of engines or ranks that count by themselves.
    """

    file: str
    engine: str
    model: str
    values: Mapping[str, float]
    buckets: Mapping[str, Mapping[float, float]]
    at_s: float | None
    ranks: int = 1

    def first(self, metric: str) -> float | None:
        """The value of a metric, by the first of its spellings that the scrape has; None without one."""
        return next((self.values[name] for name in METRICS[metric].paths if name in self.values), None)


def recognised(content: str) -> bool:
    """Whether a text holds metrics of an engine: comments and samples, at least one from vLLM or SGLang."""
    lines = [line for line in content.splitlines() if line.strip()]
    shaped = all(re.match(r"#|[A-Za-z_:][\w:]*(\{.*\})?\s+\S+", line) for line in lines[:200][:-1])
    return shaped and any(line.startswith(PREFIXES) for line in lines)


def scrapes(content: str, file: str) -> tuple[Scrape, ...]:
    """The scrapes of a text. A series that comes again begins the next one.

    Raises MalformedRunError for metrics of several services, a torn line, a value that is not a number, and too many scrapes.
    """
    samples: list[list[MetricSample]] = [[]]
    known: set[tuple[str, str | None]] = set()
    for number, line in enumerate(content.splitlines(), start=1):
        matched = SAMPLE.fullmatch(line.strip())
        if matched is None and line.startswith(PREFIXES):
            torn = f"is torn at line {number}: {line[:SHOWN]!r} is no sample"
            raise MalformedRunError(torn, "the whole page of metrics")
        if matched is None:
            continue
        sample = MetricSample(*matched.groups())
        series = sample.name, sample.labels
        if series in known:
            if len(samples) == MOST_SCRAPES:
                raise MalformedRunError(f"holds more than {MOST_SCRAPES:,} scrapes", "the first and the last of them")
            samples.append([])
            known.clear()
        known.add(series)
        samples[-1].append(sample)
    return tuple(_scrape(each, file) for each in samples)


def _scrape(samples: Iterable[MetricSample], file: str) -> Scrape:
    values: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    ranks: dict[str, int] = {}
    models, engines, apart, at_s = set(), set(), set(), None
    for sample in samples:
        labels = dict(LABEL.findall(sample.labels or ""))
        engine, _, name = sample.name.partition(":")
        value = _number(sample.value, name)
        engines.add(engine)
        models.add(labels.get("model_name", ""))
        apart.add(tuple(labels[label] for label in RANKS if label in labels))
        at_s = int(sample.at_ms) * MILLI if sample.at_ms else at_s
        if name.endswith("_bucket"):
            bound = _number(labels.get("le", "+Inf"), "le")
            of = buckets.setdefault(name.removesuffix("_bucket"), {})
            of[bound] = of.get(bound, 0.0) + value
        elif math.isfinite(value):
            values[name] = values.get(name, 0.0) + value
            ranks[name] = ranks.get(name, 0) + 1
    values = {name: value / ranks[name] if name in RATIOS else value for name, value in values.items()}
    models.discard("")
    if len(models) > 1 or len(engines) > 1:
        raise MalformedRunError(f"holds metrics of several services: {', '.join(sorted(models or engines))}")
    apart.discard(())  # of all ranks together
    engine, model = (of.pop() if of else "" for of in (engines, models))
    return Scrape(file, engine, model, values, buckets, at_s, max(1, len(apart)))


def _number(text: str, name: str) -> float:
    value = parsed(name, text)
    if value < 0:
        raise MalformedRunError(f"{name} is below zero: {text[:40]}")
    return value


def runs(scrapes: Sequence[Scrape], seconds: float | None) -> Iterator[BenchmarkRun]:
    """One run from a single scrape (averages since the start), or one run between each two neighbouring scrapes of an engine.

    `seconds` is the time since the start or between two scrapes, for samples without timestamps. Raises MalformedRunError if
    nothing was served, and for scrapes that are not of one engine in order.
    """
    if len(scrapes) == 1:
        yield _run(scrapes[0], seconds, "since the engine's start")
    for before, after in pairwise(scrapes):
        yield _run(_between(before, after), _seconds(before, after, seconds), "between two scrapes")


def _seconds(before: Scrape, after: Scrape, stated: float | None) -> float | None:
    if before.at_s is not None and after.at_s is not None and after.at_s > before.at_s:
        return after.at_s - before.at_s
    return stated


def _between(before: Scrape, after: Scrape) -> Scrape:
    """The counts between two scrapes. Gauges are the mean of both."""
    values = {
        name: (value + before.values.get(name, value)) / 2 if name in GAUGES else value - before.values.get(name, 0.0)
        for name, value in after.values.items()
    }
    buckets = {
        name: {bound: count - before.buckets.get(name, {}).get(bound, 0.0) for bound, count in of.items()}
        for name, of in after.buckets.items()
    }
    counters = [name for name in values.keys() - GAUGES if name.endswith(("_total", "_count", "_sum"))]
    fell = any(values[name] < 0 for name in counters)
    if (before.engine, before.model) != (after.engine, after.model) or fell:
        raise MalformedRunError(f"does not follow {before.file}: its counters are lower, or of another service")
    return after._replace(values=values, buckets=buckets)


def _run(scrape: Scrape, seconds: float | None, when: str) -> BenchmarkRun:
    e2e, ttft = _spread(scrape, "e2e"), _spread(scrape, "ttft")
    requests = scrape.values.get(f"{METRICS['e2e'].paths[0]}_count") or scrape.first("requests")
    if not requests:
        raise MalformedRunError(f"no request was served {when}")
    tokens = (_tokens(scrape, kind) for kind in ("prompt", "generation"))
    isl, osl = (None if total is None else total / requests for total in tokens)
    per_s = _served_per_s(scrape, e2e.mean, requests, seconds)
    notes = [f"a running service {when}, {requests:,.0f} requests", _as_taken(scrape)]
    hits, queries = scrape.first("hits"), scrape.first("queries")
    steps, drafted, accepted = map(scrape.first, ("drafts", "drafted", "accepted"))
    if f"{METRICS['itl'].paths[0]}_count" not in scrape.values:
        notes.append("ITL is the mean of all gaps between tokens, long answers count more")
    taken = (scrape.first("running") or 0.0) + (scrape.first("waiting") or 0.0)
    if seconds is not None and e2e.mean and scrape.first("running") is not None:
        in_flight = per_s * e2e.mean * MILLI
        if in_flight > only(Conventions).agreement.clients_over_in_flight[1] * max(1.0, taken):
            as_taken = f"{taken:,.0f} as it was taken: look at --seconds"
            notes.append(f"{in_flight:,.0f} in flight by requests/s x E2E, {as_taken}")
    if seconds is None:
        notes.append("requests/s by Little's law, from requests in flight as it was taken")
    return BenchmarkRun(
        f"{scrape.engine} metrics",
        model=scrape.model,
        engine=scrape.engine,
        ranks=scrape.ranks,
        isl=isl,
        osl=osl,
        rate_per_s=per_s,
        prefix_hit=min(1.0, hits / queries) if hits and queries else None,
        drafted=round(drafted / steps) if drafted and steps else None,
        tokens_per_step=1 + (accepted or 0.0) / steps if steps else scrape.first("per step"),
        ttft=ttft,
        itl=_spread(scrape, "itl"),
        e2e=e2e,
        req_per_s=per_s,
        output_tok_per_s=None if osl is None else per_s * osl,
        notes=tuple(notes),
    )


def _as_taken(scrape: Scrape) -> str:
    """The gauges of a scrape in words: requests that ran and waited, and the share of the cache in use."""
    gauges = {state: scrape.first(state) for state in ("running", "waiting")}
    known = [f"{value:,.0f} {state}" for state, value in gauges.items() if value is not None]
    absent = [state for state, value in gauges.items() if value is None]
    cache = scrape.first("cache use")
    used = [f"{cache:.0%} of the cache in use"] if cache is not None and cache <= 1 else []
    unknown = [f"not known how many requests were {' and '.join(absent)}"] if absent else []
    taken = f"{' and '.join(known)} as it was taken" if known else ""
    return ", ".join(filter(None, (taken, *unknown, *used)))


def _served_per_s(scrape: Scrape, e2e_ms: float | None, requests: float, seconds: float | None) -> float:
    """Requests/s over a known time, otherwise by Little's law from the requests in flight.

    Raises MalformedRunError if neither is known.
    """
    if seconds is not None:
        return requests / seconds
    running, waiting = scrape.first("running"), scrape.first("waiting")
    if not running or waiting is None or not e2e_ms:
        raise MalformedRunError("does not say over which time it counts, nor what is in flight", remedy=TIMES)
    return (running + waiting) / (e2e_ms * MILLI)


def _tokens(scrape: Scrape, kind: str) -> float | None:
    """Tokens of completed requests; if the engine does not count these, tokens of all requests."""
    of_ended = scrape.values.get(f"request_{kind}_tokens_sum")
    return of_ended if of_ended is not None else scrape.first(f"{kind} tokens")


def _spread(scrape: Scrape, metric: str) -> LatencyFigures:
    """Mean and percentiles in ms of a histogram in seconds. Percentiles beyond its last bound are unknown."""
    for name in METRICS[metric].paths:
        count, total = scrape.values.get(f"{name}_count"), scrape.values.get(f"{name}_sum")
        if count and total is not None:
            return LatencyFigures(total / count / MILLI, _percentiles(scrape.buckets.get(name, {})))
    return LatencyFigures()


def _percentiles(buckets: Mapping[float, float]) -> dict[float, float]:
    """Percentiles in ms, interpolated linearly within a bucket."""
    bounds = sorted(bound for bound in buckets if math.isfinite(bound))
    counts = [0.0, *(buckets[bound] for bound in bounds)]
    total = max(buckets.values(), default=0.0)
    # Slightly below the share, so that the first bound that reaches it is used.
    wanted = {percent: percent / 100 * total * (1 - 1e-12) for percent in PERCENTS}
    reached = {percent: count for percent, count in wanted.items() if count <= counts[-1]}
    known = {percent: float(np.interp(count, counts, [0.0, *bounds])) for percent, count in reached.items()}
    return {percent: bound / MILLI for percent, bound in known.items() if bound > 0}
