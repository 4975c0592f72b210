"""What tables of measured kernels make of each row of the GPU profiles."""

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
from sizing.catalog import gpus
from sizing.specs.calibration import Calibration
from sizing.specs.gpu import CollectiveRow, EfficiencyRow, Gpu
from sizing.specs.units import GIGA

DIGITS = 3  # of an error, after the point


class RefittedRow(NamedTuple):
    """A row of a profile, by number, and what a fit finds; `kept` says why it stays whatever that is."""

    key: Key
    number: int
    row: EfficiencyRow
    version: str
    fit: kernel_fit.Refit
    kept: str | None

    def helps(self, least_gain: float) -> bool:
        """Whether errors on sizes left out are smaller than before, by more than the least gain."""
        return self.kept is None and self.fit.gain() > least_gain


class ComparedRow(NamedTuple):
    """A row of a profile for which others' constants are all there is, and how they differ."""

    key: Key
    version: str
    differences: list[str]
    kept: str | None


class KernelRefits(NamedTuple):
    """What a folder says: rows with points, rows with constants alone, and what no profile has a row for."""

    refitted: list[RefittedRow]
    compared: list[ComparedRow]
    without_row: list[Key]


def refits(tables: Tables, calibration: Calibration) -> KernelRefits:
    """Return, profile by profile, what the tables make of each row."""
    rules = calibration.kernels
    constants = published(tables, rules)
    points = summaries(tables, rules, versions(tables, rules))
    terms = kernel_fit.Terms(rules.bounds, calibration.loss_scale, calibration.folds)
    found = KernelRefits([], [], [])
    known = set()
    for profile in dict.fromkeys(rules.gpus.values()):
        gpu = gpus.load_gpu(profile).spec
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
    """How published constants, restated against the GPU's own peaks, differ from those of a row."""
    peak_flops = 0.0 if isinstance(row, CollectiveRow) or not fit.peak_flops else kernel_fit.peak(gpu, row.precision)
    own = restated(fit, peak_flops, gpu.datasheet.memory.bandwidth_gb_per_s * GIGA)
    return ComparedRow(key, fit.version, differences(row, own), kept)


def fields_of(one: RefittedRow, source: str) -> dict[str, Value]:
    """The fields of a row that change: version, constants, and what they rest on."""
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
    """Write the rows whose fit helps on sizes left out into their profiles. Returns the files written."""
    new: dict[str, dict[int, Mapping[str, Value]]] = {}
    for one in refitted:
        if one.helps(calibration.least_gain):
            new.setdefault(one.key.profile, {})[one.number] = fields_of(one, calibration.kernels.source)
    written = []
    for profile, rows in new.items():
        path = gpus.load_gpu(profile).path
        path.write_text(gpu_rewritten(path.read_text(encoding="utf-8"), rows), encoding="utf-8")
        written.append(path)
    return written
