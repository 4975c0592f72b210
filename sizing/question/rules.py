"""The options that have no effect or contradict another, by situation: the rows of rules.csv."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sizing.question.fields import CONFIGURED, WORKLOAD_OPTIONS, Field, is_stated, table_rows
from sizing.specs.errors import Fault, raise_any

if TYPE_CHECKING:  # not needed for help and option faults
    from sizing.model.architecture import Layout
    from sizing.model.settings import Service
    from sizing.question.question import Question
    from sizing.specs.workload import Target, Workload


class Rule(NamedTuple):
    """Options that are excluded in the situation `when`, why, and the alternative; `together` makes one fault of all."""

    when: str
    options: tuple[str, ...]
    why: str
    instead: str | None = None
    together: bool = False


ALL_BUT = "ALL_BUT "  # before the options of a workload that a rule does not exclude


def group(words: str) -> tuple[str, ...]:
    """The options that words of rules.csv name: option by option, or by a group, whose name is in capitals."""
    if words.startswith(ALL_BUT):
        others = group(words.removeprefix(ALL_BUT))
        return tuple(field.name for field in WORKLOAD_OPTIONS if field.name not in others)
    groups = {name: named for name, named, *_ in table_rows("rules.csv") if name.isupper()}
    return tuple(option for word in words.split() for option in (group(groups[word]) if word.isupper() else (word,)))


@cache
def _rules() -> tuple[Rule, ...]:
    """The rules of rules.csv, in their order."""
    rows = (row for row in table_rows("rules.csv") if not row[0].isupper())
    return tuple(Rule(when, group(of), why, instead or None, bool(at_once)) for when, of, why, instead, at_once in rows)


def is_given(value: Any) -> bool:
    """Whether an option was given; zero counts as given."""
    return value is not None and value is not False


def broken(situations: Iterable[str], fields: Iterable[Field], values: Mapping[str, Any]) -> list[Fault]:
    """The faults of options without effect in the situations, in the order of the table.

    A setting without effect is no fault, because it may have an effect in other questions.
    """
    holding, settings, faults = set(situations), values.get(CONFIGURED, ()), list[Fault]()
    rules = [rule for rule in _rules() if rule.when in holding]
    known = {field.name: field for field in fields} if rules else {}
    for rule in rules:
        given = []
        for name in rule.options:
            field, value = known.get(name), values.get(name)
            if name not in settings and (is_given(value) if field is None else is_stated(field, value)):
                given.append(f"--{name.replace('_', '-')}" if field is None else field.spelt(value))
        if rule.together and given:
            given = [", ".join(given)]
        faults += [Fault(rule.why, field=flag, allowed=rule.instead) for flag in given]
    return faults


def of_question(question: Question) -> Iterator[str]:
    """Yield the situations of a question in which options have no effect, whatever the command."""
    yield from of_workload(question.origin.workload, question.target)
    yield from of_service(question.service)
    if question.service.serving.tp is not None:
        yield "a layout"


def of_service(service: Service) -> Iterator[str]:
    """Yield the situations of a model and its optimisations in which options have no effect, with a load or without."""
    from sizing.model.architecture import has_states

    if service.model.encoder:
        yield "no KV cache"
    elif service.optimisations.prefix is not None:
        yield "prefixes found"
    elif not has_states(service.model):
        yield "no states"


def of_workload(workload: Workload, target: Target) -> Iterator[str]:
    """Yield the situations of a workload and its target in which options have no effect, predicted or measured."""
    demand = workload.demand
    if workload.tokens.osl == 1 and not workload.tokens.osl_std:
        yield "one token out"
    if target.offline:
        yield "offline work"
    elif target.concurrency is not None and demand is not None and demand.closed_loop:
        yield "a closed demand"


def of_kind(question: Question, *, rows: bool) -> Iterator[str]:
    """Yield the situations of costs, or of measured `rows`, in which options about daily active users have no effect."""
    from sizing.question.demand import AT_ONCE, OF_PEAK

    demand = question.origin.workload.demand
    kind = None if demand is None else demand.kind
    if not rows and kind not in (None, "daily_active_users"):
        yield "money of no users"
    if kind is None:
        yield "no peak"
    if rows and kind in (*OF_PEAK, *AT_ONCE):
        yield "rows at a rate"
    if kind is None or (rows and kind in (*OF_PEAK, *AT_ONCE)):
        yield "rows of no users"


def of_layout(layout: Layout) -> Iterator[str]:
    """Yield the situations of a given layout of experts in which options have no effect on times."""
    if layout.ep == 1:
        yield "no ranks of experts"
    if layout.token_ranks == 1 or layout.ep != layout.stage_gpus:
        yield "no ranks of attention"


def check_rules(situations: Iterable[str], fields: Iterable[Field], values: Mapping[str, Any]) -> None:
    """Raise InputError with the faults of all options that break a rule."""
    faults = broken(situations, fields, values)
    raise_any(faults)
