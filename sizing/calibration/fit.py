"""The engine constants that a measured row depends on, predictions with other constants, and the fit.

Errors are treated as linear in the constants. The fit is robust and bounded, over all rows or without one fold.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.calibration.command import in_processes
from sizing.catalog.measured import MeasuredRow
from sizing.evidence.predict import predict
from sizing.evidence.rows import Case, case_of_row, is_served
from sizing.model import settings
from sizing.replica.kernels import Kernels
from sizing.replica.replica import conditions_of
from sizing.specs.calibration import Calibration, Fitted
from sizing.specs.errors import InputError


class Constant(NamedTuple):
    """One number of an engine profile: the setting, the number of the row, and the field."""

    engine: str
    setting: str
    row: int
    field: str


Values = Mapping[Constant, float]


class Observed(NamedTuple):
    """A predicted row: the constants that its times depend on, with their profile values, and its metrics."""

    constants: dict[Constant, float]
    metrics: dict[str, float]
    is_moe: bool


def group_of(row: MeasuredRow) -> str:
    """The group of a row. Groups are left out as a whole."""
    return f"{row.source} | {row.model} | {row.gpu}"


def observe(
    rows: Sequence[MeasuredRow], fields: Sequence[tuple[str, str]], values: Sequence[Values], jobs: int
) -> list[Observed | None]:
    """Predict each row with its `values` instead of those in the profiles; None for a row that can't be predicted.

    `fields` lists the (setting, field) pairs that count as constants.
    """
    tasks = [(row, tuple(fields), one) for row, one in zip(rows, values, strict=True)]
    return in_processes(_observe, tasks, jobs)


def _observe(task: tuple[MeasuredRow, tuple[tuple[str, str], ...], Values]) -> Observed | None:
    row, fields, values = task
    try:
        case = case_of_row(row)
    except InputError:
        return None
    if case.missed is not None:
        return None
    constants = constants_of(case, fields)
    tried = {constant: values[constant] for constant in constants if constant in values}
    return Observed(constants, predict(with_constants(case, tried)).values, case.is_moe)


def constants_of(case: Case, fields: Sequence[tuple[str, str]]) -> dict[Constant, float]:
    """The constants that the times of a case depend on, with their profile values."""
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
    """A case with other constants. Constants that an engine called in process lacks stay absent."""
    kernels = case.deployed.kernels
    changed: dict[str, dict[str, float]] = {}
    for constant, value in values.items():
        changed.setdefault(constant.setting, {})[constant.field] = value
    own = kernels.settings
    timed = own.model_copy(update={name: getattr(own, name).model_copy(update=changed[name]) for name in changed})
    shard = replace(kernels.shard, settings=timed if is_served(case.row) else timed.in_process())
    other = Kernels(kernels.gpu, kernels.engine, shard)
    return replace(case, deployed=replace(case.deployed, kernels=other))


Array = NDArray[np.float64]

EXACT = 1e-12  # tolerance of the solver, which converges slowly next to a bound


class Problem(NamedTuple):
    """Errors of n metrics and their dependence on p constants.

    `error` is ln(predicted/measured), shape (n,). `slope` is its derivative by each constant, shape (n, p), at the constants
    `values`, shape (p,). Each metric has a `weight` and a `fold`, shape (n,).
    """

    constants: tuple[Constant, ...]
    values: Array
    error: Array
    slope: Array
    weight: Array
    fold: NDArray[np.int64]


def weights(groups: Sequence[Hashable]) -> Array:
    """Weights that make a group of n rows count as sqrt(n), because many rows of one source are not many sources."""
    size = Counter(groups)
    return np.array([float(size[group]) ** -0.25 for group in groups])


def fold_of(group: str, folds: int) -> int:
    """The fold of a group. It does not depend on the machine or on other groups."""
    return zlib.crc32(group.encode()) % folds


def solve(problem: Problem, rules: Mapping[Constant, Fitted], calibration: Calibration, without: int = -1) -> Array:
    """The constants, shape (p,), that explain the metrics best, without the metrics of the fold `without`.

    Errors count squared up to the scale of the loss and logarithmically beyond it (Cauchy). The squared distance from the priors
    is added. Constants stay between their bounds.
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
