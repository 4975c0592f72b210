"""Workloads and fleets of files whose keys may be spelt like options."""

from __future__ import annotations

from functools import cache

from sizing.catalog.shelf import Found
from sizing.catalog.spellings import OPTION, Words
from sizing.catalog.workloads import FoundFleet, find_fleet, load_workload
from sizing.question.fields import QUESTION_OPTIONS, SESSION
from sizing.specs.workload import Workload

# The think time of users is part of their demand; that of conversations has its own field.
OTHER = {"think_time": "demand.think_time"}


@cache
def words() -> Words:
    """The field of a workload file that each spelling of an option means; the option itself where there is no such field."""
    found: dict[str, str] = {}
    for option in QUESTION_OPTIONS:
        field = option.field or (option.name if option.name in Workload.model_fields else option.flags[0])
        for flag in option.flags:
            word = flag.partition("/")[0].strip()
            if word.startswith(OPTION) and not field.startswith(f"demand.{SESSION}"):
                found[word.removeprefix(OPTION).replace("-", "_")] = field
    return found | OTHER


def workload_at(path_or_name: str) -> Found[Workload]:
    """The workload of a file, whose keys may be spelt like options, or a ready one. Raises InputError as `load_workload` does."""
    return load_workload(path_or_name, words())


def fleet_at(path_or_name: str) -> FoundFleet | None:
    """The fleet of a file, whose workloads may be spelt like options, or a ready one. Raises InputError as `find_fleet` does."""
    return find_fleet(path_or_name, words())
