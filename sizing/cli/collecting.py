"""Reading the parts of a command's question that do not depend on each other, so that all their mistakes come out at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from sizing.specs.errors import Fault, InputError

T = TypeVar("T")


class Part(Generic[T]):
    """One part of a question, read at once; `faults` says why it could not be.

    A part that reads the `value` of another fails with the faults of that other.
    """

    def __init__(self, read: Callable[[], T], placed: Callable[[Fault], Fault] | None = None) -> None:
        """Read the part; `placed` adds to a fault where the value came from that it complains of."""
        self.faults: tuple[Fault, ...] = ()
        try:
            self._value = read()
        except MissingPartError as error:
            self.faults = error.faults
        except InputError as error:
            self.faults = error.faults if placed is None else tuple(map(placed, error.faults))

    @property
    def value(self) -> T:
        """What was read. Raises InputError with the faults of a part that could not be."""
        if self.faults:
            raise MissingPartError(self.faults)
        return self._value


class MissingPartError(InputError):
    """A part was asked for that could not be read; its faults have their place already."""


def check(*parts: Part[Any]) -> None:
    """Raise InputError with the faults of all parts, each once, where there are any."""
    faults = dict.fromkeys(fault for part in parts for fault in part.faults)
    if faults:
        raise InputError(faults)
