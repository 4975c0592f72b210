"""Work spread over processes, its results in the order of the tasks; whatever ends the command ends the processes too."""

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
    """How many processes may work at once: the cores that this one may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ordered(work: Callable[[Task], Result], tasks: Iterable[Task], jobs: int) -> Iterator[Result]:
    """Yield what `work` makes of each task, in order, in up to `jobs` processes (1: in this one).

    `work` is pickled once a process, which keeps what it holds from task to task. Few tasks are taken ahead of those
    yielded. Where the caller stops early, or is interrupted, the processes are ended at once.
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
    """Make a process ready: Ctrl-C reaches all of them and only the first answers it; none outlives that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    collect()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _work[:] = [work]


def collect() -> None:
    """Collect garbage again, which short commands leave off; what is loaded by now stays."""
    gc.freeze()
    gc.enable()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _do(task: Any) -> Any:
    return _work[0](task)
