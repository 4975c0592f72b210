"""Simulated traffic: its load and lengths as inputs of a record and in words, its requests as CSV and as figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sizing.engine.requests import Lengths, Requests
from sizing.formats.tables import csv_lines
from sizing.formats.view import Mark, Series
from sizing.formats.words import number
from sizing.report.parts.sentences import said

if TYPE_CHECKING:  # a simulation in ticks loads no engine
    from sizing.engine.simulation import Traffic

ARRIVALS = {"even": "evenly spaced", "poisson": "Poisson", "gamma": "gamma"}


class LoadInputs(NamedTuple):
    """The kind of the load and its parameters; others are null."""

    kind: str
    requests: int | None
    requests_per_s: float | None
    arrivals: str | None
    burstiness: float | None
    concurrency: int | None
    trace: str | None


class LengthInputs(NamedTuple):
    """The distribution of prompt or output lengths.

    The mean of the drawn lengths differs from the distribution's mean because of chance, cuts and whole tokens.
    """

    shape: str
    mean: float
    std: float | None
    low_share: float | None
    drawn_mean: float | None


def load(traffic: Traffic, *, counted: bool, trace: str | None) -> LoadInputs:
    """The load of a simulation. If not `counted`, requests arrive until a limit."""
    stated = {"trace": traffic.trace, "open_loop": traffic.rate_per_s, "closed_loop": traffic.in_flight}
    kind = next((kind for kind, value in stated.items() if value is not None), "batch")
    is_open = kind == "open_loop"
    return LoadInputs(
        kind=kind,
        requests=traffic.count if counted else None,
        requests_per_s=traffic.rate_per_s,
        arrivals=traffic.arrivals if is_open else None,
        burstiness=traffic.burstiness if is_open and traffic.arrivals == "gamma" else None,
        concurrency=traffic.in_flight,
        trace=trace,
    )


def mean_lengths(traffic: Traffic) -> tuple[float, float]:
    """The mean prompt tokens and output tokens of a trace or of the length distributions."""
    if traffic.trace is not None:
        return float(np.mean(traffic.trace.isl)), float(np.mean(traffic.trace.osl))
    return _mean(traffic.isl), _mean(traffic.osl)


def _mean(lengths: Lengths) -> float:
    return lengths.mean * (1 + lengths.low_share) / 2 if lengths.shape == "uniform" else lengths.mean


def lengths(traffic: Traffic, name: str, sent: Requests | None) -> LengthInputs | None:
    """The distribution of the lengths `isl` or `osl`, None for a trace. `sent` is None if no request fits."""
    if traffic.trace is not None:
        return None
    of, drawn = getattr(traffic, name), getattr(sent, name, None)
    return LengthInputs(
        shape=of.shape,
        mean=of.mean,
        std=of.std if of.shape in ("normal", "lognormal") else None,
        low_share=of.low_share if of.shape == "uniform" else None,
        drawn_mean=sum(drawn) / len(drawn) if drawn and of.shape != "fixed" else None,
    )


def length_words(tokens: float, spread: LengthInputs | None) -> str:
    """Write a mean length, its spread, and the mean drawn."""
    if spread is None:
        return f"{number(tokens, 4)} on average"
    return said(
        "length spread",
        spread,
        tokens=tokens,
        low=(spread.low_share or 0.0) * spread.mean,
        uniform=spread.low_share is not None,
    )


def load_words(load: LoadInputs) -> str:
    """Write the requests sent and their arrivals."""
    return said(f"requests of {load.kind}", load, called=ARRIVALS.get(load.arrivals or ""))


COLUMNS = ("arrival", "admitted", "first_token", "finished", "isl", "osl", "preemptions")
TIMES = COLUMNS[:4]
P95, WINDOW = 0.95, 50  # the running percentile, and its number of measurements
MOST_POINTS = 2000  # points of a latency in a figure; of more requests, every n-th is drawn


def requests_csv(runs: Mapping[str, Requests], unit: str) -> str:
    """Write the requests of runs by policy as CSV, with a column for the policy if there are several.

    Times are in `unit`, which also ends the names of their columns. A time is empty if the event never happened.
    """
    names = (f"{name}_{unit}" if name in TIMES else name for name in COLUMNS)
    rows: list[tuple[Any, ...]] = [("policy", "number", *names)]
    for policy, requests in runs.items():
        columns = (getattr(requests, name) for name in COLUMNS)
        for order, entry in enumerate(zip(*columns, strict=True)):
            # NaN means never; only NaN differs from itself.
            rows.append((policy, order, *("" if value != value else value for value in entry)))
    return csv_lines(rows if len(runs) > 1 else [row[1:] for row in rows]) + "\n"


def latencies(requests: Requests, until: float = math.inf) -> Iterator[Series]:
    """Yield TTFT and E2E over the time when each was measured, up to `until`, and the running p95 of each."""
    for name, times, style in (("TTFT", requests.first_token, 1), ("E2E", requests.finished, 2)):
        # NaN means never; no comparison with NaN is true.
        found = [Mark(at, at - start) for at, start in zip(times, requests.arrival, strict=True) if at <= until]
        every = max(1, -(-len(found) // MOST_POINTS))
        yield Series(name, tuple(found[::every]), style, look="points")
        if len(found) >= WINDOW:
            yield Series(f"{name} p95 of the last {WINDOW}", tuple(_running(sorted(found), every)), style, look="line")


def _running(marks: Sequence[Mark], every: int) -> Iterator[Mark]:
    """Yield the 95th percentile of the last `WINDOW` marks at every n-th of them, from the first full window on."""
    for end in range(WINDOW, len(marks) + 1, every):
        last = sorted(mark.y for mark in marks[end - WINDOW : end])
        yield Mark(marks[end - 1].x, last[math.ceil(P95 * WINDOW) - 1])
