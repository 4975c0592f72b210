"""The document of `llmsize sweep`."""

from __future__ import annotations

from typing import Any, NamedTuple

from sizing.formats.view import Assumption

SCHEMA = "llmsize.sweep/1"


class SweepRow(NamedTuple):
    """One combination: the values varied, and what `estimate` finds for them; figures are null where nothing serves it.

    Latencies are means. `limit` is what ends a replica's load; where nothing serves it, what stands in the way (`input`: the
    combination itself), with the `detail`. Of separate `pools` the layouts are text, and that of one replica is null; `limit` is
    then what ends the load of the pool nearer to its most, `pools` where nothing serves it.
    """

    varied: dict[str, Any]
    feasible: bool
    gpu: str | None
    weight_precision: str | None
    gpus: int | None
    replicas: int | None
    tp: int | None
    pp: int | None
    ep: int | None
    dp: int | None
    cp: int | None
    dcp: int | None
    pools: str | None
    requests_per_s: float | None
    requests_per_s_per_gpu: float | None
    ttft_ms: float | None
    itl_ms: float | None
    e2e_ms: float | None
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    power_w: float | None
    limit: str
    detail: str


FIGURES = SweepRow._fields[1:]
NUMBERS = FIGURES[1:-2]  # what is null where nothing serves a combination


def column(name: str) -> str:
    """Return what a varied input is called beside the figures: `asked_gpu` where a figure has its name."""
    return f"asked_{name}" if name in FIGURES else name


def flat(row: SweepRow) -> dict[str, Any]:
    """Return a row as one level of names: what is varied, then the figures."""
    return {column(name): value for name, value in row.varied.items()} | dict(zip(FIGURES, row[1:], strict=True))


class Sweep(NamedTuple):
    """The document of `llmsize sweep`: `inputs` and `assumptions` are those that all rows share; `feasible` if one row is."""

    feasible: bool
    inputs: dict[str, Any]
    varied: dict[str, tuple[Any, ...]]
    verified: bool
    feasible_rows: int
    rows: tuple[dict[str, Any], ...]
    assumptions: tuple[Assumption, ...]
    schema: str = SCHEMA
