"""Answer a question: search, confirm by simulation, and find the changes that would help.

Every suggested change is found by a new search with that one change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sizing.answers import advice
from sizing.answers.answer import (
    Answer,
    Hints,
    Order,
    OtherAnswer,
    Outcome,
    Suggestion,
    layout_key,
    objective_value,
    preference,
)
from sizing.answers.confidence import evenly, has_odds
from sizing.answers.search import search, spans_nodes
from sizing.answers.sure_size import Searched, Steps, others_at_even_odds, simulated_outcome, with_odds, with_sure
from sizing.catalog import shelf
from sizing.catalog.models import load_model, stored_in
from sizing.catalog.profiles import load_gpu
from sizing.model.architecture import SIZES
from sizing.model.precision import narrower
from sizing.question.question import Question, SeparatePools, service_of
from sizing.specs.data import Formats
from sizing.specs.workload import Defaults

FP8 = "fp8"


def estimate(question: Question, *, simulated: bool = True, relaxed: bool = True) -> Outcome:
    """The answers to a question, confirmed by simulation where `simulated`, with changes that would help.

    With `relaxed`, a looser limit that saves GPUs is searched for. The other layouts also have at least even odds, where
    similar published runs are known. The outcome is of separate pools where the question asks for them, or where experts span
    nodes and separate pools need at most half of the GPUs. Its `one_pool` is then the outcome without separate pools.

    >>> from sizing import ask
    >>> outcome = estimate(ask("chat", gpu="h100-sxm"))
    >>> outcome.best.gpus, outcome.verified
    (8, True)
    """
    whole = question.with_(pools=None)
    outcome = answer(whole, simulated=simulated)
    feasible, asked = outcome.answer is not None, outcome
    if outcome.by_runs.even or has_odds(outcome):  # a looser limit and pipelines need at least even odds too
        asked = replace(outcome, question=evenly(outcome.question))
    relaxation = advice.relaxation(asked, simulated=simulated) if feasible and relaxed else None
    predicted = outcome.by_runs.predicted
    if question.target.confidence is not None:
        predicted = _predicted(outcome, whole, simulated)
    hints = Hints(
        relaxation=relaxation,
        idle=advice.nearly_idle(outcome.answer, whole, _closed_form)
        if outcome.answer is not None and relaxed
        else None,
        usual=at_usual_limits(outcome, whole) if relaxed else None,
        in_fp8=in_fp8(outcome, whole) if relaxed else None,
        next_limit=advice.next_limit(asked) if feasible and relaxed and relaxation is None else None,
        suggestions=() if feasible else suggestions(outcome, simulated=simulated),
    )
    one = others_at_even_odds(with_cheaper(outcome, asked.question))
    one = replace(one, by_runs=outcome.by_runs._replace(predicted=predicted), hints=hints)
    pools = _separate(question, outcome, simulated)
    return one if pools is None else replace(pools, one_pool=one)


def _closed_form(question: Question) -> Answer | None:
    """The answer by the closed form, with even odds."""
    return answer(question, simulated=False, finds_sure=False).answer


def at_usual_limits(outcome: Outcome, question: Question) -> OtherAnswer | None:
    """The answer at usual limits, where an outcome has one without; it is of any GPU type and precision of `question`."""
    of_any: Any = {"gpu_types": question.space.gpu_types, "precisions": question.space.precisions}
    return advice.usual(outcome, lambda asked: _closed_form(asked.with_(**of_any)))


def in_fp8(outcome: Outcome, question: Question) -> OtherAnswer | None:
    """The answer with FP8 weights on the GPU type of an outcome's answer, where it takes fewer GPUs and such a checkpoint is published.

    None where the question states a precision, and where weights have 8 bits or fewer.
    """
    best = outcome.answer
    if best is None or best.separate or best.gpus == 1 or question.origin.workload.precision is not None:
        return None
    if question.target.amount is None or FP8 not in narrower(best.pool.replica.plan.weight_bits, shelf.only(Formats)):
        return None
    if (checkpoint := stored_in((FP8, f"{FP8}_block"), question.service.model.name)) is None:
        return None
    stored, service = load_model(checkpoint), question.service
    engine = (service.engine, service.engine_version)
    model = service_of(question.origin.workload, stored.spec, engine, service.extras).model
    types = (best.pool.replica.gpu_type,)
    found = _closed_form(question.with_(model=model, gpu_types=types, precisions=(stored.precision,)))
    return OtherAnswer(f"-m {checkpoint}", found) if found is not None and found.gpus < best.gpus else None


def with_cheaper(outcome: Outcome, question: Question) -> Outcome:
    """Add all layouts on the answer's GPU type that cost less than the answer; `cheaper_when_sure` stays within the question's reach.

    These are what a smaller GPU budget would take. The added layouts are sized by the closed form, and so is the answer's own
    where a simulation sized it, so that both costs have one measure. Where other layouts suffice, a pipeline becomes the answer
    only if the question asks for it, or if the GPU budget leaves no other choice.
    """
    best, objective = outcome.answer, question.rules.objective
    if best is None or question.space.layouts != "usual" or outcome.question.target.amount is None:
        return outcome
    own, rest = best.pool.replica, outcome.answers[1:]
    known = {layout_key(each.pool.replica) for each in rest} | {*map(layout_key, outcome.refusals)}
    wide = question.with_(gpu_types=(own.gpu_type,), precisions=(own.precision,), layouts="all")
    others = search(wide, known=known).answers
    closed = next((each for each in others if layout_key(each.pool.replica) == layout_key(own)), best)
    most = min(objective_value(best, objective), objective_value(closed, objective))
    less = [each for each in others if each is not closed and objective_value(each, objective) < most]
    ranked = sorted([*less, *rest], key=lambda each: preference(each, question))
    return replace(outcome, answers=(best, *ranked))


def _separate(question: Question, whole: Outcome, simulated: bool) -> Outcome | None:
    """The outcome of separate pools, where they are asked for or need far fewer GPUs."""
    if question.space.pools is not None:
        return answer(question, simulated=simulated)
    one = whole.as_predicted
    if one is None or whole.answer is None or not _may_gain(one, question):
        return None
    pools = SeparatePools.of_any(question.space.gpu_types)
    found = answer(question.with_(pools=pools), simulated=simulated)
    most = advice.ADVICE.separate_pools * one.gpus
    return found if found.answer is not None and found.answer.gpus <= most else None


def _may_gain(answer: Answer, question: Question) -> bool:
    """Whether separate pools may be tried, and a replica spans nodes with attention ranks that share experts.

    A prompt on one rank delays the decoding sequences of all ranks: the more ranks, the longer.
    """
    service, target = question.service, question.target
    free = not any(getattr(service.serving, name) for name in SIZES)
    rated = target.requests_per_s is not None and target.concurrency is None and target.confidence is None
    decodes = service.osl > 1 and not service.extras.cached.varies
    return free and rated and decodes and answer.pool.replica.layout.dp > 1 and spans_nodes(answer)


def answer(
    question: Question, *, simulated: bool = True, order: Order = preference, finds_sure: bool = True
) -> Outcome:
    """The answers to a question in `order`, the first confirmed by simulation where `simulated`.

    Where the question asks for separate pools, the answers have them. Only with `finds_sure` are sure sizes found.
    """
    return with_odds([question], Steps.of(simulated=simulated, order=order), finds_sure=finds_sure)[0]


def surely_answered(found: tuple[Question, Outcome], *, simulated: bool = True) -> Outcome:
    """Add the sure size to an outcome of `answer(..., finds_sure=False)`.

    With `simulated`, the sure size is simulated; otherwise it follows from the capacities of the outcome, which its own
    simulation corrected.
    """
    (question, outcome), steps = found, Steps.of(simulated=simulated)
    (searched,) = steps.search([evenly(question) if outcome.by_runs.even else question]) if simulated else (outcome,)
    return with_sure([Searched(searched, outcome)], steps)[0]


def by_prediction(question: Question) -> Outcome:
    """The answers by prediction alone; published runs change them only where the question asks for a confidence."""
    return Steps.of(simulated=False).answered([question])[0].outcome


def suggestions(outcome: Outcome, *, simulated: bool) -> tuple[Suggestion, ...]:
    """The single changes that would make an infeasible question feasible, by few simulations and with at least even odds.

    Among layouts of equal size and cost, sure sizes by the closed form decide, as they do in the answer to the changed question.
    What a larger budget takes is simulated in full: it is the answer to the question without a budget.
    """

    def answered(changed: Question) -> Answer | None:
        lifted = changed.rules.gpu_budget is None and outcome.question.rules.gpu_budget is not None

        def confirm(found: Outcome, order: Order, shows: bool) -> Outcome:
            if simulated and shows and lifted:
                return simulated_outcome(found, order=order, shows=False)
            return advice.confirmed_soon(found, simulated and shows)

        steps = Steps(lambda asked: [search(each) for each in asked], confirm)
        return with_odds([changed], steps)[0].answer

    asked = {each.id for each in outcome.question.space.gpu_types}
    known = map(load_gpu, (id_ for id_ in shelf.only(Defaults).gpus_compared if id_ not in asked))
    prices = outcome.question.origin.prices.of_others
    others = tuple(prices.priced(found) for found in known if prices.offers(found))
    return advice.suggestions(outcome, answered, others)


def _predicted(cautious: Outcome, question: Question, simulated: bool) -> Answer | None:
    """The best answer without a confidence; the cautious answer is a candidate too, as it also keeps the limits."""
    plain = question.with_(confidence=None)
    answers = (answer(plain, simulated=simulated, finds_sure=False).answer, cautious.answer)
    found = [each for each in answers if each is not None]
    return min(found, key=lambda each: preference(each, plain), default=None)
