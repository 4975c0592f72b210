"""What constants of the engine profiles a measured row depends on, and what is predicted with others in their place."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from sizing import settings
from sizing.catalog import engines
from sizing.catalog.measured_csv import MeasuredRow
from sizing.errors import InputError
from sizing.kernels import Kernels
from sizing.specs.calibration import NotFitted
from sizing.validation.predict import predict
from sizing.validation.resolve import Case, deployment_of, is_served, resolve

ROWS_PER_CHUNK = 16

_engine = cache(engines.load_engine)


class Constant(NamedTuple):
    """One number of an engine profile: a field of the row, by number, of a setting."""

    engine: str
    setting: str
    row: int
    field: str


Values = Mapping[Constant, float]


class Observed(NamedTuple):
    """A row as predicted: the constants that time it, with their values in the profile, and its metrics."""

    constants: dict[Constant, float]
    metrics: dict[str, float]
    is_moe: bool


def group_of(row: MeasuredRow) -> str:
    """Return the group that a row is left out with."""
    return f"{row.source} | {row.model} | {row.gpu}"


def rules_out(rule: NotFitted, row: MeasuredRow) -> bool:
    """Return whether a rule leaves a row out."""
    return (
        (rule.source or "") in row.source
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
    with ProcessPoolExecutor(jobs, initializer=_ignore_interrupts) as pool:
        return list(pool.map(_observe, tasks, chunksize=ROWS_PER_CHUNK))


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
    """Return the constants that time a case, each with the value of its profile."""
    engine = _engine(case.engine)[0].spec
    kernels = case.deployed.kernels
    deployment = deployment_of(kernels.gpu, case.deployed.model, case.deployed.layout)
    found = {}
    for setting, field in fields:
        chosen = settings.source_of(engine, case.version, deployment, setting)
        number = engine.settings[setting].index(chosen)
        found[Constant(case.engine, setting, number, field)] = float(chosen.value.get(field, 0.0))
    return found


def with_constants(case: Case, values: Values) -> Case:
    """Return a case timed by other constants. What an engine called in process does not have stays away."""
    kernels = case.deployed.kernels
    changed: dict[str, dict[str, float]] = {}
    for constant, value in values.items():
        changed.setdefault(constant.setting, {})[constant.field] = value
    update = {
        setting: getattr(kernels.settings, setting).model_copy(update=fields) for setting, fields in changed.items()
    }
    timed = kernels.settings.model_copy(update=update)
    other = Kernels(
        kernels.gpu,
        kernels.assumptions,
        kernels.borrowed,
        kernels.engine,
        timed if is_served(case.row) else timed.in_process(),
        kernels.plan,
        kernels.extras,
    )
    return replace(case, deployed=replace(case.deployed, kernels=other))
