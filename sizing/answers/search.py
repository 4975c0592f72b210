"""Evaluate every layout on every GPU type: the fewest GPUs that meet demand and limits, and why other layouts fail."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, get_args

from sizing.answers import replica_counts
from sizing.answers.answer import Answer, LayoutKey, Outcome, Pool, layout_key, preference
from sizing.answers.confidence import Unknown, margin_of
from sizing.answers.replica_counts import Reply, Settled, Trial
from sizing.formats.words import duration
from sizing.question.question import Question
from sizing.replica.batches import by_kind, onward, together
from sizing.replica.capacity import (
    Capacity,
    Exceeded,
    batch_s,
    most_of,
    point_at_rate,
    points_of,
    solo_over,
)
from sizing.replica.histories import IDLE_CACHES, idle_conversations, keeping
from sizing.replica.replica import Refusal, Replica, candidates
from sizing.replica.timing import Timed, Timing
from sizing.specs import demand
from sizing.specs.errors import UntimedError
from sizing.specs.workload import LATENCIES, Reach, Target, latency_name

REACHES: tuple[Reach, ...] = get_args(Reach)  # the sets of layouts to search, from few to all


class LayoutCapacity(NamedTuple):
    """A layout with the capacity of one replica within the limits."""

    timed: Timed
    capacity: Capacity


def timed(entries: Iterable[Replica | Refusal], timing: Timing) -> list[Timed | Refusal]:
    """Tabulate the step times of layouts.

    A layout that the data cannot time is rejected like any other, so that a comparison can go on.
    """

    def tabulate(replicas: list[Replica]) -> Iterator[Timed | Refusal]:
        for replica, found in zip(replicas, timing.of_each(replicas), strict=True):
            if isinstance(found, UntimedError):
                yield replica.rejected("efficiency", "; ".join(fault.message for fault in found.faults))
            else:
                yield found

    return onward(entries, tabulate)


def _bounded(entries: Iterable[Timed | Refusal], target: Target) -> list[LayoutCapacity | Refusal]:
    """Find the capacity of one replica of each layout; reject those where even a lone request breaks a limit."""
    within = onward(entries, lambda loads: map(_alone, loads, solo_over(loads, target.limits)))
    return onward(within, lambda loads: map(partial(_at_most, target=target), loads, most_of(loads, target)))


def _alone(timed: Timed, exceeded: Exceeded | None) -> Timed | Refusal:
    if exceeded is None:
        return timed
    name, value_s, limit_s = exceeded
    called = latency_name(name, single=timed.replica.service.single_result)
    detail = f"{called} of a request that is alone is {value_s * 1e3:,.1f} ms, the limit {limit_s * 1e3:,.1f} ms"
    refused = timed.replica.rejected(name, detail, value_s / limit_s - 1)
    return refused._replace(weights_gib=timed.replica.memory.weights_gib)


def _at_most(timed: Timed, capacity: Capacity | None, target: Target) -> LayoutCapacity | Refusal:
    if capacity is None and target.within_s is not None:
        alone_s = batch_s(timed, 1)
        detail = f"a lone request takes {duration(alone_s)}, all of them have {duration(target.within_s)}"
        return timed.replica.rejected("capacity", detail, alone_s / target.within_s - 1)
    if capacity is None:
        return timed.replica.rejected("capacity", "no load meets all limits at a stable utilisation", 1.0)
    return LayoutCapacity(timed, capacity)


def evaluate(entries: Iterable[Timed | Refusal], question: Question) -> list[Pool | Refusal]:
    """Size each layout within the limits; all layouts are evaluated in one batch."""
    return onward(_bounded(entries, question.target), lambda able: sized([(each, question) for each in able]))


class _Counted(NamedTuple):
    timed: Timed
    capacity: Capacity
    replicas: int
    margin: float
    question: Question


def sized(layouts: Sequence[tuple[LayoutCapacity, Question]]) -> list[Pool | Refusal]:
    """Size each layout for the demand of its question; layouts whose demands differ only in amount are one batch."""
    margins = margin_of([(of.timed, asked) for of, asked in layouts])
    counted = [_counted(*each, margin) for each, margin in zip(layouts, margins, strict=True)]
    return onward(counted, lambda some: by_kind(some, lambda of: of.question.target.unsized, _pools))


def _counted(bounded: LayoutCapacity, question: Question, margin: float | Unknown) -> _Counted | Refusal:
    replica = bounded.timed.replica
    if isinstance(margin, Unknown):
        return replica.rejected("confidence", margin.why)
    count = replicas(question, replica, bounded.capacity, margin)
    if count > 0:
        return _Counted(*bounded, count, margin, question)
    return replica.rejected(
        "gpu_budget",
        f"one replica takes {replica.layout.gpus} GPUs, the budget is {question.rules.gpu_budget}",
        replica.layout.gpus / (question.rules.gpu_budget or 1) - 1,
    )


def _pools(counted: Sequence[_Counted]) -> list[Pool]:
    """The pools at their operating points; where only a GPU budget sets the replicas, their load is divided by the margin."""
    loads, mosts, counts, margins, questions = zip(*counted, strict=True)
    targets = [question.target for question in questions]
    points = points_of(loads, targets, mosts, counts)
    pools = map(Pool, loads, counts, mosts, points, margins)
    return [
        pool if pool.margin == 1.0 or target.amount is not None else at_share(pool, 1 / pool.margin)
        for pool, target in zip(pools, targets, strict=True)
    ]


def replicas(question: Question, replica: Replica, capacity: Capacity, margin: float = 1.0) -> int:
    """The replicas that the demand needs with its margin; without a demand, those that the GPU budget allows."""
    wanted = question.target.amount
    if wanted is not None:
        return demand.replicas_for(wanted * (1 + question.rules.headroom) * margin, capacity.amount)
    return (question.rules.gpu_budget or replica.layout.gpus) // replica.layout.gpus


def with_count(pool: Pool, count: int, question: Question) -> Pool:
    """The pool with another number of replicas and the resulting load of each.

    Where the cache hit rate depends on the number of replicas, the layout is evaluated again. Pools behind a transfer are
    not, because they are sized for requests that always find their cache.
    """
    if question.service.extras.cached.varies and pool.undelayed is None:
        anew = _evaluated_at(pool, count, question)
        if anew is not None:
            return anew
    return at_load(pool, count, question)


def at_load(pool: Pool, count: int, question: Question) -> Pool:
    """Replicas of the same layout and cache hit rate under their share of the demand."""
    (point,) = points_of([pool.timed], [question.target], [pool.capacity], [count])
    return replace(pool, count=count, point=point, run=None)


def _evaluated_at(pool: Pool, count: int, question: Question) -> Pool | None:
    def tried(trial: Trial) -> tuple[Pool | Refusal, Reply]:
        (result,) = _tried([(pool.replica, trial)], question)
        return result, _reply(result, question, trial)

    anew = replica_counts.settled(count, question.service.extras.cached, tried, partial(_with_capacity, question))
    return at_load(anew, count, question) if isinstance(anew, Pool) else None


def resized(pool: Pool, capacity: Capacity, question: Question) -> Pool:
    """The pool with the replicas that a question needs where each serves at most `capacity`."""
    count = replicas(question, pool.replica, capacity, pool.margin)
    if question.service.extras.cached.varies and pool.undelayed is None:
        return with_count(pool, count, question)
    return at_load(replace(pool, capacity=capacity), count, question)


def at_share(pool: Pool, share: float) -> Pool:
    """The same replicas at a share of their load."""
    most = pool.capacity.times(share)
    return replace(pool, point=point_at_rate(pool.timed, pool.point.requests_per_s * share, most), capacity=most)


def outcome_of(results: Sequence[Pool | Refusal], question: Question) -> Outcome:
    """Order the results, best first.

    The question of the outcome has the cache hit rate of its answer's replicas.
    """
    answers = [Answer((result,)) for result in results if isinstance(result, Pool)]
    ranked = tuple(sorted(answers, key=lambda answer: preference(answer, question)))
    return with_extras_found(Outcome(question, ranked, tuple(r for r in results if isinstance(r, Refusal))))


def with_extras_found(outcome: Outcome) -> Outcome:
    """The outcome, its question having the cache hit rate of its answer's replicas."""
    best, question = outcome.best, outcome.question
    if best is None or best.pool.replica.service.extras == question.service.extras:
        return outcome
    return replace(outcome, question=best.pool.question(question))


def search(question: Question, *, known: Collection[LayoutKey] = ()) -> Outcome:
    """Evaluate the layouts of every GPU type and precision: answers best first, rejected layouts with their reasons.

    Where no layout within the question's reach meets it on a GPU type, further layouts are tried there. Layouts that are
    `known` are left out.
    """

    def once(questions: Sequence[Question]) -> list[Outcome]:
        return [
            _spread(each, known)
            if each.service.extras.cached.varies
            else outcome_over(tabulated([each], known)[0], each)
            for each in questions
        ]

    return widened([question], once)[0]


def widened(
    questions: Sequence[Question], search_within: Callable[[Sequence[Question]], list[Outcome]]
) -> list[Outcome]:
    """The outcomes of searches, widened to further layouts where none within reach suffices on a GPU type and precision.

    Further layouts are also tried where the best usual layout spans nodes.
    """
    found = search_within(questions)
    wider = [(number, asked) for number, outcome in enumerate(found) for asked in _wider(questions[number], outcome)]
    if wider:
        for (number, _), outcome in zip(wider, widened([asked for _, asked in wider], search_within), strict=True):
            found[number] = _joined(found[number], outcome)
    return found


def _wider(question: Question, outcome: Outcome) -> Iterator[Question]:
    """Yield the question with a wider reach for each precision that needs it, on the GPU types that need it."""
    if question.space.layouts == "all":
        return
    wider = REACHES[REACHES.index(question.space.layouts) + 1]
    budget, firsts = question.rules.gpu_budget, dict[tuple[str, str | None], Answer]()
    for answer in outcome.answers:
        if budget is None or answer.gpus <= budget:
            firsts.setdefault((answer.pool.replica.gpu_type.id, answer.pool.replica.precision), answer)
    usual = question.space.layouts == "usual" and question.target.amount is not None
    able = {key for key, answer in firsts.items() if not (usual and spans_nodes(answer))}
    for precision in question.space.precisions:
        left = tuple(each for each in question.space.gpu_types if (each.id, precision) not in able)
        if left:
            yield question.with_(gpu_types=left, precisions=(precision,), layouts=wider)


def spans_nodes(answer: Answer) -> bool:
    """Whether a replica spans several nodes, or several link domains where these are larger than a node."""
    replica = answer.pool.replica
    return replica.layout.gpus > replica.gpu_type.gpu.datasheet.island_gpus


def _joined(narrow: Outcome, wide: Outcome) -> Outcome:
    """Both outcomes as one. For a layout that both searches tried, the wider search counts."""
    of_both = [*narrow.answers, *wide.answers]
    answers = {layout_key(answer.pool.replica): answer for answer in of_both}
    refusals = {layout_key(refusal): refusal for refusal in (*narrow.refusals, *wide.refusals)}
    ranked = sorted(answers.values(), key=lambda answer: preference(answer, narrow.question))
    asked, space = narrow.question, narrow.question.space
    if narrow.best is None and wide.best is not None:  # with the hit rate and bands of its own answer
        asked = replace(wide.question, space=space)
    return Outcome(asked, tuple(ranked), tuple(refusals.values()))


def _spread(question: Question, known: Collection[LayoutKey]) -> Outcome:
    """Evaluate every layout at the fewest replicas that suffice with their own cache hit rate."""
    entries = list(_candidates(question, known))
    layouts = [entry if isinstance(entry, Replica) else entry.sized for entry in entries]
    results: list[Pool | Refusal] = [e for e in entries if isinstance(e, Refusal) and e.sized is None]
    results += _fewest([layout for layout in layouts if layout is not None], question)
    return outcome_of(results, question)


def sized_anew(loads: Sequence[Timed], question: Question) -> Outcome:
    """The outcome of one question over layouts that were found for another demand or other limits."""
    if question.service.extras.cached.varies:
        return outcome_of(_fewest([load.replica for load in loads], question), question)
    return outcome_over(loads, question)


def _fewest(layouts: Sequence[Replica], question: Question) -> list[Pool | Refusal]:
    """Find the fewest replicas of each layout; each round tries one number for every layout together."""

    def tried(trials: Mapping[int, Trial]) -> list[tuple[Pool | Refusal, Reply]]:
        results = _tried([(layouts[number], trial) for number, trial in trials.items()], question)
        return [(result, _reply(result, question, of)) for result, of in zip(results, trials.values(), strict=True)]

    return [
        at_load(result, trial.replicas, question) if trial and isinstance(result, Pool) else result
        for result, trial in replica_counts.fewest_of(
            len(layouts), question.service.extras.cached, tried, partial(_with_capacity, question)
        )
    ]


def _with_capacity(
    question: Question, under_demand: Pool | Refusal, most: Pool | Refusal, settled: Settled
) -> Pool | Refusal:
    """The pool under the demand with its capacity: at that load its caches may keep fewer histories."""
    if isinstance(under_demand, Refusal) or isinstance(most, Refusal):
        return under_demand
    capacity, _ = keeping(most.capacity, most.timed, question.target)
    is_talk = not most.replica.service.extras.cached.evicts
    if settled.most.kept < 1 and is_talk and capacity.binding not in LATENCIES:  # a looser limit serves more
        capacity = replace(capacity, binding=IDLE_CACHES)
    return replace(under_demand, capacity=capacity)


def _tried(layouts: Sequence[tuple[Replica, Trial]], question: Question) -> list[Pool | Refusal]:
    """Evaluate each layout at the number of replicas of its trial."""
    return evaluate(timed([replica_counts.with_hit_rate(*each) for each in layouts], Timing()), question)


def _reply(result: Pool | Refusal, question: Question, trial: Trial) -> Reply:
    """The reply to a trial: the replicas that would suffice, and the share of histories that the tried replicas keep."""
    if isinstance(result, Refusal):
        return Reply(None, memory=result.reason == "memory")
    capacity, room = keeping(result.capacity, result.timed, question.target)
    needed, kept = replicas(question, result.replica, capacity, result.margin), None
    if question.target.amount is not None:
        there = at_load(result, trial.replicas, question)
        alive = idle_conversations(there.replica, question.target, there.point, trial.replicas)
        kept = 1.0 if alive is None else alive.kept
    return Reply(needed, kept, most=capacity.amount, room=room, least=result.count)


def tabulated(questions: Sequence[Question], known: Collection[LayoutKey] = ()) -> list[list[Timed | Refusal]]:
    """Tabulate the step times of every layout of every GPU type and precision, whatever the demand and the limits.

    Layouts that are `known` are left out.

    Equal splits of questions that differ in lengths are evaluated in one batch.
    """
    layouts = [list(_candidates(question, known)) for question in questions]
    return together(layouts, lambda every: timed(every, Timing()))


def _candidates(question: Question, known: Collection[LayoutKey]) -> Iterator[Replica | Refusal]:
    for gpu_type in question.space.gpu_types:
        for precision in question.space.precisions:
            found = candidates(question.service, gpu_type, precision, question.space.layouts)
            yield from (each for each in found if layout_key(each) not in known) if known else found


def capacities_of(layouts: Sequence[Sequence[Timed | Refusal]], target: Target) -> list[list[LayoutCapacity | Refusal]]:
    """Find the capacity of one replica of each layout within the limits, whatever the amount of the demand.

    `layouts` has the layouts of each of several questions.
    """
    return together(layouts, lambda every: _bounded(every, target))


def sized_outcomes(asked: Sequence[tuple[Sequence[LayoutCapacity | Refusal], Question]]) -> list[Outcome]:
    """Size every layout for the demand of its question: answers best first, rejected layouts with their reasons."""
    entries = [
        [entry if isinstance(entry, Refusal) else (entry, question) for entry in layouts] for layouts, question in asked
    ]
    results = together(entries, lambda every: onward(every, sized))
    return [outcome_of(each, question) for each, (_, question) in zip(results, asked, strict=True)]


def sized_again(asked: Sequence[tuple[Sequence[Answer], Question]]) -> list[Outcome]:
    """The layouts of answers by the closed form, counted anew for the demand and the confidence of a question."""
    return sized_outcomes(
        [([LayoutCapacity(of.pool.timed, of.pool.capacity) for of in answers], question) for answers, question in asked]
    )


def outcome_over(layouts: Iterable[Timed | Refusal], question: Question) -> Outcome:
    """The outcome of one question over given layouts."""
    return outcome_of(evaluate(layouts, question), question)
