"""What would change an answer: each limit, each length and the demand, a share lower and higher, sized again.

What each optimisation would change, alone and together: the same search again, with it on.

Trials come as options of the command line (`specs.optimisation_facts.Trial`); how options become a request, and a request an
answer, is the caller's. The closed form compares; the base and the best combination may be confirmed by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sizing.answers import advice
from sizing.answers.advice import nearest_miss
from sizing.answers.answer import Answer, Outcome, cost, spent, throughput_first
from sizing.model import architecture
from sizing.model.extras import drafts
from sizing.question import question as requests
from sizing.question.question import Question
from sizing.specs.errors import InputError
from sizing.specs.facts import OptimisationTrial
from sizing.specs.units import MILLI
from sizing.specs.workload import Defaults, Tokens, Workload

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
    question: Question | None
    tokens: Tokens
    reason: str | None = None


class Sized(NamedTuple):
    """What a changed request takes: the best layout that serves it, or the reason why none does."""

    best: Answer | None
    reason: str | None


class Effect(NamedTuple):
    """A change and what is then the answer."""

    change: Change
    sized: Sized


def changes(question: Question, workload: Workload, defaults: Defaults) -> Iterator[Change]:
    """Yield each limit, each length and the demand, a share lower and higher."""
    for name in LIMITS:
        for share in SHARES:
            yield from _limit(question, workload, name, share)
    for name in LENGTHS:
        for share in SHARES:
            yield from _length(question, workload, defaults, name, share)
    for share in SHARES:
        yield from _demand(question, workload, share)


def effects(found: Iterable[Change], size: Callable[[Question, Tokens], Sized]) -> Iterator[Effect]:
    """Yield what each change makes of the answer; what asks for too much is told by its reason."""
    for change in found:
        if change.question is None:
            yield Effect(change, Sized(None, change.reason))
        else:
            yield Effect(change, size(change.question, change.tokens))


def _limit(question: Question, workload: Workload, name: str, share: float) -> Iterator[Change]:
    limit = getattr(question.target.limits, name)
    if limit is None or (name == "itl" and question.service.osl == 1):
        return
    changed = question.with_(limits=advice.relaxed(question.target.limits, name, 1 + share))
    statistic = "" if limit.statistic == "mean" else f" ({limit.statistic})"
    value_ms = limit.seconds * (1 + share) / MILLI
    yield Change(f"{name.upper()} limit{statistic}", share, value_ms, "ms", changed, workload.tokens)


def _length(question: Question, workload: Workload, defaults: Defaults, name: str, share: float) -> Iterator[Change]:
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
        changed = _with_lengths(question, workload, other, defaults)
    except InputError as error:
        reason = "; ".join(fault.message for fault in error.faults)
        yield Change(what, share, mean, "tokens", None, other, reason)
        return
    yield Change(what, share, mean, "tokens", changed, other)


def _with_lengths(question: Question, workload: Workload, tokens: Tokens, defaults: Defaults) -> Question:
    """Return the request with other lengths. Raises InputError where model or engine take none so long."""
    alone = workload.model_copy(update={"tokens": tokens, "demand": None})  # which may have come through a pipe
    resolved = requests.resolve(
        alone,
        question.service.model,
        question.service.engine,
        question.service.engine_version,
        defaults,
        gpu_budget=question.rules.gpu_budget or 1,
    )
    return question.with_(
        isl=resolved.service.isl, osl=resolved.service.osl, max_model_len=resolved.service.max_model_len
    )


def _demand(question: Question, workload: Workload, share: float) -> Iterator[Change]:
    """Yield a change of what is demanded, where anything is: requests in flight, or requests/s at the peak."""
    if question.target.concurrency is not None:
        in_flight = max(1, round(question.target.concurrency * (1 + share)))
        if in_flight != question.target.concurrency:
            changed = question.with_(concurrency=in_flight)
            yield Change("demand", share, in_flight, "requests in flight", changed, workload.tokens)
    elif question.target.requests_per_s is not None:
        rate = question.target.requests_per_s * (1 + share)
        yield Change("demand", share, rate, "requests/s", question.with_(requests_per_s=rate), workload.tokens)


Options = Mapping[str, Any]
LEAST_GAIN = 0.01  # of a rate: what less brings is not worth what it needs, and within the model's own doubt


class Solved(NamedTuple):
    """What comes of a question: its answer, None where there is none, and then the nearest miss."""

    best: Answer | None
    why_not: str | None = None


# Answers a question with options changed. Raises InputError where they cannot be combined.
Solve = Callable[[Options], Solved]


@dataclass(frozen=True, slots=True)
class Varied:
    """What a trial brings where its assumption is off: the value assumed instead, and the answer, None where none."""

    value: float
    best: Answer | None


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial alone: its answer, or why there is none; and how it depends on what it assumes."""

    name: str
    trial: OptimisationTrial
    best: Answer | None
    why_not: str | None = None
    sensitivity: tuple[Varied, ...] = ()


@dataclass(frozen=True, slots=True)
class Combination:
    """The best of those put together: the trials in the order in which each was added, and the answer."""

    names: tuple[str, ...]
    options: Options
    best: Answer | None


class Answered(NamedTuple):
    """An answer, None for none, and whether a simulation confirmed it."""

    best: Answer | None
    verified: bool


class Trials(NamedTuple):
    """What came of all trials: the answer without any, by the closed form, against which each of `tried` is held.

    `base` is that answer, `after` the best combination, both as they are shown: simulated where that is asked for.
    """

    closed_form: Answer | None
    base: Answered
    tried: tuple[Tried, ...]
    best: Combination
    after: Answered


def solved(outcome: Outcome) -> Solved:
    """Return what comes of a search for replicas that do all of a request."""
    if outcome.best is not None:
        return Solved(outcome.best)
    nearest = nearest_miss(outcome)
    return Solved(None, "no layout meets the demand" if nearest is None else f"{nearest.layout}: {nearest.detail}")


def order(found: Answer | None, question: Question) -> tuple[float, ...]:
    """Order of answers: what the request asks first (GPUs, unless told otherwise), cost, then the most served by a GPU."""
    if found is None:
        return (math.inf,)
    first, *_ = (*throughput_first(found, question), spent(found, question.rules.objective))
    return (first, cost(found), -found.most_per_gpu)


def applicable(trial: OptimisationTrial, question: Question, weight_bits: float, kv_bits: float) -> bool:
    """Return whether a trial changes anything of a request that is served with so many bits a weight and cached value."""
    if trial.optimisation is not None and trial.optimisation in question.service.optimisations.asked():
        return False
    cached = question.service.extras.cached
    if trial.of_caches and (cached.affinity or (cached.talk is None and cached.prefixes == 1)):
        return False
    if trial.attention is not None and architecture.attention_class(question.service.model) != trial.attention:
        return False
    if trial.of_checkpoint and not drafts.has_modules(question.service.model):
        return False
    if trial.optimisation == "speculative" and question.service.osl == 1:
        return False
    return weight_bits >= (trial.least_weight_bits or 0) and kv_bits >= (trial.least_kv_bits or 0)


def alone(name: str, trial: OptimisationTrial, solve: Solve) -> Tried:
    """Return what a trial brings by itself, and with what it assumes a step lower and higher."""
    try:
        best, why_not = solve(trial.values())
    except InputError as error:
        return Tried(name, trial, None, "; ".join(str(fault) for fault in error.faults))
    if best is None:
        return Tried(name, trial, None, why_not)
    return Tried(name, trial, best, None, tuple(_sensitivity(trial, solve)))


def _sensitivity(trial: OptimisationTrial, solve: Solve) -> Iterable[Varied]:
    assumed = trial.assumed
    if assumed is None:
        return
    for value in (assumed.value - assumed.step, assumed.value + assumed.step):
        held = min(max(value, 0.0), 1.0)
        yield Varied(held, solve(trial.values(held)).best)


def ranked(tried: Iterable[Tried], question: Question) -> tuple[Tried, ...]:
    """Return trials with the best first; those without an answer come last, in the order in which they came."""
    return tuple(sorted(tried, key=lambda one: order(one.best, question)))


def combined(base: Answer | None, tried: Iterable[Tried], question: Question, solve: Solve) -> Combination:
    """Put trials together that help alone, the one that helps most at a time, until none does any more; one of a group.

    Where none is feasible alone, the first of each group together may be. What comes out does not depend on the order in
    which trials are listed unless two of them help equally.
    """
    found, all_of_them = Combination((), {}, base), list(tried)
    left = [one for one in all_of_them if is_better(one.best, base, question)]
    if base is None and not left:
        return _all_at_once(found, all_of_them, solve)
    while left:
        steps = [step for one in left if (step := _with(found, one, solve)) is not None]
        best = min(steps, key=lambda step: order(step.best, question), default=None)
        if best is None or not is_better(best.best, found.best, question):
            return found
        taken = next(one for one in left if one.name == best.names[-1])
        left = [one for one in left if one.trial.group != taken.trial.group]
        found = best
    return found


def _all_at_once(found: Combination, tried: Iterable[Tried], solve: Solve) -> Combination:
    """Return the first trial of each group together, where that is feasible."""
    firsts: dict[str, Tried] = {}
    for one in tried:
        firsts.setdefault(one.trial.group, one)
    together = found
    for one in firsts.values():
        together = _with(together, one, solve) or together
    return together if together.best is not None else found


def _with(found: Combination, one: Tried, solve: Solve) -> Combination | None:
    options = {**found.options, **one.trial.values()}
    try:
        return Combination((*found.names, one.name), options, solve(options).best)
    except InputError:
        return None


def is_better(new: Answer | None, old: Answer | None, question: Question) -> bool:
    """Return whether an answer comes before another one; by the most that a GPU serves only if that is enough more."""
    if new is None or old is None:
        return new is not None
    *first, rate = order(new, question)
    *other, other_rate = order(old, question)
    if first != other:
        return first < other
    return -rate > -other_rate * (1 + LEAST_GAIN)
