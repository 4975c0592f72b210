"""Where a condition that changes once begins or ends to hold, by bisection."""

from collections.abc import Callable

ROUNDS = 60  # more halvings than a float has digits


def smallest(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest whole number from `low` + 1 to `high` for which `holds` is true.

    `holds` must be true at `high`, and stay true for all larger numbers.
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def ends(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """The last number from `low` on for which `holds` is true, and the next one, to the last digit; at most `high`."""
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high
