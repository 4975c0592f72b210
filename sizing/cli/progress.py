"""A progress bar on stderr for long runs; nothing where stderr is not a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 1.0  # a shorter run needs no bar, and loading one takes a tenth of that


class Bar:
    """A progress callback; the bar appears after a second, and is cleared at the end."""

    def __init__(self, text: str, total: int | None = None) -> None:
        """Prepare a bar without showing or loading anything. The caller may state the total later."""
        self.text, self.total = text, total
        self.began = time.monotonic()
        self.shown: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.shown is not None:
            self.shown[0].stop()

    def __call__(self, done: int, total: int | None = None) -> None:
        """Record that `done` of `total` is done."""
        self.total = total or self.total
        if self.shown is not None:
            self.shown[0].update(self.shown[1], completed=done)
        elif sys.stderr.isatty() and time.monotonic() - self.began > PATIENCE_S:
            self.shown = self._show(done)

    def _show(self, done: int) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import Progress

        # Text for stdout must stay there: rich would redirect it to the bar's own stream.
        progress = Progress(console=Console(stderr=True), transient=True, redirect_stdout=False)
        task = progress.add_task(self.text, total=self.total, completed=done)
        progress.start()
        return progress, task
