"""Validation errors in plain words: every fault with its place, the allowed values and the likely intention.

The words come from the declared types (`a whole number above 0`), so a new field of a spec needs no new message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from sizing.specs.errors import REQUIRED, UNKNOWN_KEY, Fault, FieldPath, Place, nearest
from sizing.specs.values import RangeError

_MAPPING = "a mapping of keys to values"
_LIST = "a list"
_SIMPLE = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: _MAPPING}
# Longer values are cut, because a message is one line.
_MAX_QUOTED = 60

BOUNDS = {"gt": "above", "ge": "of at least", "lt": "below", "le": "at most"}  # constraints in words


def faults_of(
    error: ValidationError, spec_type: type[BaseModel], data: Any, place: Callable[[FieldPath], Place]
) -> list[Fault]:
    """Translate pydantic's errors on `data` into faults, in the order of their lines."""
    faults = [_fault(finding, spec_type, data, place) for finding in error.errors(include_url=False)]
    told = set[str]()
    for index, fault in enumerate(ordered := sorted(faults, key=lambda fault: fault.line or 0)):
        if fault.message == UNKNOWN_KEY and fault.allowed in told:  # the keys are listed once
            ordered[index] = replace(fault, allowed=None)
        told.add(fault.allowed or "")
    return ordered


def _fault(finding: Any, spec_type: type[BaseModel], data: Any, place: Callable[[FieldPath], Place]) -> Fault:
    path, annotation = _follow(spec_type, finding["loc"], data)
    kind, context = finding["type"], finding.get("ctx", {})
    if kind.startswith("union_tag"):
        return _tag_fault(path, annotation, finding["input"], context, place)
    file, line, name, written = place(path)
    if kind == "missing":
        return Fault(REQUIRED, file=file, line=line, field=name)
    if kind == "extra_forbidden":
        known = list(_fields(annotation))
        return Fault(UNKNOWN_KEY, file, line, name, allowed=", ".join(known), nearest=nearest(str(path[-1]), known))
    if kind == "value_error" and isinstance(context["error"], RangeError):
        return _range_fault(context["error"], place)
    if kind == "value_error":
        return Fault(str(context["error"]), file=file, line=line, field=name)
    quoted = _quoted(finding["input"], written)
    if kind == "literal_error":
        choices, given = list(_choices(annotation)), str(finding["input"])
        return Fault(f"is not known: {quoted}", file, line, name, ", ".join(choices), nearest(given, choices))
    if kind in ("too_short", "too_long"):
        return Fault(f"must be {_expected(annotation)}, not of {len(finding['input']):,}", file, line, name)
    if kind == "finite_number":
        return Fault(f"must be a finite number, not {quoted}", file, line, name)
    if kind == "string_too_short":
        return Fault("must not be empty", file, line, name)
    near = None
    hint = " (put it in quotes)" if kind == "string_type" and isinstance(finding["input"], (int, float)) else ""
    if kind in ("float_type", "int_type") and isinstance(finding["input"], str):
        from sizing.catalog.yaml import scalar  # loaded only for a fault

        hint = " as text (take it out of quotes)" if type(scalar(finding["input"])) in (int, float) else ""
        near = None if hint else _field_of_text(path, _follow(spec_type, finding["loc"][:-1], data)[1])
    return Fault(f"must be {_expected(annotation)}, not {quoted}{hint}", file, line, name, nearest=near)


def _field_of_text(path: FieldPath, holder: Any) -> str | None:
    """The field of texts beside a number's whose name is nearly the same, as `gpu` beside `gpus`."""
    return nearest(str(path[-1]), [key for key in _fields(holder) if _lists_text(_child(holder, key))])


def _lists_text(annotation: Any) -> bool:
    parts = (part for member, _ in _members(annotation) for part in get_args(member)[:1])
    return any(member is str for part in parts for member, _ in _members(part))


def _range_fault(error: RangeError, place: Callable[[FieldPath], Place]) -> Fault:
    """The fault of a range at its own place. If an end was refused, it states the values allowed for the field."""
    file, line, name, _ = place(error.path)
    if error.refusal is None:
        return Fault(str(error), file, line, name)
    of_end = faults_of(*error.refusal, lambda path: (None, None, "", None))
    return Fault(f"{error}: it {'; '.join(fault.message for fault in of_end)}", file, line, name)


def _tag_fault(
    path: FieldPath, annotation: Any, value: Any, context: Any, place: Callable[[FieldPath], Place]
) -> Fault:
    """The fault of a row whose type field (its `operation`) is missing or unknown."""
    key = context["discriminator"].strip("'")
    choices = [choice for member, _ in _members(annotation) for choice in _choices(_field_type(member, key))]
    given = value.get(key) if isinstance(value, dict) else None
    file, line, name, _ = place((*path, key))
    message = REQUIRED if given is None else f"is not known: {_quoted(given, None)}"
    return Fault(message, file, line, name, ", ".join(choices), given and nearest(str(given), choices))


def _follow(spec_type: type[BaseModel], loc: Sequence[str | int], data: Any) -> tuple[FieldPath, Any]:
    """Turn pydantic's location into a path of the data and the type declared there (the holder's type for an unknown key).

    A step that names a member of a tagged union is not part of the data's path.
    """
    path: list[str | int] = []
    annotation: Any = spec_type
    for index, step in enumerate(loc):
        tagged = _tagged(annotation, step)
        if tagged is not None and index < len(loc) - 1 and not (isinstance(data, dict) and step in data):
            annotation = tagged
            continue
        path.append(step)
        annotation = _child(annotation, step)
        data = _item(data, step)
    return tuple(path), annotation


def _item(data: Any, step: str | int) -> Any:
    if isinstance(data, dict):
        return data.get(step)
    if isinstance(data, (list, tuple)) and isinstance(step, int) and step < len(data):
        return data[step]
    return None


def _members(annotation: Any, metadata: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the alternatives of a declared type with their constraints, without None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *extra = get_args(annotation)
        yield from _members(inner, (*metadata, *_flattened(extra)))
    elif origin in (Union, UnionType):
        for alternative in get_args(annotation):
            yield from _members(alternative, metadata)
    elif annotation is not NoneType:
        yield annotation, metadata


def _flattened(metadata: Sequence[Any]) -> Iterator[Any]:
    for item in metadata:
        yield item
        if isinstance(item, FieldInfo):
            yield from item.metadata


def _is_spec(member: Any) -> bool:
    return isinstance(member, type) and issubclass(member, BaseModel)


def _field_type(member: Any, name: str) -> Any:
    info = member.model_fields[name]
    return Annotated[info.annotation, info] if info.metadata or info.description else info.annotation


def _child(annotation: Any, step: str | int) -> Any:
    """The type declared at a key or an index of a type; the type itself for an unknown key."""
    for member, _ in _members(annotation):
        arguments = get_args(member)
        if _is_spec(member):
            named = [name for name, info in member.model_fields.items() if step == (info.alias or name)]
            if named:
                return _field_type(member, named[0])
        if get_origin(member) is dict:
            return arguments[1]
        if get_origin(member) in (tuple, list, frozenset) and isinstance(step, int):
            return arguments[0]
    return annotation


def _tagged(annotation: Any, tag: str | int) -> Any:
    """The member of a union for a tag; None if the step is not a tag."""
    members = [member for member, _ in _members(annotation) if _is_spec(member)]
    if len(members) < 2:
        return None
    for member in members:
        if any(tag in get_args(info.annotation) for info in member.model_fields.values()):
            return member
    return None


def _fields(annotation: Any) -> Iterator[str]:
    for member, _ in _members(annotation):
        if _is_spec(member):
            yield from (info.alias or name for name, info in member.model_fields.items())


def _choices(annotation: Any) -> Iterator[str]:
    for member, _ in _members(annotation):
        if get_origin(member) is Literal:
            yield from map(str, get_args(member))
        elif get_origin(member) in (tuple, list, frozenset):
            yield from _choices(get_args(member)[0])


def _expected(annotation: Any) -> str:
    """Write the values allowed by a declared type: `a whole number above 0`."""
    return " or ".join(dict.fromkeys(_phrase(member, metadata) for member, metadata in _members(annotation)))


def _phrase(member: Any, metadata: tuple[Any, ...]) -> str:
    for item in metadata:
        if isinstance(item, FieldInfo) and item.description:
            return item.description
    if get_origin(member) is Literal:
        return "one of " + ", ".join(map(str, get_args(member)))
    if _is_spec(member) or get_origin(member) is dict:
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
