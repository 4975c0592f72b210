"""Settings: values of options from files and the environment, used where neither a workload nor an option states them.

From lowest to highest priority: defaults of program and engine, the user's file, the project's file, the environment, the
workload, `--set`, options. A project has `llmsize.yaml`, or `[tool.llmsize]` in `pyproject.toml`; of the working folder and those
above it, the first with either file is used. Files and environment use an option's long name: `max_utilisation`, `LLMSIZE_MAX_UTILISATION`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sizing.catalog.files import DataFile, expanded, is_file, read_text, read_yaml
from sizing.catalog.shelf import FOLDER_VARIABLE, PROGRAM, user_folder
from sizing.question.options import LISTED, Field, GivenOptions, is_stated, read_value, sets_demand, states_demand
from sizing.specs.errors import Fault, InputError, collected, nearest, raise_any
from sizing.specs.frozen import Frozen
from sizing.specs.workload import REPLACED_BY_PROFILE, Workload

NAME, PYPROJECT = "llmsize.yaml", "pyproject.toml"
FILE_VARIABLE = "LLMSIZE_CONFIG"  # one file instead of the user's and the project's
NO_FILE = "none"
USER, PROJECT = "user file", "project file"
PREFIX = "LLMSIZE_"
ENVIRONMENT = "environment"
# Options that exclude each other: a setting does not count where an option of the same group is given.
EXCLUDING = (
    ("format", "json", "quiet"),
    ("confidence", "conservative"),
    ("price", "provider"),
    *(("profile", name) for name in REPLACED_BY_PROFILE),
)
# Parts of a workload that are replaced as a whole.
WHOLE_PARTS = ("demand", "optimisations.prefix")
OF_WORKLOAD = {"precision": "precision"}  # options that take a list where a workload states one value


class SettingsFile(NamedTuple):
    """A settings file and its layer: user or project."""

    layer: str
    document: DataFile


class Setting(NamedTuple):
    """The value of an option, the layer that states it, and its place: a variable, or a file with the line.

    A value of None, from an empty variable, cancels the lower layers.
    """

    option: str
    value: Any
    layer: str
    place: str


class Configuration(Frozen):
    """All stated settings, lowest layer first."""

    stated: tuple[Setting, ...] = ()

    @property
    def in_force(self) -> dict[str, Setting]:
        """The setting of each option from its highest layer, without cancelled ones."""
        highest = {setting.option: setting for setting in self.stated}
        return {name: setting for name, setting in highest.items() if setting.value is not None}


def configuration(known: Iterable[Field], folder: Path, environment: Mapping[str, str]) -> Configuration:
    """The settings of the options `known`, for a working folder and an environment.

    Raises InputError with every fault: an unknown name, a value that its option cannot read, an unreadable file.
    """
    fields = {field.name: field for field in known}
    faults: list[Fault] = []
    found: list[Setting] = []
    with collected(faults):
        for file in settings_files(folder):
            found += _of_file(file, fields, faults)
    found += _of_environment(environment, fields, faults)
    raise_any(faults)
    return Configuration(tuple(found))


def _of_file(file: SettingsFile, fields: Mapping[str, Field], faults: list[Fault]) -> Iterator[Setting]:
    for key, value in file.document.data.items():
        name, document = key.replace("-", "_"), file.document
        if name not in fields:
            allowed = f"an option's long name, as {', '.join(list(fields)[:3])} (llmsize config --all)"
            faults.append(document.fault((key,), "is no setting", allowed, nearest(name, list(fields))))
            continue
        try:
            text = _as_text(value)
            line = document.line((key,))
            place = f"{document.file}:{line}: {key}" if line is not None else f"{document.file}: {key}"
            yield Setting(name, read_value(fields[name], text), file.layer, place)
        except ValueError as error:
            faults.append(document.fault((key,), str(error)))


def _of_environment(
    environment: Mapping[str, str], fields: Mapping[str, Field], faults: list[Fault]
) -> Iterator[Setting]:
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in (FILE_VARIABLE, FOLDER_VARIABLE):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in fields:
            near = nearest(name, list(fields))
            closest = None if near is None else f"{PREFIX}{near.upper()}"
            faults.append(Fault("is no setting", field=variable, remedy="use llmsize config --all", nearest=closest))
            continue
        try:
            value = read_value(fields[name], text) if text.strip() else None
            yield Setting(name, value, ENVIRONMENT, variable)
        except ValueError as error:
            faults.append(Fault(str(error), field=variable))


def _as_text(value: Any) -> str:
    """A value from a file, written as option text. Raises ValueError for nested values and for null."""
    if isinstance(value, list) and value and not any(isinstance(each, (list, dict)) for each in value):
        return ",".join(map(_as_text, value))
    if value is None or isinstance(value, (list, dict)):
        raise ValueError("states no value of an option: a number, a word, or a list of them")
    return str(value).lower() if isinstance(value, bool) else str(value)


def with_settings(
    given: GivenOptions, settings: Configuration, workload: Workload | None, *, named: bool
) -> GivenOptions:
    """The options filled with the settings that neither options nor workload state.

    Where a workload is `named` but cannot be read (None), no setting of a workload field is used. A command's own options
    (without a panel) never come from settings.
    """
    by_name = {field.name: field for field in given.fields if field.panel}
    stated = {name for name, field in by_name.items() if is_stated(field, given.values.get(name))}
    taken: dict[str, Setting] = {}
    for name, setting in settings.in_force.items():
        field = by_name.get(name)
        if field is None or name in stated or any(name in group and stated & set(group) for group in EXCLUDING):
            continue
        path = field.field or OF_WORKLOAD.get(name)
        if path is not None and (_said(path, by_name, stated, given) or (named and _says(workload, path))):
            continue
        taken[name] = setting
    filled = {name: [one.value] if by_name[name].type == LISTED else one.value for name, one in taken.items()}
    return given.with_(**filled)._replace(settings={name: setting.place for name, setting in taken.items()})


def _said(path: str, by_name: Mapping[str, Field], stated: set[str], given: GivenOptions) -> bool:
    """Whether options or --set state a field, or another field of the same whole part."""
    around = _part(path)
    if around == "demand":
        return any(states_demand(by_name[name]) for name in stated) or sets_demand(given)
    paths = [by_name[name].field or "" for name in stated]
    paths += [text.partition("=")[0].strip() for text in given.texts_of_set]
    return any(one == path or (around is not None and one.startswith(around)) for one in paths)


def _says(workload: Workload | None, path: str) -> bool:
    """Whether a workload states a field, its whole part, or a field that excludes it; true for an unreadable workload."""
    section, _, name = path.rpartition(".")
    rivals = (other for group in EXCLUDING if name in group for other in group)
    return workload is None or any(
        _states(workload, one) for one in (path, *(f"{section}.{other}" for other in rivals))
    )


def _states(workload: Workload, path: str) -> bool:
    spec: Any = workload
    for step in (_part(path) or path).split("."):
        if spec is None or step not in spec.model_fields_set:
            return False
        spec = getattr(spec, step)
    return spec is not None


def _part(path: str) -> str | None:
    return next((part for part in WHOLE_PARTS if path.startswith(f"{part}.")), None)


def of_several(given: GivenOptions, *names: str) -> list[str]:
    """Which of the options `names` have a setting that lists several values: it waits for a command that takes several."""
    return [name for name in names if name in given.settings and "," in str(given.values[name])]


def located(fault: Fault, given: GivenOptions) -> Fault:
    """The fault, naming the place of a setting instead of an option that the user did not write."""
    places = given.settings
    if not places or fault.field is None or fault.file is not None:
        return fault
    by_flag = {field.flags[0]: places[field.name] for field in given.fields if field.name in places}
    named = [by_flag.get(flag, flag) for flag in fault.field.split(", ")]
    return replace(fault, field=", ".join(named))


def settings_files(folder: Path) -> tuple[SettingsFile, ...]:
    """The settings files for a working folder, the user's file first. Raises InputError if one cannot be read."""
    stated = stated_file()
    if stated is not None:
        if stated == NO_FILE:
            return ()
        try:
            return (SettingsFile(PROJECT, _read(expanded(stated))),)
        except InputError as error:
            missing = [Fault(f"{f.file}: {f.message}", field=FILE_VARIABLE, nearest=f.nearest) for f in error.faults]
            raise InputError(error.faults if is_file(expanded(stated)) else missing) from None
    own, project = user_folder() / NAME, project_file(folder)
    files = [(USER, own)] if is_file(own) else []
    if project is not None and not (files and project.samefile(own)):
        files.append((PROJECT, project))
    return tuple(SettingsFile(layer, _read(path)) for layer, path in files)


def stated_file() -> str | None:
    """The file that LLMSIZE_CONFIG names; `none` if no file should be read; None if the variable is not set."""
    stated = os.environ.get(FILE_VARIABLE)
    return NO_FILE if stated is not None and stated.strip().lower() in ("", NO_FILE) else stated


def project_file(folder: Path) -> Path | None:
    """The project's settings file in the nearest folder, from `folder` upwards; None if there is none."""
    for each in (folder, *folder.parents):
        if is_file(each / NAME):
            return each / NAME
        if is_file(each / PYPROJECT) and _has_table(each / PYPROJECT):
            return each / PYPROJECT
    return None


def _has_table(path: Path) -> bool:
    """Whether a pyproject.toml has settings of this program. False if it cannot be read: other tools will report that."""
    import tomllib

    try:
        text = read_text(path)
        tool = tomllib.loads(text).get("tool") if PROGRAM in text else None
        return isinstance(tool, dict) and PROGRAM in tool
    except tomllib.TOMLDecodeError:
        return re.search(rf"^\s*\[\s*tool\s*\.\s*{PROGRAM}\b", text, re.MULTILINE) is not None
    except InputError:
        return False


def _read(path: Path) -> DataFile:
    """Read the settings of a file. A file with only comments gives an empty mapping."""
    if path.suffix.lower() == ".toml":
        return _read_toml(path)
    if all(not line.strip() or line.lstrip().startswith("#") for line in read_text(path).splitlines()):
        return DataFile({}, str(path), "")
    return read_yaml(path)


def _read_toml(path: Path) -> DataFile:
    import tomllib

    text = read_text(path)
    try:
        table: Any = tomllib.loads(text).get("tool", {}).get(PROGRAM, {})
    except (tomllib.TOMLDecodeError, AttributeError) as error:
        raise InputError(f"is not valid TOML: {error}", file=str(path)) from None
    if not isinstance(table, dict):
        raise InputError("must be a table of settings", file=str(path), field=f"tool.{PROGRAM}")
    return DataFile(table, str(path), _keys_of(text))


def _keys_of(text: str) -> str:
    """The keys of the program's TOML table as YAML text, each on its own line, so that faults get line numbers."""
    lines, inside = [], False
    for line in text.splitlines():
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line)
        if header is not None:
            inside = re.sub(r"[\s\"']", "", header[1]) == f"tool.{PROGRAM}"
        key = re.match(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*=""", line) if inside and header is None else None
        lines.append(f"{key[1]}: x" if key is not None else "")
    return "\n".join(lines)
