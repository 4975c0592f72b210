"""What a refit of kernels found, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from rich.table import Table

from sizing.calibrate import kernel_fit
from sizing.calibrate.kernel_keys import why_kept
from sizing.calibrate.kernel_refits import Compared, Found, Refitted
from sizing.calibrate.kernel_rows import written
from sizing.calibrate.kernel_tables import Tables, names_in
from sizing.specs.calibration import Calibration
from sizing.specs.gpu import EfficiencyRow

PERCENT = 100


class _Medians(NamedTuple):
    """Medians over rows of their errors, as shown."""

    before: str
    after: str
    left_out: str


def rows_table(refitted: Sequence[Refitted], least_gain: float) -> Table:
    """Every row with points, now and refitted: constants, median and P90 of errors in %, and what becomes of it."""
    title = "rows refitted from points; error, %: median / p90, now above, refitted below"
    table = Table(
        "GPU", "row", "version", "points", "now, refitted", "error", "of sizes left out", "written", title=title
    )
    for one in refitted:
        table.add_row(
            one.key.profile,
            str(one.key),
            one.version,
            str(one.fit.points),
            f"{_constants(one.row)}\n{_constants(one.fit.row)}",
            f"{_errors(one.fit.before)}\n{_errors(one.fit.after)}",
            f"{_errors(one.fit.before)}\n{_errors(one.fit.left_out)}",
            f"kept: {one.kept}" if one.kept else ("yes" if one.helps(least_gain) else "no"),
        )
    return table


def published_table(compared: Sequence[Compared]) -> Table:
    """Rows for which constants alone were published, where those differ from the profile's: nothing tests them here."""
    table = Table("GPU", "row", "version", "profile, published", "kept", title="constants as published, not refitted")
    for one in compared:
        if one.differences:
            table.add_row(one.key.profile, str(one.key), one.version, "; ".join(one.differences), one.kept or "")
    return table


def operations_table(found: Found, least_gain: float) -> Table:
    """By operation: how many rows, what becomes of them, and the medians over rows of their errors."""
    title = "by operation; error, %: medians over rows of median / p90"
    table = Table("operation", "refitted", "written", "now", "fitted", "left out", "published", "differ", title=title)
    keys = [one.key for one in found.refitted] + [one.key for one in found.compared]
    for operation in dict.fromkeys(key.operation for key in keys):
        rows = [one for one in found.refitted if one.key.operation == operation]
        others = [one for one in found.compared if one.key.operation == operation]
        table.add_row(
            operation,
            str(len(rows)),
            str(sum(one.helps(least_gain) for one in rows)),
            *_medians([one.fit for one in rows]),
            str(len(others)),
            str(sum(bool(one.differences) for one in others)),
        )
    return table


def without_row(found: Found, calibration: Calibration) -> Iterator[str]:
    """Say of each table that no profile has a row for, why."""
    for key in found.without_row:
        why = why_kept(key, calibration.kernels.kept)
        yield f"{key.profile} {key}: {f'left out: {why}' if why else 'the profile has no such row'}"


def not_read(tables: Tables, calibration: Calibration) -> Iterator[str]:
    """Say which names of the tables the calibration has no name for: their lines are not read."""
    for rule, names in names_in(tables).items():
        unknown = sorted(names - set(getattr(calibration.kernels, rule)))
        if unknown:
            yield f"not read: {rule} {', '.join(unknown)} (kernels.{rule} of _calibration.yaml has no name for them)"


def _constants(row: EfficiencyRow) -> str:
    return ", ".join(f"{name} {written(value)}" for name, value in kernel_fit.constants_of(row).items())


def _errors(errors: kernel_fit.Errors) -> str:
    return f"{errors.median * PERCENT:.1f} / {errors.p90 * PERCENT:.0f}"


def _medians(fits: Sequence[kernel_fit.Refit]) -> _Medians:
    if not fits:
        return _Medians("", "", "")
    columns = ([getattr(fit, name) for fit in fits] for name in _Medians._fields)
    shown = (np.median([(one.median, one.p90) for one in column], axis=0) * PERCENT for column in columns)
    return _Medians(*(f"{median:.1f} / {p90:.0f}" for median, p90 in shown))
