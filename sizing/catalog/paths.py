"""Paths as users write them: inspection never fails, and opening never blocks forever.

`pathlib` raises for a name that is too long, a home that nobody has, a folder that may not be searched; to a lookup all
of these mean the same: there is no such file. Opening looks at what a path is first: a file is read, a pipe that
someone writes to as well (`<(command)`, `command | llmsize estimate /dev/stdin`), a folder or a device never.
"""

from __future__ import annotations

import errno
import io
import os
import select
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sizing.specs.errors import Fault, InputError, nearest

# Windows has pipes of another kind, and neither flag.
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# A command that feeds a pipe may compute or fetch first; one that stays silent longer than this hangs.
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
    """A path with `~` and `~user` replaced; unchanged where there is no such home."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - unlike Path.expanduser it never raises


def out_of_reach(path: Path) -> str | None:
    """The reason why a path can't exist (a name too long, a folder without permission); None where it can."""
    try:
        path.stat()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    return None


def resolved(path: Path) -> Path:
    """The absolute path without links; the path itself where it can't be resolved."""
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
        # A plain open of a pipe without a writer would block forever.
        descriptor = os.open(path, os.O_RDONLY | _NO_WAIT)
    except FileNotFoundError:
        raise InputError(missing(path)) from None
    except (OSError, ValueError) as error:
        raise InputError(_failed("read", error, file)) from None
    if stat.S_ISREG(mode):
        return io.BufferedReader(io.FileIO(descriptor))
    return io.BufferedReader(_Pipe(descriptor, file))


def write_bytes(path: Path, content: bytes, fault: Callable[[str], Fault] | None = None) -> None:
    """Write a file, or into a pipe with a reader. Raises InputError where that is impossible.

    `fault` makes the fault of a message where the file is not the best place to name.
    """
    file = str(path)
    try:
        if exists(path) and not stat.S_ISCHR(path.stat().st_mode):  # a terminal and /dev/null take what they are given
            _check_kind(path.stat().st_mode, file, _WRITABLE)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_WAIT
        descriptor = os.open(path, flags, 0o666)  # without waiting for a reader: where there is none, this fails
        os.set_blocking(descriptor, True)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
    except (OSError, ValueError) as error:
        found = _failed("written", error, file)
        raise InputError(found if fault is None else fault(found.message)) from None


def missing(path: Path) -> Fault:
    """The fault of a missing file, with the file of that folder that has the most similar name."""
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
        raise InputError(Fault("is a folder, not a file", file=file))
    kind = "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise InputError(Fault(f"is {kind}, not a file", file=file, allowed=allowed))


def _failed(what: str, error: OSError | ValueError, file: str) -> Fault:
    reason = getattr(error, "strerror", None) or error
    if getattr(error, "errno", None) == errno.ENXIO:
        reason = "nobody reads from this pipe"
    return Fault(f"cannot be {what}: {reason}", file=file)


class _Pipe(io.RawIOBase):
    """The reading end of a pipe; it waits only while a writer holds the other end, and not forever."""

    def __init__(self, descriptor: int, file: str) -> None:
        self._descriptor, self._file, self._began = descriptor, file, False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the available data, else wait for data. Raises InputError where nothing comes."""
        while True:
            try:
                count = os.readv(self._descriptor, [buffer])
            except BlockingIOError:
                if not select.select([self._descriptor], [], [], PIPE_PATIENCE_S)[0]:
                    raise InputError(
                        Fault(f"is a pipe through which nothing came in {PIPE_PATIENCE_S:.0f} s", file=self._file)
                    ) from None
                continue
            if not count and not self._began:
                raise InputError(Fault("is a pipe that nobody writes to", file=self._file, allowed=_READABLE))
            self._began = True
            return count

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()
