"""Changes of an answer: each input a share lower and higher, and each optimisation alone and combined.

Every change is sized by the same search. Optimisations are given as options (`specs.facts.OptimisationTrial`); the caller
turns options into a question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sizing.answers.advice import ADVICE
from sizing.answers.answer import Answer, Outcome, Progress, cost, objective_value, throughput_first
from sizing.answers.estimate import answer, by_prediction
from sizing.answers.sure_size import simulated_outcome
from sizing.catalog import shelf
from sizing.model import architecture, precision
from sizing.model.extras import drafts
from sizing.question.question import Question, service_of
from sizing.specs.data import Formats
from sizing.specs.errors import Fault, InputError
from sizing.specs.facts import OptimisationFacts, OptimisationTrial
from sizing.specs.frozen import Frozen
from sizing.specs.units import MILLI
from sizing.specs.workload import LATENCIES, Tokens, limit_name

SHARES = (-ADVICE.varied, ADVICE.varied)  # by which each input is changed
LENGTHS = ("isl", "osl")
GROUPS_OF_CACHES = ("cache", "prefix", "routing")  # groups of trials that act on a KV cache
LOSSY_GROUPS = ("sparsity", "cache", "weights")  # of trials that change a model's answers, the first to drop first


class Change(Frozen):
    """One input changed by `share` to `value` in `unit`, with the changed question, or the reason why there is none."""

    what: str
    share: float
    value: float
    unit: str
    question: Question | None
    reason: str | None = None


class Effect(NamedTuple):
    """A change and its outcome; None where the changed question is impossible."""

    change: Change
    outcome: Outcome | None


def changes(question: Question, price_of: str | None = None) -> Iterator[Change]:
    """Yield the changes of each limit, each length, the demand, and the price of GPU type `price_of`, a share lower and higher."""
    varied = [*((_limit, name) for name in LATENCIES), *((_length, name) for name in LENGTHS)]
    for change, name in (*varied, (_demand, ""), (_price, price_of or "")):
        for share in SHARES:
            yield from change(question, name, share)


def _price(question: Question, of: str, share: float) -> Iterator[Change]:
    """Yield a change of the price of the GPU type of id `of`; nothing without a price."""
    types = question.space.gpu_types
    for gpu_type in types:
        if gpu_type.id == of and (usd := gpu_type.usd_per_gpu_hour) is not None:
            usd *= 1 + share
            other = replace(gpu_type, usd_per_gpu_hour=usd)
            changed = tuple(other if each is gpu_type else each for each in types)
            what = f"price of {gpu_type.name}"
            yield Change(what, share, usd, "$ a GPU-hour", question.with_(gpu_types=changed))


def effects(
    question: Question,
    now: Answer | None = None,
    *,
    simulated: bool = True,
    progress: Progress | None = None,
) -> Iterator[Effect]:
    """Yield each change with its outcome, sized as the answer itself. Of the answer `now`, the price of its GPU type changes too."""
    found = list(changes(question, None if now is None or now.separate else now.pool.replica.gpu_type.id))
    for done, change in enumerate(found, start=1):
        outcome = None if change.question is None else answer(change.question, simulated=simulated)
        yield Effect(change, outcome)
        if progress is not None:
            progress(done, len(found))


def _limit(question: Question, name: str, share: float) -> Iterator[Change]:
    limit = getattr(question.target.limits, name)
    if limit is None or (name == "itl" and question.service.single_result):
        return
    seconds = limit.seconds * (1 + share)
    changed = question.with_(limits=question.target.limits.at(name, seconds))
    called = limit_name(name, limit.statistic, single=question.service.single_result)
    yield Change(called, share, seconds / MILLI, "ms", changed)


def _length(question: Question, name: str, share: float) -> Iterator[Change]:
    """Yield a change of a length's mean, spread and maximum; nothing where the mean rounds to the same value."""
    tokens = question.origin.workload.tokens
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
        changed = _with_lengths(question, other)
    except InputError as error:
        reason = "; ".join(fault.message for fault in error.faults)
        yield Change(what, share, mean, "tokens", None, reason)
        return
    yield Change(what, share, mean, "tokens", changed)


def _with_lengths(question: Question, tokens: Tokens) -> Question:
    """`question` with other lengths. Raises InputError where model or engine cannot take them."""
    origin = question.origin
    alone = origin.workload.model_copy(update={"tokens": tokens, "demand": None})  # a demand may come from a pipe
    service = question.service
    engine = (service.engine, service.engine_version)
    found = service_of(alone, service.model, engine)
    changed = question.with_(isl=found.isl, osl=found.osl, max_model_len=found.max_model_len)
    return replace(changed, origin=replace(origin, workload=origin.workload.model_copy(update={"tokens": tokens})))


def _demand(question: Question, _: str, share: float) -> Iterator[Change]:
    """Yield a change of the demand, in its own unit; nothing without a demand."""
    units = {"concurrency": "requests in flight", "requests_per_s": "requests/s", "population": question.target.unit}
    stated = [(name, amount) for name in units if (amount := getattr(question.target, name)) is not None]
    for name, amount in stated[:1]:
        changed = max(1, round(amount * (1 + share))) if name == "concurrency" else amount * (1 + share)
        if changed != amount:
            yield Change("demand", share, changed, units[name], question.with_(**{name: changed}))


Options = Mapping[str, Any]


# Answers a question with options changed, by the closed form. Raises InputError where they cannot be combined.
Solve = Callable[[Options], Outcome]


class VariedAssumption(Frozen):
    """A trial with another value of its assumption, and the answer; None without one."""

    value: float
    best: Answer | None


class TrialResult(Frozen):
    """A trial alone: its outcome, or the faults that prevent it, and its sensitivity to its assumption."""

    name: str
    trial: OptimisationTrial
    outcome: Outcome | None
    faults: tuple[Fault, ...] = ()
    sensitivity: tuple[VariedAssumption, ...] = ()

    @property
    def best(self) -> Answer | None:
        """The answer, None where there is none."""
        return None if self.outcome is None else self.outcome.best

    @property
    def conditional(self) -> bool:
        """Whether the trial holds only under an assumed share, or with other weights than the model has."""
        return self.trial.assumed is not None or self.trial.presumes is not None


class Combination(Frozen):
    """The best combination: its trials in the order of adding, their options, and the outcome."""

    tried: tuple[TrialResult, ...]
    options: Options
    outcome: Outcome

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its trials."""
        return tuple(entry.name for entry in self.tried)

    @property
    def best(self) -> Answer | None:
        """The answer, None where there is none."""
        return self.outcome.best


class Trials(NamedTuple):
    """The results of all trials, by the prediction alone: no published runs have optimisations."""

    closed_form: Outcome  # without trials; each of `tried` is compared with it
    base: Outcome  # without trials, for display: simulated where asked for
    tried: tuple[TrialResult, ...]
    best: Combination
    after: Outcome  # of the best combination, for display too
    even: Answer | None = None  # without trials, where even odds change it
    unconditional: Combination | None = None  # the best of trials that assume and presume nothing, if `best` has others


def whatif(question: Question, ask: Callable[[Options], Question], *, simulated: bool = True) -> Trials:
    """Try each optimisation that applies to a question, alone and together.

    `ask` gives the question with options changed, or raises InputError. The closed form compares; the base and the best
    combination are confirmed by simulation where `simulated`.
    """

    def solve(options: Options) -> Outcome:
        return by_prediction(ask(options))

    base, with_odds = by_prediction(question), answer(question, simulated=simulated)
    bits = _bits(question, base.best)
    trials = shelf.only(OptimisationFacts).trials.items()
    tried = ranked(
        (alone(name, trial, solve) for name, trial in trials if applicable(trial, question, *bits)), question
    )
    best = combined(base, tried, question, solve)
    shown = simulated_outcome(base) if simulated else base
    after = simulated_outcome(best.outcome) if simulated and best.names else best.outcome
    given = [entry for entry in tried if not entry.conditional]
    names = {entry.name for entry in given}
    plain = None if names.issuperset(best.names) else combined(base, given, question, solve)
    return Trials(base, shown, tried, best, after, with_odds.answer if with_odds.by_runs.even else None, plain)


def _bits(question: Question, base: Answer | None) -> tuple[float, float]:
    """The bits of a weight and of a cached value: those of the answer, else those of the checkpoint."""
    if base is not None:
        plan = base.pools[0].replica.plan
        return plan.weight_bits, plan.kv_bits
    model, kv = question.service.model, question.service.kv_precision
    weights = question.space.precisions[0] or model.quantisation.precision
    cached = model.quantisation.kv_precision or model.activation_precision if kv == "auto" else kv
    formats = shelf.only(Formats)
    return precision.stored_as(weights, formats).bits, precision.stored_as(cached, formats).bits


class Place(NamedTuple):
    """A sort key of answers: the objective of a question (GPUs by default), cost, then throughput per GPU."""

    size: tuple[float, float]  # by objective and cost
    throughput: float  # negative


def order(answer: Answer | None, question: Question) -> Place:
    """The place of an answer; without one, the last."""
    if answer is None:
        return Place((math.inf, math.inf), 0.0)
    first, *_ = (*throughput_first(answer, question), objective_value(answer, question.rules.objective))
    return Place((first, cost(answer)), -answer.most_per_gpu)


def applicable(trial: OptimisationTrial, question: Question, weight_bits: float, kv_bits: float) -> bool:
    """Whether `trial` has an effect on a question with `weight_bits` per weight and `kv_bits` per cached value."""
    if trial.optimisation is not None and trial.optimisation in question.service.optimisations.asked():
        return False
    if question.service.model.encoder and trial.group in GROUPS_OF_CACHES:
        return False
    cached = question.service.extras.cached
    if trial.of_caches and (cached.affinity or (cached.conversation is None and cached.prefixes == 1)):
        return False
    if trial.attention is not None and architecture.attention_class(question.service.model) != trial.attention:
        return False
    if trial.of_checkpoint and not drafts.has_modules(question.service.model):
        return False
    if trial.optimisation == "speculative" and question.service.single_result:
        return False
    return weight_bits >= (trial.least_weight_bits or 0) and kv_bits >= (trial.least_kv_bits or 0)


def alone(name: str, trial: OptimisationTrial, solve: Solve) -> TrialResult:
    """The effect of `trial` by itself, and with a lower and a higher step of its assumption."""
    try:
        outcome = solve(trial.values())
    except InputError as error:
        return TrialResult(name, trial, None, tuple(error.faults))
    return TrialResult(name, trial, outcome, (), tuple(_sensitivity(trial, solve)) if outcome.best is not None else ())


def _sensitivity(trial: OptimisationTrial, solve: Solve) -> Iterable[VariedAssumption]:
    assumed = trial.assumed
    if assumed is None:
        return
    for value in (assumed.value - assumed.step, assumed.value + assumed.step):
        held = min(max(value, 0.0), 1.0)
        yield VariedAssumption(held, solve(trial.values(held)).best)


def ranked(tried: Iterable[TrialResult], question: Question) -> tuple[TrialResult, ...]:
    """Trials with the best first. Trials without an answer come last, in their original order."""
    return tuple(sorted(tried, key=lambda entry: order(entry.best, question)))


def combined(base: Outcome, tried: Iterable[TrialResult], question: Question, solve: Solve) -> Combination:
    """Combine trials that help alone: add the one that helps most, until none helps any more; at most one of each group.

    Where there is no answer with any single trial, the first of each group are tried together. The result depends on the order
    of trials only where two help equally. Of what reaches a smaller size than `base`, only what that size takes is kept.
    """
    found, all_of_them = Combination((), {}, base), list(tried)
    left = [entry for entry in all_of_them if is_better(entry.best, base.best, question)]
    if base.best is None and not left:
        return _smallest(_all_at_once(found, all_of_them, solve), base, question, solve)
    while left:
        steps = [step for entry in left if (step := _of((*found.tried, entry), solve)) is not None]
        best = min(steps, key=lambda step: order(step.best, question), default=None)
        if best is None or not is_better(best.best, found.best, question):
            break
        found, taken = best, best.tried[-1]
        left = [entry for entry in left if entry.trial.group != taken.trial.group]
    return _smallest(found, base, question, solve)


def _all_at_once(combination: Combination, tried: Iterable[TrialResult], solve: Solve) -> Combination:
    """The first trial of each group together, where that is feasible."""
    firsts: dict[str, TrialResult] = {}
    for entry in tried:
        firsts.setdefault(entry.trial.group, entry)
    together = combination
    for entry in firsts.values():
        together = _of((*together.tried, entry), solve) or together
    return together if together.best is not None else combination


def _smallest(combination: Combination, base: Outcome, question: Question, solve: Solve) -> Combination:
    """Drop each trial without which the size stays: first those that change answers, then those added last.

    All stay where they save nothing over `base`: they then raise what the same size serves.
    """
    size = order(combination.best, question).size
    if combination.best is None or size >= order(base.best, question).size:
        return combination
    rank = {entry.name: (*LOSSY_GROUPS, entry.trial.group).index(entry.trial.group) for entry in combination.tried}
    for entry in sorted(combination.tried, key=lambda entry: (rank[entry.name], -combination.names.index(entry.name))):
        without = _of(tuple(each for each in combination.tried if each is not entry), solve)
        if without is not None and without.best is not None and order(without.best, question).size <= size:
            combination = without
    return combination


def _of(tried: tuple[TrialResult, ...], solve: Solve) -> Combination | None:
    """The combination of trials; None where they cannot be combined."""
    options = {name: value for entry in tried for name, value in entry.trial.values().items()}
    if len(tried) == 1 and tried[0].outcome is not None:  # solved alone already
        return Combination(tried, options, tried[0].outcome)
    try:
        return Combination(tried, options, solve(options))
    except InputError:
        return None


def is_better(new: Answer | None, old: Answer | None, question: Question) -> bool:
    """Whether `new` ranks before `old`. Throughput per GPU alone must differ by a minimum share."""
    if new is None or old is None:
        return new is not None
    first, other = order(new, question), order(old, question)
    if first.size != other.size:
        return first.size < other.size
    return -first.throughput > -other.throughput * (1 + ADVICE.least_gain)
