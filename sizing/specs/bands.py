"""How far measurements lie from predictions: the file hardware_profiles/_bands.yaml."""

from __future__ import annotations

from typing import Literal

from sizing.specs.base import Positive, PositiveInt, Spec, Text

BandMetric = Literal["ttft", "itl", "e2e", "throughput", "weights", "kv_cache"]
Mode = Literal["served", "batch", "offline"]
Kind = Literal["dense", "moe"]
Load = Literal["solo", "low", "medium", "high"]


class Band(Spec):
    """Measured over predicted, the range that about 8 in 10 measurements of a class fall in; an absent condition is any.

    `n` measurements of `groups` groups (source, model and GPU) make it up.
    """

    metric: BandMetric
    mode: Mode | None = None
    vendor: Text | None = None
    engine: Text | None = None
    architecture: Text | None = None
    kind: Kind | None = None
    load: Load | None = None
    low: Positive
    high: Positive
    n: PositiveInt
    groups: PositiveInt


class Bands(Spec):
    """The whole file: bands from the narrowest class to the widest, the first that holds wins."""

    bands: tuple[Band, ...]
    source: Text
    date: Text
