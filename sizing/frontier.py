"""Points of latency against throughput, whatever they came from: the Pareto set, the knee of a line, the best within limits.

Latencies and throughputs are arrays of one length in any unit; NaN stands for a number that is not known.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

LEAST_POINTS_OF_A_KNEE = 3  # two are their own chord
LEAST_RISE = 1e-9  # above the chord, in the logarithm: less is rounding


def pareto(latency: Array, throughput: Array) -> Mask:
    """Mark the points that no other dominates: none is as fast with more throughput, nor faster with as much.

    Equal points do not dominate each other. A point without latency or throughput is in no set.
    """
    marked = np.zeros(latency.shape, dtype=bool)
    known = np.flatnonzero(np.isfinite(latency) & np.isfinite(throughput))
    most, at = -np.inf, -np.inf
    for index in known[np.lexsort((-throughput[known], latency[known]))]:
        if throughput[index] > most or (throughput[index] == most and latency[index] == at):
            marked[index] = True
            most, at = throughput[index], latency[index]
    return marked


def knee(latency: Array, throughput: Array) -> int | None:
    """Return the index of a line's knee: beyond it latency grows much faster than throughput. None where there is none.

    It is the point that lies furthest above the chord from the line's fastest to its slowest point where both axes are
    logarithmic. Which one that is does not depend on the axes' units or scales.
    """
    known = np.flatnonzero((latency > 0) & (throughput > 0) & np.isfinite(latency) & np.isfinite(throughput))
    if known.size < LEAST_POINTS_OF_A_KNEE:
        return None
    known = known[np.lexsort((throughput[known], latency[known]))]
    x, y = np.log(latency[known]), np.log(throughput[known])
    above = (x[-1] - x[0]) * (y - y[0]) - (y[-1] - y[0]) * (x - x[0])
    furthest = int(np.argmax(above))
    return int(known[furthest]) if above[furthest] > LEAST_RISE else None


def best_within(latency: Array, throughput: Array, allowed: Mask) -> int | None:
    """Return the index of the highest throughput among the allowed points, the fastest of equals; None where none is."""
    fit = np.flatnonzero(allowed & np.isfinite(throughput))
    if fit.size == 0:
        return None
    order = np.lexsort((np.nan_to_num(latency[fit], nan=np.inf), -throughput[fit]))
    return int(fit[order[0]])
