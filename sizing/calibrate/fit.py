"""The fit itself: errors that are linear in the constants, solved robustly between bounds, over all rows or without a fold."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.calibrate.observe import Constant
from sizing.specs.calibration import Calibration, Fitted

Array = NDArray[np.float64]

EXACT = 1e-12  # where the solver stops: next to a bound it closes in slowly


class Problem(NamedTuple):
    """Errors of n metrics and how they follow from p constants.

    `error` is ln(predicted/measured), shape (n,); `slope` its change by each constant, shape (n, p); `values` those at
    which that was found, shape (p,); `weight` and `fold` of each metric, shape (n,).
    """

    constants: tuple[Constant, ...]
    values: Array
    error: Array
    slope: Array
    weight: Array
    fold: NDArray[np.int64]


def weights(groups: Sequence[Hashable]) -> Array:
    """Return weights by which a group of n rows counts as the root of n: many rows of one source are not many sources."""
    size = Counter(groups)
    return np.array([float(size[group]) ** -0.25 for group in groups])


def fold_of(group: str, folds: int) -> int:
    """Return the fold of a group, the same on every machine and whatever other groups there are."""
    return zlib.crc32(group.encode()) % folds


def solve(problem: Problem, rules: Mapping[Constant, Fitted], calibration: Calibration, without: int = -1) -> Array:
    """Return the constants, shape (p,), that explain the metrics best, those of the fold `without` left out.

    Errors count squared up to the loss's scale and logarithmically beyond (Cauchy), next to the squared distance from
    the priors. Constants stay between their bounds.
    """
    from scipy.optimize import least_squares

    kept = problem.fold != without
    chosen = [rules[constant] for constant in problem.constants]
    scale = np.array([rule.scale for rule in chosen])
    prior = np.array([rule.prior for rule in chosen])
    least, most = (np.array([getattr(rule, name) for rule in chosen], dtype=float) for name in ("least", "most"))
    root = np.sqrt(calibration.prior_weight)

    def residuals(at: Array) -> Array:
        change = at * scale - problem.values
        error = (problem.error + problem.slope @ change)[kept] / calibration.loss_scale
        robust = np.sqrt(np.log1p(error**2)) * calibration.loss_scale * problem.weight[kept]
        return np.concatenate([robust, root * calibration.loss_scale * (at - prior / scale)])

    start = np.clip(problem.values / scale, least / scale, most / scale)
    found = least_squares(residuals, start, bounds=(least / scale, most / scale), xtol=EXACT, ftol=EXACT, gtol=EXACT)
    return np.asarray(found.x * scale)
