"""Chance in arrivals: how many requests come in one second of a Poisson stream, and which mean such a count is of."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

SPREAD = 12.0  # standard deviations on either side of the mean that are summed: what lies beyond is below 1e-30
FEWEST_TERMS = 40  # summed above a mean near 0, where a standard deviation is no guide
MOST_SUMMED = 1e6  # above, the sum would have many thousand terms, and the normal shape is right to a count or so
ROUNDS = 60  # of halving: beyond the digits of a float


def quantile(mean: float, share: float) -> int:
    """Return the fewest arrivals k with P(X <= k) >= share for a Poisson count X of this mean.

    The terms are summed in logarithms around the mean, so that no factorial overflows; exact up to a mean of a million,
    beyond it to a count or so.
    """
    if mean <= 0:
        return 0
    if mean > MOST_SUMMED:
        sigmas = NormalDist().inv_cdf(share)
        # Cornish and Fisher: the normal quantile with the skew of 1 / sqrt(mean), half a count before the next whole one.
        return math.ceil(mean + sigmas * math.sqrt(mean) + (sigmas**2 - 1) / 6 - 0.5)
    reach = SPREAD * math.sqrt(mean)
    first = max(0, math.floor(mean - reach))
    counts = np.arange(first, math.ceil(mean + reach) + FEWEST_TERMS)
    # log P(k) - log P(first) = sum of log(mean / i) for i above first
    logs = np.concatenate(([0.0], np.cumsum(math.log(mean) - np.log(counts[1:]))))
    terms = np.exp(logs - logs.max())
    reached = np.cumsum(terms) / terms.sum()
    return int(counts[np.searchsorted(reached, share)])


def mean_of(count: float, share: float) -> float:
    """Return the largest mean whose quantile is at most a count: the inverse of `quantile`; 0 where there is none."""
    low, high = 0.0, max(count, 0.0) + 1.0
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if quantile(middle, share) <= count else (low, middle)
    return low
