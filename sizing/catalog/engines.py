"""Engine profiles, by name with or without a version: `vllm`, `vllm:0.19.0`."""

from __future__ import annotations

import re

from sizing.catalog.engine_settings import check_settings
from sizing.catalog.files import read_yaml, validate
from sizing.catalog.names import Found, Shelf, find, ids, is_path, matched_from
from sizing.catalog.paths import expanded
from sizing.errors import Fault, InputError
from sizing.specs.engine import Engine

SHELF = Shelf("engine", "hardware_profiles", "engines", "llmsize engines")

# The version follows the last colon; a drive letter's colon is followed by a separator and is none.
_VERSIONED = re.compile(r"(?P<name>.+?)(?::(?P<version>[^:/\\]*))?\Z", re.DOTALL)


def engine_names() -> tuple[str, ...]:
    """Return the names (file stems) of all engine profiles, sorted."""
    return ids(SHELF)


def load_engine(text: str) -> tuple[Found[Engine], str | None]:
    """Return the profile of an engine and the version asked for, as written (None: the profile's newest).

    Raises InputError for an unknown or ambiguous name, an empty version, and for every fault of the file.
    """
    name, version = _split(text)
    if is_path(name):
        path = expanded(name)
        document = read_yaml(path)
        spec = validate(Engine, document)
        check_settings(spec, document)
        return Found(spec, path.stem, path), version
    entry = find(name, SHELF)
    spec = validate(Engine, read_yaml(entry.path))
    return Found(spec, entry.id, entry.path, matched_from(name, entry)), version


def _split(text: str) -> tuple[str, str | None]:
    parts = _VERSIONED.match(text.strip())
    if parts is None:
        raise InputError(Fault("the engine has no name", allowed="as vllm or vllm:0.19.0"))
    version = parts["version"]
    if version is not None and not version.strip():
        raise InputError(Fault(f"{text!r} has no version after the colon", allowed="as vllm or vllm:0.19.0"))
    return parts["name"].strip(), version.strip() if version else None
