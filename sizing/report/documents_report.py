"""The document of `llmsize report`: the answer, what would change it, curves and a comparison, and how to repeat it."""

from __future__ import annotations

from typing import Any, NamedTuple

from sizing.report.curve import RateLine
from sizing.report.documents import Estimate


class Sensitivity(NamedTuple):
    """One input changed by a share to a value, and the answer then: as sized like the answer itself; null where there is none."""

    what: str
    share: float
    value: float
    unit: str
    feasible: bool
    gpu: str | None
    weight_precision: str | None
    gpus: int | None
    extra_gpus: int | None
    layout: str | None
    requests_per_s: float | None
    usd_per_hour: float | None
    reason: str | None


class Report(NamedTuple):
    """The document of `llmsize report`; `simulated` says whether each size in it was confirmed by simulation.

    `rates` are latencies by rate, of a demand that arrives as Poisson traffic; `curve` is that of the `curve` command, by
    requests in flight, of one in flight and of offline work. `comparison` is that of the `compare` command, null where
    there is one candidate or no demand.
    """

    title: str
    command: str
    simulated: bool
    estimate: Estimate
    sensitivity: tuple[Sensitivity, ...]
    rates: tuple[RateLine, ...]
    curve: Any
    comparison: Any
    schema: str = "llmsize.report/1"
