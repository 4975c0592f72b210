"""Simulated traffic: its load and lengths as inputs of a record, and in words."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sizing.engine.requests import Lengths, Requests
from sizing.engine.simulation import Traffic
from sizing.formats.words import number

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
    mean = number(tokens, 4)
    if spread is None:
        return f"{mean} on average"
    drawn = "" if spread.drawn_mean is None else f", mean drawn {number(spread.drawn_mean, 4)}"
    if spread.low_share is not None:
        return f"{spread.low_share * spread.mean:,.0f} to {spread.mean:,} (uniform{drawn})"
    return f"{mean} ({spread.shape}, std {number(spread.std)}{drawn})" if spread.std else mean


def load_words(load: LoadInputs) -> str:
    """Write the requests sent and their arrivals."""
    text = "requests" if load.requests is None else f"{load.requests:,} requests"
    if load.kind == "trace":
        return f"{text} of {load.trace}, judged over all of it (llmsize estimate sizes for its busiest minute)"
    if load.kind == "open_loop":
        shape = f" of shape {load.burstiness:g}" if load.burstiness is not None else ""
        return f"{text} at {number(load.requests_per_s)}/s, {ARRIVALS[str(load.arrivals)]} arrivals{shape}"
    if load.kind == "closed_loop":
        how = "at all times (closed loop; estimate and curve take random arrivals)"
        return f"{text}, {load.concurrency:,} in flight {how}"
    return f"{text}, all at once"
