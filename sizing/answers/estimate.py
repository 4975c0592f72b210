"""Answer a question: search, confirm by simulation, and find the changes that would help.

Every suggested change is found by a new search with that one change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sizing.answers.advice import relaxation, suggestions
from sizing.answers.answer import Answer, Order, Outcome, Pool, preference, spent
from sizing.answers.confidence import cheaper_answers, evenly, has_odds, with_odds
from sizing.answers.search import (
    REACHES,
    at_even_odds,
    layout_of,
    search,
)
from sizing.model.architecture import SIZES
from sizing.question.question import Question, SeparatePools, load_data
from sizing.replica.replica import Refusal
from sizing.specs.data import Data

MOST_OF_ONE = 0.5  # unrequested separate pools are shown only if they need at most this share of the GPUs


def estimate(question: Question, data: Data | None = None, *, simulated: bool = True, relaxed: bool = True) -> Outcome:
    """The answers to a question, confirmed by simulation where `simulated`, with changes that would help.

    With `relaxed`, a looser limit that saves GPUs is searched for. The other layouts also have at least even odds, where
    similar published runs are known. `separate_pools` of the outcome is set where the question asks for separate pools, or
    where experts span nodes and separate pools need at most half of the GPUs.

    >>> from sizing import ask
    >>> outcome = estimate(ask("chat", gpu="h100-sxm"))
    >>> outcome.best.gpus, outcome.verified
    (8, True)
    """
    data = data or load_data()
    whole = question.with_(pools=None)
    outcome = answer(whole, data, simulated=simulated)
    feasible, asked = outcome.answer is not None, outcome
    if outcome.even or has_odds(outcome):  # a looser limit and pipelines need at least even odds too
        asked = replace(outcome, question=evenly(outcome.question, data))
    return replace(
        _at_even_odds(with_cheaper(outcome, asked.question, data), data),
        relaxation=relaxation(asked, data, simulated=simulated) if feasible and relaxed else None,
        suggestions=() if feasible else suggestions(outcome, data, simulated=simulated),
        predicted=_predicted(outcome, whole, data, simulated)
        if question.target.confidence is not None
        else outcome.predicted,
        separate_pools=_separate(question, outcome, data, simulated),
    )


def with_cheaper(outcome: Outcome, question: Question, data: Data) -> Outcome:
    """Add all layouts on the answer's GPU type that cost less than the answer, and update `surer`.

    These are what a smaller GPU budget would take. The added layouts are sized by the closed form. Where other layouts suffice, a pipeline becomes the answer only if the
    question asks for it, or if the GPU budget leaves no other choice.
    """
    best, objective = outcome.answer, question.rules.objective
    if best is None or question.space.layouts != REACHES[0] or outcome.question.target.amount is None:
        return outcome
    own, rest = best.pool.replica, outcome.answers[1:]
    wide = search(question.with_(gpu_types=(own.gpu_type,), precisions=(own.precision,), layouts=REACHES[-1]), data)
    known = {layout_of(each.pool.replica) for each in outcome.answers}
    others = [each for each in wide.answers if layout_of(each.pool.replica) not in known]
    less = [each for each in others if spent(each, objective) < spent(best, objective)]
    ranked = sorted([*less, *rest], key=lambda each: preference(each, question))
    (surer,) = cheaper_answers([(outcome, [*rest, *others], outcome.sure)], data)
    return replace(outcome, answers=(best, *ranked), surer=surer)


def _at_even_odds(outcome: Outcome, data: Data) -> Outcome:
    """Give the layouts at least even odds where runs like theirs are known; reject those that no size gives them.

    The answer stays as it is, and so does a size that no simulation confirmed.
    """
    question = outcome.question
    if question.target.confidence is not None or outcome.even or question.target.amount is None or data.runs is None:
        return outcome
    kept = 0 if outcome.passed and not outcome.within_budget else 1
    pools = [each.pool for each in outcome.answers[kept:]]
    sizes = at_even_odds(pools, question, evenly(question, data), data)
    others = [
        each if size is each.pool else Answer((size,))
        for each, size in zip(outcome.answers[kept:], sizes, strict=True)
        if isinstance(size, Pool)
    ]
    ranked = sorted(others, key=lambda each: preference(each, question))
    refusals = (*outcome.refusals, *(size for size in sizes if isinstance(size, Refusal)))
    return replace(outcome, answers=(*outcome.answers[:kept], *ranked), refusals=refusals)


def _separate(question: Question, whole: Outcome, data: Data, simulated: bool) -> Outcome | None:
    """The outcome of separate pools, where they are asked for or need far fewer GPUs."""
    if question.space.pools is not None:
        return answer(question, data, simulated=simulated)
    if whole.answer is None or not _over_nodes(whole.answer, question):
        return None
    pools = SeparatePools.of_any(question.space.gpu_types)
    found = answer(question.with_(pools=pools), data, simulated=simulated)
    return found if found.answer is not None and found.answer.gpus <= MOST_OF_ONE * whole.answer.gpus else None


def _over_nodes(found: Answer, question: Question) -> bool:
    """Whether a replica of an answer spans nodes with attention ranks that share experts, and pools may be tried.

    A prompt on one rank delays the decoding sequences of all ranks: the more ranks, the longer.
    """
    service, target, replica = question.service, question.target, found.pool.replica
    free = not any(getattr(service.serving, name) for name in SIZES)
    rated = target.requests_per_s is not None and target.concurrency is None and target.confidence is None
    decodes = service.osl > 1 and not service.extras.cached.varies
    spread = replica.layout.dp > 1 and replica.layout.gpus > replica.gpu_type.gpu.datasheet.island_gpus
    return free and rated and decodes and spread


def answer(question: Question, data: Data, *, simulated: bool = True, order: Order = preference) -> Outcome:
    """The answers to a question in `order`, the first confirmed by simulation where `simulated`.

    Where the question asks for separate pools, the answers have them.
    """

    def answered(asked: Sequence[Question]) -> list[Outcome]:
        return [by_prediction(each, data, simulated=simulated, order=order) for each in asked]

    return with_odds([question], data, answered)[0]


def by_prediction(question: Question, data: Data, *, simulated: bool, order: Order = preference) -> Outcome:
    """The answers by prediction alone; published runs change them only where the question asks for a confidence."""
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
    """The outcome after simulation. Where no layout within reach is confirmed, all other layouts are tried too."""
    from sizing.answers.verify import verify  # load the simulator only where needed

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
    """The best answer without a confidence; the cautious answer is a candidate too, as it also keeps the limits."""
    plain = question.with_(confidence=None)
    answers = (answer(plain, data, simulated=simulated).answer, cautious.answer)
    found = [each for each in answers if each is not None]
    return min(found, key=lambda each: preference(each, plain), default=None)
