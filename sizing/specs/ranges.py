"""Ranges where a number may stand: `2..5` in a workload is its middle, and the range is kept beside it for draws."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field, ValidationError

from sizing.specs.base import Spec

_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*\Z")
End = Annotated[float, Field(strict=True, allow_inf_nan=True)]  # which ends a number may have, its own field says
SpecT = TypeVar("SpecT", bound=BaseModel)


class RangeError(ValueError):
    """A range that can't stand where it stands: the steps to its field, and what the field's own spec says, where it does."""

    def __init__(self, message: str, path: tuple[str, ...], refusal: Refusal | None = None) -> None:
        """Keep where the range stands and who refused its end."""
        super().__init__(message)
        self.path, self.refusal = path, refusal


class Refusal(NamedTuple):
    """What a spec said to its data, for words about it."""

    error: ValidationError
    spec_type: type[BaseModel]
    data: dict[str, Any]


class Range(Spec):
    """The lowest and the highest that a number may turn out as."""

    low: End
    high: End


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
    """Raise RangeError for a range of no number of these sections, that does not ascend, or whose end its field refuses."""
    for field, span in uncertain.items():
        section, *steps = field.split(".")
        path, text = (section, *steps), f"{span.low:g}..{span.high:g}"
        if not span.low < span.high:
            raise RangeError(f"{text} is no range: its second number must be the larger", path)
        spec = getattr(holder, section, None) if section in sections else None
        if not isinstance(spec, BaseModel):
            raise RangeError(f"{text}: no such number is stated", path)
        for end in (span.low, span.high):
            _check_end(spec, steps, end, path, text)


def _check_end(spec: BaseModel, steps: list[str], value: float, path: tuple[str, ...], text: str) -> None:
    """Raise RangeError where a spec refuses a value of one of its fields."""
    data = spec.model_dump(exclude_unset=True)
    *holders, last = steps
    try:
        inner = data
        for step in holders:
            inner = inner[step]
        if isinstance(inner[last], bool) or not isinstance(inner[last], (int, float)):
            raise RangeError(f"{text}: this field is no number", path)
        inner[last] = int(value) if value.is_integer() else value
        type(spec).model_validate(data)
    except (KeyError, TypeError, IndexError):
        raise RangeError(f"{text}: no such number is stated", path) from None
    except ValidationError as error:
        raise RangeError(f"{text}: {value:g} is refused", path, Refusal(error, type(spec), data)) from None


def replaced(spec: SpecT, steps: list[str], value: float) -> SpecT:
    """Return a spec with one of its numbers, perhaps of a spec within, replaced by a value that is known to be allowed."""
    first, *rest = steps
    return spec.model_copy(update={first: replaced(getattr(spec, first), rest, value) if rest else value})
