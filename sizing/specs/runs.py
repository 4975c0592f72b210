"""Published runs as a table: by how much each was slower or faster than predicted, as corrected by the runs of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.specs.bands import BandMetric, Situation
from sizing.specs.values import OneFile, PositiveInt, Text

USUAL, EVEN = 0.9, 0.5  # 9 of 10 published runs of the kind; as likely as not
LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.5, 0.95
TIMES: tuple[BandMetric, ...] = ("ttft", "itl", "e2e", "throughput")
CLASS = ("mode", "vendor", "engine", "architecture", "kind")
COLUMNS = (*CLASS, "group", *TIMES)
# What runs must have in common with a question, the narrowest class first; in other classes nothing is known.
ALIKE: tuple[tuple[str, ...], ...] = (
    ("mode", "vendor", "engine", "kind", "architecture"),
    ("mode", "vendor", "engine", "kind"),
)


class Alike(NamedTuple):
    """Runs like a question: how many groups, the weight of each run (of a group together one), and its times.

    A time is measured over predicted, a column for each of `TIMES`; of the throughput it is that of a request.
    """

    groups: int
    weights: NDArray[np.float64]
    times: NDArray[np.float64]

    def of(self, name: str) -> NDArray[np.float64]:
        """One time of every run."""
        column: NDArray[np.float64] = self.times[:, TIMES.index(name)]
        return column

    def share(self, kept: NDArray[np.bool_]) -> float:
        """The share of the runs that keep something, groups alike."""
        return float(self.weights[kept].sum() / self.weights.sum())


@dataclass(frozen=True, slots=True)
class _Table:
    classes: tuple[tuple[str, ...], ...]
    groups: NDArray[np.int64]
    times: NDArray[np.float64]


class PublishedRuns(OneFile):
    """The whole file: a line a run with the values of `COLUMNS`, a dash for what was not measured; names of groups by number."""

    FILE = "hardware_profiles/_runs.yaml"

    groups: tuple[Text, ...]
    runs: Text
    least_groups: PositiveInt
    source: Text
    date: Text

    @cached_property
    def _table(self) -> _Table:
        lines = [line.split() for line in self.runs.splitlines()]
        first = len(COLUMNS) - len(TIMES)
        times = [[np.nan if value == "-" else float(value) for value in line[first:]] for line in lines]
        return _Table(
            tuple(tuple(line[: first - 1]) for line in lines),
            np.array([int(line[first - 1]) for line in lines], dtype=np.int64),
            np.array(times, dtype=float).reshape(len(lines), len(TIMES)),
        )

    def like(self, situation: Situation, names: Sequence[str]) -> Alike | None:
        """The runs of the narrowest class with enough groups that state the times `names`; None where there are too few."""
        table, places = self._table, [TIMES.index(name) for name in names]
        stated = ~np.isnan(table.times[:, places]).any(axis=1)
        for conditions in ALIKE:
            wanted = [(COLUMNS.index(name), getattr(situation, name)) for name in conditions]
            held = (
                np.array([all(one[at] == value for at, value in wanted) for one in table.classes], dtype=bool) & stated
            )
            groups, place, runs = np.unique(table.groups[held], return_inverse=True, return_counts=True)
            if groups.size >= self.least_groups:
                return Alike(int(groups.size), 1 / runs[place], table.times[held])
        return None

    def by(self, names: Sequence[str]) -> dict[tuple[str, ...], Alike]:
        """All runs by the values of the columns `names`, in the order of the file."""
        table, places = self._table, [COLUMNS.index(name) for name in names]
        keys = [tuple(one[at] for at in places) for one in table.classes]
        found = {}
        for key in dict.fromkeys(keys):
            held = np.array([one == key for one in keys], dtype=bool)
            groups, place, runs = np.unique(table.groups[held], return_inverse=True, return_counts=True)
            found[key] = Alike(int(groups.size), 1 / runs[place], table.times[held])
        return found


class Confidence(NamedTuple):
    """How sure a size is to be: the share of the published runs like a question that would keep its limits, and these runs."""

    share: float
    runs: PublishedRuns
