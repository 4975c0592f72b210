"""How far predictions are off by published measurements: error bands by class, corrections of step times, and the runs.

For each published run the file of runs states how much slower or faster it was than predicted, where the prediction was corrected
by the runs of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sizing.specs.own_runs import HIGH_END, OwnRuns
from sizing.specs.values import NonNegativeInt, OneFile, Positive, PositiveInt, Sourced, Spec, Text

BandMetric = Literal["ttft", "itl", "e2e", "throughput", "weights", "kv_cache"]
DrivingMode = Literal["served", "batch", "offline"]
ModelKind = Literal["dense", "moe"]
LoadRegion = Literal["solo", "low", "medium", "high"]
# What a number of memory is of: a model with recurrent states; another over GPUs on PCIe or bridges; any other.
MemoryKind = Literal["hybrid", "pcie", "plain"]


class Band(Spec):
    """Measured over predicted, the range that about 8 in 10 measurements of a class fall in; an absent condition is any.

    `n` measurements of `groups` groups (source, model and GPU) make it up.
    """

    metric: BandMetric
    mode: DrivingMode | None = None
    vendor: Text | None = None
    engine: Text | None = None
    architecture: Text | None = None
    kind: ModelKind | None = None
    load: LoadRegion | None = None
    memory: MemoryKind | None = None
    low: Positive
    high: Positive
    n: PositiveInt
    groups: PositiveInt


class Correction(Spec):
    """Factors of step times that centre the predictions of a class; an absent condition is any.

    `decode` multiplies steps that decode, `prefill` the time that prompts add to steps and their front end. They are medians
    of `groups` groups (source, model and GPU) of published runs, each judged by the others.
    """

    mode: DrivingMode | None = None
    vendor: Text | None = None
    engine: Text | None = None
    architecture: Text | None = None
    kind: ModelKind | None = None
    decode: Positive = 1.0
    prefill: Positive = 1.0
    groups: NonNegativeInt = 0
    source: Text = "none"


UNCORRECTED = Correction.model_construct()  # for which no validator is built


def of_own(runs: OwnRuns) -> tuple[Band, ...]:
    """The bands of own runs, which are one group."""
    return tuple(Band(metric=one.metric, low=one.low, high=one.high, n=one.n, groups=1) for one in runs.bands)


def of_runs(own: bool) -> str:
    """Write which runs a share is of: published ones, or what the errors of `own` runs say of others."""
    return "runs as far off as your own" if own else "published runs like this"


class Sure(NamedTuple):
    """How many GPUs are sure to do: `gpus` keep the limits in a share `confidence` of `groups` groups of published runs.

    `gpus` is None where too few were like the question (`why_not`). `chance` is the share in which the expected GPUs do. Of
    `own` runs each counts as a group.
    """

    gpus: int | None
    confidence: float
    groups: int
    chance: float | None = None
    why_not: str | None = None
    own: bool = False


class ErrorBand(NamedTuple):
    """The range, in the number's own unit, into which 8 in 10 of `n` published measurements of its class put it."""

    low: float
    high: float
    n: int


class Bands(OneFile, Sourced):
    """The whole file: bands from the narrowest class to the widest, the first that holds wins."""

    FILE = "hardware_profiles/_bands.yaml"

    bands: tuple[Band, ...]


class Corrections(OneFile, Sourced):
    """The whole file: corrections from the narrowest class to the widest, the first that holds wins."""

    FILE = "hardware_profiles/_corrections.yaml"

    corrections: tuple[Correction, ...]

    def of(self, situation: Situation) -> Correction:
        """The correction of a situation; none where nothing of its kind was measured, or own runs say better."""
        if situation.own:
            return UNCORRECTED
        return next((one for one in self.corrections if holds(one, situation)), UNCORRECTED)


SOLO, FEW, MANY = 1, 8, 64  # bounds of the load regions, in requests in flight on one replica


class Situation(NamedTuple):
    """What a number is of: how the engine is driven, which engine on whose GPUs of which generation, dense or experts, how loaded.

    `own` are the bands of the user's own runs of GPU and engine, which come before those of published runs.
    """

    mode: DrivingMode
    vendor: str
    engine: str
    architecture: str
    kind: ModelKind
    load: LoadRegion | None
    memory: MemoryKind | None = None
    own: tuple[Band, ...] = ()

    def named(self) -> dict[str, str]:
        """The conditions that are stated, by name."""
        return {name: value for name, value in self._asdict().items() if isinstance(value, str)}


def region(in_flight: float) -> LoadRegion:
    """The load region of a replica with `in_flight` requests."""
    if in_flight <= SOLO:
        return "solo"
    if in_flight <= FEW:
        return "low"
    return "medium" if in_flight <= MANY else "high"


def find(bands: Iterable[Band], metric: BandMetric, situation: Situation) -> Band | None:
    """The band of a metric, the first whose conditions hold; None where nothing of its kind was measured."""
    return next((band for band in (*situation.own, *bands) if band.metric == metric and holds(band, situation)), None)


def holds(entry: Band | Correction, situation: Situation) -> bool:
    """Whether a situation has every condition that an entry states."""
    return all(getattr(entry, name, None) in (None, value) for name, value in situation._asdict().items())


def uncorrected(situation: Situation) -> Correction:
    """No correction, whatever the situation."""
    return UNCORRECTED


USUAL, EVEN = 0.9, 0.5  # 9 of 10 published runs of the kind; as likely as not
LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.5, 0.95
STEPS = 200  # of the share, in which likely errors of own runs are listed: half a percent each
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

    A time is measured over predicted, a column for each of `TIMES`; of the throughput it is that of a request. `own` ones are
    those that the errors of so many of the user's own runs make likely, each as good as a group.
    """

    groups: int
    weights: NDArray[np.float64]
    times: NDArray[np.float64]
    own: bool = False

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


class PublishedRuns(OneFile, Sourced):
    """The whole file: a line a run with the values of `COLUMNS`, a dash for what was not measured; names of groups by number."""

    FILE = "hardware_profiles/_runs.yaml"

    groups: tuple[Text, ...]
    runs: Text
    least_groups: PositiveInt

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
        if situation.own:  # whose steps are not those that published runs were compared with
            return _like_own(situation.own, names, self.least_groups)
        key = (situation, tuple(names))
        if key not in self._found:
            self._found[key] = self._narrowest(situation, names)
        return self._found[key]

    @cached_property
    def _found(self) -> dict[tuple[Situation, tuple[str, ...]], Alike | None]:
        """What earlier calls found: a few classes, which many questions are of."""
        return {}

    def _narrowest(self, situation: Situation, names: Sequence[str]) -> Alike | None:
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


def students(share: ArrayLike, freedom: int) -> NDArray[np.float64]:
    """Quantiles of Student's t (Abramowitz and Stegun 26.7.5; of 5 to 95 % within 3 % from two degrees of freedom on)."""
    z = np.vectorize(NormalDist().inv_cdf, otypes=[float])(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return np.asarray(z + sum(term / freedom**power for power, term in enumerate(terms, start=1)), dtype=np.float64)


def _like_own(own: Sequence[Band], names: Sequence[str], least: int) -> Alike | None:
    """Runs as the errors of own ones make likely, in even steps of the share; None where too few were measured.

    A band spans 8 in 10 of Student's distribution. What slows one time of a run slows the others.
    """
    of = {band.metric: band for band in own if band.n >= least}
    if not of.keys() >= set(names):
        return None
    share = (np.arange(STEPS) + 0.5) / STEPS
    times = np.full((STEPS, len(TIMES)), np.nan)
    for name, band in of.items():
        ends = -np.log((band.high, band.low)) if name == "throughput" else np.log((band.low, band.high))
        wide = (ends[1] - ends[0]) / 2 / students(HIGH_END, band.n - 1)
        times[:, TIMES.index(name)] = np.exp(ends.mean() + wide * students(share, band.n - 1))
    return Alike(min(band.n for band in of.values()), np.ones(STEPS), times, own=True)


class Confidence(NamedTuple):
    """How sure a size is to be: the share of the published runs like a question that would keep its limits, and these runs."""

    share: float
    runs: PublishedRuns
