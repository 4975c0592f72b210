"""Runs work in processes, on this machine or on a cluster, with results in the order of the tasks.

When the command ends, the processes on this machine end too, and the remaining tasks on a cluster are cancelled.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from itertools import islice
from multiprocessing.connection import wait
from typing import Any, Protocol, TypeVar

from sizing.specs.errors import Fault, InputError
from sizing.specs.units import printable

Task = TypeVar("Task")
Result = TypeVar("Result")

AHEAD = 3  # tasks for each process that start early: no process idles, and little is lost if the reader leaves

MOST_ON_WINDOWS = 61  # processes that a wait can watch there

NEW_OBJECTS = 20_000  # between two collections: rows make many objects, few of them in cycles

REACHED_S = 10  # timeout for the cluster's answer
INSTALLED = "it works after pip install 'llmsize[dask]'"
MISSING = Fault("needs dask.distributed, which is not installed", field="--dask", remedy=INSTALLED)

_work: list[Callable[[Any], Any]] = []  # in a worker process: its work, received once
_of_thread = threading.local()  # in a cluster's worker: this thread's work, and the bytes that it was unpickled from


class Promise(Protocol):
    """The result of a task that may still be running."""

    def result(self) -> Any:
        """Wait for it."""


def cores() -> int:
    """The number of processes to run at the same time: the cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ordered(work: Callable[[Task], Result], tasks: Iterable[Task], jobs: int) -> Iterator[Result]:
    """Yield `work(task)` for each task in order, computed in up to `jobs` processes (1: in this process).

    `work` is pickled once for each process, which keeps its state between tasks. Only a few tasks start before their turn. If
    the caller stops early or is interrupted, the processes end at once.
    """
    if jobs <= 1:
        yield from map(work, tasks)
        return
    others = set(multiprocessing.active_children())
    if sys.platform == "win32":
        jobs = min(jobs, MOST_ON_WINDOWS)
    pool = ProcessPoolExecutor(jobs, initializer=_prepare, initargs=(work,))
    try:
        yield from _in_turn(lambda task: pool.submit(_do, task), iter(tasks), AHEAD * jobs)
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def on_cluster(work: Callable[[Task], Result], tasks: Iterable[Task], address: str) -> Iterator[Result]:
    """Yield `work(task)` for each task in order, computed by the workers of the Dask cluster at `address`.

    Each thread of a worker keeps its own copy of `work` with its state. If the cluster loses a worker, it repeats the worker's
    tasks. Raises InputError if there is no cluster, or if dask.distributed is not installed.
    """
    try:
        distributed = import_module("distributed")  # an extra, without types
    except ImportError:
        raise InputError(MISSING) from None
    # A client that never connected waits and fails as it is deleted. All others are closed below.
    unattended = type("Client", (distributed.Client,), {"__del__": lambda client: None})
    try:
        client = unattended(address, timeout=REACHED_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"no cluster answers at {address!r}: {printable(str(error))}", field="--dask") from None
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise InputError(f"the cluster at {address!r} has no workers", field="--dask")
        packed = pickle.dumps(work)
        submit = partial(client.submit, _do_packed, packed, pure=False)
        yield from _in_turn(submit, iter(tasks), AHEAD * threads)


def _in_turn(submit: Callable[[Any], Promise], tasks: Iterator[Any], ahead: int) -> Iterator[Any]:
    waiting = deque(map(submit, islice(tasks, ahead)))
    while waiting:
        result = waiting.popleft().result()
        waiting.extend(map(submit, islice(tasks, 1)))
        yield result


def _prepare(work: Callable[[Any], Any]) -> None:
    """Prepare a worker process: it ignores Ctrl-C, which the parent handles, and it ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    collect()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _work[:] = [work]


def collect() -> None:
    """Enable garbage collection, which short commands disable. Objects loaded so far are exempt."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
    gc.enable()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _do(task: Any) -> Any:
    return _work[0](task)


def _do_packed(packed: bytes, task: Any) -> Any:
    if getattr(_of_thread, "packed", None) != packed:
        _of_thread.packed, _of_thread.work = packed, pickle.loads(packed)
    return _of_thread.work(task)
