"""Work on many entries at once, with the results in the order of the entries."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from sizing.replica.replica import Refusal

Entry = TypeVar("Entry")
Result = TypeVar("Result")


def onward(
    entries: Iterable[Entry | Refusal], work: Callable[[list[Entry]], Iterable[Result | Refusal]]
) -> list[Result | Refusal]:
    """Call `work` once with all entries that are no refusals. Its results take their places; refusals stay."""
    every = list(entries)
    results = iter(work([entry for entry in every if not isinstance(entry, Refusal)]))
    return [entry if isinstance(entry, Refusal) else next(results) for entry in every]


def together(groups: Sequence[Sequence[Entry]], work: Callable[[list[Entry]], Iterable[Result]]) -> list[list[Result]]:
    """The results of `work`, which takes the entries of all groups together, in the same groups."""
    results = iter(work([entry for group in groups for entry in group]))
    return [list(islice(results, len(group))) for group in groups]


def by_kind(
    entries: Sequence[Entry], kind: Callable[[Entry], Hashable], work: Callable[[list[Entry]], Sequence[Result]]
) -> list[Result]:
    """The results of `work` in the order of the entries; it takes those of each kind together."""
    alike: dict[Hashable, list[int]] = {}
    for number, entry in enumerate(entries):
        alike.setdefault(kind(entry), []).append(number)
    found: dict[int, Result] = {}
    for numbers in alike.values():
        found.update(zip(numbers, work([entries[number] for number in numbers]), strict=True))
    return [found[number] for number in range(len(entries))]
