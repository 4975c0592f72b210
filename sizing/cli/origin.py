"""Where the values of a workload came from: an option, or a line of a file; said in every fault about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sizing.catalog.files import FieldPath, read_yaml
from sizing.specs.errors import Fault, InputError


class Origin(NamedTuple):
    """The fields that options set, the option of each field, and the file that states the others, where there is one."""

    given: Mapping[str, Any]
    names: Mapping[str, str]
    path: Path | None

    def at(self, path: FieldPath) -> Callable[[Fault], Fault]:
        """Return what places a fault about one field; a fault that has a file and a place in it keeps them."""
        return lambda fault: self._placed(fault, path)

    def by_field(self, fault: Fault) -> Fault:
        """Place a fault that names the field of the workload that it is about."""
        return self._placed(fault, tuple(fault.field.split("."))) if fault.field else fault

    def _placed(self, fault: Fault, path: FieldPath) -> Fault:
        if fault.file is not None and (fault.line is not None or fault.field is not None):
            return fault
        file, line, name = self._place(path)
        if fault.file is None:
            return replace(fault, file=file, line=line, field=name)
        place = [str(part) for part in (file, line) if part is not None]
        return replace(fault, field=": ".join([":".join(place), name] if place else [name]))

    def _place(self, path: FieldPath) -> tuple[str | None, int | None, str]:
        """Return file, line and name of a field; options win over the file, as their values do."""
        field = ".".join(step for step in path if isinstance(step, str))
        if field in self.given and field in self.names:
            return None, None, self.names[field]
        inside = [option for name, option in self.names.items() if name.startswith(f"{field}.") and name in self.given]
        if inside:
            return None, None, ", ".join(inside)
        if self.path is not None:
            try:
                return read_yaml(self.path).place(path)[:3]
            except InputError:
                return str(self.path), None, field
        return None, None, self.names.get(field, field)
