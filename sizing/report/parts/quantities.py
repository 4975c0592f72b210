"""Every figure that several commands show: its key in JSON and CSV, its heading, and its form for people.

A command may give one of these another heading (`_replace(heading=...)`), or define a `Quantity` in its own file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sizing.formats.view import Quantity, in_words
from sizing.formats.words import gib, milliseconds, money, number, percent, rounded_usd
from sizing.model.architecture import Layout
from sizing.specs.units import MICRO
from sizing.specs.workload import GENERATE, ONE_LATENCY


def write_gib(value: float) -> str:
    """Write a size with its unit."""
    return f"{gib(value)} GiB"


GPUS = Quantity("gpus", "GPUs", "{:,}".format)
GPU = in_words("gpu", "GPU")
WEIGHTS = in_words("weight_precision", "weights")
USD_PER_HOUR = Quantity("usd_per_hour", "$/h", money)
HEADROOM = Quantity("headroom", "headroom", percent)
TTFT = Quantity("ttft_ms", "TTFT", milliseconds)
ITL = Quantity("itl_ms", "ITL", milliseconds)
E2E = Quantity("e2e_ms", "E2E", milliseconds)
LATENCY_QUANTITIES = (TTFT, ITL, E2E)
REQUESTS_PER_S = Quantity("requests_per_s", "requests/s")
REQUESTS_PER_S_PER_GPU = Quantity("requests_per_s_per_gpu", "per GPU")
USD_PER_MILLION_OUTPUT_TOKENS = Quantity("usd_per_million_output_tokens", "$/M output tokens", rounded_usd)
POWER_W = Quantity("power_w", "W (TDP)", number)
US_IN_ALL = Quantity("seconds", "us in all", lambda seconds: number(seconds / MICRO))
SHARE = Quantity("share", "share", percent)
WEIGHTS_GIB = Quantity("weights_gib", "weights", write_gib)
KV_CACHE_GIB = Quantity("kv_cache_gib", "KV cache", write_gib)

# Titles for the columns of measured rows.
COLUMN_TITLES = {
    **{quantity.key: quantity.heading for quantity in LATENCY_QUANTITIES},
    "req_per_s": "requests/s",
    "output_tok_per_s": "output tokens/s",
}


class NoSizes(NamedTuple):
    """The sizes where there is no single layout: all null."""

    tp: None = None
    pp: None = None
    ep: None = None
    dp: None = None
    cp: None = None
    dcp: None = None

    def __str__(self) -> str:
        return "separate pools"


def at_limit(quantity: Quantity, statistic: str) -> Quantity:
    """A latency in the `statistic` of its limit, from `limited` of a record (a mapping of latencies by key)."""

    def value(record: Any) -> float | None:
        of = record["limited"] if isinstance(record, dict) else record.limited
        limited = of.get(quantity.key)
        return None if limited is None else limited.ms

    key = f"{quantity.key.removesuffix('_ms')}_{statistic}_ms"
    return quantity._replace(key=key, heading=f"{statistic} {quantity.heading}", of=value)


def limited_percentiles(limits: Mapping[str, Any]) -> Iterator[tuple[Quantity, Any]]:
    """Yield the latencies whose limits, by their keys, are on other statistics than means, with these limits."""
    for quantity in LATENCY_QUANTITIES:
        limit = limits[quantity.key]
        if limit is not None and limit.statistic != "mean":
            yield quantity, limit


def flat_names(kind: type[NamedTuple]) -> tuple[str, ...]:
    """The fields of a record, with the parallel sizes one by one."""
    return tuple(part for name in kind._fields for part in (Layout._fields if name == "sizes" else (name,)))


def of_task(columns: Iterable[Quantity], task: str) -> tuple[Quantity, ...]:
    """The columns of a table. A task that generates nothing has one latency, under TTFT's key, and no ITL."""
    if task == GENERATE:
        return tuple(columns)
    kinds = [(column, column.key.partition("/")[0]) for column in columns]
    one = [(column, kind) for column, kind in kinds if kind not in (ITL.key, E2E.key)]
    return tuple(column._replace(heading=ONE_LATENCY) if kind == TTFT.key else column for column, kind in one)
