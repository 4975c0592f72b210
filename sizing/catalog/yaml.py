"""A YAML reader for plain data, with a line for every field.

The parser's events are processed with an explicit stack, so a rule bounds the depth and not Python's stack. Everything beyond
plain data (anchors, aliases, tags, merge keys, several documents) is refused by name. Plain scalars follow YAML 1.1 for `yes`,
`no`, `on` and `off`, and YAML 1.2 for numbers and dates: `1e3` is a number; `010`, `1:30` and `2025-01-31` stay text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from sizing.specs.errors import Fault, FieldPath, InputError, raise_any

# A field of a spec is at most six levels deep. Far deeper nesting is a mistake or an attack.
MAX_DEPTH = 32
_TOO_DEEP = f"is nested more than {MAX_DEPTH} levels deep"
# Longer digit strings are identifiers, not counts. Python itself refuses to convert more than 4,300 digits.
_MAX_DIGITS = 40

_NULL = {"", "~", "null", "Null", "NULL"}
_WORDS = {True: ("yes", "on", "true"), False: ("no", "off", "false")}
_BOOL = {
    spelling: value
    for value, words in _WORDS.items()
    for word in words
    for spelling in (word, word.capitalize(), word.upper())
}
_OWN_BREAKS = re.compile("[\x85\u2028\u2029]")
_PAIR = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_NUMBER_STARTS = frozenset("+-.0123456789")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]")
_INNER_PAIR = re.compile(r":\s+([^\s:#]+)\s*:\s+([^\s#]+)")  # as in `ttft: p95: 1s`
_SPECIAL = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")


class Spot(NamedTuple):
    """The place of a field: its line, and the text of its value as written (None for a mapping or a list)."""

    line: int
    text: str | None


@dataclass(eq=False, repr=False)
class _Open:
    """A mapping or list that is being read. `key` is a mapping's key whose value comes next."""

    value: Any
    path: FieldPath
    key: str | None = None
    key_mark: Any = None


@dataclass(eq=False, repr=False)
class _Reading:
    """The state of one pass over a text."""

    file: str
    spots: dict[FieldPath, Spot] | None
    breaks: list[int] = field(default_factory=list)  # characters that end a line in YAML but in no editor
    foreign: bool = False
    root: Any = None
    documents: list[YamlDocument] = field(default_factory=list)
    anchors: dict[str, Any] = field(default_factory=dict)
    stack: list[_Open] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def line(self, mark: yaml.Mark) -> int:
        """The line of a mark as editors count it, from 1."""
        return int(mark.line) + 1 - bisect_left(self.breaks, mark.index)

    def fault(self, message: str, mark: yaml.Mark, where: str | None = None) -> None:
        """Record a fault; reading continues, so that one run reports all faults."""
        self.faults.append(Fault(message, file=self.file, line=self.line(mark), field=where))


def dotted(path: FieldPath) -> str:
    """Format a path as users write it: `efficiency[3].t0_us`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def parse(text: str, file: str) -> Any:
    """The plain data of a YAML document; None for an empty one. Raises InputError with every fault."""
    return _read(text, file, None).root


def spots(text: str, file: str) -> dict[FieldPath, Spot]:
    """The line and the text of every field of a document that `parse` accepts, or of JSON."""
    found: dict[FieldPath, Spot] = {}
    _read(_PAIR.sub(_character, text), file, found)
    return found


def _character(pair: re.Match[str]) -> str:
    """The character of a JSON surrogate pair. YAML does not accept such pairs."""
    return bytes.fromhex(pair[1] + pair[2]).decode("utf-16-be")


class YamlDocument(NamedTuple):
    """One of the documents of a file: its plain data, and the place of each field."""

    data: Any
    spots: dict[FieldPath, Spot]


def documents(text: str, file: str) -> list[YamlDocument]:
    """The documents of a manifest file as other tools write it: several documents, with anchors, aliases and tags.

    The value of an alias is shared, not copied. A merge key (`<<`) stays a key. Raises InputError as `parse` does.
    """
    return _read(text, file, {}, foreign=True).documents


def scalar(text: str) -> Any:
    """Resolve a plain (unquoted) scalar to None, bool, int, float or text."""
    if text[:1] in _NUMBER_STARTS:
        if _INT.match(text):
            return int(text) if len(text) <= _MAX_DIGITS else text
        if _FLOAT.match(text) and not _LEADING_ZERO.match(text):
            return float(text)
    if text in _BOOL:
        return _BOOL[text]
    if text in _NULL:
        return None
    if _SPECIAL.match(text):
        return float(text.replace(".", "").lower())
    return text


def _read(text: str, file: str, found: dict[FieldPath, Spot] | None, *, foreign: bool = False) -> _Reading:
    reading = _Reading(file, found, [match.start() for match in _OWN_BREAKS.finditer(text)], foreign)
    try:
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        for event in iter(loader.get_event, None):
            if type(event) is yaml.ScalarEvent:  # nearly all of them
                _take_scalar(reading, event)
            else:
                _take(reading, event)
    except yaml.YAMLError as error:
        raise InputError([*reading.faults, _syntax_fault(error, text, reading)]) from None
    except UnicodeEncodeError:  # of a command line
        raise InputError("is not UTF-8 text", file=file) from None
    raise_any(reading.faults)
    return reading


def _take(reading: _Reading, event: Any) -> None:
    kind = type(event)  # compared by identity: a profile has thousands of events
    if kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
        _check_plain_data(reading, event)
        value: Any = {} if kind is yaml.MappingStartEvent else []
        if event.anchor is not None:
            reading.anchors[event.anchor] = value
        _open(reading, value, event.start_mark)
    elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
        reading.stack.pop()
    elif kind is yaml.AliasEvent and reading.foreign and event.anchor in reading.anchors:
        _alias(reading, reading.anchors[event.anchor], event.start_mark)
    elif kind is yaml.AliasEvent:
        # Aliases are not expanded, because a few of them can expand to billions of values.
        reading.fault(f"is the YAML alias *{event.anchor}; write the value out", event.start_mark)
        raise InputError(reading.faults)
    elif kind is yaml.DocumentStartEvent:
        if reading.foreign:
            reading.root, reading.spots = None, {}
        elif reading.documents:
            reading.fault("a second YAML document starts here (---); a file holds one", event.start_mark)
            raise InputError(reading.faults)
    elif kind is yaml.DocumentEndEvent:
        reading.documents.append(YamlDocument(reading.root, reading.spots or {}))


def _take_scalar(reading: _Reading, event: Any) -> None:
    if event.anchor is not None or event.tag is not None:
        _check_plain_data(reading, event)
    text, plain = event.value, event.implicit[0]  # plain: neither quoted nor tagged
    if event.anchor is not None:
        reading.anchors[event.anchor] = scalar(text) if plain else text
    holder = reading.stack[-1] if reading.stack else None
    if holder is not None and holder.key is None and type(holder.value) is dict:
        if text in holder.value:
            reading.fault("is given twice", event.start_mark, dotted((*holder.path, text)))
        holder.key, holder.key_mark = text, event.start_mark
    else:
        _place(reading, scalar(text) if plain else text, event.start_mark, text)


def _alias(reading: _Reading, value: Any, mark: yaml.Mark) -> None:
    """Put the value of an alias into its place. Raises InputError if the alias contains itself, or is a key."""
    holder = reading.stack[-1] if reading.stack else None
    is_key = holder is not None and isinstance(holder.value, dict) and holder.key is None
    if is_key or any(open_.value is value for open_ in reading.stack):
        reading.fault("is an alias of what it stands in, or a key", mark)
        raise InputError(reading.faults)
    _place(reading, value, mark, None)


def _check_plain_data(reading: _Reading, event: Any) -> None:
    if reading.foreign:
        return
    if event.anchor is not None:
        reading.fault(f"has the YAML anchor &{event.anchor}; anchors and aliases are not read", event.start_mark)
    if event.tag is not None:
        reading.fault(f"has the YAML tag {event.tag}; only plain values are read", event.start_mark)


def _open(reading: _Reading, value: Any, mark: yaml.Mark) -> None:
    holder = reading.stack[-1] if reading.stack else None
    if len(reading.stack) >= MAX_DEPTH:
        reading.fault(_TOO_DEEP, mark)
        raise InputError(reading.faults)
    if holder is not None and isinstance(holder.value, dict) and holder.key is None:
        reading.fault("a key must be text, not a list or a mapping", mark)
        raise InputError(reading.faults)
    reading.stack.append(_Open(value, _place(reading, value, mark, None)))


def _place(reading: _Reading, value: Any, mark: yaml.Mark, text: str | None) -> FieldPath:
    """Put a value into its parent, and record its path."""
    if not reading.stack:
        reading.root = value
        if reading.spots is not None:
            reading.spots[()] = Spot(reading.line(mark), text)
        return ()
    holder = reading.stack[-1]
    if holder.key is None:
        step: str | int = len(holder.value)
        holder.value.append(value)
    else:
        step, mark, holder.key = holder.key, holder.key_mark, None
        holder.value[step] = value
    if reading.spots is None and text is not None:
        return ()
    path = (*holder.path, step)
    if reading.spots is not None:
        reading.spots[path] = Spot(reading.line(mark), text)
    return path


def _syntax_fault(error: yaml.YAMLError, text: str, reading: _Reading) -> Fault:
    """The parser's error in plain words, with its line."""
    mark, file = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None), reading.file
    line = reading.line(mark) if mark is not None else None
    lines = text.split("\n")
    written = lines[line - 1] if line is not None and line <= len(lines) else ""
    if "\t" in written[: len(written) - len(written.lstrip())]:
        return Fault("is not valid YAML: indent with spaces, not with tabs", file=file, line=line)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be parsed"
    if "nesting" in problem:  # the parser looks ahead and has its own limit
        return Fault(_TOO_DEEP, file=file, line=line)
    inner = _INNER_PAIR.search(written) if problem.startswith("mapping values") else None
    remedy = None if inner is None else f"write {inner[1]}:{inner[2]} without a blank, or put the value in quotes"
    return Fault(f"is not valid YAML: {problem}", file=file, line=line, remedy=remedy)
