"""Many estimates: combinations of varied inputs, and a search that reuses the results that combinations share."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sizing.answers.answer import Outcome
from sizing.answers.estimate import answer
from sizing.answers.search import LayoutCapacity, capacities_of, search, sized_outcomes, tabulated, widened
from sizing.answers.sure_size import Steps, with_odds
from sizing.question.question import Question
from sizing.replica.batches import by_kind
from sizing.replica.replica import Refusal
from sizing.replica.timing import Timed
from sizing.specs.workload import Target

MOST_KEPT = 256  # sets of layouts kept, some hundred kB each


class Axis(NamedTuple):
    """A varied input: its name, and its values in order."""

    name: str
    values: tuple[Any, ...]


def size(axes: Sequence[Axis]) -> int:
    """The number of combinations of all values."""
    return math.prod(len(axis.values) for axis in axes)


def combination(axes: Sequence[Axis], number: int) -> dict[str, Any]:
    """The combination `number`, from 0. The last axis varies fastest."""
    found: dict[str, Any] = {}
    for axis in reversed(axes):
        number, index = divmod(number, len(axis.values))
        found[axis.name] = axis.values[index]
    return {axis.name: found[axis.name] for axis in axes}


@dataclass(slots=True)
class _Layouts:
    """The timed layouts of one model, engine and length on some GPU types, and their capacity under each set of limits."""

    timed: list[Timed | Refusal]
    bounded: dict[Target, list[LayoutCapacity | Refusal]] = field(default_factory=dict)


@dataclass(slots=True)
class Searches:
    """Searches with the results of `search`, which tabulate step times once for questions that differ in demand or limits."""

    _layouts: OrderedDict[Hashable, _Layouts] = field(default_factory=OrderedDict)

    def answers(self, questions: Sequence[Question], *, simulated: bool) -> list[Outcome]:
        """The outcomes of `estimate.answer`; questions that differ in demand or lengths are evaluated in one batch."""
        if any(question.space.pools is not None for question in questions):
            return [answer(question, simulated=simulated) for question in questions]
        return with_odds(questions, Steps.of(simulated=simulated)._replace(search=self.searched))

    def searched(self, questions: Sequence[Question]) -> list[Outcome]:
        """The outcomes of questions, reusing results of earlier searches."""
        if any(question.service.extras.cached.varies for question in questions):
            return [search(each) for each in questions]  # each layout is timed at its own number of replicas
        return widened(questions, self._once)

    def _once(self, questions: Sequence[Question]) -> list[Outcome]:
        asked = [question.target.unsized for question in questions]
        layouts = list(zip(self._tabulated(questions), asked, strict=True))
        able = by_kind(layouts, lambda of: of[1], lambda some: _within([of for of, _ in some], some[0][1]))
        return sized_outcomes(list(zip(able, questions, strict=True)))

    def _tabulated(self, questions: Sequence[Question]) -> list[_Layouts]:
        """The timed layouts of each question; those of new lengths are tabulated in one batch."""
        keys = [_of_layouts(question) for question in questions]
        found = {key: of for key in keys if (of := self._layouts.pop(key, None)) is not None}
        new = {key: question for key, question in zip(keys, questions, strict=True) if key not in found}
        tables = tabulated(list(new.values())) if new else []
        found |= {key: _Layouts(timed) for key, timed in zip(new, tables, strict=True)}
        self._layouts.update((key, found[key]) for key in keys)
        while len(self._layouts) > MOST_KEPT:
            self._layouts.popitem(last=False)
        return [found[key] for key in keys]


def _within(layouts: Sequence[_Layouts], target: Target) -> list[list[LayoutCapacity | Refusal]]:
    """The capacities of layouts under a target; those that are not known yet are found in one batch."""
    new = {id(of): of for of in layouts if target not in of.bounded}.values()
    for of, found in zip(new, capacities_of([of.timed for of in new], target), strict=True):
        if len(of.bounded) >= MOST_KEPT:
            of.bounded.clear()
        of.bounded[target] = found
    return [of.bounded[target] for of in layouts]


def _of_layouts(question: Question) -> Hashable:
    """All inputs of a layout's memory and step times: the question without demand, limits and rules."""
    space = question.space
    return question.service, question.target.offline, tuple(space.gpu_types), space.precisions, space.layouts
