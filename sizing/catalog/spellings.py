"""Keys of a workload file in the words of options: `rps` is `demand.requests_per_s`, at any level of the file."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sizing.catalog.files import DataFile
from sizing.specs.demand import Demand
from sizing.specs.errors import UNKNOWN_KEY, Fault, FieldPath, InputError, nearest, raise_any
from sizing.specs.optimisations import Optimisations
from sizing.specs.values import Spec
from sizing.specs.workload import Limits, Planning, Serving, Tokens, Workload

Words = Mapping[str, str]  # the field of each spelling; an option (--gpus) where a file has no such field
NO_WORDS: Words = {}
OPTION = "--"
SECTIONS: Mapping[str, type[Spec]] = {
    "tokens": Tokens, "demand": Demand, "limits": Limits, "serving": Serving, "planning": Planning,
    "optimisations": Optimisations,
}  # fmt: skip


def respelt(document: DataFile, words: Words, at: FieldPath = ()) -> DataFile:
    """The document with each key in other words moved to its field; faults still name the key and line as written.

    Raises InputError if a field is stated twice, by its own name and in other words.
    """
    found = list(_foreign(_inner(document.data, at), words)) if words else []
    if not found:
        return document
    data, moved = copy.deepcopy(document.data), dict(document.moved)
    faults = []
    for path, field in found:
        target = _inner(data, at)
        value = _taken(target, path)
        *holders, last = field.split(".")
        for step in holders:
            if not isinstance(target.get(step), dict):
                target[step] = {}
            target = target[step]
        if last in target:
            faults.append(document.fault((*at, *path), f"says the same as {field}", allowed="one of them"))
        target[last] = value
        moved[(*at, *field.split("."))] = (*at, *path)
    raise_any(faults)
    return replace(document, data=data, moved=moved)


def explained(error: InputError, words: Words) -> InputError:
    """The same error; an unknown key that is near to a spelling of another field, or is an option, says so."""
    return InputError(_meant(fault, words) for fault in error.faults)


def _meant(fault: Fault, words: Words) -> Fault:
    if fault.message != UNKNOWN_KEY or fault.field is None:
        return fault
    key = _plain(fault.field.rpartition(".")[2])
    if words.get(key, "").startswith(OPTION):
        return replace(fault, allowed=None, nearest=None, remedy=f"give it as an option: {words[key]}")
    likely = None if fault.nearest else nearest(key, [word for word in words if not words[word].startswith(OPTION)])
    return fault if likely is None else replace(fault, nearest=words[likely])


def _foreign(data: Any, words: Words) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of each key that its mapping does not have, and the field that it spells."""
    for key, value in data.items() if isinstance(data, dict) else ():
        section = SECTIONS.get(key)
        if key not in Workload.model_fields:
            field = words.get(_plain(key), OPTION)
            if not field.startswith(OPTION):
                yield (key,), field
        elif section is not None and isinstance(value, dict):
            for inner in value:
                field = words.get(_plain(inner), OPTION)
                if inner not in section.model_fields and not field.startswith(OPTION):
                    yield (key, inner), field


def _plain(key: object) -> str:
    return str(key).strip().lower().replace("-", "_")


def _inner(data: Any, at: FieldPath) -> Any:
    for step in at:
        data = data[step]
    return data


def _taken(data: dict[str, Any], path: tuple[str, ...]) -> Any:
    """Take a value out of nested data. A section that is then empty goes too."""
    *holders, last = path
    if not holders:
        return data.pop(last)
    value = data[holders[0]].pop(last)
    if not data[holders[0]]:
        del data[holders[0]]
    return value
