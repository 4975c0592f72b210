"""The base of frozen records.

A record is a dataclass whose methods are shared by all records. `dataclass` would compile six functions for each class, which
took a tenth of a short run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Frozen:
    """Base of frozen records, which are equal if they are of one class and their compared fields are equal.

    `dataclasses.replace` and `dataclasses.fields` work as for any dataclass.
    """

    _positional: ClassVar[tuple[str, ...]]
    _defaults: ClassVar[dict[str, Any]]
    _made: ClassVar[dict[str, Callable[[], Any]]]  # defaults that are made for each instance
    _compared: ClassVar[attrgetter[Any]]
    _shown: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        """Find the fields of a class of records."""
        super().__init_subclass__()
        dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        found = fields(cls)  # type: ignore[arg-type]
        cls._positional = tuple(each.name for each in found if not each.kw_only)
        cls._defaults = {each.name: each.default for each in found if each.default is not MISSING}
        cls._made = {each.name: each.default_factory for each in found if each.default_factory is not MISSING}
        cls._compared = attrgetter("__class__", *(each.name for each in found if each.compare))
        cls._shown = tuple(each.name for each in found if each.repr)

    def __init__(self, *values: Any, **named: Any) -> None:
        """Set the fields. Raises TypeError for a field that is missing or unknown."""
        found = self.__dict__
        found.update(self._defaults)
        for name, make in self._made.items():
            found[name] = make()
        found.update(zip(self._positional, values, strict=False), **named)
        known = type(self).__dataclass_fields__  # type: ignore[attr-defined]
        if found.keys() != known.keys() or len(values) > len(self._positional):
            raise TypeError(f"{type(self).__name__} takes {', '.join(known)}, not {', '.join(found)}")

    def __eq__(self, other: object) -> bool:
        """Compare the class and the fields."""
        return type(other) is type(self) and bool(self._compared(self) == self._compared(other))

    def __hash__(self) -> int:
        """Hash what is compared."""
        return hash(self._compared(self))

    def __repr__(self) -> str:
        """Name the fields, as a dataclass does."""
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shown)
        return f"{type(self).__qualname__}({shown})"

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: a record is frozen. Raises FrozenInstanceError."""
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        """Refuse: a record is frozen. Raises FrozenInstanceError."""
        raise FrozenInstanceError(f"cannot delete field {name!r}")
