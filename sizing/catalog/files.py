"""Data files: a file becomes a `DataFile` of plain data, a `DataFile` becomes a spec.

Any user file results in a spec, or in an InputError with one fault for each mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from sizing.catalog.paths import open_bytes
from sizing.specs.errors import Fault, InputError

if TYPE_CHECKING:
    from sizing.catalog.yaml import Spot


# The largest profile with measured rows is well below 1 MiB; a file beyond 4 MiB is a mix-up (weights, a
# log), and reading it would only delay saying so.
MAX_FILE_BYTES = 4 * 2**20
# Longer digit strings are identifiers, not counts; Python itself refuses to convert more than 4,300 digits.
MAX_DIGITS = 40

# Control characters that neither YAML nor JSON text may hold: their presence means that the file is no text.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")

SpecT = TypeVar("SpecT", bound=BaseModel)
FieldPath = tuple[str | int, ...]


@dataclass(frozen=True)
class DataFile:
    """The plain data of one file, and the way back from a field to its line.

    `text` is kept because lines are found only when there is a fault to report; finding them costs as much as reading.
    """

    data: dict[str, Any]
    file: str
    text: str = field(repr=False)

    def line(self, path: FieldPath) -> int | None:
        """The line of a field, or of the nearest field around it that is in the file."""
        around = (path[:end] for end in range(len(path), -1, -1))
        return next((self._spots[part].line for part in around if part in self._spots), None)

    def line_of_key(self, key: str) -> int | None:
        """The line of the outermost occurrence of `key`; None where it does not occur."""
        paths = sorted((path for path in self._spots if path and path[-1] == key), key=len)
        return self._spots[paths[0]].line if paths else None

    def place(self, path: FieldPath) -> tuple[str, int | None, str, str | None]:
        """File, line, dotted name and, for a scalar, the text of a field as written."""
        from sizing.catalog.yaml import dotted

        exact = self._spots.get(path)
        return self.file, self.line(path), dotted(path), exact.text if exact else None

    def fault(self, path: FieldPath, message: str, allowed: str | None = None, nearest: str | None = None) -> Fault:
        """A fault at the line of a field."""
        file, line, name, _ = self.place(path)
        return Fault(message, file, line, name, allowed, nearest)

    @cached_property
    def _spots(self) -> dict[FieldPath, Spot]:
        """The places of all fields. JSON is read as YAML; in rare cases its lines stay unknown."""
        from sizing.catalog.yaml import spots

        try:
            return spots(self.text, self.file)
        except InputError:
            return {}


@cache
def data_folder(kind: str) -> Path:
    """The folder of a kind of data: inside an installed package, next to the package in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "data" / kind
    return installed if installed.is_dir() else package.parent / kind


def read_yaml(path: Path | str) -> DataFile:
    """Read one YAML file into plain data.

    Raises InputError for a file that is missing, too large, no UTF-8 text, not valid YAML, empty, not a
    mapping at the top, or that uses what plain data does not need: anchors, aliases, tags, several documents,
    a key twice.
    """
    from sizing.catalog.yaml import parse

    file = str(path)
    text = read_text(path)
    data = parse(text, file)
    if data is None:
        raise InputError(Fault("is empty", file=file))
    if not isinstance(data, dict):
        message = "must hold a mapping of keys to values at the top, as `name: ...`"
        raise InputError(Fault(message, file=file, line=1))
    return DataFile(data, file, text)


def read_json(path: Path | str) -> DataFile:
    """Read one JSON file, an object at the top; `NaN` and `Infinity` are let through, as published configs
    hold them.

    Raises InputError as `read_yaml` does.
    """
    file = str(path)
    text = read_text(path)
    if not text.strip():
        raise InputError(Fault("is empty", file=file))
    try:
        data = json.loads(text, object_pairs_hook=_refuse_twice, parse_int=_whole)
    except json.JSONDecodeError as error:
        raise InputError(Fault(f"is not valid JSON: {error.msg}", file=file, line=error.lineno)) from None
    except _KeyTwiceError as error:
        raise InputError(Fault("is given twice in one object", file=file, field=str(error))) from None
    except RecursionError:
        raise InputError(Fault("is nested too deep", file=file)) from None
    except _LongNumberError as error:
        line = text.count("\n", 0, text.index(error.digits)) + 1
        message = f"holds a number of {len(error.digits):,} digits"
        raise InputError(Fault(message, file=file, line=line, allowed=f"at most {MAX_DIGITS} digits")) from None
    if not isinstance(data, dict):
        raise InputError(Fault("must hold an object at the top, as {...}", file=file, line=1))
    # Lines are found by reading the text as YAML, which knows no tabs between tokens.
    return DataFile(data, file, text.replace("\t", " "))


def read_text(path: Path | str) -> str:
    """The text of a file. Raises InputError where it is missing, too large, not UTF-8, or not a file."""
    file = str(path)
    try:
        with open_bytes(Path(path)) as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(Fault(f"cannot be read: {error.strerror or error}", file=file)) from None
    if len(content) > MAX_FILE_BYTES:
        raise InputError(Fault(f"is larger than {MAX_FILE_BYTES // 2**20} MiB; no profile or workload is", file=file))
    return _decoded(content, file)


def validate(spec_type: type[SpecT], document: DataFile, at: FieldPath = ()) -> SpecT:
    """Turn a document, or the part of it `at` a path, into a spec.

    Raises InputError with every fault, ordered by line.
    """
    data: Any = document.data
    for step in at:
        data = data[step]
    try:
        return spec_type.model_validate(data)
    except ValidationError as error:
        from sizing.catalog.faults import faults_of

        raise InputError(faults_of(error, spec_type, data, lambda path: document.place((*at, *path)))) from None


def _decoded(content: bytes, file: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(Fault("is not UTF-8 text", file=file, line=line)) from None
    control = _CONTROL.search(text)
    if control:
        line = text.count("\n", 0, control.start()) + 1
        raise InputError(Fault(f"is not text: it holds the character {control[0]!r}", file=file, line=line))
    return text


class _LongNumberError(Exception):
    """A whole number is too long to be a count."""

    def __init__(self, digits: str) -> None:
        self.digits = digits


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _LongNumberError(digits)
    return int(digits)


class _KeyTwiceError(Exception):
    """A key stands twice in one JSON object."""


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise _KeyTwiceError(next(_repeated(pairs)))
    return mapping


def _repeated(pairs: list[tuple[str, Any]]) -> Iterator[str]:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            yield key
        seen.add(key)
