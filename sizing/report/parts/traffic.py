"""Simulated traffic: its load and lengths as inputs of a record, and in words."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sizing.engine.requests import Lengths, Requests
from sizing.engine.simulation import Traffic
from sizing.formats.words import number
from sizing.report.parts.said import said

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
