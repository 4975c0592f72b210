"""`python -m sizing.calibration.kernels`: collectives of GPU profiles refitted from tables of measured messages.

    python -m sizing.calibration.kernels FOLDER [--write]

Each profile row with points in the folder is fitted at the sizes that the row states, and once without each fold of sizes.
`--write` changes the rows whose fit helps on the sizes left out. Products and attention have their own measured kernels
(hardware_profiles/kernels). Needs scipy, a development dependency.

Errors count squared up to the scale of the calibration's loss and logarithmically beyond it (Cauchy), so a few sizes that run
another protocol have little effect on the fit.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console
from rich.table import Table

from sizing.calibration.command import run
from sizing.calibration.profiles import Value, gpu_rewritten, written
from sizing.catalog import profiles, shelf
from sizing.catalog.files import is_folder, read_text
from sizing.replica import links
from sizing.specs.calibration import Calibration, CollectiveRules
from sizing.specs.errors import Fault, InputError
from sizing.specs.gpu import CollectiveRow
from sizing.specs.units import MIB, MICRO

Array = NDArray[np.float64]
Name = Annotated[str, Field(min_length=1)]
PERCENT, WIDTH = 100, 160
SIGNIFICANT = 3
INSIDE = 1e-3  # the fit starts at least this far (in logarithm) inside its bounds
POINTS, VERSIONS = "aic_comm.csv", "aic_comm_fit.csv"


class TableLine(BaseModel):
    """The columns that both tables share, with the table's names."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    gpu: Name
    source: Name
    backend: Name
    op: Name
    n_gpus: Annotated[int, Field(gt=0)]


class MeasuredMessage(TableLine):
    """The measured time of one collective at one message size, in microseconds."""

    bytes: Annotated[float, Field(gt=0)]
    us: Annotated[float, Field(gt=0)]


class LibraryVersion(TableLine):
    """The version of a collective's library."""

    version: Name


LineT = TypeVar("LineT", bound=TableLine)


class CollectiveKey(NamedTuple):
    """The profile's name, and the fields that select a row."""

    profile: str
    operation: str
    engine: str
    gpus: int
    backend: str

    def __str__(self) -> str:
        """The key in words, without the profile."""
        return f"{self.operation} {self.engine} {self.gpus} GPUs"


class Messages(NamedTuple):
    """Bytes and seconds of the messages of one row, shape (n,), and the measured version."""

    version: str
    bytes: Array
    seconds: Array


class FitErrors(NamedTuple):
    """Median and 90th percentile of |predicted/measured - 1|, and the mean loss that the fit minimises."""

    median: float
    p90: float
    loss: float

    def __str__(self) -> str:
        """Median and 90th percentile in per cent."""
        return f"{self.median * PERCENT:.1f} / {self.p90 * PERCENT:.0f}"


class RefittedRow(NamedTuple):
    """A profile row, its number, its refit, and errors: now, fitted, and on sizes left out. `kept`: a reason not to change it."""

    key: CollectiveKey
    number: int
    row: CollectiveRow
    fit: CollectiveRow
    messages: Messages
    before: FitErrors
    after: FitErrors
    left_out: FitErrors
    kept: str | None

    def helps(self, least_gain: float) -> bool:
        """Whether the fit lowers the loss on sizes left out by at least `least_gain`, and the row may change."""
        return self.kept is None and self.left_out.loss < (1 - least_gain) * self.before.loss


def read_lines(path: Path, kind: type[LineT]) -> list[LineT]:
    """Read the lines of a file. Raises InputError with the first fault: unreadable file, missing columns, wrong cell."""
    file = str(path)
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    lines = []
    try:
        missing = [name for name in kind.model_fields if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"has no column {', '.join(missing)}", file=file, line=1)
        for cells in reader:
            lines.append(kind.model_validate(cells))
    except csv.Error as error:
        raise InputError(f"is not valid CSV: {error}", file=file, line=reader.line_num) from None
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{first['input']!r}: {first['msg']}"
        raise InputError(message, file=file, line=reader.line_num, field=str(first["loc"][0])) from None
    if not lines:
        raise InputError("holds no rows", file=file)
    return lines


def key_of(line: TableLine, rules: CollectiveRules) -> CollectiveKey | None:
    """The key of the profile row of a line; None if the rules lack one of the line's names. Such lines are skipped."""
    named = (rules.gpus.get(line.gpu), rules.operations.get(line.op), rules.engines.get(line.source))
    profile, operation, engine = named
    backend = rules.backends.get(line.backend)
    if profile is None or operation is None or engine is None or backend is None:
        return None
    return CollectiveKey(profile, operation, engine, line.n_gpus, backend)


def messages_in(folder: Path, rules: CollectiveRules) -> dict[CollectiveKey, Messages]:
    """The messages of each row with a known version and enough points. Raises InputError for a wrong folder or file."""
    if not is_folder(folder):
        raise InputError("is no folder of kernel tables", file=str(folder))
    versions = {key_of(line, rules): line.version for line in read_lines(folder / VERSIONS, LibraryVersion)}
    points: dict[CollectiveKey, list[tuple[float, float]]] = defaultdict(list)
    for line in read_lines(folder / POINTS, MeasuredMessage):
        key = key_of(line, rules)
        if key is not None and line.bytes <= rules.most_message_mib * MIB:
            points[key].append((line.bytes, line.us * MICRO))
    return {
        key: Messages(versions[key], *np.array(found).T)
        for key, found in points.items()
        if key in versions and len(found) >= rules.least_points
    }


def why_kept(key: CollectiveKey, rules: CollectiveRules) -> str | None:
    """The reason why a row may not be refitted, or None."""
    for rule in rules.kept:
        if (
            rule.operation in (None, key.operation)
            and rule.engine in (None, key.engine)
            and key.gpus in rule.gpus
            and (rule.profiles is None or key.profile in rule.profiles)
        ):
            return rule.why
    return None


def fitted(row: CollectiveRow, messages: Messages, calibration: Calibration) -> CollectiveRow:
    """A row with the times that fit the messages best, within bounds. The fit starts at the row's own times."""
    from scipy.optimize import least_squares

    bounds = calibration.collectives
    least, most = np.log(bounds.least_us), np.log(bounds.most_us)

    def residuals(at: Array) -> Array:
        tried = row.model_copy(update={"us": tuple(np.exp(at))})
        return np.asarray(np.log(seconds(tried, messages.bytes) / messages.seconds))

    start = np.clip(np.log(row.us), least + INSIDE, most - INSIDE)
    found = least_squares(residuals, start, bounds=(least, most), loss="cauchy", f_scale=calibration.loss_scale)
    us = tuple(float(f"{value:.{SIGNIFICANT}g}") for value in np.exp(found.x))
    changed: CollectiveRow = row.model_copy(update={"us": us})
    return changed


def seconds(row: CollectiveRow, sizes: Array) -> Array:
    """The time in seconds of messages of `sizes` bytes, by a row."""
    return np.asarray(links.measured_s(sizes, row.kib, row.us))


def errors(predicted_s: Array, measured_s: Array, loss_scale: float) -> FitErrors:
    """The errors of predictions against measurements."""
    ratio = predicted_s / measured_s
    off = np.abs(ratio - 1)
    loss = np.log1p((np.log(ratio) / loss_scale) ** 2)
    return FitErrors(float(np.median(off)), float(np.quantile(off, 0.9)), float(np.mean(loss)))


def refit(
    key: CollectiveKey, number: int, row: CollectiveRow, messages: Messages, calibration: Calibration
) -> RefittedRow:
    """Fit a row to all sizes. Then fit it without each fold of sizes for the errors on sizes left out."""
    sizes, measured, scale = messages.bytes, messages.seconds, calibration.loss_scale
    fold = np.searchsorted(np.unique(sizes), sizes) % calibration.folds
    left_out_s = seconds(row, sizes)  # with only one size there is nothing to learn from
    for without in (fold != one for one in np.unique(fold)):
        if without.any():
            others = Messages(messages.version, sizes[without], measured[without])
            left_out_s[~without] = seconds(fitted(row, others, calibration), sizes[~without])
    best = fitted(row, messages, calibration)
    predicted = (seconds(row, sizes), seconds(best, sizes), left_out_s)
    before, after, left_out = (errors(of, measured, scale) for of in predicted)
    kept = why_kept(key, calibration.collectives)
    return RefittedRow(key, number, row, best, messages, before, after, left_out, kept)


def refits(tables: dict[CollectiveKey, Messages], calibration: Calibration) -> tuple[RefittedRow, ...]:
    """The refit of each profile row that has messages in the tables."""
    found = []
    for profile in dict.fromkeys(calibration.collectives.gpus.values()):
        for number, row in enumerate(profiles.load_gpu(profile).spec.efficiency):
            if isinstance(row, CollectiveRow):
                key = CollectiveKey(profile, row.operation, row.engine, row.gpus, row.backend)
                if key in tables:
                    found.append(refit(key, number, row, tables[key], calibration))
    return tuple(found)


def without_row(
    tables: dict[CollectiveKey, Messages], found: Sequence[RefittedRow], calibration: Calibration
) -> Iterator[str]:
    """Lines that say why a table has no profile row."""
    for key in sorted(tables.keys() - {row.key for row in found}):
        why = why_kept(key, calibration.collectives)
        yield f"{key.profile} {key}: {f'left out: {why}' if why else 'the profile has no such row'}"


def rows_table(found: Sequence[RefittedRow], least_gain: float) -> Table:
    """A table of every row with points, now and refitted: times, median and P90 of errors in %, and the decision."""
    title = "collectives refitted from points; error, %: median / p90, now above, refitted below"
    table = Table("GPU", "row", "version", "points", "us", "error", "of sizes left out", "written", title=title)
    for row in found:
        table.add_row(
            row.key.profile,
            str(row.key),
            row.messages.version,
            str(len(row.messages.bytes)),
            f"{written(row.row.us)}\n{written(row.fit.us)}",
            f"{row.before}\n{row.after}",
            f"{row.before}\n{row.left_out}",
            f"kept: {row.kept}" if row.kept else ("yes" if row.helps(least_gain) else "no"),
        )
    return table


def write(found: Sequence[RefittedRow], calibration: Calibration) -> list[Path]:
    """Write the rows with a helpful fit into their profiles. Returns the files written."""
    new: dict[str, dict[int, dict[str, Value]]] = defaultdict(dict)
    for row in found:
        if row.helps(calibration.least_gain):
            new[row.key.profile][row.number] = {
                "version": row.messages.version,
                "us": row.fit.us,
                "points": float(len(row.messages.bytes)),
                "median_error": round(row.after.median, SIGNIFICANT),
                "p90_error": round(row.after.p90, SIGNIFICANT),
                "source": f"{calibration.collectives.source}, refitted by sizing.calibration.kernels",
                "date": date.today().isoformat(),
            }
    files = []
    for profile, rows in new.items():
        path = profiles.load_gpu(profile).path
        path.write_text(gpu_rewritten(path.read_text(encoding="utf-8"), rows), encoding="utf-8")
        files.append(path)
    return files


def main() -> None:
    """Read, fit, report, write."""
    parser = argparse.ArgumentParser(prog="python -m sizing.calibration.kernels", description="Refit collectives.")
    parser.add_argument("folder", type=Path, help=f"tables of measured messages ({POINTS}, {VERSIONS})")
    parser.add_argument("--write", action="store_true", help="write the GPU profiles")
    options = parser.parse_args()
    calibration = shelf.only(Calibration)
    tables = messages_in(options.folder, calibration.collectives)
    found = refits(tables, calibration)
    if not found:
        raise InputError(Fault("holds nothing that a GPU profile has a row for", file=str(options.folder)))
    console = Console(width=WIDTH, highlight=False)
    console.print(rows_table(found, calibration.least_gain))
    for line in without_row(tables, found, calibration):
        console.print(line)
    if options.write:
        for path in write(found, calibration):
            console.print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(run(main))
