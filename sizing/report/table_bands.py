"""Error bands of an answer for the terminal: the ranges of its headline numbers, and what they miss."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import cast

from sizing.formats.view import Line, Quantity
from sizing.formats.words import number
from sizing.report.documents import Estimate
from sizing.report.parts.bands import MEANS, words
from sizing.report.parts.quantities import MAX_REQUESTS_PER_S, REQUESTS_PER_S


def of_estimate(document: Estimate) -> Line:
    """Return the bands of an answer's latencies, and of the rate: the one served where it is predicted, else the most.

    A size on the edge of a rate's band has been found by that edge, so it has no band of its own.
    """
    shown = [q._replace(key=f"latency.{q.key}") for q in MEANS if q.heading != "ITL" or _decodes(document)]
    if "load.requests_per_s" in document.bands:
        shown.append(REQUESTS_PER_S._replace(key="load.requests_per_s"))
    elif document.conservative is None or "load.max_requests_per_s" in document.bands:
        shown.append(MAX_REQUESTS_PER_S._replace(key="load.max_requests_per_s"))
    return words(document.bands, shown, "runs", _bias(document, shown) + _missed(document))


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


def _bias(document: Estimate, shown: Sequence[Quantity]) -> str:
    """Say which predictions lie outside their own band: those of their class have been off to one side."""
    off = []
    for quantity in shown:
        band = document.bands.get(quantity.key)
        value = reduce(getattr, quantity.key.split("."), document)
        if band is not None and not band.low <= cast(float, value) <= band.high:
            off.append(quantity.heading)
    if not off:
        return ""
    wary = "" if document.conservative else "; --conservative sizes on their worse edges"
    return f". {', '.join(off)}: predictions of this kind have been off to one side, by more than the range{wary}"


def _decodes(document: Estimate) -> bool:
    return document.latency is not None and document.latency.itl_ms.mean is not None
