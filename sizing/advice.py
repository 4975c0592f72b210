"""What limits an answer, and what would help: computed by searching again with one thing changed, never guessed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sizing.candidates import Rejected
from sizing.request import Data, GpuOption, Request
from sizing.search import Evaluated, Outcome, rank, search
from sizing.specs.workload import Limit, Limits

# How far a limit is relaxed to look for a smaller deployment: small steps first, the first that helps is reported.
RELAXATIONS = (1.1, 1.25, 1.5, 2.0, 3.0)
STABLE_UTILISATION = 0.8  # suggested in place of one set lower
LATENCIES = ("ttft", "itl", "e2e")
# Confirms an outcome (by simulation, or as it is), perhaps at a larger size, or returns None.
Confirm = Callable[[Outcome], Outcome | None]


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A relaxed limit and the GPUs that it would need."""

    limit: str
    seconds: float
    gpus: int


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that turns an infeasible request feasible, and what it then takes."""

    change: str
    gpus: int
    gpu: str
    layout: str


def relaxation(outcome: Outcome, confirm: Confirm) -> Relaxation | None:
    """Return the smallest relaxation of the binding latency limit that needs fewer GPUs and is confirmed, or None."""
    best = outcome.best
    if best is None or best.binding not in LATENCIES:
        return None
    same = tuple(
        e
        for e in outcome.ranked
        if e.candidate.option.id == best.candidate.option.id and e.candidate.precision == best.candidate.precision
    )
    for factor in RELAXATIONS:
        limits = relaxed(outcome.request.limits, best.binding, factor)
        request = replace(outcome.request, limits=limits)
        fewer = tuple(e for e in _resized(same, request) if e.gpus < best.gpus)
        if fewer:
            found = confirm(replace(outcome, request=request, ranked=rank(fewer, request)))
            if found is not None and found.best is not None and found.best.gpus < best.gpus:
                return Relaxation(best.binding, getattr(limits, best.binding).seconds, found.best.gpus)
    return None


def _resized(found: Sequence[Evaluated], request: Request) -> Iterator[Evaluated]:
    """Yield the same layouts with the replicas that a changed request takes."""
    for e in found:
        most = e.load.most(request)
        if most is not None:
            yield e.sized(most, request)


def relaxed(limits: Limits, name: str, factor: float) -> Limits:
    """Return limits with one of them multiplied by a factor."""
    limit: Limit = getattr(limits, name)
    return limits.model_copy(update={name: limit.model_copy(update={"seconds": limit.seconds * factor})})


def nearest_miss(outcome: Outcome) -> Rejected | None:
    """Return the rejected layout that came closest, or None when nothing was rejected."""
    return min(outcome.rejected, key=lambda r: (r.shortfall, r.layout.gpus), default=None)


def suggestions(
    outcome: Outcome, options: Sequence[GpuOption], precisions: Sequence[str | None], data: Data, confirm: Confirm
) -> tuple[Suggestion, ...]:
    """Return the single changes that would make an infeasible request feasible, each found by searching again."""
    found = []
    for change, request, names in _changes(outcome, precisions):
        confirmed = confirm(search(request, options, names, data))
        best = confirmed.best if confirmed is not None else None
        if best is not None and _within_budget(best, request):
            found.append(Suggestion(change, best.gpus, best.candidate.option.gpu.name, str(best.candidate.layout)))
    return tuple(found)


def _within_budget(best: Evaluated, request: Request) -> bool:
    return request.gpu_budget is None or best.gpus <= request.gpu_budget


def _changes(outcome: Outcome, precisions: Sequence[str | None]) -> Iterator[tuple[str, Request, Sequence[str | None]]]:
    """Yield (change in words, changed request, precisions) in the order in which a user would try them."""
    request = outcome.request
    serving = request.serving
    if serving.tp or serving.pp or serving.ep or serving.dp:
        free = serving.model_copy(update={"tp": None, "pp": None, "ep": None, "dp": None})
        yield "any layout (without --tp, --pp, --ep, --dp)", replace(request, serving=free), precisions
    for name in ("memory_fraction", "max_num_seqs", "max_num_batched_tokens", "cuda_graphs_gib"):
        if getattr(serving, name) is not None:
            default = replace(request, serving=serving.model_copy(update={name: None}))
            yield f"the engine's own {name} in place of {getattr(serving, name):g}", default, precisions
    if any(entry.reason == "token_budget" for entry in outcome.rejected):
        budget = serving.model_copy(update={"max_num_batched_tokens": request.isl})
        yield f"--max-num-batched-tokens {request.isl}", replace(request, serving=budget), precisions
    if request.max_utilisation < STABLE_UTILISATION:
        yield (
            f"--max-utilisation {STABLE_UTILISATION:g}",
            replace(request, max_utilisation=STABLE_UTILISATION),
            precisions,
        )
    if "fp8" not in precisions:
        yield "--precision fp8", request, ("fp8",)
    if "int4" not in precisions:
        yield "--precision int4 (weight-only)", request, ("int4",)
    if request.kv_precision != "fp8":
        yield "--kv-precision fp8", replace(request, kv_precision="fp8"), precisions
    if request.gpu_budget is not None and (request.requests_per_s or request.concurrency):
        yield "a larger budget of GPUs", replace(request, gpu_budget=None), precisions
    for name in LATENCIES:
        limit = getattr(request.limits, name)
        if limit is not None:
            seconds = _attainable_s(outcome, name, limit.seconds)
            limits = relaxed(request.limits, name, seconds / limit.seconds)
            yield (
                f"{name.upper()} limit {_rounded_up(seconds * 1e3):,} ms",
                replace(request, limits=limits),
                precisions,
            )


def _attainable_s(outcome: Outcome, name: str, limit_s: float) -> float:
    """Return a limit that the nearest miss would meet with a tenth to spare, at least a tenth above today's."""
    misses = [r.shortfall for r in outcome.rejected if r.reason == name]
    over = min(misses, default=0.0)
    return _rounded_up(limit_s * (1 + over) * 1.1 * 1e3) / 1e3


def _rounded_up(milliseconds: float) -> int:
    """Round up to two significant digits, as people state limits."""
    unit = int(10 ** max(0, int(math.log10(milliseconds)) - 1))
    return math.ceil(milliseconds / unit) * unit
