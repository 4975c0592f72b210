"""Simulated traffic: its load and lengths as inputs of a record and in words; its requests as CSV, their latencies as a figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sizing.engine.requests import Lengths, Requests
from sizing.engine.simulation import Traffic
from sizing.formats.tables import csv_lines
from sizing.formats.view import Mark, Series
from sizing.formats.words import number, percent

ARRIVALS = {"even": "evenly spaced", "poisson": "Poisson", "gamma": "gamma"}


def load(traffic: Traffic, *, counted: bool, trace: str | None) -> dict[str, Any]:
    """The kind of the load and its parameters; others are null. Without `counted`, requests arrive until a limit."""
    stated = {"trace": traffic.trace, "open_loop": traffic.rate_per_s, "closed_loop": traffic.in_flight}
    kind = next((kind for kind, value in stated.items() if value is not None), "batch")
    is_open = kind == "open_loop"
    return {
        "kind": kind,
        "requests": traffic.count if counted else None,
        "requests_per_s": traffic.rate_per_s,
        "arrivals": traffic.arrivals if is_open else None,
        "burstiness": traffic.burstiness if is_open and traffic.arrivals == "gamma" else None,
        "concurrency": traffic.in_flight,
        "trace": trace,
    }


def mean_lengths(traffic: Traffic) -> tuple[float, float]:
    """The mean prompt tokens and output tokens of a trace or of the length distributions."""
    if traffic.trace is not None:
        return float(traffic.trace[:, 1].mean()), float(traffic.trace[:, 2].mean())
    return _mean(traffic.isl), _mean(traffic.osl)


def _mean(lengths: Lengths) -> float:
    return lengths.mean * (1 + lengths.low_share) / 2 if lengths.shape == "uniform" else lengths.mean


def lengths(traffic: Traffic, sent: Requests | None) -> dict[str, Any]:
    """The distribution of prompt and output lengths, null for a trace; `sent` is None where nothing fits.

    The mean of the lengths drawn differs from that of the distribution by chance, cuts and whole tokens.
    """
    found: dict[str, Any] = {}
    for name in ("isl", "osl"):
        of, drawn = getattr(traffic, name), getattr(sent, name, None)
        found[f"{name}_lengths"] = (
            None
            if traffic.trace is not None
            else {
                "shape": of.shape,
                "mean": of.mean,
                "std": of.std if of.shape in ("normal", "lognormal") else None,
                "low_share": of.low_share if of.shape == "uniform" else None,
                "drawn_mean": sum(drawn) / len(drawn) if drawn and of.shape != "fixed" else None,
            }
        )
    return found


def length_words(inputs: dict[str, Any], name: str) -> str:
    """Write a mean length, `isl` or `osl`, its spread, and the mean drawn."""
    mean, spread = number(inputs[name], 4), inputs[f"{name}_lengths"]
    if spread is None:
        return f"{mean} on average"
    drawn = "" if spread["drawn_mean"] is None else f", mean drawn {number(spread['drawn_mean'], 4)}"
    if spread["shape"] == "uniform":
        return f"{spread['low_share'] * spread['mean']:,.0f} to {spread['mean']:,} (uniform{drawn})"
    return f"{mean} ({spread['shape']}, std {number(spread['std'])}{drawn})" if spread["std"] else mean


def load_words(inputs: dict[str, Any]) -> str:
    """Write the requests sent, their arrivals, the share found in cache, seed and limit."""
    load = inputs["load"]
    text = "requests" if load["requests"] is None else f"{load['requests']:,} requests"
    if load["kind"] == "trace":
        text += f" of {load['trace']}"
    elif load["kind"] == "open_loop":
        shape = f" of shape {load['burstiness']:g}" if load["burstiness"] is not None else ""
        text += f" at {number(load['requests_per_s'])}/s, {ARRIVALS[load['arrivals']]} arrivals{shape}"
    elif load["kind"] == "closed_loop":
        text += f", {load['concurrency']:,} in flight (closed loop)"
    else:
        text += ", all at once"
    cached = f", {percent(inputs['prefix_hit'])} of prompts cached" if inputs["prefix_hit"] else ""
    until = f", until {inputs['limit_s']:g} s" if inputs["limit_s"] else ""
    return f"{text}{cached}, seed {inputs['seed']}{until}"


COLUMNS = ("arrival", "admitted", "first_token", "finished", "isl", "osl", "preemptions")
TIMES = COLUMNS[:4]
P95, WINDOW = 0.95, 50  # the running percentile, and the measurements that it is of
MOST_POINTS = 2000  # of a latency in a figure; of more requests every n-th is drawn


def requests_csv(runs: Mapping[str, Requests], unit: str) -> str:
    """Write the requests of runs by policy as CSV, with a column for the policy where there are several.

    Times are in `unit`, which the names of their columns end with. A time is empty where the event never happened.
    """
    names = (f"{name}_{unit}" if name in TIMES else name for name in COLUMNS)
    rows: list[tuple[Any, ...]] = [("policy", "number", *names)]
    for policy, requests in runs.items():
        columns = (getattr(requests, name) for name in COLUMNS)
        for place, entry in enumerate(zip(*columns, strict=True)):
            # Only NaN, which stands for never, differs from itself.
            rows.append((policy, place, *("" if value != value else value for value in entry)))
    return csv_lines(rows if len(runs) > 1 else [row[1:] for row in rows]) + "\n"


def latencies(requests: Requests, until: float = math.inf) -> Iterator[Series]:
    """Yield TTFT and E2E over the time when each was measured, up to `until`, and the running p95 of each."""
    for name, times, style in (("TTFT", requests.first_token, 1), ("E2E", requests.finished, 2)):
        # NaN, which stands for never, is not up to anything.
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
