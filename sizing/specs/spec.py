"""The base of all specs: frozen records that are read from plain data, with everything that is wrong in the data found at once.

The annotation of a field says what it may be, as `Annotated[float, Constraint(gt=0)]`. When a field is first read, a reader is
made of it: a function that returns the value, or a `Wrong` with all findings. Types are strict; a whole number may stand for a
number, and a list for a tuple. `sizing.catalog.faults` puts findings into words.

Modules of specs do not postpone annotations, because each text would have to be evaluated.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from inspect import get_annotations
from itertools import repeat
from math import isfinite
from operator import attrgetter
from re import fullmatch
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from sizing.specs.errors import FieldPath
from sizing.specs.frozen import Frozen

Reader = Callable[[Any], Any]
Kind = Literal["missing", "unknown", "type", "choice", "finite", "empty", "size", "tag", "value"]
_REQUIRED = object()  # the default of a field without one


class Misfit(NamedTuple):
    """One thing that is wrong: where, of what kind, the value, the type declared there, and the spec whose field it is.

    `error` is what a function of a `value` raised; of a `tag` it is the name of its field.
    """

    path: FieldPath
    kind: Kind
    value: Any
    declared: Any
    holder: "type[Spec] | None" = None
    error: Any = None


class Wrong(list[Misfit]):
    """All findings of a value."""

    def under(self, *steps: str | int, holder: "type[Spec] | None" = None) -> Iterator[Misfit]:
        """Yield the findings as those of a value that has this one at `steps`."""
        for each in self:
            yield each._replace(path=(*steps, *each.path), holder=each.holder if each.path else holder)


class SpecError(ValueError):
    """Data is not what a spec declares."""

    def __init__(self, findings: Sequence[Misfit]) -> None:
        """Keep what was found."""
        super().__init__("; ".join(f"{'.'.join(map(str, each.path))}: {each.value!r}" for each in findings))
        self.findings = findings


class Constraint(NamedTuple):
    """Bounds of a number, lengths of a text or a list, the pattern of a text. `words` say in faults what is allowed."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int = 0
    max_length: int | None = None
    pattern: str | None = None
    words: str | None = None
    finite: bool = True


class Annotation:
    """What an annotation says beside a type."""

    def __init__(self, value: Any) -> None:
        """Keep what is said."""
        self.value = value


class Before(Annotation):
    """A function that makes the value to check of the value as written. Raises ValueError."""


class After(Annotation):
    """A function of the checked value, whose result counts. Raises ValueError."""


class Alone(Annotation):
    """A function that reads the value in place of the type. Raises ValueError."""


class Tagged(Annotation):
    """The name of the field that says which of several specs it is."""


class Dumped(Annotation):
    """A function that writes the value into plain data."""


class Schema(Annotation):
    """The JSON schema of the value as people write it."""


class SpecField(NamedTuple):
    """A field of a spec: its type, its default, its key in files."""

    annotation: Any
    default: Any
    alias: str | None

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is _REQUIRED


SelfT = TypeVar("SelfT", bound="Spec")


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Spec(Frozen):
    """Base of every type that is read from a file.

    The constructor takes fields as they are, as that of any record. `model_validate` checks plain data.
    """

    ALIASES: ClassVar[Mapping[str, str]] = {}  # keys in files that cannot be names of fields
    model_fields: ClassVar[dict[str, SpecField]] = {}
    _fields: ClassVar[dict[str, SpecField]]
    _readers: ClassVar[dict[str, Reader]]

    def __init_subclass__(cls) -> None:
        """Find the fields, inherited ones first. One whose name begins with an underscore is not read."""
        found: dict[str, SpecField] = {}
        for base in reversed(cls.__mro__[1:]):
            found |= vars(base).get("model_fields", {})
        for name, annotation in get_annotations(cls).items():
            if ClassVar not in (annotation, get_origin(annotation)):
                found[name] = SpecField(annotation, vars(cls).get(name, _REQUIRED), cls.ALIASES.get(name))
        cls._defaults = {name: each.default for name, each in found.items() if not each.required}
        cls._fields, cls._shown, cls._compared = found, tuple(found), attrgetter("__class__", *found)
        cls.model_fields, cls._readers = {name: each for name, each in found.items() if name[0] != "_"}, {}

    def __init__(self, **stated: Any) -> None:
        """Set the fields, unchecked. Raises TypeError for a field that is missing or unknown."""
        found = self.__dict__
        found.update(self._defaults)
        found.update(stated)
        if found.keys() != self._fields.keys():
            raise TypeError(f"{type(self).__name__} takes {', '.join(self._shown)}, not {', '.join(found)}")
        found["_stated"] = frozenset(stated)

    @property
    def model_fields_set(self) -> frozenset[str]:
        """The fields that were stated."""
        return self.__dict__["_stated"]  # type: ignore[no-any-return]

    @classmethod
    def prepared(cls, data: Any) -> Any:
        """The data to read in place of `data`. Raises ValueError."""
        return data

    @classmethod
    def check_field(cls, name: str, before: Mapping[str, Any], value: Any) -> Any:
        """The value to take for the field `name`; the fields `before` it are read. Raises ValueError."""
        return value

    def validate(self) -> None:
        """Check fields against each other. Raises ValueError."""

    @classmethod
    def model_validate(cls: type[SelfT], data: Any) -> SelfT:
        """The spec of plain data; a spec of this type is itself. Raises SpecError with everything that is wrong."""
        made = cls.read(data)
        if type(made) is Wrong:
            raise SpecError(made)
        return made  # type: ignore[no-any-return]

    @classmethod
    def read(cls, data: Any, declared: Any = None) -> Any:
        """The spec of plain data, or all that is `Wrong` with it as a value of the `declared` type."""
        declared = declared or cls
        if isinstance(data, cls):
            return data
        data = _caught(cls.prepared, declared)(data)
        if not isinstance(data, dict):
            return data if type(data) is Wrong else _wrong("type", data, declared)
        readers, stated, wrong, keys = cls._readers, dict[str, Any](), Wrong(), set[str]()
        check = cls.check_field if "check_field" in vars(cls) else None
        for name, field in cls.model_fields.items():
            keys.add(key := field.alias or name)
            if key in data:
                read = readers.get(name) or readers.setdefault(name, reader(field.annotation))
                value = read(data[key])
                if check is not None and type(value) is not Wrong:
                    value = _caught(partial(check, name, stated), field.annotation)(value)
                if type(value) is Wrong:
                    wrong += value.under(key, holder=cls)
                else:
                    stated[name] = value
            elif field.required:
                wrong.append(Misfit((key,), "missing", None, field.annotation, cls))
        wrong += (Misfit((key,), "unknown", data[key], cls, cls) for key in data if key not in keys)
        return wrong or _caught(lambda made: made.validate() or made, declared)(cls(**stated))

    def model_copy(self, update: Mapping[str, Any]) -> Self:
        """The same with other values of some fields, unchecked."""
        found = type(self)(**{**{name: self.__dict__[name] for name in self._shown}, **update})
        found.__dict__["_stated"] = self.model_fields_set | update.keys()
        return found

    def model_dump(
        self,
        *,
        json: bool = False,
        exclude_unset: bool = False,
        exclude_none: bool = False,
        exclude: Collection[str] = (),
    ) -> dict[str, Any]:
        """Plain data of the fields; for `json` with lists in place of tuples and text in place of dates."""
        plain = partial(_plain, json=json, exclude_unset=exclude_unset, exclude_none=exclude_none)
        names = [
            name
            for name in self.model_fields
            if name not in exclude and not (exclude_unset and name not in self.model_fields_set)
        ]
        values = {name: getattr(self, name) for name in names}
        return {
            name: plain(_dumper(self.model_fields[name].annotation)(value))
            for name, value in values.items()
            if value is not None or not exclude_none
        }


def _plain(value: Any, **asked: bool) -> Any:
    if isinstance(value, Spec):
        return value.model_dump(**asked)  # type: ignore[arg-type]
    if isinstance(value, dict):
        return {name: _plain(each, **asked) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return (list if asked["json"] else type(value))(_plain(each, **asked) for each in value)
    if asked["json"] and isinstance(value, float) and not isfinite(value):
        return None
    return value.isoformat() if asked["json"] and hasattr(value, "isoformat") else value


@cache
def _dumper(declared: Any) -> Reader:
    dumped = (mark.value for _, marks in members(declared) for mark in marks if isinstance(mark, Dumped))
    write = next(dumped, None)
    return lambda value: value if value is None or write is None else write(value)


def members(declared: Any, marks: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the alternatives of a declared type with what is said beside them, without None."""
    origin, inner = get_origin(declared), get_args(declared)
    if origin is Annotated:
        yield from members(inner[0], (*marks, *inner[1:]))
    elif origin in (Union, UnionType):
        for alternative in inner:
            yield from members(alternative, marks)
    elif declared is not NoneType:
        yield declared, marks


# --- readers -----------------------------------------------------------------------------------------------------------


def _wrong(kind: Kind, value: Any, declared: Any, error: Any = None) -> Wrong:
    return Wrong([Misfit((), kind, value, declared, error=error)])


@cache
def reader(declared: Any, shown: Any = None) -> Reader:
    """A function that reads a value of a declared type; `shown` is the type that faults describe."""
    origin, inner = get_origin(declared), get_args(declared)
    shown = shown or declared
    if origin is Annotated:
        read = reader(inner[0], shown)
        for mark in inner[1:]:
            read = _marked(read, mark, inner[0], shown)
        return read
    if origin in (Union, UnionType):
        return _either([each for each in inner if each is not NoneType], NoneType in inner, shown)
    if origin is Literal:
        return lambda value: value if isinstance(value, str) and value in inner else _wrong("choice", value, shown)
    if origin is tuple:
        several = inner[-1] is Ellipsis
        return _listed(
            repeat(reader(inner[0])) if several else [*map(reader, inner)], None if several else len(inner), shown
        )
    if origin is dict:
        return _mapped(reader(inner[0]), reader(inner[1]), shown)
    if declared is Any:
        return lambda value: value
    if declared is float:
        return _number(shown)
    if issubclass(declared, Spec):
        return partial(declared.read, declared=shown)
    return _exact(declared, shown)


def _exact(declared: Any, shown: Any) -> Reader:
    """A reader of one type; a number or text of another class with the same value, as numpy's and enumerations', is taken too."""
    plain: Reader | None = int if declared is int else str.__str__ if declared is str else None

    def read(value: Any) -> Any:
        found = value if type(value) is declared else _of_numpy(value)
        if type(found) is declared:
            return found
        if plain is None or isinstance(found, bool) or not isinstance(found, declared):
            return _wrong("type", value, shown)
        return plain(found)

    return read


def _of_numpy(value: Any) -> Any:
    """The plain value of numpy's scalars; any other value as it is."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value


def _marked(read: Reader, mark: Any, declared: Any, shown: Any) -> Reader:
    """A reader that also does what an annotation says beside a type."""
    if isinstance(mark, Constraint) and get_origin(declared) is tuple:
        return _sized(read, mark, shown)
    if isinstance(mark, Constraint):
        return _constrained(read if mark.finite else _number(shown, finite=False), mark, shown)
    if isinstance(mark, Before):
        return _chained(_caught(mark.value, shown), read)
    if isinstance(mark, After):
        return _chained(read, _caught(mark.value, shown))
    if isinstance(mark, Tagged):
        specs = get_args(declared)
        return _tagged(
            {tag: spec for spec in specs for tag in get_args(spec.model_fields[mark.value].annotation)},
            mark.value,
            shown,
        )
    return _caught(mark.value, shown) if isinstance(mark, Alone) else read


def _caught(function: Reader, declared: Any) -> Reader:
    """The function, but it returns what is wrong instead of raising ValueError."""

    def read(value: Any) -> Any:
        try:
            return function(value)
        except SpecError as error:
            return Wrong(error.findings)
        except ValueError as error:
            return _wrong("value", value, declared, error)

    return read


def _chained(first: Reader, then: Reader) -> Reader:
    def read(value: Any) -> Any:
        found = first(value)
        return found if type(found) is Wrong else then(found)

    return read


def _constrained(read: Reader, constraint: Constraint, shown: Any) -> Reader:
    ge, gt, le, lt, least, _, pattern, *_ = constraint

    def bounded(value: Any) -> Any:
        found = read(value)
        if type(found) is str:
            if pattern is not None and not fullmatch(pattern, found):
                return _wrong("type", value, shown)
            return found if len(found) >= least else _wrong("empty", value, shown)
        if type(found) is Wrong or (
            (ge is None or found >= ge)
            and (gt is None or found > gt)
            and (le is None or found <= le)
            and (lt is None or found < lt)
        ):
            return found
        return _wrong("type", value, shown)

    return bounded


def _sized(read: Reader, lengths: Constraint, shown: Any) -> Reader:
    least, most = lengths.min_length, lengths.max_length

    def sized(values: Any) -> Any:
        fits = not isinstance(values, (list, tuple)) or least <= len(values) <= (most or len(values))
        return read(values) if fits else _wrong("size", values, shown)

    return sized


def _number(shown: Any, *, finite: bool = True) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not float:
            value = _of_numpy(value)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                return _wrong("type", value, shown)
            try:
                value = float(value)
            except OverflowError:
                return _wrong("finite", value, shown)
        return value if isfinite(value) or not finite else _wrong("finite", value, shown)

    return read


def _either(declared: list[Any], optional: bool, shown: Any) -> Reader:
    """A reader of the first alternative that fits."""
    readers = [reader(each, shown) for each in declared]

    def read(value: Any) -> Any:
        if value is None and optional:
            return None
        for each in readers:
            found = each(value)
            if type(found) is not Wrong:
                return found
        return found

    return read


def _tagged(specs: Mapping[str, type[Spec]], tag: str, shown: Any) -> Reader:
    """A reader of the spec that the field `tag` names."""

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            return _wrong("type", value, shown)
        named = value.get(tag)
        spec = specs.get(named) if isinstance(named, str) else None
        return _wrong("tag", value, shown, tag) if spec is None else spec.read(value)

    return read


def _listed(readers: Any, length: int | None, shown: Any) -> Reader:
    def read_all(values: Any) -> Any:
        if not isinstance(values, (list, tuple)) or length not in (None, len(values)):
            return _wrong("type", values, shown)
        found = [read(value) for read, value in zip(readers, values, strict=False)]
        if Wrong not in map(type, found):
            return tuple(found)
        return Wrong(each for at, wrong in enumerate(found) if type(wrong) is Wrong for each in wrong.under(at))

    return read_all


def _mapped(read_key: Reader, read: Reader, shown: Any) -> Reader:
    def read_all(data: Any) -> Any:
        if not isinstance(data, dict):
            return _wrong("type", data, shown)
        keys, found = {key: read_key(key) for key in data}, {key: read(value) for key, value in data.items()}
        of_keys = (each for key, one in keys.items() if type(one) is Wrong for each in one.under(key, "[key]"))
        of_values = (each for key, one in found.items() if type(one) is Wrong for each in one.under(key))
        return Wrong([*of_keys, *of_values]) or found

    return read_all
