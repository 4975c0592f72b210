"""Engine profiles by name, with or without a version (`vllm`, `vllm:0.19.0`), and the check of their rows.

The rows of a user's own profile are validated as the settings that they resolve to, before any is resolved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import ValidationError

from sizing.catalog.faults import faults_of
from sizing.catalog.files import DataFile, FieldPath
from sizing.catalog.shelf import Found, Shelf, load
from sizing.specs.engine import Engine, EngineSettings
from sizing.specs.errors import Fault, InputError
from sizing.specs.units import parse_version


def check_settings(engine: Engine, document: DataFile) -> None:
    """Raise InputError with every fault of a profile's rows: a missing, unknown or wrong setting, an invalid version."""
    faults = dict.fromkeys((*_version_faults(engine, document), *_value_faults(engine, document)))
    if faults:
        raise InputError(sorted(faults, key=lambda fault: fault.line or 0))


def _version_faults(engine: Engine, document: DataFile) -> Iterator[Fault]:
    stated: dict[FieldPath, str | None] = {("oldest",): engine.oldest, ("newest",): engine.newest}
    for setting, rows in engine.settings.items():
        for index, row in enumerate(rows):
            stated["settings", setting, index, "since"] = row.since
            stated["settings", setting, index, "until"] = row.until
    for path, version in stated.items():
        try:
            if version is not None:
                parse_version(version)
        except ValueError as error:
            yield document.fault(path, str(error))


def _value_faults(engine: Engine, document: DataFile) -> Iterator[Fault]:
    """Yield the faults of all rows: the settings are validated with the first row of each, then the second, and so on."""
    for number in range(max(map(len, engine.settings.values()), default=1)):
        yield from _faults_of_rows(
            {name: min(number, len(rows) - 1) for name, rows in engine.settings.items() if rows}, engine, document
        )


def _faults_of_rows(chosen: dict[str, int], engine: Engine, document: DataFile) -> list[Fault]:
    values = {name: engine.settings[name][index].value for name, index in chosen.items()}

    def place(path: FieldPath) -> tuple[str | None, int | None, str, str | None]:
        setting, *inside = path
        if setting not in values or setting not in EngineSettings.model_fields:
            return document.place(("settings", setting))
        return document.place(("settings", setting, chosen[str(setting)], "value", *inside))

    try:
        EngineSettings.model_validate(values)
    except ValidationError as error:
        return faults_of(error, EngineSettings, values, place)
    return []


SHELF = Shelf(Engine, "engine", "hardware_profiles", "engines", "llmsize engines", check_settings)

# The version follows the last colon; a drive letter's colon is followed by a separator and is none.
_VERSIONED = re.compile(r"(?P<name>.+?)(?::(?P<version>[^:/\\]*))?\Z", re.DOTALL)


def load_engine(text: str) -> tuple[Found[Engine], str | None]:
    """The profile of an engine and the stated version, as written (None: the profile's newest).

    Raises InputError for an unknown or ambiguous name, an empty version, and for every fault of the file.
    """
    name, version = _split(text)
    return load(SHELF, name), version


def _split(text: str) -> tuple[str, str | None]:
    parts = _VERSIONED.match(text.strip())
    if parts is None:
        raise InputError(Fault("the engine has no name", allowed="as vllm or vllm:0.19.0"))
    version = parts["version"]
    if version is not None and not version.strip():
        raise InputError(Fault(f"{text!r} has no version after the colon", allowed="as vllm or vllm:0.19.0"))
    return parts["name"].strip(), version.strip() if version else None
