"""Why no pools of a disaggregated deployment meet the demand, and the nearest change that would help."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.answers.answer import Answer, Outcome, Pool
from sizing.answers.pools import Asked
from sizing.question.question import Question
from sizing.replica.replica import Refusal
from sizing.report.lines import limit_words, milliseconds, number, plural
from sizing.specs.units import MILLI

LATENCIES = ("ttft", "itl", "e2e")


def why_not(found: Outcome, asked: Asked) -> str:
    """Say what stands in the way of any pair: the simulation, or the nearest miss of a pool or of the way between both."""
    if found.tries:
        return _unconfirmed(found, asked)
    pairing = found.pairing
    assert pairing is not None
    parts = []
    for phase in pairing.lacking:
        entries = pairing.refusals[phase]
        sized = [
            entry for entry in entries if entry.reason != "memory"
        ]  # what has room misses a limit, which says more
        nearest = min(sized or entries, key=lambda entry: entry.shortfall, default=None)
        if nearest is not None:
            parts.append(_miss(nearest, phase) + _part_of(nearest, found.question))
    if parts:
        return "; ".join(parts)
    if pairing.short:
        return _too_few(pairing.short, found.question, asked)
    if pairing.unpaired:
        return _miss(min(pairing.unpaired, key=lambda entry: entry.shortfall), "prefill")
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


def _too_few(short: Sequence[Answer], question: Question, asked: Asked) -> str:
    """Say which pool has too few replicas, what ends their load and how many it takes; or that no pair fits the budget."""
    given = dict(zip(("prefill", "decode"), asked.given, strict=True))

    def gpus(pair: Answer, least: int) -> int:
        """GPUs of a pair whose pools have what is given, and at least so many replicas as they need times `least`."""
        return sum(max(given[pool.name] or 1, least * pool.count) * pool.replica.layout.gpus for pool in pair.pools)

    if question.target.requests_per_s is None:
        nearest = min(short, key=lambda pair: gpus(pair, 0))
        shapes = (_shape(pool, given[pool.name]) for pool in nearest.pools)
        taken = plural(gpus(nearest, 0), "GPU")
        return f"{' and '.join(shapes)} take {taken}, the budget is {question.rules.gpu_budget or 0:,}; nearest: --gpus {gpus(nearest, 0)}"
    nearest = min(short, key=lambda pair: gpus(pair, 1))
    return "; ".join(
        f"{_shape(pool, count)} carries at most {number(count * pool.capacity.requests_per_s)} of "
        f"{number(question.target.requests_per_s)} requests/s, ended by {limit_of(pool)}; nearest: "
        f"{plural(pool.count, f'{pool.name} replica')}"
        for pool in nearest.pools
        if (count := given[pool.name]) is not None and count < pool.count
    )


def _shape(pool: Pool, count: int | None) -> str:
    return f"{pool.name}: {count or 1} x {pool.replica.gpu_type.name} {pool.replica.layout}"


def _unconfirmed(found: Outcome, asked: Asked) -> str:
    """Say what the last size that was simulated missed, and which pool that is given its replicas is too small for it."""
    from sizing.answers.verify import lacking, limits_of

    pair, question = found.best, found.question
    tried = f"no size was confirmed by simulation ({found.tries} tried)"
    assert pair is not None and pair.run is not None
    limits = limits_of(pair, question)
    missed = []
    for name in LATENCIES:
        limit = getattr(limits, name)
        measured_s = pair.latency_s(name)[limit.statistic] if limit is not None else 0.0
        if limit is not None and measured_s > limit.seconds:
            measured, most = milliseconds(measured_s / MILLI), milliseconds(limit.seconds / MILLI)
            missed.append(f"{name.upper()} ({limit.statistic}) {measured}, limit {most}")
    small = [
        f"more than {plural(fixed, f'{phase} replica')}"
        for phase, fixed, short in zip(("prefill", "decode"), asked.given, lacking(pair, question), strict=True)
        if short and fixed is not None
    ]
    if not pair.run.stable:
        missed.append("a queue that kept growing")
    what = f"; the last had {' and '.join(missed)}" if missed else ""
    return tried + what + (f"; nearest: {' and '.join(small)}" if small else "")


def limit_of(pool: Pool) -> str:
    """Return what ends a pool's load. That on E2E is what remains for decode of a limit on ITL (or E2E), for prefill of E2E."""
    return limit_words(ending(pool))


def ending(pool: Pool) -> str:
    """The limit or capacity that ends a pool's load; for decode a limit on E2E is that on ITL."""
    return "itl" if pool.phase == "decode" and pool.capacity.binding == "e2e" else pool.capacity.binding
