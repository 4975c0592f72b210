"""Error bands: how far published measurements of a class of numbers lie from what is predicted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from sizing.specs.values import NonNegativeInt, OneFile, Positive, PositiveInt, Spec, Text

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


UNCORRECTED = Correction()


class Sure(NamedTuple):
    """How many GPUs are sure to do: `gpus` keep the limits in a share `confidence` of `groups` groups of published runs.

    `gpus` is None where too few were like the question (`why_not`). `chance` is the share in which the expected GPUs do.
    """

    gpus: int | None
    confidence: float
    groups: int
    chance: float | None = None
    why_not: str | None = None


class ErrorBand(NamedTuple):
    """The range, in the number's own unit, into which 8 in 10 of `n` published measurements of its class put it."""

    low: float
    high: float
    n: int


class Bands(OneFile):
    """The whole file: bands from the narrowest class to the widest, the first that holds wins."""

    FILE = "hardware_profiles/_bands.yaml"

    bands: tuple[Band, ...]
    source: Text
    date: Text


class Corrections(OneFile):
    """The whole file: corrections from the narrowest class to the widest, the first that holds wins."""

    FILE = "hardware_profiles/_corrections.yaml"

    corrections: tuple[Correction, ...]
    source: Text
    date: Text

    def of(self, situation: Situation) -> Correction:
        """The correction of a situation; none where nothing of its kind was measured."""
        return next((one for one in self.corrections if holds(one, situation)), UNCORRECTED)


SOLO, FEW, MANY = 1, 8, 64  # bounds of the load regions, in requests in flight on one replica
LATENCIES: tuple[BandMetric, ...] = ("ttft", "itl", "e2e")


class Situation(NamedTuple):
    """What a number is of: how the engine is driven, which engine on whose GPUs of which generation, dense or experts, how loaded."""

    mode: DrivingMode
    vendor: str
    engine: str
    architecture: str
    kind: ModelKind
    load: LoadRegion | None
    memory: MemoryKind | None = None


def region(in_flight: float) -> LoadRegion:
    """The load region of a replica with `in_flight` requests."""
    if in_flight <= SOLO:
        return "solo"
    if in_flight <= FEW:
        return "low"
    return "medium" if in_flight <= MANY else "high"


def find(bands: Iterable[Band], metric: BandMetric, situation: Situation) -> Band | None:
    """The band of a metric, the first whose conditions hold; None where nothing of its kind was measured."""
    return next((band for band in bands if band.metric == metric and holds(band, situation)), None)


def holds(entry: Band | Correction, situation: Situation) -> bool:
    """Whether a situation has every condition that an entry states."""
    return all(getattr(entry, name, None) in (None, value) for name, value in situation._asdict().items())


def uncorrected(situation: Situation) -> Correction:
    """No correction, whatever the situation."""
    return UNCORRECTED
