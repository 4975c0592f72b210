"""A question with where to look for its answer, and the answer: what the search finds, confirmed by simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sizing.answers.answer import Order, Outcome, preference
from sizing.answers.search import search
from sizing.question.question import Data, Question

if TYPE_CHECKING:  # the simulator is loaded where an answer is simulated
    from sizing.answers.advice import Suggestion

CONFIRMING_TRIES = 4  # sizes simulated for each suggestion: it must hold, not be the smallest


class Query(NamedTuple):
    """A question, and the data to read for its answer."""

    question: Question
    data: Data


def answer(query: Query, *, simulated: bool, order: Order = preference) -> Outcome:
    """Search for the answer that comes first in `order`; `simulated` confirms it."""
    space = query.question.space
    outcome = search(query.question, space.gpu_types, space.precisions, query.data)
    if order is not preference:
        ranked = sorted(outcome.answers, key=lambda found: order(found, outcome.question))
        outcome = replace(outcome, answers=tuple(ranked))
    if not simulated:
        return outcome
    from sizing.answers.verify import verify

    return verify(outcome, query.question.origin.workload.tokens, query.data, order=order)


def suggestions(query: Query, outcome: Outcome, *, simulated: bool) -> tuple[Suggestion, ...]:
    """The single changes that let an infeasible question be answered, each searched and confirmed as its answer is."""
    from sizing.answers import advice

    def confirm(changed: Outcome) -> Outcome | None:
        if simulated:
            from sizing.answers.verify import verify

            changed = verify(changed, query.question.origin.workload.tokens, query.data, tries=CONFIRMING_TRIES)
        return changed if changed.confirmed is not None else None

    space = query.question.space
    return advice.suggestions(outcome, space.gpu_types, space.precisions, query.data, confirm)
