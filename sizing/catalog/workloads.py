"""Workloads: ready ones by name, a user's own by path, and what the command line changes in either."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sizing.catalog.files import FieldPath, data_folder, read_yaml, validate
from sizing.catalog.names import YAML_SUFFIXES, Found, Shelf, by_stem, find, ids, is_path, matched_from
from sizing.catalog.paths import exists, expanded
from sizing.errors import Fault, InputError
from sizing.specs.workload import REPLACED_BY_PROFILE, Defaults, Workload

# Fields that say the same in two ways: an option for one takes the place of the file's other, too.
RIVALS: dict[str, tuple[str, ...]] = {
    "planning.profile": tuple(f"planning.{name}" for name in REPLACED_BY_PROFILE),
    **{f"planning.{name}": ("planning.profile",) for name in REPLACED_BY_PROFILE},
}
SHELF = Shelf("workload", "workloads", "traffic", "llmsize workloads")
FLEETS = Shelf("fleet", "workloads", "fleets", "llmsize workloads")

IS_FLEET = "is a fleet of several workloads"


def workload_names() -> tuple[str, ...]:
    """Return the names (file stems) of all ready workloads, sorted."""
    return ids(SHELF)


def load_workload(path_or_name: str) -> Found[Workload]:
    """Return the workload in a file, or the ready one of that name (`chat`, `chat.yaml`).

    A file of the working folder wins over a ready one. Raises InputError for an unknown or ambiguous name and
    for every fault of the file.
    """
    path = expanded(path_or_name)
    ready = SHELF.path / f"{path.stem}.yaml"
    bare = path.name == path_or_name and path.suffix.lower() in YAML_SUFFIXES
    if bare and not exists(path) and path.stem in ids(SHELF):
        return Found(validate(Workload, read_yaml(ready)), ready.stem, ready, None)
    if is_path(path_or_name):
        document = read_yaml(path)
        if "fleet" in document.data:
            line = document.line(("fleet",))
            raise InputError(Fault(IS_FLEET, document.file, line, "fleet", allowed="llmsize plan"))
        return Found(with_paths(validate(Workload, document), path.parent), path.stem, path)
    if by_stem(path_or_name, FLEETS) is not None and by_stem(path_or_name, SHELF) is None:
        raise InputError(Fault(f"{path_or_name!r} {IS_FLEET}", allowed="llmsize plan"))
    entry = find(path_or_name, SHELF)
    return Found(validate(Workload, read_yaml(entry.path)), entry.id, entry.path, matched_from(path_or_name, entry))


def with_paths(workload: Workload, folder: Path) -> Workload:
    """Return a workload whose trace and profile, where they lie beside its file, are named from there."""
    demand, planning = workload.demand, workload.planning
    if demand is not None and demand.trace is not None:
        workload = workload.model_copy(
            update={"demand": demand.model_copy(update={"trace": _beside(demand.trace, folder)})}
        )
    if isinstance(planning.profile, str) and is_path(planning.profile):
        profile = _beside(planning.profile, folder)
        workload = workload.model_copy(update={"planning": planning.model_copy(update={"profile": profile})})
    return workload


def _beside(name: str, folder: Path) -> str:
    path = folder / expanded(name)
    return str(path) if exists(path) else name


def load_defaults() -> Found[Defaults]:
    """Return the planning rules that hold where a workload is silent."""
    path = data_folder("workloads") / "_defaults.yaml"
    return Found(validate(Defaults, read_yaml(path)), path.stem, path)


def override(workload: Workload | None, overrides: Mapping[str, Any], options: Mapping[str, str]) -> Workload:
    """Return a workload with fields replaced, or one made of the given fields alone.

    `overrides` maps dotted fields to values (`tokens.isl`: 2000); a mapping replaces a field wholly
    (`demand`), None leaves it as it is. `options` names the command-line option of each dotted field, for the
    faults. Raises InputError with every fault of the result.
    """
    data = {"tokens": {}} if workload is None else workload.model_dump(exclude_unset=True)
    given = {field: value for field, value in overrides.items() if value is not None}
    for field, value in given.items():
        for other in (field, *(rival for rival in RIVALS.get(field, ()) if rival not in given)):
            _drop(data, other)
        _set(data, field.split("."), copy.deepcopy(value))
    try:
        return Workload.model_validate(data)
    except ValidationError as error:
        from sizing.catalog.faults import faults_of

        def place(path: FieldPath) -> tuple[None, None, str, None]:
            return None, None, _option(path, given, options), None

        raise InputError(faults_of(error, Workload, data, place)) from None


def _drop(data: dict[str, Any], field: str) -> None:
    """Take a field out, with the ranges of it and of what it holds."""
    uncertain = data.get("uncertain")
    for name in [name for name in uncertain or () if name == field or name.startswith(f"{field}.")]:
        del data["uncertain"][name]
    *holders, last = field.split(".")
    for step in holders:
        data = data.get(step, {})
        if not isinstance(data, dict):
            return
    data.pop(last, None)


def _set(data: dict[str, Any], steps: list[str], value: Any) -> None:
    """Set a nested field. A value that is no mapping on the way there gives way: the later field decides."""
    *holders, last = steps
    for step in holders:
        if not isinstance(data.get(step), dict):
            data[step] = {}
        data = data[step]
    data[last] = value


def _option(path: FieldPath, given: Mapping[str, Any], options: Mapping[str, str]) -> str:
    """Name the options behind a field: its own, that of a field around it, or those given inside it."""
    dotted = ".".join(map(str, path))
    around = [".".join(map(str, path[:end])) for end in range(len(path), 0, -1)]
    own = next((options[field] for field in around if field in options), None)
    inside = [options[field] for field in given if field in options and field.startswith(f"{dotted}.")]
    return own or ", ".join(inside) or dotted
