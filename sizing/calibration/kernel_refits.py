"""The refit of each row of the GPU profiles from tables of measured kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

from sizing.calibration import kernel_fit
from sizing.calibration.kernel_points import (
    Published,
    differences,
    key_of,
    published,
    restated,
    summaries,
    versions,
    why_kept,
)
from sizing.calibration.kernel_tables import Key, Tables
from sizing.calibration.profiles import Value, gpu_rewritten
from sizing.catalog import profiles
from sizing.specs.calibration import Calibration
from sizing.specs.gpu import CollectiveRow, EfficiencyRow, Gpu
from sizing.specs.units import GIGA

DIGITS = 3  # of an error, after the point


class RefittedRow(NamedTuple):
    """A profile row, by number, and its refit; `kept` is the reason to keep the row regardless."""

    key: Key
    number: int
    row: EfficiencyRow
    version: str
    fit: kernel_fit.Refit
    kept: str | None

    def helps(self, least_gain: float) -> bool:
        """Whether errors on sizes left out shrink by more than `least_gain`."""
        return self.kept is None and self.fit.gain() > least_gain


class ComparedRow(NamedTuple):
    """A profile row with published constants only, and their differences."""

    key: Key
    version: str
    differences: list[str]
    kept: str | None


class KernelRefits(NamedTuple):
    """The results for a folder: rows with points, rows with constants alone, and tables without a profile row."""

    refitted: list[RefittedRow]
    compared: list[ComparedRow]
    without_row: list[Key]


def refits(tables: Tables, calibration: Calibration) -> KernelRefits:
    """The refit of each row, profile by profile, from the tables."""
    rules = calibration.kernels
    constants = published(tables, rules)
    points = summaries(tables, rules, versions(tables, rules))
    terms = kernel_fit.Terms(rules.bounds, calibration.loss_scale, calibration.folds)
    found = KernelRefits([], [], [])
    known = set()
    for profile in dict.fromkeys(rules.gpus.values()):
        gpu = profiles.load_gpu(profile).spec
        for number, row in enumerate(gpu.efficiency):
            key = key_of(profile, row)
            kept = why_kept(key, rules.kept)
            known.add(key)
            if key in points:
                fit = kernel_fit.refit(row, gpu, points[key], terms)
                found.refitted.append(RefittedRow(key, number, row, points[key].version, fit, kept))
            elif key in constants:
                found.compared.append(comparison(key, row, gpu, constants[key], kept))
    found.without_row.extend(sorted({*points, *constants} - known))
    return found


def comparison(key: Key, row: EfficiencyRow, gpu: Gpu, fit: Published, kept: str | None) -> ComparedRow:
    """The differences of published constants, restated against the GPU's own peaks, from those of a row."""
    peak_flops = 0.0 if isinstance(row, CollectiveRow) or not fit.peak_flops else kernel_fit.peak(gpu, row.precision)
    own = restated(fit, peak_flops, gpu.datasheet.memory.bandwidth_gb_per_s * GIGA)
    return ComparedRow(key, fit.version, differences(row, own), kept)


def fields_of(one: RefittedRow, source: str) -> dict[str, Value]:
    """The changed fields of a row: version, constants, and their sources."""
    return {
        "version": one.version,
        **kernel_fit.constants_of(one.fit.row),
        "points": float(one.fit.points),
        "median_error": round(one.fit.after.median, DIGITS),
        "p90_error": round(one.fit.after.p90, DIGITS),
        "source": f"{source}, refitted by sizing.calibration.kernels",
        "date": date.today().isoformat(),
    }


def write(refitted: Sequence[RefittedRow], calibration: Calibration) -> list[Path]:
    """Write the rows with a helpful fit into their profiles. The result is the files written."""
    new: dict[str, dict[int, Mapping[str, Value]]] = {}
    for row in refitted:
        if row.helps(calibration.least_gain):
            new.setdefault(row.key.profile, {})[row.number] = fields_of(row, calibration.kernels.source)
    written = []
    for profile, rows in new.items():
        path = profiles.load_gpu(profile).path
        path.write_text(gpu_rewritten(path.read_text(encoding="utf-8"), rows), encoding="utf-8")
        written.append(path)
    return written
