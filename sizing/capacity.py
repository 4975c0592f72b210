"""Demand: users to requests per second and back, replicas for a rate."""

from __future__ import annotations

import math

from sizing.units import HOURS_PER_DAY, SECONDS_PER_HOUR

ROUNDING_SLACK = 1e-9  # 12/3 is 4 replicas, whatever floating point says


def requests_per_s(
    daily_active_users: float, requests_per_user_per_day: float, active_hours: float, peak_to_mean: float
) -> float:
    """Peak requests/s of a user base: users * requests / active seconds * peak over mean."""
    mean = daily_active_users * requests_per_user_per_day / (SECONDS_PER_HOUR * active_hours)
    return mean * peak_to_mean


def daily_active_users(
    requests_per_s: float, requests_per_user_per_day: float, active_hours: float, peak_to_mean: float
) -> float:
    """Users whose peak is `requests_per_s`: the inverse of `requests_per_s`."""
    return requests_per_s * SECONDS_PER_HOUR * active_hours / (requests_per_user_per_day * peak_to_mean)


def replicas_for(demand: float, per_replica: float) -> int:
    """Whole replicas that meet a demand; raises ValueError where a replica serves nothing."""
    if per_replica <= 0:
        raise ValueError("a replica that serves nothing can't meet a demand")
    return max(1, math.ceil(demand / per_replica - ROUNDING_SLACK))


def hours_per_year() -> float:
    """Hours of a year of 365 days, the course's 31,536,000 s."""
    return 365 * HOURS_PER_DAY
