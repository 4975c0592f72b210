"""Formulas for one collective: message bytes in, seconds out.

A message is the full tensor: what every rank holds after an all-reduce or an all-gather. Ring traffic per GPU is
2(n-1)/n of it for all-reduce and (n-1)/n for the others.
"""

from __future__ import annotations

import math

import numpy as np

from sizing.attention.terms import Numeric
from sizing.units import KIB


def traffic_factor(operation: str, gpus: int) -> float:
    """Share of the message that each GPU sends over its link."""
    passes = 2 if operation == "all_reduce" else 1
    return passes * (gpus - 1) / gpus


def ring_s(message_bytes: Numeric, operation: str, gpus: int, *, alpha_s: float, bytes_per_s: float) -> Numeric:
    """Seconds of a collective from latency and bus bandwidth: alpha + factor*bytes/bandwidth."""
    return alpha_s + traffic_factor(operation, gpus) * message_bytes / bytes_per_s


def measured_s(message_bytes: Numeric, kib: tuple[float, ...], us: tuple[float, ...]) -> Numeric:
    """Seconds of a collective between measured points, log-log; flat below the first, linear in bytes above the last."""
    size = np.maximum(np.asarray(message_bytes, dtype=float), 1.0)
    last_bytes = kib[-1] * KIB
    inside = np.interp(np.log(size), np.log(np.asarray(kib) * KIB), np.log(np.asarray(us) * 1e-6))
    seconds: Numeric = np.exp(inside) * np.maximum(1.0, size / last_bytes)
    return seconds


def hops(operation: str, nodes: int) -> int:
    """Messages one after another of a collective over nodes in a tree: up and down again for an all-reduce."""
    return (2 if operation == "all_reduce" else 1) * math.ceil(math.log2(nodes))


def reached(places: int, experts: int) -> float:
    """Different places (ranks, nodes) that a token's experts are on, routed at random: n*(1-(1-1/n)^k)."""
    return places * (1 - (1 - 1 / places) ** experts)


def send_s(message_bytes: Numeric, *, alpha_s: float, bytes_per_s: float) -> Numeric:
    """Seconds to hand a message to one other GPU."""
    return alpha_s + message_bytes / bytes_per_s
