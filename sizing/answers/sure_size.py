"""How sure an answer is: its steps (search, simulation), even odds by published runs, and its sure size.

The sure size is the answer to the same question with a confidence, on the answer's GPU type. Outcomes of many questions are
sized in one batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sizing.answers.answer import (
    Answer,
    ByRuns,
    ConfidentAnswer,
    Order,
    Outcome,
    is_alike,
    layout_key,
    objective_value,
    preference,
    preferring,
)
from sizing.answers.confidence import Margins, SizeAtOdds, Unknown, evenly, margin_of, margins, odds_of, odds_of_rate
from sizing.answers.search import replicas, resized, search, sized_again
from sizing.question.question import Question
from sizing.replica.replica import Refusal
from sizing.specs.bands import EVEN, USUAL
from sizing.specs.workload import Aim


class Searched(NamedTuple):
    """The outcome of a question by the closed form alone, and as it is answered."""

    searched: Outcome
    outcome: Outcome

    @property
    def best(self) -> Answer:
        """The first answer. Raises IndexError where there is none."""
        return self.outcome.answers[0]


class Steps(NamedTuple):
    """The steps to an outcome: `search` by the closed form, several questions at once, and `confirm` one in an order.

    `confirm(outcome, order, shows)` simulates. With `shows`, the first answer is also simulated under its own demand.
    """

    search: Callable[[Sequence[Question]], list[Outcome]]
    confirm: Callable[[Outcome, Order, bool], Outcome]
    order: Order = preference

    @classmethod
    def of(cls, *, simulated: bool, order: Order = preference) -> Steps:
        """The steps of a single question."""

        def confirm(outcome: Outcome, order: Order, shows: bool) -> Outcome:
            return simulated_outcome(outcome, order=order, shows=shows) if simulated else outcome

        return cls(lambda questions: [_searched(each) for each in questions], confirm, order)

    def simulate(self, outcome: Outcome, order: Order, *, shows: bool = True) -> Outcome:
        """The outcome in an order, simulated."""
        if order is not preference:
            ranked = sorted(outcome.answers, key=lambda found: order(found, outcome.question))
            outcome = replace(outcome, answers=tuple(ranked))
        return self.confirm(outcome, order, shows)

    def answered(self, questions: Sequence[Question]) -> list[Searched]:
        """The outcomes of questions, by the closed form and confirmed."""
        return [Searched(each, self.simulate(each, self.order)) for each in self.search(questions)]


def _searched(question: Question) -> Outcome:
    if question.space.pools is None:
        return search(question)
    from sizing.answers import pools  # loaded where they are asked for

    return pools.search(question)


def simulated_outcome(outcome: Outcome, *, order: Order = preference, shows: bool = True) -> Outcome:
    """The outcome after simulation. Where no layout within reach is confirmed, all other layouts are tried too.

    The first answer is simulated under its own demand too, where `shows` and it was confirmed under a heavier load.
    """
    from sizing.answers.verify import verify  # load the simulator only where needed

    found, question = verify(outcome, order=order, shows=shows), outcome.question
    is_whole = found.pairing is not None or question.space.layouts == "all"
    if found.answer is not None or not found.simulation.tries or is_whole:
        return found
    tried = {layout_key(answer.pool.replica) for answer in outcome.answers}
    wider = search(question.with_(layouts="all"))
    others = tuple(answer for answer in wider.answers if layout_key(answer.pool.replica) not in tried)
    wider = verify(replace(wider, answers=others), order=order, shows=shows)
    return wider if wider.answer is not None else found


# --- even odds and sure sizes --------------------------------------------------------------------------------------------


def with_odds(questions: Sequence[Question], steps: Steps, *, finds_sure: bool = True) -> list[Outcome]:
    """The outcomes of questions with at least even odds and, where `finds_sure`, their sure sizes.

    Where fewer than half of the similar published runs would keep demand and limits, the steps are taken again with a
    confidence of 50 %.
    """
    found = steps.answered(questions)
    odd = _with_odds_below_even(found)
    again = steps.answered([evenly(questions[number]) for number in odd])
    for number, even in zip(odd, again, strict=True):
        plain, predicted = even.outcome.question.with_(confidence=None), found[number].outcome.answer
        outcome = replace(even.outcome, question=plain, by_runs=ByRuns(even=True, predicted=predicted))
        found[number] = Searched(even.searched, outcome)
    return with_sure(found, steps) if finds_sure else [of.outcome for of in found]


def _with_odds_below_even(confirmed: Sequence[Searched]) -> list[int]:
    """The numbers of the plain outcomes whose answer keeps demand and limits in fewer than half of similar published runs.

    GPUs that are given without a demand keep the rate that they serve.
    """
    plain = {
        number: of.outcome
        for number, of in enumerate(confirmed)
        if of.outcome.answer is not None and of.outcome.question.target.confidence is None
    }
    sizes = odds_of([SizeAtOdds(of.answers[0], of.question) for of in plain.values()])
    chances = [
        (odds_of_rate(of) if of.question.target.amount is None else size).chance
        for of, size in zip(plain.values(), sizes, strict=True)
    ]
    return [number for number, chance in zip(plain, chances, strict=True) if chance is not None and chance < EVEN]


def with_sure(confirmed: Sequence[Searched], steps: Steps) -> list[Outcome]:
    """The outcomes with the sure sizes of their answers, and with another answer whose sure size is cheaper.

    Among layouts of equal size and cost, the one with the smallest sure size becomes the answer.
    """
    able = {n: of for n, of in enumerate(confirmed) if of.outcome.answer is not None}
    sure = sure_answers(list(able.values()), steps)
    tied = [_with_tie(of, size, steps) for of, size in zip(able.values(), sure, strict=True)]
    sizes = [SizeAtOdds(of.answers[0], of.question, of.by_runs.sure_answer, of.by_runs.even) for of in tied]
    sized = [
        _by_runs(of, odds=odds_of_rate(of) if of.question.target.amount is None else odds)
        for of, odds in zip(tied, odds_of(sizes), strict=True)
    ]
    others = _cheapest_sure(sized)
    done = {n: _by_runs(of, cheaper_when_sure=other) for n, of, other in zip(able, sized, others, strict=True)}
    return [done.get(n, of.outcome) for n, of in enumerate(confirmed)]


def _by_runs(outcome: Outcome, **changes: Any) -> Outcome:
    return replace(outcome, by_runs=outcome.by_runs._replace(**changes))


def _with_tie(confirmed: Searched, sure: Answer | None, steps: Steps) -> Outcome:
    """The outcome with its sure size, whose layout becomes the answer where it takes no more, at no less than even odds."""
    outcome, best, question = _by_runs(confirmed.outcome, sure_answer=sure), confirmed.best, confirmed.outcome.question

    def size(answer: Answer) -> tuple[float, ...]:
        return steps.order(answer, question).size

    if sure is None or is_alike(sure, best):
        return outcome
    if not any(is_alike(each, sure) and size(each) <= size(best) for each in confirmed.searched.answers):
        return outcome
    again = steps.simulate(confirmed.searched, preferring(sure, steps.order))
    if again.answer is None or size(again.answer) != size(best):
        return outcome
    (odds,) = odds_of([SizeAtOdds(again.answer, question, even=outcome.by_runs.even)])
    if question.target.confidence is None and odds.chance is not None and odds.chance < EVEN:
        return outcome
    return replace(again, question=question, by_runs=outcome.by_runs)


# --- the sure size ------------------------------------------------------------------------------------------------------


def sure_answers(confirmed: Sequence[Searched], steps: Steps, share: float = USUAL) -> list[Answer | None]:
    """For the answer of each outcome the sure size on its GPU type: by the closed form and, where `steps` do, by simulation.

    This is the answer to the question with a confidence of `share`; an outcome with a confidence is sure itself. None where
    no published runs are like it, or no size is sure. A sure size is no smaller than the answer.
    """
    known = odds_of([SizeAtOdds(of.best, of.outcome.question) for of in confirmed])
    sizes = [None if size.chance is None else of.best for size, of in zip(known, confirmed, strict=True)]
    plain = [n for n, size in enumerate(sizes) if size and confirmed[n].outcome.question.target.confidence is None]
    for number, sure in zip(plain, _sure_sizes([confirmed[n] for n in plain], steps, share), strict=True):
        sizes[number] = sure
    return sizes


def _sure_sizes(confirmed: Sequence[Searched], steps: Steps, share: float) -> list[Answer | None]:
    asked = [_surely_asked(of.outcome, share) for of in confirmed]
    layouts = [_layouts(of) for of in confirmed]
    firsts = sized_again([(own[:1], question) for own, question in zip(layouts, asked, strict=True)])
    below = [(_cheaper(own[1:], first.best, of), of) for own, first, of in zip(layouts, firsts, asked, strict=True)]
    sizes = []
    for of, own, first, rest in zip(confirmed, layouts, firsts, sized_again(below), strict=True):
        sure = _sure_of(of.best, own, first, rest, steps)
        sizes.append(of.best if sure is not None and sure.gpus < of.best.gpus else sure)
    return sizes


def _sure_of(best: Answer, layouts: Sequence[Answer], first: Outcome, rest: Outcome, steps: Steps) -> Answer | None:
    """The sure size on the GPU type of an answer, from its own layout's (`first`) and those that may need less (`rest`).

    All other `layouts` are tried too if a simulation confirms none of these, or if another layout may come before the one
    that it confirms. If none is sure, the layouts of a wider search are tried.
    """
    question = first.question
    if first.best is not None and rest.best is None and _is_covered(first.best, best, question):
        return first.best
    order = preferring(best, steps.order)
    found = replace(first, answers=(*first.answers, *rest.answers))
    sure = steps.simulate(found, order, shows=False).answer if found.best is not None else None
    if sure is not None and (first.best is None or sure.gpus <= first.best.gpus):
        return sure
    (found,) = sized_again([(layouts, question)])
    if sure is not None:
        others, bound = [each for each in found.answers if not is_alike(each, sure)], order(sure, question)
        if not any(order(each, question) < bound for each in others):
            return sure
    if found.best is None:
        (found,) = steps.search([question])
    return steps.simulate(found, order, shows=False).answer


def _is_covered(sure: Answer, plain: Answer, question: Question) -> bool:
    """Whether the simulation of the answer is one of the sure size too: far from every limit, at no lighter load of a replica."""
    amount = question.target.amount
    if plain.run is None or amount is None:
        return False
    from sizing.answers.verify import is_clear  # loaded already, as there is a run

    load = amount * (1 + question.rules.headroom) * sure.pool.margin / sure.pool.count
    return load <= amount / plain.pool.count and is_clear(plain.run, question.target.limits)


def _surely_asked(outcome: Outcome, share: float = USUAL) -> Question:
    """The question of an outcome with a confidence, on the GPU type of its answer, without a budget."""
    types = (outcome.answers[0].pool.replica.gpu_type,)
    return outcome.question.with_(confidence=share, gpu_types=types, gpu_budget=None)


def _layouts(confirmed: Searched) -> list[Answer]:
    """The layouts on the answer's GPU type by the closed form, the answer's own first."""
    best, searched = confirmed.best, confirmed.searched.answers
    own = [each for each in searched if is_alike(each, best)]
    known = (
        searched if own else confirmed.outcome.answers
    )  # further layouts were tried, where a simulation confirmed none
    others = [each for each in known if _type_of(each) == _type_of(best) and not is_alike(each, best)]
    return [*(own or [best]), *others]


def _type_of(answer: Answer) -> str:
    return answer.pool.replica.gpu_type.id


def _cheaper(answers: Iterable[Answer], first: Answer | None, question: Question) -> list[Answer]:
    """The answers that take less than a sure size: their own sure sizes are no smaller."""
    objective = question.rules.objective
    most = math.inf if first is None else objective_value(first, objective)
    return [each for each in answers if objective_value(each, objective) < most]


# --- other answers ------------------------------------------------------------------------------------------------------


def _cheapest_sure(outcomes: Sequence[Outcome]) -> list[ConfidentAnswer | None]:
    """For each outcome the answer of another GPU type with the cheapest sure size, by the closed form.

    None where the sure size of the outcome's own answer costs no more, or the question states a confidence.
    """
    below = list(map(_of_other_types, outcomes))
    questions = [_surely_asked(of) if less else of.question for less, of in zip(below, outcomes, strict=True)]
    sized = sized_again(list(zip(below, questions, strict=True)))
    return [_cheapest(found, of) for found, of in zip(sized, outcomes, strict=True)]


def _of_other_types(outcome: Outcome) -> list[Answer]:
    """The answers on other GPU types than the first that take less than its sure size."""
    best, by_runs, question = outcome.answers[0], outcome.by_runs, outcome.question
    if best.separate or by_runs.odds is None or question.target.confidence is not None:
        return []
    others = (each for each in outcome.answers[1:] if _type_of(each) != _type_of(best))
    return _cheaper(others, by_runs.sure_answer, question)


def _cheapest(sized: Outcome, outcome: Outcome) -> ConfidentAnswer | None:
    alike = (ConfidentAnswer(next(of for of in outcome.answers if is_alike(of, each)), each) for each in sized.answers)
    return _cheapest_of(alike, outcome, outcome.question.rules.objective)


def _cheapest_of(answers: Iterable[ConfidentAnswer], outcome: Outcome, objective: Aim) -> ConfidentAnswer | None:
    """The cheapest sure size of those `answers`, if it spends less than the outcome's own."""
    most = math.inf if outcome.by_runs.sure_answer is None else objective_value(outcome.by_runs.sure_answer, objective)
    best = min(answers, key=lambda each: objective_value(each.sure_answer, objective), default=None)
    return best if best is not None and objective_value(best.sure_answer, objective) < most else None


def surer_outcome(first: Outcome, outcomes: Iterable[Outcome], objective: Aim) -> ConfidentAnswer | None:
    """The answer of other outcomes with the cheapest sure size; None where that of `first` costs no more."""
    if first.by_runs.odds is None or first.question.target.confidence is not None:
        return None
    sized = [ConfidentAnswer(of.answer, sure) for of in outcomes if of.answer and (sure := of.by_runs.sure_answer)]
    return _cheapest_of(sized, first, objective)


def others_at_even_odds(outcome: Outcome) -> Outcome:
    """The outcome whose other layouts have at least even odds where runs like theirs are known.

    Those that no size gives even odds are rejected. The answer stays as it is, and so does a size that no simulation confirmed.
    """
    question = outcome.question
    if question.target.confidence is not None or outcome.by_runs.even or question.target.amount is None:
        return outcome
    kept = 0 if outcome.simulation.passed and not outcome.within_budget else 1
    others = outcome.answers[kept:]
    known = margins([(each.pool.timed, question) for each in others])
    sizes = [_at_even_odds(each, of, question) for each, of in zip(others, known, strict=True)]
    ranked = sorted((size for size in sizes if isinstance(size, Answer)), key=lambda each: preference(each, question))
    refusals = (*outcome.refusals, *(size for size in sizes if isinstance(size, Refusal)))
    return replace(outcome, answers=(*outcome.answers[:kept], *ranked), refusals=refusals)


def _at_even_odds(plain: Answer, margins: Margins | Unknown, question: Question) -> Answer | Refusal:
    """The layout with the replicas that half of the published runs like it need; unchanged where none are known."""
    if isinstance(margins, Unknown):
        return plain
    pool, margin = plain.pool, margins.of(EVEN)
    if math.isinf(margin):
        (unknown,) = margin_of([(pool.timed, evenly(question))])
        assert isinstance(unknown, Unknown)
        return pool.replica.rejected("confidence", unknown.why)
    if replicas(question, pool.replica, pool.capacity, margin) <= pool.count:
        return plain
    return Answer((resized(replace(pool, margin=margin), pool.capacity, question),))
