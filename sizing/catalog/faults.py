"""Validation errors in plain words: every fault with its place, the allowed values and the likely intention.

The words come from the declared types (`a whole number above 0`), so a new field of a spec needs no new message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

from sizing.specs.errors import REQUIRED, UNKNOWN_KEY, Fault, FieldPath, Place, nearest
from sizing.specs.spec import Constraint, Misfit, Spec, SpecError, members
from sizing.specs.values import RangeError

_MAPPING = "a mapping of keys to values"
_LIST = "a list"
_SIMPLE = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: _MAPPING}
# Longer values are cut, because a message is one line.
_MAX_QUOTED = 60

BOUNDS = {"gt": "above", "ge": "of at least", "lt": "below", "le": "at most"}  # constraints in words


def faults_of(error: SpecError, place: Callable[[FieldPath], Place]) -> list[Fault]:
    """Put what a spec found into words, in the order of lines."""
    faults = [_fault(finding, place) for finding in error.findings]
    told = set[str]()
    for index, fault in enumerate(ordered := sorted(faults, key=lambda fault: fault.line or 0)):
        if fault.message == UNKNOWN_KEY and fault.allowed in told:  # the keys are listed once
            ordered[index] = replace(fault, allowed=None)
        told.add(fault.allowed or "")
    return ordered


def _fault(finding: Misfit, place: Callable[[FieldPath], Place]) -> Fault:
    path, kind, value, declared, holder, error = finding
    if kind == "tag":
        return _tag_fault(finding, place)
    if kind == "value" and isinstance(error, RangeError):
        return _range_fault(error, place)
    file, line, name, written = place(path)
    if kind == "missing":
        return Fault(REQUIRED, file=file, line=line, field=name)
    if kind == "unknown":
        known = [field.alias or key for key, field in declared.model_fields.items()]
        return Fault(UNKNOWN_KEY, file, line, name, allowed=", ".join(known), nearest=nearest(str(path[-1]), known))
    if kind == "value":
        return Fault(str(error), file=file, line=line, field=name)
    quoted = _quoted(value, written)
    if kind == "choice":
        choices = list(_choices(declared))
        return Fault(f"is not known: {quoted}", file, line, name, ", ".join(choices), nearest(str(value), choices))
    if kind == "size":
        return Fault(f"must be {_expected(declared)}, not of {len(value):,}", file, line, name)
    if kind == "finite":
        return Fault(f"must be a finite number, not {quoted}", file, line, name)
    if kind == "empty":
        return Fault("must not be empty", file, line, name)
    near, hint = None, ""
    kinds = {member for member, _ in members(declared)}
    if str in kinds and isinstance(value, (int, float)):
        hint = " (put it in quotes)"
    if kinds & {int, float} and isinstance(value, str):
        from sizing.catalog.yaml import scalar  # loaded only for a fault

        hint = " as text (take it out of quotes)" if type(scalar(value)) in (int, float) else ""
        near = None if hint else _field_of_text(path, holder)
    return Fault(f"must be {_expected(declared)}, not {quoted}{hint}", file, line, name, nearest=near)


def _field_of_text(path: FieldPath, holder: type[Spec] | None) -> str | None:
    """The field of texts beside a number's whose name is nearly the same, as `gpu` beside `gpus`."""
    fields = {} if holder is None else holder.model_fields
    return nearest(str(path[-1]), [name for name, field in fields.items() if _lists_text(field.annotation)])


def _lists_text(declared: Any) -> bool:
    parts = (part for member, _ in members(declared) for part in get_args(member)[:1])
    return any(member is str for part in parts for member, _ in members(part))


def _range_fault(error: RangeError, place: Callable[[FieldPath], Place]) -> Fault:
    """The fault of a range at its own place. If an end was refused, it states the values allowed for the field."""
    file, line, name, _ = place(error.path)
    if error.refusal is None:
        return Fault(str(error), file, line, name)
    of_end = faults_of(error.refusal, lambda path: (None, None, "", None))
    return Fault(f"{error}: it {'; '.join(fault.message for fault in of_end)}", file, line, name)


def _tag_fault(finding: Misfit, place: Callable[[FieldPath], Place]) -> Fault:
    """The fault of a row whose type field (its `operation`) is missing or unknown."""
    key = finding.error
    choices = [
        choice for spec, _ in members(finding.declared) for choice in _choices(spec.model_fields[key].annotation)
    ]
    given = finding.value.get(key)
    file, line, name, _ = place((*finding.path, key))
    message = REQUIRED if given is None else f"is not known: {_quoted(given, None)}"
    return Fault(message, file, line, name, ", ".join(choices), given and nearest(str(given), choices))


def _choices(declared: Any) -> Iterator[str]:
    for member, _ in members(declared):
        if get_origin(member) is Literal:
            yield from map(str, get_args(member))
        elif get_origin(member) in (tuple, list, frozenset):
            yield from _choices(get_args(member)[0])


def _expected(declared: Any) -> str:
    """Write the values allowed by a declared type: `a whole number above 0`."""
    return " or ".join(dict.fromkeys(_phrase(member, metadata) for member, metadata in members(declared)))


def _phrase(member: Any, metadata: tuple[Any, ...]) -> str:
    for item in metadata:
        if isinstance(item, Constraint) and item.words:
            return item.words
    if get_origin(member) is Literal:
        return "one of " + ", ".join(map(str, get_args(member)))
    if hasattr(member, "model_fields") or get_origin(member) is dict:
        return _MAPPING
    if get_origin(member) in (tuple, list, frozenset):
        return _LIST
    words = _SIMPLE.get(member, "a plain value")
    stated = [(text, getattr(item, name, None)) for name, text in BOUNDS.items() for item in metadata]
    bounds = [
        f"{text} {end:,.0f}" if float(end).is_integer() else f"{text} {end:g}"
        for text, end in stated
        if end is not None
    ]
    return " ".join((words, " and ".join(bounds))).strip()


def _quoted(value: Any, written: str | None) -> str:
    """A value as the user wrote it. For a mapping or a list only its kind."""
    if isinstance(value, dict):
        return _MAPPING
    if isinstance(value, (list, tuple)):
        return _LIST
    if value is None:
        return "empty"
    text = str(value) if written is None else written
    return repr(text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "...")
