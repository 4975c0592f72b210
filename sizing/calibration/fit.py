"""The engine constants that a measured row depends on, predictions with other constants, and the fit.

Errors are taken as linear in the constants, and solved robustly between bounds, over all rows or without a fold.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.catalog.measured import MeasuredRow
from sizing.evidence.predict import ignore_interrupts, predict
from sizing.evidence.rows import Case, is_served, resolve
from sizing.model import settings
from sizing.replica.kernels import Kernels
from sizing.replica.replica import conditions_of
from sizing.specs.calibration import Calibration, Fitted, NotFitted
from sizing.specs.errors import InputError

ROWS_PER_CHUNK = 16


class Constant(NamedTuple):
    """One number of an engine profile: a field of the row, by number, of a setting."""

    engine: str
    setting: str
    row: int
    field: str


Values = Mapping[Constant, float]


class Observed(NamedTuple):
    """A predicted row: the constants that time it, with their values in the profile, and its metrics."""

    constants: dict[Constant, float]
    metrics: dict[str, float]
    is_moe: bool


def group_of(row: MeasuredRow) -> str:
    """The group in which a row is left out."""
    return f"{row.source} | {row.model} | {row.gpu}"


def rules_out(rule: NotFitted, row: MeasuredRow) -> bool:
    """Whether a rule excludes a row."""
    return (
        (rule.source or "") in row.source
        and (rule.notes or "") in row.notes
        and (rule.gpu or "") in row.gpu
        and rule.engine_version in (None, row.engine_version)
    )


def observe(
    rows: Sequence[MeasuredRow], fields: Sequence[tuple[str, str]], values: Sequence[Values], jobs: int
) -> list[Observed | None]:
    """Predict each row, its own `values` in place of the profiles'; None for a row that can't be predicted.

    `fields` are (setting, field) pairs of what counts as a constant.
    """
    tasks = [(row, tuple(fields), one) for row, one in zip(rows, values, strict=True)]
    with ProcessPoolExecutor(jobs, initializer=ignore_interrupts) as pool:
        return list(pool.map(_observe, tasks, chunksize=ROWS_PER_CHUNK))


def _observe(task: tuple[MeasuredRow, tuple[tuple[str, str], ...], Values]) -> Observed | None:
    row, fields, values = task
    try:
        case = resolve(row)
    except InputError:
        return None
    if case.missed is not None:
        return None
    constants = constants_of(case, fields)
    tried = {constant: values[constant] for constant in constants if constant in values}
    return Observed(constants, predict(with_constants(case, tried)).values, case.is_moe)


def constants_of(case: Case, fields: Sequence[tuple[str, str]]) -> dict[Constant, float]:
    """The constants that time a case, each with the value of its profile."""
    service = case.replica.service
    engine = service.engine
    conditions = conditions_of(service, case.replica.gpu_type.gpu, case.replica.layout)
    found = {}
    for setting, field in fields:
        chosen = settings.source_of(engine, service.engine_version, conditions, setting)
        number = engine.settings[setting].index(chosen)
        found[Constant(engine.name, setting, number, field)] = float(chosen.value.get(field, 0.0))
    return found


def with_constants(case: Case, values: Values) -> Case:
    """A case timed by other constants. Constants absent for an engine called in process stay absent."""
    kernels = case.deployed.kernels
    changed: dict[str, dict[str, float]] = {}
    for constant, value in values.items():
        changed.setdefault(constant.setting, {})[constant.field] = value
    update = {
        setting: getattr(kernels.settings, setting).model_copy(update=fields) for setting, fields in changed.items()
    }
    timed = kernels.settings.model_copy(update=update)
    shard = replace(kernels.shard, settings=timed if is_served(case.row) else timed.in_process())
    other = Kernels(kernels.gpu, kernels.assumptions, kernels.borrowed, kernels.engine, shard)
    return replace(case, deployed=replace(case.deployed, kernels=other))


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
    """Weights by which a group of n rows counts as the root of n, as many rows of one source are not many sources."""
    size = Counter(groups)
    return np.array([float(size[group]) ** -0.25 for group in groups])


def fold_of(group: str, folds: int) -> int:
    """The fold of a group, independent of machine and other groups."""
    return zlib.crc32(group.encode()) % folds


def solve(problem: Problem, rules: Mapping[Constant, Fitted], calibration: Calibration, without: int = -1) -> Array:
    """The constants, shape (p,), that explain the metrics best, without the metrics of the fold `without`.

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
