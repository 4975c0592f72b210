"""What answers a question: the search, a simulation that confirms it, and what would help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sizing.answers import advice
from sizing.answers.answer import Answer, Order, Outcome, preference
from sizing.answers.counts import sure
from sizing.answers.search import REACHES, layout_of, search
from sizing.question.question import Question, load_data
from sizing.specs.bands import EVEN, Confidence
from sizing.specs.data import Data


def estimate(question: Question, data: Data | None = None, *, simulated: bool = True, relaxed: bool = True) -> Outcome:
    """The answers to a question, confirmed by simulation where `simulated`, with what would help.

    `relaxed` looks for the limit that takes fewer GPUs. Where separate pools are asked for, what they take for the same
    stands in `separate_pools`.

    >>> from sizing import ask
    >>> outcome = estimate(ask("chat", gpu="h100-sxm"))
    >>> outcome.best.gpus, outcome.verified
    (10, True)
    """
    data = data or load_data()
    whole = question.with_(pools=None)
    outcome = answer(whole, data, simulated=simulated)
    feasible, asked = outcome.answer is not None, outcome
    if outcome.even:
        asked = replace(outcome, question=_evenly(outcome.question, data))
    return replace(
        outcome,
        relaxation=advice.relaxation(asked, data, simulated=simulated) if feasible and relaxed else None,
        suggestions=() if feasible else advice.suggestions(asked, data, simulated=simulated),
        predicted=_predicted(outcome, whole, data, simulated)
        if question.target.confidence is not None
        else outcome.predicted,
        separate_pools=answer(question, data, simulated=simulated) if question.space.pools is not None else None,
    )


def answer(question: Question, data: Data, *, simulated: bool = True, order: Order = preference) -> Outcome:
    """The answers to a question in `order`, the first confirmed by simulation where `simulated`.

    They are of separate pools where the question asks for these.
    """
    return with_odds(question, data, lambda asked: _answered(asked, data, simulated=simulated, order=order))


def with_odds(question: Question, data: Data, answered: Callable[[Question], Outcome]) -> Outcome:
    """What `answered` finds, with the GPUs that are sure to do; and never with less than even odds.

    Where fewer than half of the published runs like the answer would keep demand and limits, it is asked again for half.
    """
    found = answered(question)
    said = _surely(found, data)
    if data.runs is None or said.sure is None or said.sure.chance is None or said.sure.chance >= EVEN:
        return said
    even = answered(_evenly(question, data))
    as_predicted = replace(even, question=even.question.with_(confidence=None), even=True, predicted=found.answer)
    return _surely(as_predicted, data)


def _evenly(question: Question, data: Data) -> Question:
    assert data.runs is not None
    return question.with_(confidence=Confidence(EVEN, data.runs))


def _surely(found: Outcome, data: Data) -> Outcome:
    return found if found.answer is None else replace(found, sure=sure(found.answer, found.question, data.runs))


def _answered(question: Question, data: Data, *, simulated: bool, order: Order) -> Outcome:
    if question.space.pools is None:
        outcome = search(question, data)
    else:
        from sizing.answers import pools  # loaded where they are asked for

        outcome = pools.search(question, data)
    if order is not preference:
        ranked = sorted(outcome.answers, key=lambda found: order(found, outcome.question))
        outcome = replace(outcome, answers=tuple(ranked))
    return confirmed(outcome, data, order=order) if simulated else outcome


def confirmed(outcome: Outcome, data: Data, *, order: Order = preference) -> Outcome:
    """An outcome as a simulation leaves it; where it confirms no layout within reach, all others have their try too."""
    from sizing.answers.verify import verify  # what is not simulated need not load the simulator

    found, question = verify(outcome, data, order=order), outcome.question
    if (
        found.answer is not None
        or not found.tries
        or found.pairing is not None
        or question.space.layouts == REACHES[-1]
    ):
        return found
    tried = {layout_of(answer.pool.replica) for answer in outcome.answers}
    wider = search(question.with_(layouts=REACHES[-1]), data)
    others = tuple(answer for answer in wider.answers if layout_of(answer.pool.replica) not in tried)
    wider = verify(replace(wider, answers=others), data, order=order)
    return wider if wider.answer is not None else found


def _predicted(cautious: Outcome, question: Question, data: Data, simulated: bool) -> Answer | None:
    """The answer without caution; a size found with caution keeps the limits without it too."""
    plain = question.with_(confidence=None)
    answers = (answer(plain, data, simulated=simulated).answer, cautious.answer)
    found = [each for each in answers if each is not None]
    return min(found, key=lambda each: preference(each, plain), default=None)
