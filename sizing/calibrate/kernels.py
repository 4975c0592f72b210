"""`python -m sizing.calibrate.kernels`: rows of efficiency of GPU profiles refitted from tables of measured kernels.

    python -m sizing.calibrate.kernels FOLDER [--write]

Each row for which the folder has points is fitted in the formula that evaluates it, and once without each fold of
sizes; `--write` changes the rows whose fit helps on the sizes left out. Where tables hold constants alone (latent
attention, other engines), those are compared with the profile's. Needs scipy, a development dependency.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from sizing.calibrate.command import run
from sizing.calibrate.kernel_refits import refits, write
from sizing.calibrate.kernel_report import not_read, operations_table, published_table, rows_table, without_row
from sizing.calibrate.kernel_tables import load_tables
from sizing.catalog import benchmarks
from sizing.errors import Fault, InputError

WIDTH = 160


def main() -> None:
    """Read, fit, report, write."""
    parser = argparse.ArgumentParser(prog="python -m sizing.calibrate.kernels", description="Refit kernels.")
    parser.add_argument("folder", type=Path, help="tables of measured kernels (aic_*.csv)")
    parser.add_argument("--write", action="store_true", help="write the GPU profiles")
    options = parser.parse_args()
    calibration = benchmarks.load_calibration().spec
    tables = load_tables(options.folder)
    found = refits(tables, calibration)
    if not found.refitted and not found.compared:
        raise InputError(Fault("holds nothing that a GPU profile has a row for", file=str(options.folder)))
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
