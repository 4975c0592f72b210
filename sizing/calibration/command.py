"""The exit codes and the processes of both calibration commands."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from sizing.specs.errors import InputError

Task = TypeVar("Task")
Result = TypeVar("Result")

INTERRUPTED = 130  # as a shell reports SIGINT
TASKS_PER_CHUNK = 16


def run(main: Callable[[], None]) -> int:
    """Run a command. Returns 0 on success, 2 after printing one fault a line to stderr, or 130 if interrupted."""
    try:
        main()
    except InputError as error:
        for fault in error.faults:
            sys.stderr.write(f"sizing.calibration: {fault}\n")
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def in_processes(work: Callable[[Task], Result], tasks: Iterable[Task], jobs: int) -> list[Result]:
    """`work(task)` for each task in order, computed in `jobs` processes, which end at once if this one is interrupted."""
    from sizing.evidence.predict import ignore_interrupts  # with all that predicts

    pool = ProcessPoolExecutor(jobs, initializer=ignore_interrupts)
    try:
        return list(pool.map(work, tasks, chunksize=TASKS_PER_CHUNK))
    except KeyboardInterrupt:
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def processes(text: str) -> int:
    """Parse a number of processes. It is at most the number of processors."""
    most = os.cpu_count() or 1
    count = int(text) if text.isdecimal() else 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes")
    return min(count, most)
