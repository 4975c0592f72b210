"""The answer to a question: what the search finds, confirmed by simulation; and what would let it be answered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sizing.answers.answer import Order, Outcome, preference
from sizing.answers.search import search
from sizing.question.question import Question
from sizing.specs.data import Data

if TYPE_CHECKING:  # the simulator is loaded where an answer is simulated
    from sizing.answers.advice import Suggestion

CONFIRMING_TRIES = 4  # sizes simulated for each suggestion: it must hold, not be the smallest


def answer(question: Question, data: Data, *, simulated: bool, order: Order = preference) -> Outcome:
    """Search for the answer that comes first in `order`; `simulated` confirms it."""
    outcome = search(question, question.space.gpu_types, question.space.precisions, data)
    if order is not preference:
        ranked = sorted(outcome.answers, key=lambda found: order(found, outcome.question))
        outcome = replace(outcome, answers=tuple(ranked))
    if not simulated:
        return outcome
    from sizing.answers.verify import verify

    return verify(outcome, question.origin.workload.tokens, data, order=order)


def suggestions(outcome: Outcome, data: Data, *, simulated: bool) -> tuple[Suggestion, ...]:
    """The single changes that let an infeasible question be answered, each searched and confirmed as its answer is."""
    from sizing.answers import advice

    space, tokens = outcome.question.space, outcome.question.origin.workload.tokens

    def confirm(changed: Outcome) -> Outcome | None:
        if simulated:
            from sizing.answers.verify import verify

            changed = verify(changed, tokens, data, tries=CONFIRMING_TRIES)
        return changed if changed.confirmed is not None else None

    return advice.suggestions(outcome, space.gpu_types, space.precisions, data, confirm)
