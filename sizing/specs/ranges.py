"""Ranges where a number may stand: `2..5` in a workload is its middle, and the range is kept beside it for draws."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from sizing.specs.base import MOST, Spec

_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*\Z")
End = Annotated[float, Field(ge=-1000 * MOST, le=1000 * MOST, strict=True)]
SpecT = TypeVar("SpecT", bound=BaseModel)


class Range(Spec):
    """The lowest and the highest that a number may turn out as."""

    low: End
    high: End

    @model_validator(mode="after")
    def _ascends(self) -> Range:
        if self.high <= self.low:
            raise ValueError(f"{self.low:g}..{self.high:g} is no range: its second number must be the larger")
        return self


def taken_out(data: dict[str, Any], sections: Iterable[str]) -> dict[str, Any]:
    """Return plain data whose ranges are their middles, the ranges themselves under `uncertain` by dotted field."""
    data = copy.deepcopy(data)
    held = {name: data[name] for name in sections if isinstance(data.get(name), dict)}
    found = {field: {"low": low, "high": high} for field, (low, high) in _split(held, "")}
    if found and isinstance(data.get("uncertain", {}), dict):
        data["uncertain"] = {**data.get("uncertain", {}), **found}
    return data


def _split(data: dict[str, Any], prefix: str) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield each range in nested plain data with its dotted field, and put its middle in its place."""
    for key, value in data.items():
        found = _RANGE.match(value) if isinstance(value, str) else None
        if isinstance(value, dict):
            yield from _split(value, f"{prefix}{key}.")
        elif found is not None:
            low, high = float(found[1]), float(found[2])
            yield f"{prefix}{key}", (low, high)
            middle = (low + high) / 2
            data[key] = int(middle) if middle.is_integer() else middle


def check(holder: BaseModel, sections: Iterable[str], uncertain: Mapping[str, Range]) -> None:
    """Raise ValueError for a range of no number of these sections, or with an end that its field refuses."""
    for field, span in uncertain.items():
        section, *steps = field.split(".")
        spec = getattr(holder, section, None) if section in sections else None
        for end in (span.low, span.high):
            reason = _refused(spec, steps, end) if isinstance(spec, BaseModel) else "no such number is stated"
            if reason is not None:
                raise ValueError(f"{field} {span.low:g}..{span.high:g}: {reason}")


def _refused(spec: BaseModel, steps: list[str], value: float) -> str | None:
    """Say why a spec refuses a value of one of its fields, None where it takes it."""
    data = spec.model_dump(exclude_unset=True)
    *holders, last = steps
    try:
        inner = data
        for step in holders:
            inner = inner[step]
        if isinstance(inner[last], bool) or not isinstance(inner[last], (int, float)):
            return "this field is no number"
        inner[last] = int(value) if value.is_integer() else value
        type(spec).model_validate(data)
    except (KeyError, TypeError, IndexError):
        return "no such number is stated"
    except ValidationError as error:
        return f"{value:g} is refused: " + "; ".join(found["msg"] for found in error.errors())
    return None


def replaced(spec: SpecT, steps: list[str], value: float) -> SpecT:
    """Return a spec with one of its numbers, perhaps of a spec within, replaced by a value that is known to be allowed."""
    first, *rest = steps
    return spec.model_copy(update={first: replaced(getattr(spec, first), rest, value) if rest else value})
