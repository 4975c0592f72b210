"""What is published of optimisations, and the methods of speculative decoding by name."""

from __future__ import annotations

from functools import cache

from sizing.catalog.files import data_folder, read_yaml, validate
from sizing.catalog.names import Found
from sizing.errors import Fault, InputError, nearest
from sizing.specs.optimisation_facts import Facts, Method


@cache
def load_facts() -> Found[Facts]:
    """Return the facts of all optimisations. Read only where one is on."""
    path = data_folder("hardware_profiles") / "_optimisations.yaml"
    return Found(validate(Facts, read_yaml(path)), path.stem, path)


def method_of(name: str, facts: Facts) -> Method:
    """Return a method of speculative decoding by its name or an alias. Raises InputError for an unknown one."""
    for known, method in facts.speculative.items():
        if name in (known, *method.aliases):
            return method
    names = list(facts.speculative)
    raise InputError(
        Fault(
            f"{name!r} is no method of speculative decoding",
            field="optimisations.speculative",
            allowed=", ".join(names),
            nearest=nearest(name, names),
        )
    )
