"""Why no pools of a disaggregated deployment meet the demand, and the nearest change that would help."""

from __future__ import annotations

from sizing.answers.pools import Checked, Found, Pooled
from sizing.answers.search import Evaluated
from sizing.question.question import Question, SeparatePools
from sizing.replica.replica import Refusal
from sizing.report.lines import limit_words, milliseconds, number, plural
from sizing.specs.units import MILLI

LATENCIES = ("ttft", "itl", "e2e")


def why_not(found: Found, asked: SeparatePools, checked: Checked | None) -> str:
    """Say what stands in the way of any pair: the simulation, or the nearest miss of a pool or of the way between both."""
    if checked is not None:
        return _unconfirmed(checked, found.question, asked)
    parts = []
    for phase in found.lacking:
        entries = found.rejected[phase]
        sized = [
            entry for entry in entries if entry.reason != "memory"
        ]  # what has room misses a limit, which says more
        nearest = min(sized or entries, key=lambda entry: entry.shortfall, default=None)
        if nearest is not None:
            parts.append(_miss(nearest, phase) + _part_of(nearest, found.question))
    if parts:
        return "; ".join(parts)
    if found.short:
        return _too_few(found, asked)
    if found.unpaired:
        return _miss(min(found.unpaired, key=lambda entry: entry.shortfall), "prefill")
    e2e = found.question.target.limits.e2e
    if e2e is not None:
        return f"no split of the E2E limit of {milliseconds(e2e.seconds / MILLI)} between prefill and decode leaves both enough"
    return "no pair of layouts carries the demand within the limits"


def _part_of(entry: Refusal, question: Question) -> str:
    """Say of which limit on E2E a pool's own is the most that the other pool leaves."""
    e2e = question.target.limits.e2e
    return f" (of {milliseconds(e2e.seconds / MILLI)} for both pools)" if e2e and entry.reason == "e2e" else ""


def _miss(entry: Refusal, phase: str) -> str:
    return f"{phase}: {entry.gpu_type.name} {entry.layout}: {entry.detail}"


def _too_few(found: Found, asked: SeparatePools) -> str:
    """Say which pool has too few replicas, what ends their load and how many it takes; or that no pair fits the budget."""
    request = found.question
    given = {"prefill": asked.prefill.pool.replicas, "decode": asked.decode.pool.replicas}

    def gpus(pair: Pooled, least: int) -> int:
        """GPUs of a pair whose pools have what is given, and at least so many replicas as they need times `least`."""
        return sum(
            max(given[name] or 1, least * pool.replicas) * pool.replica.layout.gpus for name, pool in pair.parts.items()
        )

    if request.target.requests_per_s is None:
        nearest = min(found.short, key=lambda pair: gpus(pair, 0))
        shapes = (_shape(pool, given[name], name) for name, pool in nearest.parts.items())
        taken = plural(gpus(nearest, 0), "GPU")
        return f"{' and '.join(shapes)} take {taken}, the budget is {request.rules.gpu_budget or 0:,}; nearest: --gpus {gpus(nearest, 0)}"
    nearest = min(found.short, key=lambda pair: gpus(pair, 1))
    return "; ".join(
        f"{_shape(pool, count, name)} carries at most {number(count * pool.most_requests_per_s)} of "
        f"{number(request.target.requests_per_s)} requests/s, ended by {limit_of(pool, name)}; nearest: "
        f"{plural(pool.replicas, f'{name} replica')}"
        for name, pool in nearest.parts.items()
        if (count := given[name]) is not None and count < pool.replicas
    )


def _shape(pool: Evaluated, count: int | None, name: str) -> str:
    return f"{name}: {count or 1} x {pool.replica.gpu_type.name} {pool.replica.layout}"


def _unconfirmed(checked: Checked, question: Question, asked: SeparatePools) -> str:
    """Say what the last size that was simulated missed, and which pool that is given its replicas is too small for it."""
    from sizing.answers.verify_pools import lacking, limits_of

    pair, tried = checked.best, f"no size was confirmed by simulation ({checked.tries} tried)"
    assert pair.served is not None
    limits = limits_of(pair, question)
    missed = []
    for name in LATENCIES:
        limit = getattr(limits, name)
        measured_s = pair.latency_s(name)[limit.statistic] if limit is not None else 0.0
        if limit is not None and measured_s > limit.seconds:
            measured, most = milliseconds(measured_s / MILLI), milliseconds(limit.seconds / MILLI)
            missed.append(f"{name.upper()} ({limit.statistic}) {measured}, limit {most}")
    sides = (asked.prefill.pool.replicas, asked.decode.pool.replicas)
    small = [
        f"more than {plural(fixed, f'{phase} replica')}"
        for phase, fixed, short in zip(("prefill", "decode"), sides, lacking(pair, question), strict=True)
        if short and fixed is not None
    ]
    if not pair.served.whole.stable:
        missed.append("a queue that kept growing")
    what = f"; the last had {' and '.join(missed)}" if missed else ""
    return tried + what + (f"; nearest: {' and '.join(small)}" if small else "")


def limit_of(pool: Evaluated, name: str) -> str:
    """Return what ends a pool's load. That on E2E is what remains for decode of a limit on ITL (or E2E), for prefill of E2E."""
    return limit_words("itl" if name == "decode" and pool.binding == "e2e" else pool.binding)
