"""Property tests draw the same examples on every run, few enough for one core."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from sizing.formats import view

# Settings of whoever runs the tests are none of the tests': they are kept under TESTS_ in place of LLMSIZE_.
for name in [name for name in os.environ if name.startswith("LLMSIZE_")]:
    os.environ[f"TESTS_{name.removeprefix('LLMSIZE_')}"] = os.environ.pop(name)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process that a test starts would compile the package anew
os.environ["LLMSIZE_HOME"] = os.devnull
os.environ["SOURCE_DATE_EPOCH"] = "1795867200"  # 2026-11-28, by which the age of prices is told

# A job in the background ignores interrupts, and so would what its tests start in order to interrupt it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def filled_once(kind: Any, *sources: object, **own: object) -> Any:
    """Fill a record as `filled` does. Raises AssertionError where two sources state unlike values of a field."""
    # A source of the same kind, or without any value, is what a record without an answer has.
    stating = [each for each in sources if not isinstance(each, kind) and not _is_empty(each)]
    for name in set(kind._fields) - own.keys():
        values = [value for each in stating if (value := _stated(name, each)) is not view.ABSENT]
        assert not any(value != values[0] for value in values), f"{kind.__name__}.{name}: sources state {values}"
    return FILLED(kind, *sources, **own)


def _stated(name: str, source: object) -> object:
    try:
        return view.value_of(name, (source,))
    except AttributeError:
        return view.ABSENT


def _is_empty(source: object) -> bool:
    return isinstance(source, dict) and all(value is None for value in source.values())


# Modules that are imported from here on fill their records so.
FILLED, view.filled = view.filled, filled_once

settings.register_profile("ci", derandomize=True, max_examples=40, deadline=None, database=None)
settings.load_profile("ci")
# Hypothesis also draws the constants of whatever local modules are loaded by then, which differs with the order of the tests.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants


# Files that take longest begin, so that no process works on one of them alone at the end.
LONG = (
    "test_golden.py",
    "test_docs.py",
    "test_every_option.py",
    "test_report_browser.py",
    "test_metamorphic.py",
    "test_own_options.py",
    "test_sisters.py",
    "test_own_runs.py",
    "test_whatif.py",
    "test_suggestions.py",
    "test_engine_closed_form.py",
    "test_check.py",
    "test_pools_asked.py",
    "test_pools_curve.py",
    "test_pools_commands.py",
    "test_sweep.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """All tests of a file run in one process, as what they share is made once, and files in their order."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)
