"""Progress on stderr: a bar for long runs on a terminal, and occasional lines from every slow command."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

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
