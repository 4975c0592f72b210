"""One run of a benchmark tool. Each metric has one definition, whatever the tool calls it.

TTFT is the time to the first token. ITL is the mean gap between tokens of a request after the first: (E2E - TTFT) /
(OSL - 1). E2E is the time to the last token. All are in ms. Requests/s counts completed requests.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sizing.catalog.measured import MeasuredSetting
from sizing.catalog.shelf import only
from sizing.specs.measurements import Conventions

PERCENTS = (50.0, 90.0, 95.0, 99.0)
UNIT_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}
UNCHECKED = "token counts are of the client's tokenizer and nothing in the file checks it: state a forced output length as --osl"
UNVERSIONED = "the engine's version is not stated and the newest is predicted: state it as --engine NAME:VERSION"
PREFIXES_KEPT = "prefix caching was on"
MOST_LINES = 100_000  # of a table; a summary has some dozens
SHOWN = 40  # characters of a wrong value in a fault
TITLES = {"ttft": "TTFT", "itl": "ITL", "e2e": "E2E"}


class MalformedRunError(ValueError):
    """A run that cannot be used. The message says why, `allowed` what is accepted, and `remedy` what to do."""

    def __init__(self, message: str, allowed: str | None = None, remedy: str | None = None) -> None:
        """Keep the reason, and what helps."""
        super().__init__(message)
        self.allowed, self.remedy = allowed, remedy


class LatencyFigures(NamedTuple):
    """The mean of a latency and its percentiles by percent, in ms; None and empty if the file has none."""

    mean: float | None = None
    percentiles: Mapping[float, float] = {}

    def scaled(self, factor: float) -> LatencyFigures:
        """The figures multiplied by `factor`, to convert units."""
        mean = None if self.mean is None else self.mean * factor
        return LatencyFigures(mean, {percent: value * factor for percent, value in self.percentiles.items()})


class RunSettings(MeasuredSetting, kw_only=True):
    """The settings of a run, from a file or from the user. Unknown settings are empty or None.

    `rate_per_s` is infinite if all requests were sent at once. `speculative` is a method of speculative decoding, with drafted
    tokens and acceptance where they are known, in the form of --speculative. `prefix_hit` is the share of prompt tokens that were
    found in cache.
    """

    isl: float | None = None
    osl: float | None = None
    rate_per_s: float | None = None
    speculative: str = ""
    prefix_hit: float | None = None


class BenchmarkRun(RunSettings):
    """The content of a result file about one run.

    `asked_osl` is the output length that was forced on the engine. `line` is the line in a file with several runs. `named_engine`
    is the engine in the client's settings; another engine may have served the run. With speculative decoding, `drafted` is the
    number of drafted tokens, and `tokens_per_step` the mean number of tokens that a step gave. With `client_counts` the client's
    own tokenizer counted the tokens, which may be that of another model. `requests` were completed, and `failed` are not among
    them. With `one_replica` all GPUs of the run are one replica, whatever its TP is. `ranks` of data parallelism, or engines,
    served the run together. `burstiness` is the shape of a gamma distribution of the gaps between arrivals: 1 is random, infinite
    is even.
    """

    tool: str
    line: int | None = None
    named_engine: str = ""
    asked_osl: float | None = None
    requests: int | None = None
    duration_s: float | None = None
    failed: int = 0
    burstiness: float = 1.0
    one_replica: bool = False
    ranks: int = 1
    client_counts: bool = False
    drafted: int | None = None
    tokens_per_step: float | None = None
    ttft: LatencyFigures = field(default_factory=LatencyFigures)
    itl: LatencyFigures = field(default_factory=LatencyFigures)
    e2e: LatencyFigures = field(default_factory=LatencyFigures)
    req_per_s: float | None = None
    output_tok_per_s: float | None = None
    notes: tuple[str, ...] = ()

    def settled(self) -> BenchmarkRun:
        """This run with values that follow from its own figures: forced lengths, E2E from TTFT and ITL, or ITL from both others.

        Raises MalformedRunError if no request was completed.
        """
        if self.requests == 0:
            raise MalformedRunError("no request was completed")
        run = self if self.asked_osl is None else self._with_length(self.asked_osl)
        run, osl = run._with_parts(), run.osl
        if run.req_per_s is not None and osl is not None and run.output_tok_per_s is not None:
            by_requests = run.req_per_s * osl
            if by_requests > 0 and not same_tokens(run.output_tok_per_s, by_requests):
                stated = f"{run.output_tok_per_s:,.1f} output tokens/s in the file"
                run = replace(run, notes=(*run.notes, f"{stated}, {by_requests:,.1f} by requests/s x OSL"))
        unchecked = (UNCHECKED,) if self.client_counts and self.asked_osl is None and osl is not None else ()
        return replace(run, notes=(*run.notes, *unchecked))

    def _with_parts(self) -> BenchmarkRun:
        """This run with the one latency that follows from both others and the output length."""
        osl, ttft, itl, e2e = self.osl, self.ttft.mean, self.itl.mean, self.e2e.mean
        if osl is not None and osl <= 1:  # tools write a gap of 0, where there is none
            return replace(self, itl=LatencyFigures(), e2e=self.ttft if e2e is None else self.e2e)
        if osl is None or ttft is None:
            return self
        if e2e is None and itl is not None:
            return replace(self, e2e=self.e2e._replace(mean=ttft + itl * (osl - 1)))
        if e2e is not None and itl is None and osl > 1:
            return replace(self, itl=self.itl._replace(mean=(e2e - ttft) / (osl - 1)))
        return self

    def absent(self) -> str:
        """The titles of the latencies of which nothing is known; empty if all are known."""
        return ", ".join(title for name, title in TITLES.items() if getattr(self, name) == LatencyFigures())

    def forced_to(self, osl: float) -> BenchmarkRun:
        """This run with the output length that the user forced; the same where the file states one, or the engine counted."""
        if self.osl is None:
            return replace(self, osl=osl)._with_parts()
        if not self.client_counts or self.asked_osl is not None:
            return self
        checked = replace(self, notes=tuple(note for note in self.notes if note != UNCHECKED))
        return checked._with_length(osl)

    def _with_length(self, forced: float) -> BenchmarkRun:
        """This run with outputs of the `forced` length, if the tool counted tokens with another tokenizer."""
        counted = self.osl
        if counted is None or same_tokens(counted, forced):
            return self
        note = (
            f"token counts of another tokenizer: {counted:,.2f} output tokens a request counted where {forced:,g} were "
            f"forced, so OSL, ITL and output tokens/s are those of {forced:,g}"
        )
        # Both token counts span the same time, so fewer tokens mean longer gaps.
        itl = self.itl.scaled((counted - 1) / (forced - 1)) if forced > 1 and counted > 1 else LatencyFigures()
        tokens = None if self.req_per_s is None else self.req_per_s * forced
        return replace(self, osl=forced, itl=itl, output_tok_per_s=tokens, notes=(*self.notes, note))


def same_tokens(counted: float, other: float) -> bool:
    """Whether two counts of one text are of the same tokenizer."""
    return abs(counted / other - 1) <= only(Conventions).agreement.tokenizer


def figures(entry: Mapping[str, Any], mean: str, percentile: str, in_ms: float = 1.0) -> LatencyFigures:
    """The latency with its mean at the key `mean` and its percentiles at keys that match the pattern `percentile`.

    The group of the pattern is the percent; without a group it is the median. `in_ms` converts values to ms.
    """
    found = {
        float(matched[1] or 50): value
        for key in entry
        if (matched := re.fullmatch(percentile, key)) and (value := number(entry, key)) is not None
    }
    return LatencyFigures(number(entry, mean), found).scaled(in_ms)


def spread_of(values_ms: Sequence[float]) -> LatencyFigures:
    """The mean and the usual percentiles of values, one per request."""
    if not values_ms:
        return LatencyFigures()
    found = np.percentile(values_ms, PERCENTS)
    return LatencyFigures(float(np.mean(values_ms)), dict(zip(PERCENTS, map(float, found), strict=True)))


class Key(NamedTuple):
    """A row of keys.csv: where a file states a figure, by the paths of its spellings, and how it is read."""

    field: str
    kind: str
    paths: tuple[str, ...]
    percentiles: str = ""

    def read(self, entry: Mapping[str, Any]) -> Any:
        """The figure at the first path that has one. Raises MalformedRunError."""
        found: Any = None
        for *steps, key in (path.split(".") for path in self.paths):
            of, percentiles = part(entry, *steps), self.percentiles
            found = figures(of, key, percentiles, UNIT_MS[self.kind]) if percentiles else READ[self.kind](of, key)
            if found not in (None, ""):
                break
        return found


@cache
def keys(table: str) -> tuple[Key, ...]:
    """The rows of a table of keys.csv."""
    with Path(__file__).with_name("keys.csv").open(encoding="utf-8", newline="") as rows:
        return tuple(
            Key(field, kind, tuple(paths.split(" | ")), percentiles)
            for of, field, kind, paths, percentiles in csv.reader(rows)
            if of == table
        )


def stated(tables: Iterable[str], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a run that an object states, by the rows of some tables of keys.csv. Raises MalformedRunError."""
    return {key.field: key.read(entry) for table in tables for key in keys(table)}


def number(entry: Mapping[str, Any], key: str) -> float | None:
    """The number at `key`; None if it is missing or null. Raises MalformedRunError unless it is finite and at least 0."""
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedRunError(f"{key or 'a cell'} is no number: {str(value)[:SHOWN]!r}")
    if not math.isfinite(value):
        raise MalformedRunError(f"{key} is {value}")
    if value < 0:
        raise MalformedRunError(f"{key} is below zero: {value:g}")
    return float(value)


def parsed(name: str, text: str) -> float:
    """Parse a text as a number. Raises MalformedRunError."""
    try:
        return float(text)
    except ValueError:
        raise MalformedRunError(f"{name} is no number: {text[:SHOWN]!r}") from None


def count(entry: Mapping[str, Any], key: str) -> int | None:
    """The whole number at `key`, also if written as text; None without one."""
    value = entry.get(key)
    if isinstance(value, str) and value.strip().isdigit():
        return int(value.strip()) if len(value.strip()) < 10 else None
    found = number(entry, key)
    return int(found) if found is not None and found.is_integer() else None


def lines(content: str) -> Iterator[list[str]]:
    """The cells of each line of a table. Raises MalformedRunError for more lines than an export has."""
    for number, cells in enumerate(csv.reader(io.StringIO(content), strict=True)):
        if number == MOST_LINES:
            raise MalformedRunError(f"has more than {MOST_LINES:,} lines", "a summary: one line a metric or a run")
        yield cells


def text(entry: Mapping[str, Any], *keys: str) -> str:
    """The first text at one of `keys`, or the first of a list of texts; empty without one."""
    for key in keys:
        value = entry.get(key)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def part(entry: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """The object at a path of keys; empty without one."""
    for key in path:
        found = entry.get(key)
        if not isinstance(found, Mapping):
            return {}
        entry = found
    return entry


def rate(entry: Mapping[str, Any], key: str) -> float | None:
    """The arrival rate at `key`. `inf` and `Infinity` are infinite: all requests are sent at once."""
    value = entry.get(key)
    if isinstance(value, str) and value.strip().lower() in ("inf", "infinity"):
        return math.inf
    if isinstance(value, float) and value == math.inf:
        return math.inf
    return positive(entry, key)


def positive(entry: Mapping[str, Any], key: str) -> float | None:
    """The number at `key`; None if it is missing or null. Raises MalformedRunError unless it is finite and above 0."""
    found = number(entry, key)
    if found == 0:
        raise MalformedRunError(f"{key} is 0")
    return found


READ: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "text": text,
    "number": number,
    "count": count,
    "rate": rate,
}
