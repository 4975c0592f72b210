"""The answer to a question: what the search finds, confirmed by simulation; and what would let it be answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sizing.answers.search import Evaluated, Outcome, preference, search
from sizing.question.question import Question
from sizing.specs.data import Data

if TYPE_CHECKING:  # the simulator is loaded where an answer is simulated
    from sizing.answers.advice import Suggestion
    from sizing.answers.verify import Order, Verified

CONFIRMING_TRIES = 4  # sizes simulated for each suggestion: it must hold, not be the smallest


class SearchResult(NamedTuple):
    """What a search found; `verified` is None where nothing was simulated."""

    outcome: Outcome
    verified: Verified | None

    @property
    def best(self) -> Evaluated | None:
        """The answer, None where there is none or the simulation did not confirm it."""
        return None if self.verified is not None and not self.verified.passed else self.outcome.best


def answer(question: Question, data: Data, *, simulated: bool, order: Order = preference) -> SearchResult:
    """Search for the answer that comes first in `order`; `simulated` confirms it."""
    outcome = search(question, question.space.gpu_types, question.space.precisions, data)
    if order is not preference:
        ranked = sorted(outcome.ranked, key=lambda found: order(found, outcome.question))
        outcome = Outcome(outcome.question, tuple(ranked), outcome.rejected)
    if not simulated or outcome.best is None:
        return SearchResult(outcome, None)
    from sizing.answers.verify import verify

    verified = verify(outcome, question.origin.workload.tokens, order=order)
    return SearchResult(verified.outcome, verified)


def suggestions(outcome: Outcome, data: Data, *, simulated: bool) -> tuple[Suggestion, ...]:
    """The single changes that let an infeasible question be answered, each searched and confirmed as its answer is."""
    from sizing.answers import advice

    space, tokens = outcome.question.space, outcome.question.origin.workload.tokens

    def confirm(changed: Outcome) -> Outcome | None:
        if not simulated or changed.best is None:
            return changed if changed.best is not None else None
        from sizing.answers.verify import verify

        tried = verify(changed, tokens, tries=CONFIRMING_TRIES)
        return tried.outcome if tried.passed else None

    return advice.suggestions(outcome, space.gpu_types, space.precisions, data, confirm)
