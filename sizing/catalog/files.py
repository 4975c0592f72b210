"""Files as users name them: safe inspection and opening of paths, and data files that are read into specs.

Inspection never fails. `pathlib` raises for a name that is too long, for an unknown home, and for a folder without permission. A
look-up treats all of these as a missing file. Opening never blocks forever. Files can be read, and pipes with a writer
(`<(command)`, `command | llmsize estimate /dev/stdin`). Folders and devices are refused.

A file becomes a `DataFile` of plain data, and a `DataFile` becomes a spec. Any user file gives a spec, or an InputError with one
fault for each mistake.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import select
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sizing.specs.errors import Fault, FieldPath, InputError, Place, nearest
from sizing.specs.frozen import Frozen
from sizing.specs.spec import SpecError
from sizing.specs.values import SpecT

if TYPE_CHECKING:
    from sizing.catalog.yaml import Spot


# Windows has other pipes and lacks both flags.
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# A command that feeds a pipe may compute or fetch first. If it stays silent longer than this, it hangs.
PIPE_PATIENCE_S = 60.0
_READABLE = "a regular file, or a pipe that a command writes to, as <(command)"
_WRITABLE = "a regular file, or a pipe that a command reads from, as >(command)"


def is_file(path: Path) -> bool:
    """Whether a path is a file; False for a path that can't be inspected."""
    return os.path.isfile(path)  # noqa: PTH113 - unlike Path.is_file it never raises


def is_folder(path: Path) -> bool:
    """Whether a path is a folder; False for a path that can't be inspected."""
    return os.path.isdir(path)  # noqa: PTH112 - unlike Path.is_dir it never raises


def exists(path: Path) -> bool:
    """Whether a path exists; False for a path that can't be inspected."""
    return os.path.exists(path)  # noqa: PTH110 - unlike Path.exists it never raises


def expanded(text: str) -> Path:
    """A path with `~` and `~user` replaced; unchanged if there is no such home."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - unlike Path.expanduser it never raises


def out_of_reach(path: Path) -> str | None:
    """The reason why a path can't exist (name too long, folder without permission), or None."""
    try:
        path.stat()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    return None


def resolved(path: Path) -> Path:
    """The absolute path without links; the path itself if it can't be resolved."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path


def open_bytes(path: Path) -> io.BufferedReader:
    """Open a file, or a pipe with a writer, for reading; the caller closes it.

    Raises InputError for a missing path, a folder, a device, a socket, a pipe without a writer or without data, and a
    path that may not be read.
    """
    file = str(path)
    try:
        mode = path.stat().st_mode
        _check_kind(mode, file, _READABLE)
        # A plain open would block forever on a pipe without a writer.
        descriptor = os.open(path, os.O_RDONLY | _NO_WAIT)
    except FileNotFoundError:
        raise InputError(missing(path)) from None
    except (OSError, ValueError) as error:
        raise InputError(_failed("read", error, file)) from None
    if stat.S_ISREG(mode):
        return io.BufferedReader(io.FileIO(descriptor))
    return io.BufferedReader(_Pipe(descriptor, file))


def write_bytes(path: Path, content: bytes, fault: Callable[[str], Fault] | None = None) -> None:
    """Write a file, or into a pipe with a reader. Raises InputError if that is impossible.

    `fault` turns a message into a fault, for callers who can name a better place than the file.
    """
    file = str(path)
    try:
        if exists(path) and not stat.S_ISCHR(path.stat().st_mode):  # a terminal and /dev/null take what they are given
            _check_kind(path.stat().st_mode, file, _WRITABLE)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_WAIT
        descriptor = os.open(path, flags, 0o666)  # fails, and does not wait, if a pipe has no reader
        if hasattr(os, "O_NONBLOCK"):
            os.set_blocking(descriptor, True)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
    except (OSError, ValueError) as error:
        found = _failed("written", error, file)
        raise InputError(found if fault is None else fault(found.message)) from None


def missing(path: Path) -> Fault:
    """The fault of a missing file. It suggests the file in the same folder with the most similar name."""
    if not is_folder(path.parent):
        return Fault(f"not found: there is no folder {str(path.parent)!r}", file=str(path))
    try:
        names = sorted(entry.name for entry in path.parent.iterdir())
    except OSError:
        names = []
    near = nearest(path.name, names)
    return Fault("not found", file=str(path), nearest=str(path.parent / near) if near else None)


def _check_kind(mode: int, file: str, allowed: str) -> None:
    """Raise InputError unless a path is a file or a pipe."""
    if stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
        return
    if stat.S_ISDIR(mode):
        raise InputError("is a folder, not a file", file=file)
    kind = "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise InputError(f"is {kind}, not a file", file=file, allowed=allowed)


def _failed(what: str, error: OSError | ValueError, file: str) -> Fault:
    reason = getattr(error, "strerror", None) or error
    if getattr(error, "errno", None) == errno.ENXIO:
        reason = "nobody reads from this pipe"
    return Fault(f"cannot be {what}: {reason}", file=file)


class _Pipe(io.RawIOBase):
    """The reading end of a pipe. It waits only while a writer holds the other end, and not forever."""

    def __init__(self, descriptor: int, file: str) -> None:
        self._descriptor, self._file, self._began = descriptor, file, False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read available data, or wait for data. Raises InputError if none comes."""
        while True:
            try:
                count = os.readv(self._descriptor, [buffer])
            except BlockingIOError:
                if not select.select([self._descriptor], [], [], PIPE_PATIENCE_S)[0]:
                    message = f"is a pipe through which nothing came in {PIPE_PATIENCE_S:.0f} s"
                    raise InputError(message, file=self._file) from None
                continue
            if not count and not self._began:
                raise InputError("is a pipe that nobody writes to", file=self._file, allowed=_READABLE)
            self._began = True
            return count

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


# The largest profile with measured rows is well below 1 MiB. A file beyond 4 MiB is a mix-up (weights, a
# log), and reading it would only delay the message.
MAX_FILE_BYTES = 4 * 2**20
# Longer digit strings are identifiers, not counts. Python itself refuses to convert more than 4,300 digits.
MAX_DIGITS = 40

# Control characters that YAML and JSON text may not contain. A file with them is not text.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")

_COLOUR = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")  # a control sequence of a terminal: ECMA-48, CSI


class DataFile(Frozen):
    """The plain data of one file, and the way back from a field to its line.

    `text` is kept to find lines only when there is a fault to report, because that costs as much as reading. `moved` has the
    path as written of each field that the file has elsewhere.
    """

    data: dict[str, Any]
    file: str
    text: str = field(repr=False)
    moved: Mapping[FieldPath, FieldPath] = field(default_factory=dict)

    def _as_written(self, path: FieldPath) -> FieldPath:
        """The path in the file of a field, or of a field inside one that was moved."""
        end = next((end for end in range(len(path), 0, -1) if path[:end] in self.moved), 0)
        return (*self.moved[path[:end]], *path[end:]) if end else path

    def line(self, path: FieldPath) -> int | None:
        """The line of a field, or of the nearest field around it that is in the file."""
        path = self._as_written(path)
        around = (path[:end] for end in range(len(path), -1, -1))
        return next((self._spots[part].line for part in around if part in self._spots), None)

    def line_of_key(self, key: str) -> int | None:
        """The line of the outermost occurrence of `key`; None if it does not occur."""
        paths = sorted((path for path in self._spots if path and path[-1] == key), key=len)
        return self._spots[paths[0]].line if paths else None

    def place(self, path: FieldPath) -> tuple[str, int | None, str, str | None]:
        """File, line, dotted name and, for a scalar, the text of a field as written."""
        from sizing.catalog.yaml import dotted

        path = self._as_written(path)
        exact = self._spots.get(path)
        return self.file, self.line(path), dotted(path), exact.text if exact else None

    def fault(self, path: FieldPath, message: str, *told: str | None, **named: str | None) -> Fault:
        """A fault at the line of a field."""
        file, line, name, _ = self.place(path)
        return Fault(message, file, line, name, *told, **named)

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


STDIN = "-"  # stands for standard input instead of a path


@cache
def _of_stdin(stream: TextIO, most_bytes: int) -> bytes:
    """The bytes of a stream. They are cached, because a stream can be read only once."""
    buffer = getattr(stream, "buffer", None)
    return stream.read(most_bytes + 1).encode() if buffer is None else bytes(buffer.read(most_bytes + 1))


def _pipe(path: Path) -> tuple[Path, int, int] | None:
    """The identity of a pipe, so that a later pipe with the same name is distinct; None if the path is not a pipe."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return (path, found.st_dev, found.st_ino) if stat.S_ISFIFO(found.st_mode) else None


@cache
def _of_pipe(path: Path, device: int, number: int, most_bytes: int) -> bytes:
    """The bytes from a pipe. They are cached for several callers, because a pipe can be read only once."""
    with open_bytes(path) as stream:
        return stream.read(most_bytes + 1)


def read_yaml(path: Path | str) -> DataFile:
    """Read one YAML file into plain data.

    Raises InputError for a file that is missing, too large, not UTF-8 text, not valid YAML, empty, not a mapping at the top, or
    that has more than plain data: anchors, aliases, tags, several documents, duplicate keys.
    """
    from sizing.catalog.yaml import parse

    file = _label(path)
    text = read_text(path)
    data = parse(text, file)
    if data is None:
        raise InputError("is empty", file=file)
    if not isinstance(data, dict):
        message = "must hold a mapping of keys to values at the top, as `name: ...`"
        raise InputError(message, file=file, line=1)
    return DataFile(data, file, text)


def read_json(path: Path | str) -> DataFile:
    """Read one JSON file with an object at the top. `NaN` and `Infinity` are allowed, because published configs have them.

    Raises InputError as `read_yaml` does.
    """
    file = str(path)
    text = read_text(path)
    if not text.strip():
        raise InputError("is empty", file=file)
    data = json_value(text, file)
    if not isinstance(data, dict):
        raise InputError("must hold an object at the top, as {...}", file=file, line=1)
    # Lines are found by reading the text as YAML, which does not allow tabs between tokens.
    return DataFile(data, file, text.replace("\t", " "))


_ESCAPED, _SURROGATE = re.compile(r"\\u[dD][89a-fA-F]"), re.compile("[\ud800-\udfff]")  # in text, and when read


def json_value(text: str, file: str, first_line: int = 1) -> Any:
    """The JSON value of a text that begins on line `first_line` of a file.

    Raises InputError for text that is not JSON, a duplicate key, a whole number with too many digits, and a lone surrogate (half
    of a character).
    """
    try:
        value = json.loads(text, object_pairs_hook=_refuse_twice, parse_int=_whole)
        half = _SURROGATE.search(json.dumps(value, ensure_ascii=False)) if _ESCAPED.search(text) else None
        if half is None:
            return value
        written = json.dumps(half[0])[1:-1]
        line = text.lower().count("\n", 0, text.lower().index(written)) + first_line
        fault = Fault(f"holds half of a character, {written}", file=file, line=line)
    except json.JSONDecodeError as error:
        fault = Fault(f"is not valid JSON: {error.msg}", file=file, line=error.lineno + first_line - 1)
    except _KeyTwiceError as error:
        fault = Fault("is given twice in one object", file=file, field=str(error))
    except RecursionError:
        fault = Fault("is nested too deep", file=file)
    except _LongNumberError as error:
        digits = str(error)
        line = text.count("\n", 0, text.index(digits)) + first_line
        message = f"holds a number of {len(digits):,} digits"
        fault = Fault(message, file=file, line=line, allowed=f"at most {MAX_DIGITS} digits")
    raise InputError(fault)


def read_text(
    path: Path | str,
    most_bytes: int = MAX_FILE_BYTES,
    why: str = "no profile or workload is",
    *,
    coloured: bool = False,
) -> str:
    """The text of a file; of a `coloured` one without the colours of a terminal.

    Raises InputError if it is missing, larger than `most_bytes`, not UTF-8, or not a file.
    """
    file = _label(path)
    try:
        if str(path) == STDIN and sys.stdin is not None:
            content = _of_stdin(sys.stdin, most_bytes)
        elif (pipe := _pipe(Path(path))) is not None:
            content = _of_pipe(*pipe, most_bytes)
        else:
            with open_bytes(Path(path)) as stream:
                content = stream.read(most_bytes + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=file) from None
    if len(content) > most_bytes:
        raise InputError(f"is larger than {most_bytes // 2**20} MiB; {why}", file=file)
    return _decoded(_COLOUR.sub(b"", content) if coloured else content, file)


def _label(path: Path | str) -> str:
    """The name of a file to show in a fault."""
    return "standard input" if str(path) == STDIN else str(path)


def validate(spec_type: type[SpecT], document: DataFile, at: FieldPath = ()) -> SpecT:
    """Turn a document, or the part of it `at` a path, into a spec.

    Raises InputError with every fault, ordered by line.
    """
    data: Any = document.data
    for step in at:
        data = data[step]
    return _validated(spec_type, data, lambda path: document.place((*at, *path)))


def checked(spec_type: type[SpecT], data: object, named: Callable[[FieldPath], str]) -> SpecT:
    """A spec of data that is in no file; `named` gives the name of a field in faults. Raises InputError with every fault."""
    given = data if isinstance(data, dict) else {}

    def place(path: FieldPath) -> Place:
        stated = given.get(path[0]) if len(path) == 1 else None
        return None, None, named(path), None if stated is None else str(stated)

    return _validated(spec_type, data, place)


def _validated(spec_type: type[SpecT], data: object, place: Callable[[FieldPath], Place]) -> SpecT:
    try:
        return spec_type.model_validate(data)
    except SpecError as error:
        from sizing.catalog.faults import faults_of

        raise InputError(faults_of(error, place)) from None


def _decoded(content: bytes, file: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError("is not UTF-8 text", file=file, line=line) from None
    control = _CONTROL.search(text)
    if control:
        line = text.count("\n", 0, control.start()) + 1
        raise InputError(f"is not text: it holds the character {control[0]!r}", file=file, line=line)
    return text


class _LongNumberError(Exception):
    """A whole number, the argument, is too long to be a count."""


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _LongNumberError(digits)
    return int(digits)


class _KeyTwiceError(Exception):
    """A key occurs twice in one JSON object."""


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [key for key, _ in pairs]
        raise _KeyTwiceError(next(name for place, name in enumerate(names) if name in names[:place]))
    return mapping
