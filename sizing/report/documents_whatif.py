"""The document of `llmsize whatif`: the answer as it is, with each optimisation alone, and with the best of them together."""

from __future__ import annotations

from typing import Any, NamedTuple

from sizing import __version__
from sizing.formats.view import Assumption


class Sized(NamedTuple):
    """An answer in short. Latencies are means at its load; `max_requests_per_s_per_gpu` is what a GPU serves within all limits.

    `verified` says that a simulation confirmed it; others are the closed form's.
    """

    gpus: int
    gpu: str
    layout: str
    weight_precision: str
    kv_precision: str
    requests_per_s_per_gpu: float
    max_requests_per_s_per_gpu: float
    ttft_ms: float
    itl_ms: float | None
    e2e_ms: float
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    verified: bool


class Sensitivity(NamedTuple):
    """The same with an assumption a step lower or higher; null where no layout meets the demand."""

    assumption: str
    value: float
    gpus: int | None
    max_requests_per_s_per_gpu: float | None
    ttft_ms: float | None
    itl_ms: float | None


class OptionReport(NamedTuple):
    """One optimisation alone: what it is on the command line, its answer, what it needs and risks, and its assumption.

    It `helps` where it comes before the answer without: fewer GPUs, less cost, or 1 % more served by a GPU. That, and
    `gpus_saved`, hold one closed form against the other, whatever a simulation made of the base.
    """

    name: str
    title: str
    options: str
    helps: bool
    gpus: int
    gpu: str
    gpus_saved: int | None
    layout: str
    requests_per_s_per_gpu: float
    max_requests_per_s_per_gpu: float
    ttft_ms: float
    itl_ms: float | None
    e2e_ms: float
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    needs: str
    risk: str
    source: str
    assumes: str | None
    sensitivity: tuple[Sensitivity, ...]


class Together(NamedTuple):
    """The best combination: names in the order in which each helps most, options, answer."""

    names: tuple[str, ...]
    options: str
    answer: Sized
    gpus_saved: int | None


class NotTried(NamedTuple):
    """An optimisation that does not help here, with the reason."""

    name: str
    reason: str


class WhatIfReport(NamedTuple):
    """The answer to `llmsize whatif`; `base` is null where nothing meets the demand without.

    Options are held against `base_closed_form`, null where `base` is not simulated and so is it.
    """

    inputs: dict[str, Any]
    base: Sized | None
    base_closed_form: Sized | None
    options: tuple[OptionReport, ...]
    best: Together | None
    not_possible: tuple[NotTried, ...]
    assumptions: tuple[Assumption, ...]
    schema: str = "llmsize.whatif/1"
    version: str = __version__
