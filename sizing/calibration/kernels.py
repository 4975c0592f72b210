"""`python -m sizing.calibration.kernels`: rows of efficiency of GPU profiles refitted from tables of measured kernels.

    python -m sizing.calibration.kernels FOLDER [--write]

Each row for which the folder has points is fitted in the formula that evaluates it, and once without each fold of
sizes; `--write` changes the rows whose fit helps on the sizes left out. Where tables hold constants alone (latent
attention, other engines), those are compared with the profile's. Needs scipy, a development dependency.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from sizing.calibration import kernel_fit
from sizing.calibration.command import run
from sizing.calibration.kernel_points import why_kept
from sizing.calibration.kernel_refits import ComparedRow, KernelRefits, RefittedRow, refits, write
from sizing.calibration.kernel_tables import Tables, load_tables, names_in
from sizing.calibration.profiles import written
from sizing.catalog import shelf
from sizing.specs.calibration import Calibration
from sizing.specs.errors import InputError
from sizing.specs.gpu import EfficiencyRow

PERCENT = 100


class _Medians(NamedTuple):
    """Medians over rows of their errors, as shown."""

    before: str
    after: str
    left_out: str


def rows_table(refitted: Sequence[RefittedRow], least_gain: float) -> Table:
    """Every row with points, now and refitted: constants, median and P90 of errors in %, and the decision."""
    title = "rows refitted from points; error, %: median / p90, now above, refitted below"
    table = Table(
        "GPU", "row", "version", "points", "now, refitted", "error", "of sizes left out", "written", title=title
    )
    for row in refitted:
        table.add_row(
            row.key.profile,
            str(row.key),
            row.version,
            str(row.fit.points),
            f"{_constants(row.row)}\n{_constants(row.fit.row)}",
            f"{_errors(row.fit.before)}\n{_errors(row.fit.after)}",
            f"{_errors(row.fit.before)}\n{_errors(row.fit.left_out)}",
            f"kept: {row.kept}" if row.kept else ("yes" if row.helps(least_gain) else "no"),
        )
    return table


def published_table(compared: Sequence[ComparedRow]) -> Table:
    """Rows with published constants only that differ from the profile's; they are not tested here."""
    table = Table("GPU", "row", "version", "profile, published", "kept", title="constants as published, not refitted")
    for row in compared:
        if row.differences:
            table.add_row(row.key.profile, str(row.key), row.version, "; ".join(row.differences), row.kept or "")
    return table


def operations_table(found: KernelRefits, least_gain: float) -> Table:
    """For each operation: the number of rows, the decisions, and the medians over rows of their errors."""
    title = "by operation; error, %: medians over rows of median / p90"
    table = Table("operation", "refitted", "written", "now", "fitted", "left out", "published", "differ", title=title)
    keys = [row.key for row in found.refitted] + [row.key for row in found.compared]
    for operation in dict.fromkeys(key.operation for key in keys):
        rows = [row for row in found.refitted if row.key.operation == operation]
        others = [row for row in found.compared if row.key.operation == operation]
        table.add_row(
            operation,
            str(len(rows)),
            str(sum(row.helps(least_gain) for row in rows)),
            *_medians([row.fit for row in rows]),
            str(len(others)),
            str(sum(bool(row.differences) for row in others)),
        )
    return table


def without_row(found: KernelRefits, calibration: Calibration) -> Iterator[str]:
    """Write, for each table without a profile row, the reason."""
    for key in found.without_row:
        why = why_kept(key, calibration.kernels.kept)
        yield f"{key.profile} {key}: {f'left out: {why}' if why else 'the profile has no such row'}"


def not_read(tables: Tables, calibration: Calibration) -> Iterator[str]:
    """Write the table names that the calibration lacks; their lines are not read."""
    for rule, names in names_in(tables).items():
        unknown = sorted(names - set(getattr(calibration.kernels, rule)))
        if unknown:
            yield f"not read: {rule} {', '.join(unknown)} (kernels.{rule} of _calibration.yaml has no name for them)"


def _constants(row: EfficiencyRow) -> str:
    return ", ".join(f"{name} {written(value)}" for name, value in kernel_fit.constants_of(row).items())


def _errors(errors: kernel_fit.FitErrors) -> str:
    return f"{errors.median * PERCENT:.1f} / {errors.p90 * PERCENT:.0f}"


def _medians(fits: Sequence[kernel_fit.Refit]) -> _Medians:
    if not fits:
        return _Medians("", "", "")
    columns = ([getattr(fit, name) for fit in fits] for name in _Medians._fields)
    shown = (np.median([(one.median, one.p90) for one in column], axis=0) * PERCENT for column in columns)
    return _Medians(*(f"{median:.1f} / {p90:.0f}" for median, p90 in shown))


WIDTH = 160


def main() -> None:
    """Read, fit, report, write."""
    parser = argparse.ArgumentParser(prog="python -m sizing.calibration.kernels", description="Refit kernels.")
    parser.add_argument("folder", type=Path, help="tables of measured kernels (aic_*.csv)")
    parser.add_argument("--write", action="store_true", help="write the GPU profiles")
    options = parser.parse_args()
    calibration = shelf.only(Calibration)
    tables = load_tables(options.folder)
    found = refits(tables, calibration)
    if not found.refitted and not found.compared:
        raise InputError("holds nothing that a GPU profile has a row for", file=str(options.folder))
    console = Console(width=WIDTH, highlight=False)
    console.print(rows_table(found.refitted, calibration.least_gain))
    console.print(published_table(found.compared))
    console.print(operations_table(found, calibration.least_gain))
    for line in (*without_row(found, calibration), *not_read(tables, calibration)):
        console.print(line)
    if options.write:
        for path in write(found.refitted, calibration):
            console.print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(run(main))
