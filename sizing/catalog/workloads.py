"""Workloads and load profiles: ready ones by name, a user's own by path. Also options that override a workload.

Keys of a user's file may be in the words of options: `rps` is `demand.requests_per_s`, at any level of the file.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin

from sizing.catalog.files import STDIN, DataFile, checked, data_folder, exists, expanded, is_file, read_yaml, validate
from sizing.catalog.models import as_format, load_model
from sizing.catalog.profiles import load_gpu
from sizing.catalog.shelf import YAML_SUFFIXES, Found, Shelf, by_stem, hyphenated, is_path, named
from sizing.specs.demand import Profile
from sizing.specs.errors import (
    REQUIRED,
    UNKNOWN_KEY,
    Fault,
    FieldPath,
    InputError,
    collected,
    nearest,
    raise_any,
)
from sizing.specs.optimisations import Optimisations
from sizing.specs.spec import Spec
from sizing.specs.workload import MOST_GPU_TYPES, REPLACED_BY_PROFILE, Workload

if TYPE_CHECKING:
    from sizing.specs.fleet import Fleet

# Pairs of fields that state the same thing. An option for one field also replaces the other field of the file.
READY = "a ready workload states all of them: llmsize workloads"
RIVALS: dict[str, tuple[str, ...]] = {
    "planning.profile": tuple(f"planning.{name}" for name in REPLACED_BY_PROFILE),
    **{f"planning.{name}": ("planning.profile",) for name in REPLACED_BY_PROFILE},
}
WHOLE = frozenset(("limits", "serving", "optimisations"))  # kept as they are, where no option is of them
SHELF = Shelf(Workload, "workload", "workloads", "traffic", "llmsize workloads", own="workloads")
_PROFILES = data_folder("workloads") / "profiles"

IS_FLEET = "is a fleet of several workloads"
NOT_ONE = ("all",)  # words for several types of GPU
UNLIMITED = "has no meaning for offline work, which has no limits on latency"


LookUp = tuple[FieldPath, Any, Callable[[str], Any]]  # the place of a name, the name (or several), and what finds it


class Words(NamedTuple):
    """Other spellings of keys: the field that each means, the options that a file cannot state, and words of other tools to guess by."""

    fields: Mapping[str, str]
    options: Mapping[str, str]
    guesses: Mapping[str, str] = {}


NO_WORDS = Words({}, {})
SECTIONS: Mapping[str, type[Spec]] = {
    name: spec
    for name, field in Workload.model_fields.items()
    for spec in (get_args(field.annotation) if get_origin(field.annotation) is UnionType else [field.annotation])
    if isinstance(spec, type) and issubclass(spec, Spec)
}


@cache
def fleet_shelf() -> Shelf[Fleet]:
    """The fleets by name."""
    from sizing.specs.fleet import Fleet  # loaded where a fleet is asked for

    return Shelf(Fleet, "fleet", "workloads", "fleets", "llmsize workloads", own="fleets")


def load_workload(path_or_name: str, words: Words = NO_WORDS) -> Found[Workload]:
    """The workload in a file, or the ready one with that name (`chat`). `-` reads standard input. `words` are other spellings of keys.

    Raises InputError for an unknown or ambiguous name and for every fault of the file.
    """
    path = expanded(path_or_name)
    if path_or_name == STDIN:
        return Found(_read(path, words), "stdin", path)
    bare = path.name == path_or_name and path.suffix.lower() in YAML_SUFFIXES
    if bare and not exists(path) and path.stem in SHELF.ids:
        raise InputError("there is no such file", file=path_or_name, allowed=f"{path.stem} for the ready workload")
    if is_path(path_or_name) or (is_file(path) and by_stem(path_or_name, SHELF) is None):
        return Found(with_paths(_read(path, words, path.parent), path.parent), path.stem, path)
    if by_stem(path_or_name, SHELF) is None and by_stem(path_or_name, fleet_shelf()) is not None:
        raise InputError(f"{path_or_name!r} {IS_FLEET}", remedy="use llmsize plan")
    return named(SHELF, path_or_name)


def _read(path: Path, words: Words, folder: Path = Path()) -> Workload:
    """The workload of a file in `folder`. Raises InputError for a fleet file, and for latency limits of offline work."""
    stated = respelt(read_yaml(path), words, ())
    document = _with_lengths(stated, folder)
    if "fleet" in document.data:
        raise InputError(document.fault(("fleet",), IS_FLEET, remedy="use llmsize plan"))
    document, workload = spelt(document, words)
    limited = workload.limits.stated if workload.mode == "offline" else ()
    raise_any(document.fault(("limits", name), UNLIMITED, remedy="use another mode") for name in limited)
    if "tokens" in stated.data and trace_to_replay(workload) is not None:
        raise InputError(document.fault(("tokens",), OWN_LENGTHS, remedy="state one of them"))
    return workload


OWN_LENGTHS = "contradicts demand.trace, which has its own lengths"


def _with_lengths(document: DataFile, folder: Path) -> DataFile:
    """The document with the lengths of its trace, where it states no tokens: their means and the longest of each."""
    demand = document.data.get("demand")
    trace = demand.get("trace") if isinstance(demand, dict) else None
    if "tokens" in document.data or not isinstance(trace, str):
        return document
    from sizing.catalog.traces import load_trace  # loaded where one is stated

    lengths = load_trace(expanded(from_folder(trace, folder)))[:, 1:]
    (isl, osl), (isl_max, osl_max) = lengths.mean(axis=0).round().clip(1), lengths.max(axis=0).clip(1)
    tokens = {"isl": int(isl), "osl": int(osl), "isl_max": int(isl_max), "osl_max": int(osl_max)}
    return replace(document, data={**document.data, "tokens": tokens})


def unlike_replay(workload: Workload) -> str | None:
    """What keeps the requests of a workload from being replayed; None for served requests in one pool."""
    more = workload.optimisations
    kinds = {
        "offline work": workload.mode == "offline",
        "conversations": more.prefix is not None and more.prefix.turns is not None,
        "separate pools": more.disaggregate is not None,
    }
    return next((what for what, asked in kinds.items() if asked), None)


def trace_to_replay(workload: Workload) -> str | None:
    """The trace that a workload states as its demand; None without one, and where no replay is like the workload."""
    plan = workload.planning
    apart = unlike_replay(workload) or plan.says_shape or plan.poisson_percentile is not None
    return None if workload.demand is None or apart else workload.demand.trace


def spelt(document: DataFile, words: Words, at: FieldPath = ()) -> tuple[DataFile, Workload]:
    """The document with its own keys in place of other `words`, and its workload."""
    document = respelt(document, words, at)
    try:
        return document, validate(Workload, document, at)
    except InputError as error:
        _, line, name, precision = document.place((*at, "precision"))
        told = (
            as_format(fault, precision or "") if (fault.line, fault.field) == (line, name) else fault
            for fault in explained(error, words).faults
        )
        faults = [*told, *_unknown_names(document, at)]
        raise InputError(sorted(faults, key=lambda fault: fault.line or 0)) from None


def _unknown_names(document: DataFile, at: FieldPath) -> list[Fault]:
    """The faults of a workload's unknown model and GPU, which are looked up only where nothing else is wrong."""
    stated: Any = document.data
    for step in at:
        stated = stated[step]
    names = (("model", load_model), ("gpu", load_gpu)) if isinstance(stated, dict) else ()
    return name_faults(document, (((*at, key), stated.get(key), load) for key, load in names))


def name_faults(document: DataFile, names: Iterable[LookUp]) -> list[Fault]:
    """The faults of unknown names, at their lines."""
    faults: list[Fault] = []
    for at, stated, load in names:
        wrong: list[Fault] = []
        listed = stated if isinstance(stated, list) and len(stated) <= MOST_GPU_TYPES else [stated]
        texts = [name for name in listed if isinstance(name, str) and name.strip().lower() not in NOT_ONE]
        for name in (part for text in texts for part in (text.split(",") if at[-1] == "gpu" else (text,))):
            with collected(wrong):
                load(name.strip())
        faults += [document.fault(at, it.message, it.allowed, it.nearest, it.remedy) for it in wrong if it.file is None]
    return faults


def with_paths(workload: Workload, folder: Path) -> Workload:
    """A workload whose trace and profile paths are resolved in the folder of its file, if the files exist there."""
    demand, planning = workload.demand, workload.planning
    found: dict[str, object] = {}
    if demand is not None and demand.trace is not None:
        found["demand"] = demand.model_copy(update={"trace": from_folder(demand.trace, folder)})
    if isinstance(planning.profile, str) and is_path(planning.profile):
        found["planning"] = planning.model_copy(update={"profile": from_folder(planning.profile, folder)})
    return workload.model_copy(update=found)


def from_folder(name: str, folder: Path) -> str:
    """The path of a file that is named as in `folder`, if there is one; else the name."""
    path = folder / expanded(name)
    return str(path) if exists(path) else name


def profile_names() -> tuple[str, ...]:
    """The names (file stems) of all ready load profiles, sorted."""
    return tuple(sorted(path.stem for path in _PROFILES.glob("*.yaml")))


def load_profile(path_or_name: str) -> Found[Profile]:
    """The load profile in a file, or the ready one of that name.

    Raises InputError for an unknown name and for every fault of the file.
    """
    known, name = profile_names(), hyphenated(path_or_name)
    path = expanded(path_or_name) if is_path(path_or_name) else _PROFILES / f"{name}.yaml"
    if not is_path(path_or_name) and name not in known:
        message, allowed = f"unknown load profile {path_or_name!r}", f"{', '.join(known)}, or the path of a file"
        raise InputError(message, field="planning.profile", allowed=allowed, nearest=nearest(name, known))
    return Found(validate(Profile, read_yaml(path)), path.stem, path)


def with_own_lengths(
    spec: Workload | None,
    given: Mapping[str, Any],
    flags: Mapping[str, str],
    lengths: Collection[str],
    configured: Collection[str],
) -> Workload:
    """The workload with the given values. A trace has its own `lengths`: `configured` ones are left out, others a fault."""
    asked = override(spec, given, flags)
    if not lengths or trace_to_replay(asked) is None:
        return asked
    stated = [path for path in lengths if path.rpartition(".")[2] not in configured]
    raise_any(Fault(OWN_LENGTHS, field=flags[path], remedy="state one of them") for path in stated)
    return override(spec, {path: given[path] for path in given if path not in lengths}, flags)


def override(workload: Workload | None, overrides: Mapping[str, Any], options: Mapping[str, str]) -> Workload:
    """A workload with fields replaced, or a workload made of only the given fields.

    `overrides` maps dotted fields to values (`tokens.isl`: 2000). A mapping replaces a whole field (`demand`). None leaves the
    field as it is. `options` names the command-line option of each dotted field, for the faults. Raises InputError with every
    fault of the result.
    """
    given = {field: value for field, value in overrides.items() if value is not None}
    dropped = {field: [field, *(of for of in RIVALS.get(field, ()) if of not in given)] for field in given}
    data: dict[str, Any] = {"tokens": {}}
    if workload is not None:
        changed = {other.partition(".")[0] for others in dropped.values() for other in others}
        kept = {name: getattr(workload, name) for name in WHOLE & workload.model_fields_set - changed}
        data = workload.model_dump(exclude_unset=True, exclude=set(kept)) | kept
    for field, value in given.items():
        whole = _detailed(data.get(field), value)
        for other in dropped[field]:
            _drop(data, other)
        *holders, last = field.split(".")
        _holder(data, holders)[last] = whole
    try:
        return checked(Workload, data, lambda path: _option(path, given, options))
    except InputError as error:
        missing = [fault for fault in error.faults if fault.message == REQUIRED and workload is None][-1:]
        raise InputError(replace(each, remedy=READY) if each in missing else each for each in error.faults) from None


def _detailed(old: Any, new: Any) -> Any:
    """A copy of `new`. Where both state a kind of demand, its details that `new` does not state keep their old values."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return copy.deepcopy(new)
    kinds = {
        kind: detail for kind, detail in new.items() if isinstance(detail, dict) and isinstance(old.get(kind), dict)
    }
    return copy.deepcopy(new | {kind: old[kind] | detail for kind, detail in kinds.items()})


def without(workload: Workload, fields: Iterable[str]) -> tuple[Workload, tuple[tuple[str, Any], ...]]:
    """A workload without `fields` (dotted), and those of them that it stated, with their values."""
    data = workload.model_dump(exclude_unset=True)
    stated = []
    for field in fields:
        value: Any = data
        for step in field.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if value is not None:
            stated.append((field, value))
            _drop(data, field)
    return checked(Workload, data, lambda path: ".".join(map(str, path))), tuple(stated)


def optimisations(fields: Mapping[str, str], stated: Mapping[str, str | float | None]) -> Optimisations:
    """Optimisations as stated; `fields` says for a fault where each of them was stated. Raises InputError with all faults."""
    given = {name: value for name, value in stated.items() if value is not None}
    return checked(Optimisations, given, lambda path: fields[str(path[0])])


def _drop(data: dict[str, Any], field: str) -> None:
    """Remove a field, its ranges, and the ranges of the fields in it."""
    uncertain = data.get("uncertain")
    for name in [name for name in uncertain or () if name == field or name.startswith(f"{field}.")]:
        del data["uncertain"][name]
    *holders, last = field.split(".")
    for step in holders:
        data = data.get(step, {})
        if not isinstance(data, dict):
            return
    data.pop(last, None)


def _holder(data: dict[str, Any], steps: Iterable[str]) -> dict[str, Any]:
    """The mapping at a path. A value on the path that is not a mapping is replaced, because the later field decides."""
    for step in steps:
        if not isinstance(data.get(step), dict):
            data[step] = {}
        data = data[step]
    return data


def _option(path: FieldPath, given: Mapping[str, Any], options: Mapping[str, str]) -> str:
    """Name the options of a field: options given for fields inside it, its own option, or that of an enclosing field."""
    dotted = ".".join(map(str, path))
    around = [".".join(map(str, path[:end])) for end in range(len(path), 0, -1)]
    own = next((options[field] for field in around if field in options), None)
    inside = [options[field] for field in given if field in options and field.startswith(f"{dotted}.")]
    return ", ".join(inside) or own or dotted


def respelt(document: DataFile, words: Words, at: FieldPath = ()) -> DataFile:
    """The document with each key in other words moved to its field; faults still name the key and line as written.

    Raises InputError if a field is stated twice, by its own name and in other words.
    """
    found = list(_foreign(_inner(document.data, at), words.fields)) if words.fields else []
    if not found:
        return document
    data, moved = copy.deepcopy(document.data), dict(document.moved)
    faults = []
    for path, field in found:
        target = _inner(data, at)
        value = _taken(target, path)
        *holders, last = field.split(".")
        target = _holder(target, holders)
        if last in target:
            faults.append(document.fault((*at, *path), f"says the same as {field}", remedy="state one of them"))
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
    if key in words.options:
        return replace(fault, allowed=None, nearest=None, remedy=f"give it as an option: {words.options[key]}")
    likely = None if fault.nearest else nearest(key, list(words.fields))
    meant = words.guesses.get(key) or (likely and words.fields[likely])
    return fault if meant is None else replace(fault, nearest=meant)


def _foreign(data: Any, fields: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of each key that its mapping does not have, and the field that it spells."""
    for key, value in data.items() if isinstance(data, dict) else ():
        section = SECTIONS.get(key)
        if key not in Workload.model_fields and _plain(key) in fields:
            yield (key,), fields[_plain(key)]
        elif section is not None and isinstance(value, dict):
            for inner in value:
                if inner not in section.model_fields and _plain(inner) in fields:
                    yield (key, inner), fields[_plain(inner)]


def _plain(key: object) -> str:
    return str(key).strip().lower().replace("-", "_")


def _inner(data: Any, at: FieldPath) -> Any:
    for step in at:
        data = data[step]
    return data


def _taken(data: dict[str, Any], path: tuple[str, ...]) -> Any:
    """Take a value out of nested data. A section that is then empty goes too."""
    *section, last = path
    value = _inner(data, tuple(section)).pop(last)
    if section and not data[section[0]]:
        del data[section[0]]
    return value
