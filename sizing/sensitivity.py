"""What would change an answer: each limit, each length and the demand, a share lower and higher, sized again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from sizing import advice
from sizing import request as requests
from sizing.errors import InputError
from sizing.request import Request
from sizing.search import Evaluated
from sizing.specs.workload import Defaults, Tokens, Workload
from sizing.units import MILLI

SHARES = (-0.2, 0.2)  # by which each input is changed
LIMITS = ("ttft", "itl", "e2e")
LENGTHS = ("isl", "osl")


@dataclass(frozen=True, slots=True)
class Change:
    """One input changed by a share to `value` in `unit`; the request that it makes, or why there is none."""

    what: str
    share: float
    value: float
    unit: str
    request: Request | None
    tokens: Tokens
    reason: str | None = None


class Sized(NamedTuple):
    """What a changed request takes: the best layout that serves it, or the reason why none does."""

    best: Evaluated | None
    reason: str | None


class Effect(NamedTuple):
    """A change and what is then the answer."""

    change: Change
    sized: Sized


def changes(request: Request, workload: Workload, defaults: Defaults) -> Iterator[Change]:
    """Yield each limit, each length and the demand, a share lower and higher."""
    for name in LIMITS:
        for share in SHARES:
            yield from _limit(request, workload, name, share)
    for name in LENGTHS:
        for share in SHARES:
            yield from _length(request, workload, defaults, name, share)
    for share in SHARES:
        yield from _demand(request, workload, share)


def effects(found: Iterable[Change], size: Callable[[Request, Tokens], Sized]) -> Iterator[Effect]:
    """Yield what each change makes of the answer; what asks for too much is told by its reason."""
    for change in found:
        if change.request is None:
            yield Effect(change, Sized(None, change.reason))
        else:
            yield Effect(change, size(change.request, change.tokens))


def _limit(request: Request, workload: Workload, name: str, share: float) -> Iterator[Change]:
    limit = getattr(request.limits, name)
    if limit is None or (name == "itl" and request.osl == 1):
        return
    changed = replace(request, limits=advice.relaxed(request.limits, name, 1 + share))
    statistic = "" if limit.statistic == "mean" else f" ({limit.statistic})"
    value_ms = limit.seconds * (1 + share) / MILLI
    yield Change(f"{name.upper()} limit{statistic}", share, value_ms, "ms", changed, workload.tokens)


def _length(request: Request, workload: Workload, defaults: Defaults, name: str, share: float) -> Iterator[Change]:
    """Yield a change of all lengths of a kind, their mean, spread and longest; none where it rounds to the same."""
    tokens = workload.tokens
    mean = max(1, round(getattr(tokens, name) * (1 + share)))
    if mean == getattr(tokens, name):
        return
    update: dict[str, float] = {name: mean}
    longest, std = getattr(tokens, f"{name}_max"), getattr(tokens, f"{name}_std")
    if longest is not None:
        update[f"{name}_max"] = max(mean, round(longest * (1 + share)))
    if std is not None:
        update[f"{name}_std"] = std * (1 + share)
    what = {"isl": "ISL", "osl": "OSL"}[name]
    other = tokens.model_copy(update=update)
    try:
        changed = _with_lengths(request, workload, other, defaults)
    except InputError as error:
        reason = "; ".join(fault.message for fault in error.faults)
        yield Change(what, share, mean, "tokens", None, other, reason)
        return
    yield Change(what, share, mean, "tokens", changed, other)


def _with_lengths(request: Request, workload: Workload, tokens: Tokens, defaults: Defaults) -> Request:
    """Return the request with other lengths. Raises InputError where model or engine take none so long."""
    alone = workload.model_copy(update={"tokens": tokens, "demand": None})  # which may have come through a pipe
    resolved = requests.resolve(
        alone, request.model, request.engine, request.engine_version, defaults, gpu_budget=request.gpu_budget or 1
    )
    return replace(request, isl=resolved.isl, osl=resolved.osl, max_model_len=resolved.max_model_len)


def _demand(request: Request, workload: Workload, share: float) -> Iterator[Change]:
    """Yield a change of what is demanded, where anything is: requests in flight, or requests/s at the peak."""
    if request.concurrency is not None:
        in_flight = max(1, round(request.concurrency * (1 + share)))
        if in_flight != request.concurrency:
            changed = replace(request, concurrency=in_flight)
            yield Change("demand", share, in_flight, "requests in flight", changed, workload.tokens)
    elif request.requests_per_s is not None:
        rate = request.requests_per_s * (1 + share)
        yield Change("demand", share, rate, "requests/s", replace(request, requests_per_s=rate), workload.tokens)
