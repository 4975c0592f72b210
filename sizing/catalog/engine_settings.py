"""What stands in the rows of an engine profile, held against the settings that it must resolve to, before any is resolved."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from sizing.catalog.faults import faults_of
from sizing.catalog.files import Document, FieldPath
from sizing.errors import Fault, InputError
from sizing.specs.engine import Engine, EngineSettings
from sizing.versions import parse_version


def check_settings(engine: Engine, document: Document) -> None:
    """Raise InputError with every fault of a profile's rows: a setting missing, unknown or wrong, a version that is none."""
    faults = dict.fromkeys((*_version_faults(engine, document), *_value_faults(engine, document)))
    if faults:
        raise InputError(sorted(faults, key=lambda fault: fault.line or 0))


def _version_faults(engine: Engine, document: Document) -> Iterator[Fault]:
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
            file, line, name, _ = document.place(path)
            yield Fault(str(error), file, line, name)


def _value_faults(engine: Engine, document: Document) -> Iterator[Fault]:
    """Yield the faults of all rows: the settings are validated with the first row of each, then the second, and so on."""
    for number in range(max(map(len, engine.settings.values()), default=1)):
        yield from _faults_of_rows(
            {name: min(number, len(rows) - 1) for name, rows in engine.settings.items() if rows}, engine, document
        )


def _faults_of_rows(chosen: dict[str, int], engine: Engine, document: Document) -> list[Fault]:
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
