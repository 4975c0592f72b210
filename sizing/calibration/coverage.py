"""How many runs of groups left out lie within ranges of latencies and rates, and the tail at which the wanted share does.

The times are compared at equal load. At the demand of a replica, at a third of its capacity and at all of it, the shares are
within 3 points of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sizing.catalog.runs import table_of
from sizing.specs.bands import TIMES, BandMetric, PublishedRuns
from sizing.specs.calibration import BandRules
from sizing.specs.workload import LATENCIES


def covered(runs: PublishedRuns, tails: Sequence[float]) -> dict[BandMetric, list[float]]:
    """For each time the share of runs within the range of the other groups, at each tail; every group has the same weight.

    Only runs like which enough other groups exist are counted.
    """
    inside: dict[BandMetric, list[list[float]]] = {name: [] for name in TIMES}
    table = table_of(runs)
    for number in range(len(runs.groups)):
        others, own = table.without(number), table.of_group(number)
        for name in TIMES:
            held = []
            for situation, times in own:
                found = others.like(situation, (name,))
                if found is None or np.isnan(times[name]):
                    continue
                ranges = (found._replace(tail=tail).ends(found.of(name), name) for tail in tails)
                held.append([min(1.0, low) <= times[name] <= max(1.0, high) for low, high in ranges])
            if held:
                inside[name].append(np.mean(held, axis=0).tolist())
    return {name: np.mean(shares, axis=0).tolist() for name, shares in inside.items() if shares}


def tail_of(runs: PublishedRuns, rules: BandRules) -> float:
    """The tail at which ranges of latencies come closest to the wanted share of runs of groups left out."""
    found = covered(runs, rules.tails)
    mean = np.mean([found[name] for name in LATENCIES if name in found], axis=0)
    return rules.tails[int(np.argmin(np.abs(mean - rules.covered)))]
