"""Many estimates: combinations of varied inputs, and a search that reuses the results that combinations share."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from sizing.answers.answer import Outcome
from sizing.answers.estimate import answer, confirmed, with_odds
from sizing.answers.search import Bounded, bounded, chosen, search, tabulated, widened
from sizing.model.settings import Service
from sizing.question.question import Question
from sizing.replica.replica import Refusal
from sizing.replica.timing import Tables, Timed
from sizing.specs.data import Data

MOST_KEPT = 256  # sets of layouts kept, some hundred kB each
LOOKED_UP = ("engine",)  # large objects that are compared by identity
OF_LENGTHS = ("isl", "osl", "max_model_len", "extras")  # fields that tables account for themselves
Kept = TypeVar("Kept")
_PLAIN = tuple(field.name for field in fields(Service) if field.name not in LOOKED_UP)


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
    """The timed layouts of one model, engine and length on some GPU types, and their capacity under each set of limits.

    `of` keeps the objects alive that keys identify by `id`, so that no other object gets the same id.
    """

    of: Question
    timed: list[Timed | Refusal]
    bounded: dict[Hashable, list[Bounded | Refusal]] = field(default_factory=dict)


@dataclass(slots=True)
class Searches:
    """Searches with the results of `search`, which tabulate step times once for questions that differ in demand or limits.

    Engines and GPUs are compared by identity, so looking each up only once saves work.
    """

    data: Data
    _layouts: OrderedDict[Hashable, _Layouts] = field(default_factory=OrderedDict)
    _tables: OrderedDict[Hashable, tuple[Question, Tables]] = field(default_factory=OrderedDict)

    def answer(self, question: Question, *, simulated: bool) -> Outcome:
        """The outcome of `estimate.answer`."""
        if question.space.pools is not None:
            return answer(question, self.data, simulated=simulated)

        def answered(asked: Question) -> Outcome:
            outcome = self.search(asked)
            return confirmed(outcome, self.data) if simulated else outcome

        return with_odds(question, self.data, answered)

    def search(self, question: Question) -> Outcome:
        """The outcome of `question`, reusing results of earlier searches."""
        if question.service.extras.cached.varies:  # each layout is timed at its own number of replicas
            return search(question, self.data)
        return widened(question, self._once)

    def _once(self, question: Question) -> Outcome:
        layouts = _kept(self._layouts, _of_layouts(question), lambda: self._tabulated(question))
        limits = _of_limits(question)
        if len(layouts.bounded) >= MOST_KEPT:
            layouts.bounded.clear()
        if limits not in layouts.bounded:
            layouts.bounded[limits] = bounded(layouts.timed, question)
        return chosen(layouts.bounded[limits], question)

    def _tabulated(self, question: Question) -> _Layouts:
        _, tables = _kept(self._tables, _of_layouts(question, without=OF_LENGTHS), lambda: (question, {}))
        return _Layouts(question, tabulated(question, self.data, tables))


def _kept(store: OrderedDict[Hashable, Kept], key: Hashable, make: Callable[[], Kept]) -> Kept:
    """The value of a key in a least-recently-used store; `make` makes a new one."""
    found = store.pop(key, None)
    store[key] = make() if found is None else found
    if len(store) > MOST_KEPT:
        store.popitem(last=False)
    return store[key]


def _of_layouts(question: Question, without: Container[str] = ()) -> Hashable:
    """All inputs of a layout's memory and step times: the question without demand, limits and rules."""
    service, target, space = question.service, question.target, question.space
    return (
        tuple(getattr(service, name) for name in _PLAIN if name not in without),
        tuple(id(getattr(service, name)) for name in LOOKED_UP),
        target.offline,
        tuple((id(option.gpu), option.id, option.usd_per_gpu_hour, option.shares_name) for option in space.gpu_types),
        (space.precisions, space.layouts),
    )


def _of_limits(question: Question) -> Hashable:
    """All inputs of a replica's capacity, except its layout."""
    target = question.target
    return (target.limits, target.max_utilisation, target.unit, target.concurrency is None, target.think_time_s)
