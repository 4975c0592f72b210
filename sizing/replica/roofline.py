"""Time formulas for one operation and for one collective, on numbers or arrays, in seconds.

An operation takes t = t0 + ((flops/(P*ec))^p + (bytes/(W*em))^p)^(1/p). This is a roofline whose corner is rounded by
p; for large p it becomes max(compute, memory). t0 is the time at zero work (launch, tail, synchronisation).

The message of a collective is the full tensor: what every rank holds after an all-reduce or an all-gather. In a ring
each GPU sends 2(n-1)/n of it for an all-reduce, and (n-1)/n for other collectives.
"""

from __future__ import annotations

import math

import numpy as np

from sizing.model.attention.terms import Numeric
from sizing.specs.units import KIB


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
    """Messages that follow one another in a tree collective over nodes; an all-reduce goes up and down the tree."""
    return (2 if operation == "all_reduce" else 1) * math.ceil(math.log2(nodes))


def reached(places: int, experts: int) -> float:
    """Expected number of ranks or nodes with a token's experts under random routing: n*(1-(1-1/n)^k)."""
    return places * (1 - (1 - 1 / places) ** experts)


def send_s(message_bytes: Numeric, *, alpha_s: float, bytes_per_s: float) -> Numeric:
    """Seconds to hand a message to one other GPU."""
    return alpha_s + message_bytes / bytes_per_s


def combined_s(
    flops: Numeric,
    bytes_: Numeric,
    *,
    peak_flops: float,
    compute: float,
    bandwidth_bytes_per_s: float,
    memory: float,
    p: float,
    t0_s: float,
) -> Numeric:
    """Seconds of a product with `flops` and memory traffic `bytes_`.

    `compute` and `memory` are the measured shares of the two peaks that long products reach. The formula is computed
    as max * (1 + (min/max)^p)^(1/p), which neither overflows nor loses precision for large p.
    """
    compute_s = np.asarray(flops / (peak_flops * compute), dtype=float)
    memory_s = np.asarray(bytes_ / (bandwidth_bytes_per_s * memory), dtype=float)
    longer = np.maximum(compute_s, memory_s)
    shorter = np.minimum(compute_s, memory_s)
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    seconds: Numeric = t0_s + longer * np.power(1 + np.power(ratio, p), 1 / p)
    return seconds


def streamed_s(bytes_: Numeric, *, bandwidth_bytes_per_s: float, memory: float, t0_s: float) -> Numeric:
    """Seconds of a kernel that only moves `bytes_`: launch time plus traffic at a share of the bandwidth."""
    return t0_s + bytes_ / (bandwidth_bytes_per_s * memory)


def curve_share(prompt_tokens: Numeric, tokens: tuple[int, ...], shares: tuple[float, ...]) -> Numeric:
    """Share of the peak at a prompt length, interpolated log-log between measured points.

    Linear interpolation over the logarithm of length would let the share rise faster than the work, so longer prompts
    would be faster. Below the first point the share is proportional to length, so time stays about constant. Above
    the last point the share is constant.
    """
    length = np.maximum(np.asarray(prompt_tokens, dtype=float), 1.0)
    inside = np.exp(np.interp(np.log(length), np.log(np.asarray(tokens)), np.log(np.asarray(shares))))
    share: Numeric = inside * np.minimum(1.0, length / tokens[0])
    return share


def attained(flops: Numeric, seconds: Numeric, peak: float) -> Numeric:
    """Share of a peak that `flops` (or bytes) in `seconds` reach: MFU for FLOP/s, MBU for bytes/s."""
    return flops / (seconds * peak)
