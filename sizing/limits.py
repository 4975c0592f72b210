"""Latency limits held against operating points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sizing.specs.workload import Limits
from sizing.steady_state import PERCENTILES, Point


def quantiles(limits: Limits) -> dict[str, float]:
    """Return the percentiles that limits bound: a search over loads needs no others."""
    bounded = (limits.ttft, limits.itl, limits.e2e)
    wanted = {limit.statistic for limit in bounded if limit is not None}
    return {name: q for name, q in PERCENTILES.items() if name in wanted}


def within(point: Point, limits: Limits) -> NDArray[np.bool_]:
    """Return, for each operating point, whether it keeps every limit on the statistic that it bounds."""
    ok = np.ones(point.requests_per_s.shape, dtype=bool)
    for name in ("ttft", "itl", "e2e"):
        limit = getattr(limits, name)
        if limit is not None:
            ok &= getattr(point, f"{name}_s")[limit.statistic] <= limit.seconds
    return ok


def violated(point: Point, limits: Limits, index: int) -> str:
    """Return which limit a point breaks the most, or an empty string."""
    worst, name_of_worst = 1.0, ""
    for name in ("ttft", "itl", "e2e"):
        limit = getattr(limits, name)
        if limit is not None:
            ratio = float(getattr(point, f"{name}_s")[limit.statistic][index]) / limit.seconds
            if ratio > worst:
                worst, name_of_worst = ratio, name
    return name_of_worst
