"""How far predictions are from published measurements: error bands, corrections of step times, and the published runs.

The file of runs states for each published run the ratio of measured to predicted times. The prediction is corrected, but only by
runs of other groups.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

from sizing.specs.engine_time import HIGH_END, OwnRuns
from sizing.specs.spec import Before, Constraint, Spec
from sizing.specs.values import NonNegativeInt, OneFile, Positive, PositiveInt, Sourced, Text

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


UNCORRECTED = Correction()


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
    """The number of GPUs that is enough with a stated confidence, by published runs.

    Without a demand, `chance` is that of the rate that given GPUs serve.
    """

    gpus: int | None  # None if too few runs resemble the question
    confidence: float  # the share of runs in which `gpus` keep the limits
    groups: int  # of runs; each of the user's `own` runs is one
    chance: float | None = None  # of the expected number: at least `confidence` exactly where it is sure in its layout
    why_not: str | None = None
    own: bool = False
    any_gpu: bool = False  # whether the runs are of all generations, as too few are of the GPU's own
    by: str | None = None  # the quantity that sets the sure number
    times: float | None = None  # how long that took in the run that sets it, measured over predicted
    requests_per_s_sure: float | None = None  # what given GPUs serve with the confidence
    users_sure: int | None = None  # likewise


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

    bands: Annotated[tuple[Band, ...], Before(_of_lines)]


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
TIMES: tuple[BandMetric, ...] = ("ttft", "itl", "e2e", "throughput")
CLASS = ("mode", "vendor", "engine", "architecture", "kind")
COLUMNS = (*CLASS, "group", *TIMES)


class PublishedRuns(OneFile, Sourced):
    """The whole file. Each line is one run with the values of `COLUMNS`; a dash means not measured. `groups` names the groups.

    With this `tail` of `ends_of`, ranges of latencies hold about 8 in 10 runs of groups left out.
    """

    FILE = "hardware_profiles/_runs.yaml"

    groups: tuple[Text, ...]
    runs: Text
    least_groups: PositiveInt
    tail: Annotated[float, Constraint(ge=0, lt=0.5)] = 1 - HIGH_END
