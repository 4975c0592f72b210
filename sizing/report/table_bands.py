"""Error bands for the terminal: the ranges of the headline numbers on one line, and how many published runs they rest on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple, cast

from sizing.report.documents import ErrorBand, Estimate
from sizing.report.lines import Line, gib, milliseconds, number

LABEL = "Error band"


class Headline(NamedTuple):
    """A number whose band is shown: its name, its path, and how it is written."""

    name: str
    path: str
    write: Callable[[float], str]


LATENCIES = tuple(Headline(name.upper(), f"{name}_ms.mean", milliseconds) for name in ("ttft", "itl", "e2e"))
MEMORY = (
    Headline("weights", "memory.weights_gib", lambda value: f"{gib(value)} GiB"),
    Headline("KV cache", "memory.kv_cache_gib", lambda value: f"{gib(value)} GiB"),
)


def of_estimate(document: Estimate) -> Line:
    """Return the bands of an answer's latencies, and of the rate: the one served where it is predicted, else the most.

    A size on the edge of a rate's band has been found by that edge, so it has no band of its own.
    """
    shown = [h._replace(path=f"latency.{h.path}") for h in LATENCIES if h.name != "ITL" or _decodes(document)]
    if "load.requests_per_s" in document.bands:
        shown.append(Headline("requests/s", "load.requests_per_s", number))
    elif document.conservative is None or "load.max_requests_per_s" in document.bands:
        shown.append(Headline("most requests/s", "load.max_requests_per_s", number))
    return line(document.bands, shown, "runs", _bias(document, shown) + _missed(document))


def _missed(document: Estimate) -> str:
    """Say what the whole of a range misses: the demand, or a limit on a mean."""
    found = []
    most = document.bands.get("load.max_requests_per_s")
    asked = document.load.requests_per_s if document.load is not None and document.inputs["demand"]["stated"] else None
    if most is not None and asked is not None and most.high < asked:
        found.append(f"most requests/s is below the {number(asked)} asked")
    for name in ("ttft", "itl", "e2e"):
        limit, band = document.inputs["limits"][f"{name}_ms"], document.bands.get(f"latency.{name}_ms.mean")
        if limit is not None and band is not None and limit["statistic"] == "mean" and band.low > limit["ms"]:
            found.append(f"{name.upper()} is over its limit")
    wary = "" if document.conservative else ": --conservative sizes on that"
    return f". Over the whole range {' and '.join(found)}{wary}" if found else ""


def _bias(document: Estimate, shown: Sequence[Headline]) -> str:
    """Say which predictions lie outside their own band: those of their class have been off to one side."""
    off = []
    for headline in shown:
        band = document.bands.get(headline.path)
        value = reduce(getattr, headline.path.split("."), document)
        if band is not None and not band.low <= cast(float, value) <= band.high:
            off.append(headline.name)
    if not off:
        return ""
    wary = "" if document.conservative else "; --conservative sizes on their worse edges"
    return f". {', '.join(off)}: predictions of this kind have been off to one side, by more than the range{wary}"


def _decodes(document: Estimate) -> bool:
    return document.latency is not None and document.latency.itl_ms.mean is not None


def of_run(bands: Mapping[str, ErrorBand], prefix: str = "") -> Line:
    """Return the bands of a simulated run: its latencies, and its rate where that is a prediction."""
    shown = (*LATENCIES, Headline("requests/s", "requests_per_s", number))
    here = [h._replace(path=prefix + h.path) for h in shown]
    return line(bands, [h for h in here if h.path in bands], "runs")


def of_memory(bands: Mapping[str, ErrorBand]) -> Line:
    """Return the bands of one GPU's weights and cache pool."""
    return line(bands, MEMORY, "engine logs")


def line(bands: Mapping[str, ErrorBand], shown: Sequence[Headline], noun: str, bias: str = "") -> Line:
    """Return the range of each number, which of them have none, and how many published runs or logs tell so."""
    ranges = [(h, bands[h.path]) for h in shown if h.path in bands]
    if not ranges:
        return Line(f"no published {noun} like this", LABEL)
    told = ", ".join(f"{h.name} {between(band.low, band.high, h.write)}" for h, band in ranges)
    counts = [band.n for _, band in ranges]
    of = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    lacking = [h.name for h in shown if h.path not in bands]
    none = f"; {', '.join(lacking)}: no published {noun} like this" if lacking else ""
    return Line(f"{told} (8 in 10 of {of} published {noun} like this){none}{bias}", LABEL)


def between(low: float, high: float, write: Callable[[float], str]) -> str:
    """Write a range, its unit once where both ends have the same."""
    first, last = write(low), write(high)
    if first == last:
        return first
    figure, _, unit = first.partition(" ")
    return f"{figure if unit == last.partition(' ')[2] else first} to {last}"
