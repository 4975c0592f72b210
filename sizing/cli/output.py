"""Writes documents to stdout in the chosen format, and progress to stderr: a bar on a terminal, and occasional lines."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from sizing.formats.view import Document, Figure
from sizing.specs.errors import Fault, InputError, nearest
from sizing.specs.units import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from sizing.catalog.measured import MeasuredRow
    from sizing.question.options import GivenOptions


def files_with(line: str, folder: Path) -> tuple[str, ...]:
    """The names of a folder's Python files that have a line beginning with `line`."""
    files = sorted(folder.glob("*.py"))
    return tuple(path.stem for path in files if f"\n{line}" in path.read_text(encoding="utf-8"))


# A file in `formats` with a function `write` is a format with the file's name.
OWN_FILE = files_with("def write(document:", Path(__file__).parents[1] / "formats")
FORMATS = ("table", "json", "csv", "markdown", *OWN_FILE)
DETAILED = "table with all details"  # the format of --verbose and --explain

# Replacements for characters outside a terminal's encoding. Other characters become question marks.
PLAINER = str.maketrans({"×": "x", "–": "-", "—": "-", "‑": "-", "µ": "u", "’": "'", "≥": ">=", "≤": "<="})


class OutputOptions(NamedTuple):
    """The options of what is printed; a command may lack some of them."""

    format: str | None = None
    json: bool = False
    quiet: bool = False
    explain: bool = False
    verbose: bool = False


def chosen_format(given: GivenOptions, known: Sequence[str] = FORMATS) -> str:
    """The output format of the options. JSON and CSV always have all details, so --verbose does not change them.

    Raises InputError for an unknown format, or for two formats.
    """
    stated = given.read(OutputOptions)
    name = stated.format.strip().lower() if stated.format is not None else None
    more = [f"--{option}" for option in ("explain", "verbose") if given.without_settings().any_of([option])]
    if stated.quiet and (more or stated.json or name is not None):
        other = (*more, *(["--json"] if stated.json else []), f"--format {name}")[0]
        raise InputError(f"prints the GPU count alone, so it contradicts {other}", field="--quiet")
    if stated.json:
        if name not in (None, "json"):
            raise InputError("contradicts --json", field=f"--format {name}")
        return "json"
    if name in (None, "table"):
        return DETAILED if stated.verbose or stated.explain else "table"
    if name not in known:
        near = nearest(name, known)
        raise InputError(f"{stated.format!r} is no format", field="--format", allowed=", ".join(known), nearest=near)
    return name


def write(document: Document[Any], name: str) -> None:
    """Write a document to stdout. The module of its format makes the text."""
    if name in ("table", DETAILED):
        from sizing.formats.text import render_for

        print_text(render_for(document, sys.stdout, detailed=name == DETAILED))
    elif name in OWN_FILE:
        print_text(import_module(f"sizing.formats.{name}").write(document))
    else:
        from sizing.formats.tables import WRITERS

        print_text(WRITERS[name](document))


def write_file(path: Path | None, option: str, made: Callable[[], bytes | str]) -> None:
    """Write what is `made` to the file of an option, if there is one; text in UTF-8.

    Raises InputError with the option's name if that fails.

    A byte in a file name that is not UTF-8 is written as `\\udcff`.
    """
    if path is None:
        return
    from sizing.catalog.files import write_bytes

    content = made()
    as_bytes = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    write_bytes(path, as_bytes, lambda reason: Fault(f"{str(path)!r} {reason}", field=option))


def write_picture(
    path: Path | None, figures: Callable[[], Iterable[Figure]], nothing: str = "", *, abreast: bool = False
) -> None:
    """Draw figures to the file of --plot, if there is one, in the format of its suffix; without figures say `nothing`.

    Raises InputError if that fails.
    """
    if path is None:
        return
    from sizing.formats.pictures import draw

    if drawn := tuple(figures()):
        write_file(path, "--plot", lambda: draw(drawn, path.suffix.lower().removeprefix("."), abreast=abreast))
    else:
        complain(nothing)


class OutputError(Exception):
    """Standard output is not writable: the disk is full, the descriptor is closed, or the reader is gone (`left`)."""

    def __init__(self, error: OSError | None = None) -> None:
        """`error` is the reason; None if there is no standard output at all."""
        self.left = isinstance(error, BrokenPipeError)
        place = (error.filename if error is not None else None) or "standard output"
        reason = "it is closed" if error is None else error.strerror or error
        super().__init__(f"{place}: cannot be written: {reason}")


def print_text(text: str) -> None:
    """Print text and a newline. Characters outside the terminal's encoding are replaced.

    Raises OutputError if the text can't be written.
    """
    try:
        sys.stdout.write(encodable(text, sys.stdout.encoding or "utf-8") + "\n")
    except OSError as error:
        raise OutputError(error) from None
    flush_output()


def flush_output() -> None:
    """Flush stdout. Raises OutputError if the text can't be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        raise OutputError(error) from None


def say_unread(rows: Iterable[MeasuredRow], used: Iterable[str] = ()) -> None:
    """Say on stderr which columns of measured rows nothing reads; `used` are columns to group by."""
    from sizing.catalog.measured import unread_columns

    for notice in unread_columns(rows, used):
        complain(str(notice))


def complain(line: str) -> None:
    """Print a line to stderr without control characters; a closed stderr is not an error."""
    try:
        print(f"llmsize: {printable(line)}", file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that the flush at exit can't fail either."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def encodable(text: str, encoding: str) -> str:
    """The text in the characters of an encoding; plainer characters replace all others."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(PLAINER).encode(encoding, errors="replace").decode(encoding)
    return text


FIRST_S, EVERY_S = 5.0, 15.0  # time until the first progress line, and between further lines
PATIENCE_S = 1.0  # a shorter run needs no bar; loading the bar takes a tenth of this


class _Work:
    """The current work of a command, for the progress line. While a bar is `shown`, there are no lines."""

    text = "Working"
    shown = False


def say_work(text: str) -> None:
    """Name the work of a command in its progress lines, until a bar names another."""
    _Work.text = text


def tell_of_work() -> None:
    """Write the current work to stderr from a separate thread, after five seconds and then every fifteen seconds."""
    threading.Thread(target=_tell, daemon=True).start()


def _tell() -> None:
    began, wait_s = time.monotonic(), FIRST_S
    while True:
        time.sleep(wait_s)
        wait_s = EVERY_S
        if not _Work.shown and sys.stderr is not None:
            print(f"llmsize: {_Work.text} ({time.monotonic() - began:.0f} s) ...", file=sys.stderr, flush=True)


class Bar:
    """A progress callback. The bar appears after a second and is cleared at the end."""

    def __init__(self, text: str, total: int | None = None) -> None:
        """Prepare a bar without showing or loading anything. The caller may state the total later."""
        self.text, self.total = text, total
        self.began = time.monotonic()
        self.shown: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _Work.text, _Work.shown = "Working", False
        if self.shown is not None:
            self.shown[0].stop()

    def __call__(self, done: int, total: int | None = None) -> None:
        """Record that `done` of `total` is done."""
        self.total = total or self.total
        _Work.text = f"{self.text}, {done:,} of {self.total:,}" if self.total else f"{self.text}, {done:,}"
        if self.shown is not None:
            self.shown[0].update(self.shown[1], completed=done)
        elif sys.stderr.isatty() and time.monotonic() - self.began > PATIENCE_S:
            self.shown = self._show(done)

    def _show(self, done: int) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import Progress

        # Text for stdout must stay on stdout; rich would redirect it to the bar's stream.
        progress = Progress(console=Console(stderr=True), transient=True, redirect_stdout=False)
        task = progress.add_task(self.text, total=self.total, completed=done)
        progress.start()
        _Work.shown = True
        return progress, task
