"""Checkpoint names: which part is the architecture, which the training stage, the release date, the
quantisation.

The vocabulary is data (workloads/models/_suffixes.yaml); here is only how a name is taken apart with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from sizing.catalog.files import data_folder, read_yaml, validate
from sizing.catalog.names import Entry, Shelf, beginning, equal, hyphenated
from sizing.specs.base import Spec, Text
from sizing.specs.workload import KvPrecision, Precision


class NamedQuantisation(Spec):
    """An ending of a checkpoint's name and what it says about weights and cache, where it is one of `organisations`' own."""

    suffix: Text
    precision: Precision
    kv_precision: KvPrecision = "auto"
    organisations: tuple[Text, ...] = ()
    says: Text


class NameRules(Spec):
    """The file workloads/models/_suffixes.yaml."""

    name: Text
    prefixes: tuple[Text, ...]
    stages: tuple[Text, ...]
    release_date: Text
    quantisations: tuple[NamedQuantisation, ...]
    source: Text
    date: Text


class Parsed(NamedTuple):
    """A checkpoint's name taken apart: without organisation, without quantisation too, the bare shape."""

    full: str
    unquantised: str
    bare: str
    quantisation: NamedQuantisation | None


@cache
def load_rules() -> NameRules:
    """Return the vocabulary of checkpoint names."""
    return validate(NameRules, read_yaml(data_folder("workloads") / "models" / "_suffixes.yaml"))


def without_organisation(name: str) -> str:
    """Drop the organisation of a Hub id: `meta-llama/Llama-3.1-8B` is `Llama-3.1-8B`."""
    return name.rstrip("/").rpartition("/")[2]


def parsed(name: str, rules: NameRules) -> Parsed:
    """Take a checkpoint's name apart."""
    full = hyphenated(without_organisation(name))
    organisation = name.rstrip("/").rpartition("/")[0].rpartition("/")[2].lower()
    unquantised, quantisation = _split_quantisation(full, organisation, rules)
    return Parsed(full, unquantised, _bare(unquantised, rules), quantisation)


def candidates(name: str, known: Sequence[Entry], shelf: Shelf, rules: NameRules) -> Sequence[Entry]:
    """Return the profiles that a checkpoint's name may mean: one where it is clear, none where it is unknown.

    From close to loose, the first step that finds anything decides: the name; the name without quantisation;
    the same architecture on both sides; for a name without organisation, its beginning.
    """
    query = parsed(name, rules)

    def whole(text: str) -> str:
        return shelf.key(without_organisation(text))

    def bare(text: str) -> str:
        return shelf.key(parsed(text, rules).bare)

    hits = equal(shelf.key(query.full), known, whole) or equal(shelf.key(query.unquantised), known, whole)
    if not hits:
        same = equal(shelf.key(query.bare), known, bare)
        # Where several profiles share an architecture (a date, a quantised copy), the plain one is meant.
        plain = equal(shelf.key(query.bare), same, whole)
        hits = plain if len(plain) == 1 else same
    if not hits and "/" not in name:
        key = shelf.key(query.unquantised)
        hits = beginning(key, known, whole) or beginning(key, known, bare)
    return hits


def _split_quantisation(name: str, organisation: str, rules: NameRules) -> tuple[str, NamedQuantisation | None]:
    """Take the longest known ending off; rows of the publisher's own come before those that hold for anyone."""
    for row in sorted(rules.quantisations, key=lambda row: (-len(row.suffix), not row.organisations)):
        if row.organisations and organisation not in map(str.lower, row.organisations):
            continue
        stem = name.removesuffix(f"-{row.suffix}")
        if stem and stem != name:
            return stem, row
    return name, None


def _bare(name: str, rules: NameRules) -> str:
    words = name.split("-")
    while len(words) > 1 and (re.fullmatch(rules.release_date, words[-1]) or words[-1] in rules.stages):
        words.pop()
    first, *rest = words[1:] if words[0] in rules.prefixes and len(words) > 1 else words
    return "-".join((first, *(word for word in rest if word not in rules.stages)))
