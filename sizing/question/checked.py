"""Checks of plain values given to the library; all faults are raised at once, each with the allowed values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from sizing.specs.errors import Fault, nearest, raise_any


class Checks:
    """Collects a fault for each invalid value; None means not stated and is valid."""

    def __init__(self) -> None:
        """Start without faults."""
        self._faults: list[Fault] = []

    def whole(self, field: str, value: Any, *, least: int = 1) -> None:
        """A whole number of at least `least`."""
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            self._add(field, value, f"a whole number of at least {least}")

    def wholes(self, field: str, values: Any) -> None:
        """Whole numbers of at least 1."""
        for value in self._listed(field, values):
            self.whole(field, value)

    def number(self, field: str, value: Any, *, most: float = math.inf) -> None:
        """A number above 0, at most `most`."""
        fine = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= most
        if value is not None and not fine:
            self._add(field, value, "a number above 0" + ("" if most == math.inf else f", at most {most:g}"))

    def words(self, field: str, values: Any, known: Sequence[str]) -> None:
        """Known words, at least one."""
        for value in self._listed(field, values):
            self.word(field, value, known)

    def word(self, field: str, value: Any, known: Sequence[str]) -> None:
        """A known word."""
        if value is not None and value not in known:
            near = nearest(value, known) if isinstance(value, str) else None
            self._add(field, value, ", ".join(known), near)

    def check(self) -> None:
        """Raise InputError with the faults collected."""
        raise_any(self._faults)

    def _listed(self, field: str, values: Any) -> Iterator[Any]:
        if isinstance(values, (tuple, list)) and values:
            yield from values
        elif values is not None:
            self._add(field, values, "a list of at least one value")

    def _add(self, field: str, value: Any, allowed: str, near: str | None = None) -> None:
        self._faults.append(Fault(f"{value!r} is not allowed", field=field, allowed=allowed, nearest=near))
