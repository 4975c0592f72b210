"""Work in processes, with results in the order of the tasks; the end of the command ends the processes too."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing.connection import wait
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

AHEAD = 3  # tasks a process that are handed out before their turn: none idles, little is lost where the reader leaves

_work: list[Callable[[Any], Any]] = []  # of a process that works: what it does, given to it once


def cores() -> int:
    """The number of processes that may work at once: the cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ordered(work: Callable[[Task], Result], tasks: Iterable[Task], jobs: int) -> Iterator[Result]:
    """Yield `work(task)` of each task, in order, computed in up to `jobs` processes (1: in this process).

    `work` is pickled once for each process, which keeps its state from task to task. Few tasks are started ahead of
    those yielded. Where the caller stops early, or is interrupted, the processes are ended at once.
    """
    if jobs <= 1:
        yield from map(work, tasks)
        return
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, initializer=_prepare, initargs=(work,))
    try:
        yield from _in_turn(pool, iter(tasks), AHEAD * jobs)
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _in_turn(pool: ProcessPoolExecutor, tasks: Iterator[Any], ahead: int) -> Iterator[Any]:
    waiting: deque[Future[Any]] = deque(pool.submit(_do, task) for task in islice(tasks, ahead))
    while waiting:
        result = waiting.popleft().result()
        waiting.extend(pool.submit(_do, task) for task in islice(tasks, 1))
        yield result


def _prepare(work: Callable[[Any], Any]) -> None:
    """Prepare a process: it ignores Ctrl-C, which the first process handles, and does not outlive that process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    collect()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _work[:] = [work]


def collect() -> None:
    """Enable garbage collection, which short commands disable; loaded objects stay."""
    gc.freeze()
    gc.enable()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _do(task: Any) -> Any:
    return _work[0](task)
