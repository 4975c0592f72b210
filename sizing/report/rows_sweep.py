"""A sweep as one row a combination: what is varied first, then the figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sizing.formats.view import Rows, plain
from sizing.report.documents_sweep import FIGURES, Sweep, SweepRow, column


def of(document: Sweep) -> Rows:
    """Return the rows of a sweep in the order of its combinations."""
    return Rows(columns(document.varied), tuple(tuple(plain(list(row.values()))) for row in document.rows))


def columns(varied: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the columns of a sweep over some inputs."""
    return (*map(column, varied), *FIGURES)


def cells(row: SweepRow) -> Sequence[Any]:
    """Return one row, as it stands among all."""
    return tuple(plain([*row.varied.values(), *row[1:]]))
