"""The exit codes and the number of processes of both calibration commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from sizing.specs.errors import InputError


def run(main: Callable[[], None]) -> int:
    """Run a command. Returns 0 on success, or 2 after printing one fault a line to stderr."""
    try:
        main()
    except InputError as error:
        for fault in error.faults:
            sys.stderr.write(f"sizing.calibration: {fault}\n")
        return 2
    return 0


def processes(text: str) -> int:
    """Parse a number of processes. It is at most the number of processors."""
    most = os.cpu_count() or 1
    count = int(text) if text.isdecimal() else 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes")
    return min(count, most)
