"""A question with where to look for its answer, and the answer: what the search finds, confirmed by simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sizing.answers.search import Evaluated, Outcome, preference, search
from sizing.question.question import Question
from sizing.specs.data import Data

if TYPE_CHECKING:  # the simulator is loaded where an answer is simulated
    from sizing.answers.advice import Suggestion
    from sizing.answers.verify import Order, Verified

CONFIRMING_TRIES = 4  # sizes simulated for each suggestion: it must hold, not be the smallest


class Query(NamedTuple):
    """A question, and the data to read for its answer."""

    question: Question
    data: Data


class SearchResult(NamedTuple):
    """What a search found; `verified` is None where nothing was simulated."""

    outcome: Outcome
    verified: Verified | None

    @property
    def best(self) -> Evaluated | None:
        """The answer, None where there is none or the simulation did not confirm it."""
        return None if self.verified is not None and not self.verified.passed else self.outcome.best


def answer(query: Query, *, simulated: bool, order: Order = preference) -> SearchResult:
    """Search for the answer that comes first in `order`; `simulated` confirms it."""
    space = query.question.space
    outcome = search(query.question, space.gpu_types, space.precisions, query.data)
    if order is not preference:
        ranked = sorted(outcome.ranked, key=lambda found: order(found, outcome.question))
        outcome = Outcome(outcome.question, tuple(ranked), outcome.rejected)
    if not simulated or outcome.best is None:
        return SearchResult(outcome, None)
    from sizing.answers.verify import verify

    verified = verify(outcome, query.question.origin.workload.tokens, order=order)
    return SearchResult(verified.outcome, verified)


def suggestions(query: Query, outcome: Outcome, *, simulated: bool) -> tuple[Suggestion, ...]:
    """The single changes that let an infeasible question be answered, each searched and confirmed as its answer is."""
    from sizing.answers import advice

    def confirm(changed: Outcome) -> Outcome | None:
        if not simulated or changed.best is None:
            return changed if changed.best is not None else None
        from sizing.answers.verify import verify

        tried = verify(changed, query.question.origin.workload.tokens, tries=CONFIRMING_TRIES)
        return tried.outcome if tried.passed else None

    space = query.question.space
    return advice.suggestions(outcome, space.gpu_types, space.precisions, query.data, confirm)
