"""Options without effect, and options that contradict each other: one table, in which each fault is written once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sizing.question.fields import Field
from sizing.specs.errors import Fault, InputError

OF_CONVERSATIONS = ("turns", "think_time", "prefix_routing")
SPARING = ("prefix_hit", "prefix_shared", "prefix_distinct", *OF_CONVERSATIONS, "kv_offload")


class Rule(NamedTuple):
    """Options that are not to be given in a situation, why not, and what to give instead; one fault for each, or for all."""

    options: tuple[str, ...]
    why: str
    instead: str | None = None
    together: bool = False


ONE_CACHE = Rule(
    OF_CONVERSATIONS,
    "has nothing to act on: here is one replica, which holds all prefixes, and no ISL that grows",
    "--max-model-len with the length of the last turn, --prefix-distinct with the prefixes of one replica",
    together=True,
)
ALL_NEW = "changes which tokens a step gets, not the step"
NEW_OF_STEP = Rule(
    SPARING, ALL_NEW, "--prefill N --prior M: N tokens to compute of a prompt with M in cache", together=True
)
NEW_OF_ROOFLINE = Rule(SPARING, ALL_NEW, "--prefill N: the tokens of a prompt that are computed", together=True)


def is_given(value: Any) -> bool:
    """Whether an option was given; a zero was."""
    return value is not None and value is not False


def broken(rule: Rule, fields: Iterable[Field], values: Mapping[str, Any]) -> list[Fault]:
    """The faults of options that are given against a rule."""
    flags = {field.name: field.flags[0] for field in fields}
    given = [flags[name] for name in rule.options if name in flags and is_given(values.get(name))]
    if rule.together:
        given = [", ".join(given)] if given else []
    return [Fault(rule.why, field=flag, allowed=rule.instead) for flag in given]


def check_rules(rules: Iterable[Rule], fields: Iterable[Field], values: Mapping[str, Any]) -> None:
    """Raise InputError with the faults of all options that are given against a rule."""
    known = tuple(fields)
    faults = [fault for rule in rules for fault in broken(rule, known, values)]
    if faults:
        raise InputError(faults)
