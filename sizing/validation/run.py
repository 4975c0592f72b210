"""Every row predicted, over several processes: neighbours share a GPU and a model, which each process reads once."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from sizing.catalog.measured_csv import MeasuredRow
from sizing.errors import InputError
from sizing.validation.predict import Prediction, predict
from sizing.validation.resolve import resolve

ROWS_PER_CHUNK = 24  # few enough that processes end together, enough that a chunk's files are read for many rows


class Resolution(NamedTuple):
    """What a row was taken to be: names of the catalogue, dense or mixture of experts, and notes."""

    engine: str
    gpu: str
    model: str
    is_moe: bool
    notes: tuple[str, ...]


class Result(NamedTuple):
    """A row's prediction, or the reason why there is none."""

    row: MeasuredRow
    resolution: Resolution | None
    prediction: Prediction | None
    skipped: str | None


def predict_rows(rows: Sequence[MeasuredRow], jobs: int) -> tuple[Result, ...]:
    """Predict rows in up to `jobs` processes; results come in the order of the rows and do not depend on `jobs`."""
    order = sorted(range(len(rows)), key=lambda i: (rows[i].gpu, rows[i].model, rows[i].engine, rows[i].tp or 1))
    chunks = [
        [rows[i] for i in order[start : start + ROWS_PER_CHUNK]] for start in range(0, len(order), ROWS_PER_CHUNK)
    ]
    if jobs > 1 and len(chunks) > 1:
        # Ctrl-C reaches every process; only this one answers it.
        with ProcessPoolExecutor(min(jobs, len(chunks)), initializer=_ignore_interrupts) as pool:
            done = [result for chunk in pool.map(_chunk, chunks) for result in chunk]
    else:
        done = [result for chunk in chunks for result in _chunk(chunk)]
    by_row = dict(zip(order, done, strict=True))
    return tuple(by_row[i] for i in range(len(rows)))


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _chunk(rows: Sequence[MeasuredRow]) -> list[Result]:
    return [predict_row(row) for row in rows]


def predict_row(row: MeasuredRow) -> Result:
    """Predict one row; what can't be predicted is a result with its reason."""
    try:
        case = resolve(row)
    except InputError as error:
        return Result(row, None, None, "; ".join(map(str, error.faults)))
    found = Resolution(case.engine, case.gpu, case.model, case.is_moe, case.notes)
    return Result(row, found, predict(case), None)
