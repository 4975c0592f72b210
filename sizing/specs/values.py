"""Types that specs share: checked numbers with their units, specs that state their source, and ranges of numbers.

A datasheet's number outside its bounds is probably in another unit. A range in a workload (`2..5`) is read as its middle, and
the range itself is kept for draws.
"""

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from sizing.specs.spec import Before, Constraint, Dumped, Spec, SpecError
from sizing.specs.units import parse_duration_s, parse_growth, parse_monthly_growth, parse_number, parse_share


def within(least: float, most: float, words: str | None = None) -> Constraint:
    """The constraint of a strict number from `least` to `most`; in faults `words` say what is allowed."""
    return Constraint(ge=least, le=most, words=words)


def above(least: float, most: float) -> Constraint:
    """The constraint of a strict number above `least`, at most `most`."""
    return Constraint(gt=least, le=most)


# Far beyond anything that is counted or timed here, and far from where products of several numbers overflow.
MOST = 1e12
Positive = Annotated[float, above(0, MOST)]
NonNegative = Annotated[float, within(0, MOST)]
Fraction = Annotated[float, above(0, 1)]
PositiveInt = Annotated[int, above(0, int(MOST))]
NonNegativeInt = Annotated[int, within(0, int(MOST))]
MOST_GROUP = 1024  # GPUs that share a layer, a prompt or experts: a large cluster
GroupSize = Annotated[int, above(0, MOST_GROUP)]
Text = Annotated[str, Constraint(min_length=1)]
Flag = bool
NO_ENTRIES: dict[str, Any] = {}  # the default of mappings

Kind = Literal["measured", "datasheet", "derived", "assumed"]
KIND_OF_EVIDENCE: dict[str, Kind] = {
    "read": "datasheet",
    "measured": "measured",
    "inferred": "derived",
    "from memory": "assumed",
    "assumed": "assumed",
    "derived": "derived",
}


def written(read: Callable[[str], Any]) -> Before:
    """A validator that reads text with `read` and passes any other value on unchanged."""
    return Before(lambda value: read(value) if isinstance(value, str) else value)


def share_of(read: Callable[[str | float], float]) -> Before:
    """A validator that reads a share from text or a number, with the same rule for both."""
    return Before(lambda value: read(value) if type(value) in (str, int, float) else value)


def count(value: object) -> object:
    """Read a number in thousands or millions, or with commas (3k, 1,000); any other value stays, and its type refuses text."""
    if not isinstance(value, str) or not (value.strip()[-1:] in ("k", "K", "m", "M") or "," in value):
        return value
    try:
        number = parse_number(value)
    except ValueError:
        return value
    return int(number) if number.is_integer() else number


AsNumber = Before(count)
AsShare, AsDuration = share_of(parse_share), written(parse_duration_s)
MOST_GROWTH = 10.0
# A written value reads back the same: 5 is written as 500%.
_AS_GROWTH = Dumped(lambda share: f"{share * 100:.12g}%" if share > 1 else share)
Growth = Annotated[float, within(0, MOST_GROWTH), share_of(parse_growth), _AS_GROWTH]
MonthlyGrowth = Annotated[float, within(0, MOST_GROWTH), share_of(parse_monthly_growth), _AS_GROWTH]
# Words are accepted in any case, like names of models and GPUs.
AnyCase = written(lambda text: text.strip().lower())
ShareOfAll = Annotated[float, within(0, 1), AsShare]


class Sourced(Spec):
    """Base of facts and figures that state their source, and the date when they were read, measured or written."""

    source: Text
    date: Text


class OneFile(Spec):
    """Base of a spec that is exactly one file of the catalogue. `FILE` is its path in the data folder."""

    FILE: ClassVar[str]

    def __hash__(self) -> int:
        """Hash the path, because a file is long and has few versions in a process: those that calibration makes."""
        return hash(self.FILE)

    def __eq__(self, other: object) -> bool:
        """Compare what the files say. Results kept with a file are no part of it, and arrays among them do not compare."""
        if self is other or type(self) is not type(other):
            return self is other
        return all(getattr(self, name) == getattr(other, name) for name in type(self).model_fields)


# Wide bounds for any current GPU. A value outside is probably in another unit.
Gigabytes = Annotated[float, within(1, 10_000, "a size in GB, from 1 to 10,000 (80 GB is 80)")]
Gibibytes = Annotated[float, within(1, 10_000, "a size in GiB, from 1 to 10,000 (81,088 MiB is 79.19)")]
Mebibytes = Annotated[float, within(1_000, 10_000_000, "a size in MiB, from 1,000 to 10,000,000")]
Bandwidth = Annotated[
    float, within(10, 100_000, "a bandwidth in GB/s, from 10 to 100,000 (less looks like TB/s: 1.5 TB/s is 1500)")
]
LinkBandwidth = Annotated[float, within(1, 10_000, "GB/s in one direction, from 1 to 10,000 (0.9 TB/s is 900)")]
PcieBandwidth = Annotated[float, within(0.5, 1_000, "GB/s in one direction, from 0.5 to 1,000 (PCIe 5.0 x16 is 64)")]
NetworkRate = Annotated[float, within(1, 100_000, "Gbit/s for one GPU, from 1 to 100,000 (50 GB/s is 400)")]
Tflops = Annotated[float, within(0.1, 1_000_000, "TFLOPS, from 0.1 to 1,000,000 (1.98 PFLOPS is 1980)")]
Watts = Annotated[float, within(10, 5_000, "watts, from 10 to 5,000 (0.7 kW is 700)")]
LEAST_USD_PER_HOUR, MOST_USD_PER_HOUR = 0.001, 1_000
_OF_A_PRICE = f"$ for one GPU and hour, from {LEAST_USD_PER_HOUR:g} to {MOST_USD_PER_HOUR:,}"
UsdPerHour = Annotated[float, within(LEAST_USD_PER_HOUR, MOST_USD_PER_HOUR, _OF_A_PRICE)]


_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*\Z")
RANGE_PATTERN = rf"^\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*$"  # also valid in other programs' regular expressions
COUNT_PATTERN = rf"^\s*([-+]?[0-9]{{1,3}}(,[0-9]{{3}})+(\.[0-9]+)?[kKmM]?|{_NUMBER}[kKmM])\s*$"
End = Annotated[float, Constraint(finite=False)]  # which ends a number may have, its own field says
SpecT = TypeVar("SpecT", bound=Spec)


class RangeError(ValueError):
    """A range that its field does not allow. `path` is the path of the field, `refusal` the validation error of an end."""

    def __init__(self, message: str, path: tuple[str, ...], refusal: SpecError | None = None) -> None:
        """Keep the place of the range and the refusal of its end."""
        super().__init__(message)
        self.path, self.refusal = path, refusal


class Range(Spec):
    """The lowest and the highest value that a number may take."""

    low: End
    high: End


def taken_out(data: dict[str, Any], sections: Iterable[str]) -> dict[str, Any]:
    """Plain data with each range replaced by its middle. The ranges go to `uncertain`, by dotted field."""
    held = copy.deepcopy({name: data[name] for name in sections if isinstance(data.get(name), dict)})
    data = {**data, **held}
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


def check(holder: Spec, sections: Iterable[str], uncertain: Mapping[str, Range]) -> None:
    """Raise RangeError for a range that does not ascend, has no number in `sections`, or has an end that its field refuses."""
    for field, span in uncertain.items():
        section, *steps = field.split(".")
        path, text = (section, *steps), f"{span.low:g}..{span.high:g}"
        if not span.low < span.high:
            raise RangeError(f"{text} is no range: its second number must be the larger", path)
        spec = getattr(holder, section, None) if section in sections else None
        if not isinstance(spec, Spec):
            raise RangeError(f"{text}: no such number is stated", path)
        for end in (span.low, span.high):
            _check_end(spec, steps, end, path, text)


def _check_end(spec: Spec, steps: list[str], value: float, path: tuple[str, ...], text: str) -> None:
    """Raise RangeError if a spec refuses `value` for the field at `steps`."""
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
    except SpecError as error:
        raise RangeError(f"{text}: {value:g} is refused", path, error) from None


def replaced(spec: SpecT, steps: list[str], value: float) -> SpecT:
    """A copy of a spec with the number at `steps` replaced. `value` must be allowed; it is not checked."""
    first, *rest = steps
    return spec.model_copy(update={first: replaced(getattr(spec, first), rest, value) if rest else value})
