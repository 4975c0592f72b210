"""Simulated traffic: its load and lengths as inputs of a record, and in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from sizing.engine.requests import Lengths, Requests
from sizing.engine.simulation import Traffic
from sizing.formats.words import number, percent

ARRIVALS = {"even": "evenly spaced", "poisson": "Poisson", "gamma": "gamma"}


def load(traffic: Traffic, *, counted: bool, trace: str | None) -> dict[str, Any]:
    """The kind of the load and its parameters; others are null. If not `counted`, requests arrive until a limit."""
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
        return float(np.mean(traffic.trace.isl)), float(np.mean(traffic.trace.osl))
    return _mean(traffic.isl), _mean(traffic.osl)


def _mean(lengths: Lengths) -> float:
    return lengths.mean * (1 + lengths.low_share) / 2 if lengths.shape == "uniform" else lengths.mean


def lengths(traffic: Traffic, sent: Requests | None) -> dict[str, Any]:
    """The distribution of prompt and output lengths, null for a trace. `sent` is None if no request fits.

    The mean of the drawn lengths differs from the distribution's mean because of chance, cuts and whole tokens.
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
    """Write the requests sent, their arrivals, the share found in cache, the seed and the limit."""
    load = inputs["load"]
    text = "requests" if load["requests"] is None else f"{load['requests']:,} requests"
    if load["kind"] == "trace":
        text += f" of {load['trace']}"
    elif load["kind"] == "open_loop":
        shape = f" of shape {load['burstiness']:g}" if load["burstiness"] is not None else ""
        text += f" at {number(load['requests_per_s'])}/s, {ARRIVALS[load['arrivals']]} arrivals{shape}"
    elif load["kind"] == "closed_loop":
        text += (
            f", {load['concurrency']:,} in flight at all times (closed loop; estimate and curve take random arrivals)"
        )
    else:
        text += ", all at once"
    cached = f", {percent(inputs['prefix_hit'])} of prompts cached" if inputs["prefix_hit"] else ""
    until = f", until {inputs['limit_s']:g} s" if inputs["limit_s"] else ""
    return f"{text}{cached}, seed {inputs['seed']}{until}"
