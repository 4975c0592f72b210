"""The published runs that resemble a question, from the file of runs or as likely as own runs are, and the ends of their ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sizing.catalog.shelf import only
from sizing.specs.bands import CLASS, COLUMNS, TIMES, Band, DrivingMode, ModelKind, PublishedRuns, Situation
from sizing.specs.demand import ROUNDING_SLACK
from sizing.specs.engine_time import HIGH_END
from sizing.specs.frozen import Frozen

STEPS = 200  # the likely errors of own runs are listed at 200 quantiles, half a percent apart
ClassWords = tuple[DrivingMode, str, str, str, ModelKind]
# The columns in which runs must agree with a question, the narrowest class first. Wider classes are not used.
COMPARED_BY: tuple[tuple[str, ...], ...] = (
    ("mode", "vendor", "engine", "kind", "architecture"),
    ("mode", "vendor", "engine", "kind"),
)


def ends_of(values: NDArray[np.float64], weights: NDArray[np.float64], tail: float) -> tuple[float, float]:
    """The ends of a range beyond which lies the share `tail` of a group yet unseen on each side; weights of a group add up to 1.

    Of n groups in order, the i-th is expected to have i / (n + 1) of all groups below it, so few groups give a wide range.
    """
    order = np.argsort(values)
    weights = weights[order]
    share = (np.cumsum(weights) - weights / 2 + 0.5) / (weights.sum() + 1)
    low, high = np.interp([tail, 1 - tail], share, values[order])
    return float(low), float(high)


class SimilarRuns(NamedTuple):
    """Runs that resemble a question.

    `groups` is the number of groups. `weights` has one weight for each run; the weights of a group add up to 1. `times` has one
    row for each run and one column for each of `TIMES`: measured over predicted time (for throughput, the time per request). If
    `own`, the runs follow from the errors of the user's own runs; they have equal weights, and `groups` counts the own runs.
    Runs of a class without an architecture are of `any_gpu` generation. `tail` is that of `ends_of`.
    """

    groups: int
    weights: NDArray[np.float64]
    times: NDArray[np.float64]
    own: bool = False
    any_gpu: bool = False
    tail: float = 1 - HIGH_END

    def of(self, name: str) -> NDArray[np.float64]:
        """The column `name` of `times`."""
        column: NDArray[np.float64] = self.times[:, TIMES.index(name)]
        return column

    def ends(self, factors: NDArray[np.float64], name: str) -> tuple[float, float]:
        """The ends of the range of `factors` of a time, one for each run; the slow end of the rate is that of the sure count."""
        if name != "throughput":
            return ends_of(factors, self.weights, self.tail)
        order = np.argsort(factors)
        known = np.searchsorted(np.cumsum(self.weights[order]), (HIGH_END - ROUNDING_SLACK) * self.weights.sum())
        return ends_of(factors, self.weights, 1 - HIGH_END)[0], float(factors[order][min(known, order.size - 1)])

    def share(self, kept: NDArray[np.bool_]) -> float:
        """The share of runs marked in `kept`. Each group has the same weight."""
        return float(self.weights[kept].sum() / self.weights.sum())


class RunTable(Frozen):
    """The runs of a file: the class of each, the number of its group, and its times, measured over predicted."""

    classes: tuple[tuple[str, ...], ...]
    groups: NDArray[np.int64]
    times: NDArray[np.float64]
    least_groups: int
    tail: float
    _found: dict[tuple[Situation, tuple[str, ...]], SimilarRuns | None] = field(default_factory=dict)

    def runs(self, held: NDArray[np.bool_]) -> SimilarRuns:
        """The runs that are marked in `held`. Each group has the same weight."""
        groups, place, runs = np.unique(self.groups[held], return_inverse=True, return_counts=True)
        return SimilarRuns(int(groups.size), 1 / runs[place], self.times[held])

    def of_group(self, number: int) -> list[tuple[Situation, dict[str, float]]]:
        """The runs of a group: the class of each and its times, measured over predicted (NaN: not measured)."""
        return [
            (
                Situation(*cast(ClassWords, self.classes[at]), load=None),
                dict(zip(TIMES, self.times[at].tolist(), strict=True)),
            )
            for at in np.flatnonzero(self.groups == number)
        ]

    def without(self, number: int) -> RunTable:
        """The table without the runs of a group."""
        kept = np.flatnonzero(self.groups != number)
        classes = tuple(self.classes[at] for at in kept)
        return RunTable(classes, self.groups[kept], self.times[kept], self.least_groups, self.tail)

    def like(self, situation: Situation, names: Sequence[str]) -> SimilarRuns | None:
        """The runs that state the times `names`, from the narrowest class with enough groups; None if no class has enough."""
        if situation.own:  # own runs change the step times, so published ratios no longer apply
            return _like_own(situation.own, names, self.least_groups)
        key = (situation, tuple(names))
        if key not in self._found:
            self._found[key] = self._narrowest(situation, names)
        return self._found[key]

    def _narrowest(self, situation: Situation, names: Sequence[str]) -> SimilarRuns | None:
        stated = ~np.isnan(self.times[:, [TIMES.index(name) for name in names]]).any(axis=1)
        for conditions in COMPARED_BY:
            wanted = [(COLUMNS.index(name), getattr(situation, name)) for name in conditions]
            alike = [all(one[at] == value for at, value in wanted) for one in self.classes]
            found = self.runs(stated & np.array(alike, dtype=bool))
            if found.groups >= self.least_groups:
                return found._replace(any_gpu="architecture" not in conditions, tail=self.tail)
        return None

    def by(self, names: Sequence[str]) -> dict[tuple[str, ...], SimilarRuns]:
        """All runs, grouped by the values of the columns `names`, in the order of the file."""
        places = [COLUMNS.index(name) for name in names]
        keys = [tuple(one[at] for at in places) for one in self.classes]
        return {key: self.runs(np.array([one == key for one in keys], dtype=bool)) for key in dict.fromkeys(keys)}


@lru_cache(maxsize=4)
def table_of(runs: PublishedRuns) -> RunTable:
    """The table of a file of runs."""
    lines, first = [line.split() for line in runs.runs.splitlines()], len(CLASS)
    times = [[np.nan if value == "-" else float(value) for value in line[first + 1 :]] for line in lines]
    return RunTable(
        tuple(tuple(line[:first]) for line in lines),
        np.array([int(line[first]) for line in lines], dtype=np.int64),
        np.array(times, dtype=float).reshape(len(lines), len(TIMES)),
        runs.least_groups,
        runs.tail,
    )


def published() -> RunTable:
    """The published runs of the catalogue."""
    return table_of(only(PublishedRuns))


def students(share: ArrayLike, freedom: int) -> NDArray[np.float64]:
    """Quantiles of Student's t distribution (Abramowitz and Stegun 26.7.5).

    From two degrees of freedom on, quantiles from 5 to 95 % are accurate to 3 %.
    """
    z = np.vectorize(NormalDist().inv_cdf, otypes=[float])(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return np.asarray(z + sum(term / freedom**power for power, term in enumerate(terms, start=1)), dtype=np.float64)


def _like_own(bands: Sequence[Band], names: Sequence[str], least: int) -> SimilarRuns | None:
    """Likely runs, at even quantiles of the errors of own runs; None if fewer than `least` runs were measured.

    A band spans the middle 8 in 10 of Student's t distribution. All times of a run are slow or fast together.
    """
    of = {band.metric: band for band in bands if band.n >= least}
    if not of.keys() >= set(names):
        return None
    share = (np.arange(STEPS) + 0.5) / STEPS
    times = np.full((STEPS, len(TIMES)), np.nan)
    for name, band in of.items():
        ends = -np.log((band.high, band.low)) if name == "throughput" else np.log((band.low, band.high))
        wide = (ends[1] - ends[0]) / 2 / students(HIGH_END, band.n - 1)
        times[:, TIMES.index(name)] = np.exp(ends.mean() + wide * students(share, band.n - 1))
    return SimilarRuns(min(band.n for band in of.values()), np.ones(STEPS), times, own=True)
