"""How far predictions are from published measurements: error bands, corrections of step times, and the published runs.

The file of runs states for each published run the ratio of measured to predicted times. The prediction is corrected, but only by
runs of other groups.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from statistics import NormalDist
from typing import Annotated, Literal, NamedTuple, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BeforeValidator, Field

from sizing.specs.engine_time import HIGH_END, OwnRuns
from sizing.specs.frozen import Frozen
from sizing.specs.values import NonNegativeInt, OneFile, Positive, PositiveInt, Sourced, Spec, Text

BandMetric = Literal["ttft", "itl", "e2e", "throughput", "weights", "kv_cache"]
DrivingMode = Literal["served", "batch", "offline"]
ModelKind = Literal["dense", "moe"]
LoadRegion = Literal["solo", "low", "medium", "high"]
# What a memory figure describes: a model with recurrent states; any other model on GPUs joined by PCIe or bridges; the rest.
MemoryKind = Literal["hybrid", "pcie", "plain"]


class Band(Spec):
    """The range of measured/predicted that holds about 8 in 10 measurements of a class. An absent condition matches anything.

    The range comes from `n` measurements in `groups` groups (source, model and GPU).
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

    def line(self) -> str:
        """The band as a line of the file: a column for each field, with a dash for an absent condition."""
        return " ".join("-" if value is None else str(value) for value in self.model_dump().values())


def _of_lines(stated: object) -> object:
    """The fields of each line as `Band.line` writes it; what is no text stays."""
    if not isinstance(stated, str):
        return stated
    found = []
    for line in stated.splitlines():
        *words, low, high, n, groups = line.split()
        conditions = {name: word for name, word in zip(Band.model_fields, words, strict=False) if word != "-"}
        found.append({**conditions, "low": float(low), "high": float(high), "n": int(n), "groups": int(groups)})
    return tuple(found)


class Correction(Spec):
    """Factors on step times that centre the predictions of a class. An absent condition matches anything.

    `decode` multiplies the time of decode steps. `prefill` multiplies the time that prompts add to steps, and their front-end
    time. Both are fitted to `groups` groups (source, model and GPU) of published runs and tested on groups left out.
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


UNCORRECTED = Correction.model_construct()  # model_construct builds no validator


def of_own(runs: OwnRuns) -> tuple[Band, ...]:
    """The bands of own runs. All own runs count as one group."""
    return tuple(Band(metric=one.metric, low=one.low, high=one.high, n=one.n, groups=1) for one in runs.bands)


def of_runs(own: bool, *, any_gpu: bool = False, short: bool = False) -> str:
    """Name the runs that a share refers to: published runs, of `any_gpu` generation, or runs with errors like `own` runs.

    In `short`, runs of any GPU generation are not called similar.
    """
    if own:
        return "runs as far off as your own"
    if short:
        return "benchmark runs on any GPU" if any_gpu else "similar benchmark runs"
    return f"published runs like this{' on any GPU generation' * any_gpu}"


class ConfidentSize(NamedTuple):
    """The number of GPUs that is enough with a stated confidence.

    `gpus` keep the limits in a share `confidence` of `groups` groups of published runs. `gpus` is None if too few runs resemble
    the question (`why_not` says so). `chance` is the share in which the expected number of GPUs is enough: at least `confidence`
    exactly where this number is sure in its layout. Each of the user's `own` runs counts as a group.
    With `any_gpu`, too few runs are of the GPU's generation, and the runs are of all generations. `by` is the quantity that sets
    the sure number, and `times` how long it took in the run that sets it, measured over predicted.

    Without a demand, `chance` is that of the rate that given GPUs serve; `requests_per_s_sure` and `users_sure` are the loads that
    they serve with the confidence.
    """

    gpus: int | None
    confidence: float
    groups: int
    chance: float | None = None
    why_not: str | None = None
    own: bool = False
    any_gpu: bool = False
    by: str | None = None
    times: float | None = None
    requests_per_s_sure: float | None = None
    users_sure: int | None = None


class ErrorBand(NamedTuple):
    """The 8-in-10 range of a number, in its own unit, from `n` published measurements of its class."""

    low: float
    high: float
    n: int


SOLO, FEW, MANY = 1, 8, 64  # bounds of the load regions, in requests in flight on one replica


class Situation(NamedTuple):
    """The class of a predicted number: driving mode, GPU vendor, engine, GPU architecture, kind of model, and load.

    `own` holds the bands of the user's own runs of this GPU and engine. They take precedence over bands of published runs.
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


class Bands(OneFile, Sourced):
    """The whole file: bands from the narrowest class to the widest, a line each. The first band that matches is used."""

    FILE = "hardware_profiles/_bands.yaml"

    bands: Annotated[tuple[Band, ...], BeforeValidator(_of_lines)]


class Corrections(OneFile, Sourced):
    """The whole file: corrections from the narrowest class to the widest. The first one that matches is used."""

    FILE = "hardware_profiles/_corrections.yaml"

    corrections: tuple[Correction, ...]

    def of(self, situation: Situation) -> Correction:
        """The correction of a situation. `UNCORRECTED` if nothing of its kind was measured, or if own runs are given."""
        if situation.own:
            return UNCORRECTED
        if situation not in self._found:
            self._found[situation] = next((one for one in self.corrections if applies(one, situation)), UNCORRECTED)
        return self._found[situation]

    @cached_property
    def _found(self) -> dict[Situation, Correction]:
        """Results of earlier calls. Many replicas fall into a few classes."""
        return {}


def region(in_flight: float) -> LoadRegion:
    """The load region of a replica with `in_flight` requests."""
    if in_flight <= SOLO:
        return "solo"
    if in_flight <= FEW:
        return "low"
    return "medium" if in_flight <= MANY else "high"


def find(bands: Iterable[Band], metric: BandMetric, situation: Situation) -> Band | None:
    """The first band of a metric whose conditions hold; None if nothing of its kind was measured."""
    return next((band for band in (*situation.own, *bands) if band.metric == metric and applies(band, situation)), None)


def applies(entry: Band | Correction, situation: Situation) -> bool:
    """Whether a situation meets every condition that an entry states."""
    return all(getattr(entry, name, None) in (None, value) for name, value in situation._asdict().items())


USUAL, EVEN = 0.9, 0.5  # confidence: 9 in 10 published runs of the kind; as likely as not
LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.5, 0.95
ROUNDING = 1e-9  # of a share of runs
STEPS = 200  # the likely errors of own runs are listed at 200 quantiles, half a percent apart
TIMES: tuple[BandMetric, ...] = ("ttft", "itl", "e2e", "throughput")
CLASS = ("mode", "vendor", "engine", "architecture", "kind")
ClassWords = tuple[DrivingMode, str, str, str, ModelKind]
COLUMNS = (*CLASS, "group", *TIMES)
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
        known = np.searchsorted(np.cumsum(self.weights[order]), (HIGH_END - ROUNDING) * self.weights.sum())
        return ends_of(factors, self.weights, 1 - HIGH_END)[0], float(factors[order][min(known, order.size - 1)])

    def share(self, kept: NDArray[np.bool_]) -> float:
        """The share of runs marked in `kept`. Each group has the same weight."""
        return float(self.weights[kept].sum() / self.weights.sum())


class _Table(Frozen):
    classes: tuple[tuple[str, ...], ...]
    groups: NDArray[np.int64]
    times: NDArray[np.float64]

    def runs(self, held: NDArray[np.bool_]) -> SimilarRuns:
        """The runs that are marked in `held`. Each group has the same weight."""
        groups, place, runs = np.unique(self.groups[held], return_inverse=True, return_counts=True)
        return SimilarRuns(int(groups.size), 1 / runs[place], self.times[held])


class PublishedRuns(OneFile, Sourced):
    """The whole file. Each line is one run with the values of `COLUMNS`; a dash means not measured. `groups` names the groups.

    With this `tail` of `ends_of`, ranges of latencies hold about 8 in 10 runs of groups left out.
    """

    FILE = "hardware_profiles/_runs.yaml"

    groups: tuple[Text, ...]
    runs: Text
    least_groups: PositiveInt
    tail: Annotated[float, Field(ge=0, lt=0.5, strict=True)] = 1 - HIGH_END

    def of_group(self, number: int) -> list[tuple[Situation, dict[str, float]]]:
        """The runs of a group: the class of each and its times, measured over predicted (NaN: not measured)."""
        table = self._table
        return [
            (
                Situation(*cast(ClassWords, table.classes[at]), load=None),
                dict(zip(TIMES, table.times[at].tolist(), strict=True)),
            )
            for at in np.flatnonzero(table.groups == number)
        ]

    def without(self, number: int) -> Self:
        """The file without the runs of a group."""
        place = len(CLASS)
        lines = [line for line in self.runs.splitlines() if int(line.split()[place]) != number]
        return type(self).model_validate(self.model_dump() | {"runs": "\n".join(lines)})

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

    def like(self, situation: Situation, names: Sequence[str]) -> SimilarRuns | None:
        """The runs that state the times `names`, from the narrowest class with enough groups; None if no class has enough."""
        if situation.own:  # own runs change the step times, so published ratios no longer apply
            return _like_own(situation.own, names, self.least_groups)
        key = (situation, tuple(names))
        if key not in self._found:
            self._found[key] = self._narrowest(situation, names)
        return self._found[key]

    @cached_property
    def _found(self) -> dict[tuple[Situation, tuple[str, ...]], SimilarRuns | None]:
        """Results of earlier calls. Many questions fall into a few classes."""
        return {}

    def _narrowest(self, situation: Situation, names: Sequence[str]) -> SimilarRuns | None:
        table, places = self._table, [TIMES.index(name) for name in names]
        stated = ~np.isnan(table.times[:, places]).any(axis=1)
        for conditions in COMPARED_BY:
            wanted = [(COLUMNS.index(name), getattr(situation, name)) for name in conditions]
            alike = [all(one[at] == value for at, value in wanted) for one in table.classes]
            found = table.runs(stated & np.array(alike, dtype=bool))
            if found.groups >= self.least_groups:
                return found._replace(any_gpu="architecture" not in conditions, tail=self.tail)
        return None

    def by(self, names: Sequence[str]) -> dict[tuple[str, ...], SimilarRuns]:
        """All runs, grouped by the values of the columns `names`, in the order of the file."""
        table, places = self._table, [COLUMNS.index(name) for name in names]
        keys = [tuple(one[at] for at in places) for one in table.classes]
        found = {}
        for key in dict.fromkeys(keys):
            found[key] = table.runs(np.array([one == key for one in keys], dtype=bool))
        return found


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
