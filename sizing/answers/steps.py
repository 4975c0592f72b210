"""How the outcome of a question is found: by the closed form, then confirmed by simulation in an order of preference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sizing.answers.answer import Answer, Order, Outcome, layout_of, preference
from sizing.answers.search import REACHES, search
from sizing.question.question import Question
from sizing.specs.data import Data


class Found(NamedTuple):
    """The outcome of a question by the closed form alone, and as it is answered."""

    searched: Outcome
    outcome: Outcome

    @property
    def best(self) -> Answer:
        """The first answer. Raises IndexError where there is none."""
        return self.outcome.answers[0]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps to an outcome: `search` by the closed form, several questions at once, and `confirm` one in an order.

    `confirm` takes whether the first answer is shown under its own demand; a sure size need not be.
    """

    data: Data
    search: Callable[[Sequence[Question]], list[Outcome]]
    confirm: Callable[[Outcome, Order, bool], Outcome]
    order: Order = preference

    @classmethod
    def of(cls, data: Data, *, simulated: bool, order: Order = preference) -> Steps:
        """The steps of a single question."""

        def confirm(outcome: Outcome, order: Order, shows: bool) -> Outcome:
            return confirmed(outcome, data, order=order, shows=shows) if simulated else outcome

        return cls(data, lambda questions: [_searched(each, data) for each in questions], confirm, order)

    def confirmed(self, outcome: Outcome, order: Order, *, shows: bool = True) -> Outcome:
        """The outcome in an order, confirmed."""
        if order is not preference:
            ranked = sorted(outcome.answers, key=lambda found: order(found, outcome.question))
            outcome = replace(outcome, answers=tuple(ranked))
        return self.confirm(outcome, order, shows)

    def answered(self, questions: Sequence[Question]) -> list[Found]:
        """The outcomes of questions, by the closed form and confirmed."""
        return [Found(each, self.confirmed(each, self.order)) for each in self.search(questions)]


def _searched(question: Question, data: Data) -> Outcome:
    if question.space.pools is None:
        return search(question, data)
    from sizing.answers import pools  # loaded where they are asked for

    return pools.search(question, data)


def confirmed(outcome: Outcome, data: Data, *, order: Order = preference, shows: bool = True) -> Outcome:
    """The outcome after simulation. Where no layout within reach is confirmed, all other layouts are tried too.

    The first answer is simulated under its own demand too, where `shows` and it was confirmed under a heavier load.
    """
    from sizing.answers.verify import verify  # load the simulator only where needed

    found, question = verify(outcome, data, order=order, shows=shows), outcome.question
    is_whole = found.pairing is not None or question.space.layouts == REACHES[-1]
    if found.answer is not None or not found.tries or is_whole:
        return found
    tried = {layout_of(answer.pool.replica) for answer in outcome.answers}
    wider = search(question.with_(layouts=REACHES[-1]), data)
    others = tuple(answer for answer in wider.answers if layout_of(answer.pool.replica) not in tried)
    wider = verify(replace(wider, answers=others), data, order=order, shows=shows)
    return wider if wider.answer is not None else found
