"""What each optimisation would change, alone and together: the same search again, with it on.

Trials come as options of the command line (`specs.optimisation_facts.Trial`); how options become a request, and a request an
outcome, is the caller's. The closed form compares; the base and the best combination may be confirmed by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sizing import architecture, drafts
from sizing.errors import InputError
from sizing.request import Request
from sizing.search import Evaluated, Outcome, preference
from sizing.specs.optimisation_facts import Trial

Options = Mapping[str, Any]
# Answers a question with options changed: an outcome. Raises InputError where they cannot be combined.
Answer = Callable[[Options], Outcome]
LEAST_GAIN = 0.01  # of a rate: what less brings is not worth what it needs, and within the model's own doubt


@dataclass(frozen=True, slots=True)
class Varied:
    """What a trial brings where its assumption is off: the value assumed instead, and the answer, None where none."""

    value: float
    best: Evaluated | None


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial alone: its answer, or why there is none; and how it depends on what it assumes."""

    name: str
    trial: Trial
    best: Evaluated | None
    why_not: str | None = None
    sensitivity: tuple[Varied, ...] = ()


@dataclass(frozen=True, slots=True)
class Combination:
    """The best of those put together: the trials in the order in which each was added, and the outcome."""

    names: tuple[str, ...]
    options: Options
    outcome: Outcome


def order(found: Evaluated | None, request: Request) -> tuple[float, ...]:
    """Order of answers: what the request asks first (GPUs, unless told otherwise), cost, then the most served by a GPU."""
    if found is None:
        return (math.inf,)
    first = preference(found, request)
    cost = math.inf if found.usd_per_hour is None else found.usd_per_hour
    return (first[0], cost, -found.most_requests_per_s / found.candidate.layout.gpus)


def applicable(trial: Trial, base: Outcome, weight_bits: float, kv_bits: float) -> bool:
    """Return whether a trial changes anything of a request that is served with so many bits a weight and cached value."""
    request = base.request
    if trial.optimisation is not None and trial.optimisation in request.optimisations.asked():
        return False
    if trial.attention is not None and architecture.attention_class(request.model) != trial.attention:
        return False
    if trial.of_checkpoint and not drafts.has_modules(request.model):
        return False
    if trial.optimisation == "speculative" and request.osl == 1:
        return False
    return weight_bits >= (trial.least_weight_bits or 0) and kv_bits >= (trial.least_kv_bits or 0)


def alone(name: str, trial: Trial, answer: Answer) -> Tried:
    """Return what a trial brings by itself, and with what it assumes a step lower and higher."""
    try:
        outcome = answer(trial.values())
    except InputError as error:
        return Tried(name, trial, None, "; ".join(str(fault) for fault in error.faults))
    if outcome.best is None:
        return Tried(name, trial, None, _why_not(outcome))
    return Tried(name, trial, outcome.best, None, tuple(_sensitivity(trial, answer)))


def _why_not(outcome: Outcome) -> str:
    nearest = min(outcome.rejected, key=lambda entry: entry.shortfall, default=None)
    return "no layout meets the demand" if nearest is None else f"{nearest.layout}: {nearest.detail}"


def _sensitivity(trial: Trial, answer: Answer) -> Iterable[Varied]:
    assumed = trial.assumed
    if assumed is None:
        return
    for value in (assumed.value - assumed.step, assumed.value + assumed.step):
        held = min(max(value, 0.0), 1.0)
        yield Varied(held, answer(trial.values(held)).best)


def ranked(tried: Iterable[Tried], request: Request) -> tuple[Tried, ...]:
    """Return trials with the best first; those without an answer come last, in the order in which they came."""
    return tuple(sorted(tried, key=lambda one: order(one.best, request)))


def combined(base: Outcome, tried: Iterable[Tried], answer: Answer) -> Combination:
    """Put trials together that help alone, the one that helps most at a time, until none does any more; one of a group.

    Where none is feasible alone, the first of each group together may be. What comes out does not depend on the order in
    which trials are listed unless two of them help equally.
    """
    found, all_of_them = Combination((), {}, base), list(tried)
    left = [one for one in all_of_them if is_better(one.best, base.best, base.request)]
    if base.best is None and not left:
        return _all_at_once(found, all_of_them, answer)
    while left:
        steps = [step for one in left if (step := _with(found, one, answer)) is not None]
        best = min(steps, key=lambda step: order(step.outcome.best, base.request), default=None)
        if best is None or not is_better(best.outcome.best, found.outcome.best, base.request):
            return found
        taken = next(one for one in left if one.name == best.names[-1])
        left = [one for one in left if one.trial.group != taken.trial.group]
        found = best
    return found


def _all_at_once(found: Combination, tried: Iterable[Tried], answer: Answer) -> Combination:
    """Return the first trial of each group together, where that is feasible."""
    firsts: dict[str, Tried] = {}
    for one in tried:
        firsts.setdefault(one.trial.group, one)
    together = found
    for one in firsts.values():
        together = _with(together, one, answer) or together
    return together if together.outcome.best is not None else found


def _with(found: Combination, one: Tried, answer: Answer) -> Combination | None:
    options = {**found.options, **one.trial.values()}
    try:
        return Combination((*found.names, one.name), options, answer(options))
    except InputError:
        return None


def is_better(new: Evaluated | None, old: Evaluated | None, request: Request) -> bool:
    """Return whether an answer comes before another one; by the most that a GPU serves only if that is enough more."""
    if new is None or old is None:
        return new is not None
    *first, rate = order(new, request)
    *other, other_rate = order(old, request)
    if first != other:
        return first < other
    return -rate > -other_rate * (1 + LEAST_GAIN)


def confirmed(found: Combination, outcome: Outcome) -> Combination:
    """Return a combination with its outcome as simulated."""
    return replace(found, outcome=outcome)
