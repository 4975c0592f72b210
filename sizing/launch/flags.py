"""The flags of one engine version, written from terms and read back to them by the same table."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import yaml

from sizing.catalog.shelf import Shelf, load
from sizing.catalog.yaml import parse, scalar
from sizing.model.settings import is_within
from sizing.specs.errors import Fault, InputError, nearest
from sizing.specs.launch import COUNTS, SHARES, TOKENS, EngineFlag, EngineFlags, Term
from sizing.specs.units import printable

Value = str | int | float | bool
Terms = dict[Term, Value]
SHELF = Shelf(EngineFlags, "engine with flags", "hardware_profiles", "launch", "llmsize engines")

_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}  # as vLLM reads them
_SIZED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG])\Z")


class Word(NamedTuple):
    """A word of a command, and the line on which it stands."""

    text: str
    line: int | None = None


class Dialect(NamedTuple):
    """One engine's flags in one version."""

    engine: EngineFlags
    title: str
    version: str

    @property
    def rows(self) -> tuple[EngineFlag, ...]:
        """The flags that this version has."""
        return tuple(row for row in self.engine.flags if self.has(row))

    def has(self, row: EngineFlag) -> bool:
        """Whether this version has a flag."""
        return is_within(self.version, row.since, row.until)

    def writes(self, term: Term) -> EngineFlag | None:
        """The flag of this version that states a term; None where it has none."""
        return next((row for row in self.rows if row.term == term and not row.read_only), None)

    @property
    def file_flag(self) -> str:
        """The flag of this version that names the file of settings."""
        assert self.engine.file is not None
        file = self.engine.file
        old = [flag for flag, until in file.flag_until.items() if is_within(self.version, "0.1", until)]
        return old[0] if old else file.flags[0]


class Args(NamedTuple):
    """What starts an engine: words after its command, environment variables, and the text of its file of settings."""

    words: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    file: str | None = None


def dialect_of(name: str, title: str, version: str) -> Dialect:
    """The flags of an engine version. Raises InputError for an engine whose flags are not known."""
    return Dialect(flags_of(name), title, version)


@cache
def flags_of(name: str) -> EngineFlags:
    """The flags of an engine, read once. Raises InputError for an engine whose flags are not known."""
    return load(SHELF, name).spec


@cache
def engine_names() -> tuple[str, ...]:
    """The engines whose flags are known."""
    return SHELF.ids


# --- written ----------------------------------------------------------------------------------------------------------


def write(dialect: Dialect, terms: Mapping[Term, Value]) -> Args:
    """The arguments that state the terms. Raises InputError for each that this version has no flag, or no word, for."""
    words: list[str] = []
    env: list[tuple[str, str]] = []
    objects: dict[str, dict[str, Value]] = {}
    settings: dict[str, object] = {}
    faults = []
    for term, value in terms.items():
        row = dialect.writes(term)
        said = None if row is None else _said(row, value)
        if row is None or said is None:
            faults.append(_unwritten(dialect, term, value))
        elif row.env is not None:
            env.append((row.env, str(said)))
        elif row.file:
            _put(settings, str(row.key), None if row.absent else said)
        elif row.key is not None:
            if row.flags[0] not in objects:
                words += (row.flags[0], "")
            objects.setdefault(row.flags[0], {})[row.key] = said
        elif row.takes_value:
            words += (row.flags[0], str(said))
        elif value or row.off:
            words.append(row.flags[0] if value else row.off[0])
    if faults:
        raise InputError(faults)
    for flag, content in objects.items():
        words[words.index(flag) + 1] = json.dumps(content)
    if not settings:
        return Args(tuple(words), tuple(env))
    assert dialect.engine.file is not None
    named = (dialect.file_flag, dialect.engine.file.name)
    return Args((*words, *named), tuple(env), yaml.safe_dump(settings, sort_keys=False, default_flow_style=False))


def _said(row: EngineFlag, value: Value) -> Value | None:
    """A value in the engine's words, None where it has none for it."""
    return row.values.get(str(value)) if row.values else value


def _put(settings: dict[str, object], path: str, value: object) -> None:
    *holders, last = path.split(".")
    for step in holders:
        inner = settings.setdefault(step, {})
        assert isinstance(inner, dict)
        settings = inner
    settings[last] = value


def _unwritten(dialect: Dialect, term: Term, value: Value) -> Fault:
    what, row = f"{dialect.title} {dialect.version}", dialect.writes(term)
    if row is not None:
        return Fault(f"{what} has no word for {value}", field=row.name, allowed=", ".join(row.values))
    others = [row for row in dialect.engine.flags if row.term == term and not row.read_only]
    since = f"; {others[0].name} is there since {others[0].since}" if others else ""
    return Fault(f"{what} has no flag for it{since}", field=term)


# --- read -------------------------------------------------------------------------------------------------------------


class StatedTerm(NamedTuple):
    """A term as it was read: its value, and the line and the flag that state it."""

    value: Value
    line: int | None
    flag: str


@dataclass(slots=True)
class ReadArgs:
    """What the arguments of an engine state, and the faults of those that are not known.

    `open` are terms that are stated, and left to the engine: a length that is `auto`. Of what is stated `again` with another
    value the last statement holds, as for the engines.
    """

    model: StatedTerm | None = None
    terms: dict[Term, StatedTerm] = field(default_factory=dict)
    open: set[Term] = field(default_factory=set)
    again: list[StatedTerm] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


class Source(NamedTuple):
    """Where arguments stand: the file, its variables, its other files by name, and flags that the user says change nothing."""

    file: str
    variables: Mapping[str, str] = {}
    files: Mapping[str, tuple[str, int]] = {}
    ignored: frozenset[str] = frozenset()


def read(dialect: Dialect, words: Sequence[Word], source: Source) -> ReadArgs:
    """The terms that the words after an engine's command state. Unknown flags are faults, each with its line."""
    reader = _Reader(dialect, source, tuple(_substituted(words, source.variables)))
    reader.read()
    return reader.found


def _is_number(text: str) -> bool:
    return not isinstance(scalar(text), str) and text not in ("-", "")


def _plain(flag: str) -> str:
    """A flag as engines compare it: hyphens and underscores alike."""
    return flag.replace("_", "-")


def _among(flag: str, flags: Iterable[str]) -> bool:
    return _plain(flag) in map(_plain, flags)


def _is_number_within(value: object, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= most


def _expected(row: EngineFlag) -> tuple[str, Callable[[object], bool]] | None:
    """What the value of a flag must be, in words and as a test; None where any will do."""
    if row.switch:
        return "true or false", lambda value: isinstance(value, bool)
    if row.term in COUNTS:
        return "a whole number above 0", lambda value: isinstance(value, int) and _is_number_within(value, math.inf)
    if row.term in SHARES:
        return "a share above 0 and at most 1", lambda value: _is_number_within(value, 1)
    return None


# Kinds of flags that state no term, by what follows them.
SWITCH, VALUE, OBJECT, MODEL, FILE, UNREAD = "switch", "value", "object", "model", "file", "unread"


class _Place(NamedTuple):
    """Where a value is stated: its line, and the flag, key or variable."""

    line: int | None
    name: str


@dataclass(slots=True)
class _Reader:
    """The words of a command, read from the first on; `at` is the next."""

    dialect: Dialect
    source: Source
    words: tuple[Word, ...]
    at: int = 0
    found: ReadArgs = field(default_factory=ReadArgs)
    passed: dict[str, str] = field(default_factory=dict)

    def read(self) -> None:
        engine, file = self.dialect.engine, self.dialect.engine.file
        kinds = {
            SWITCH: engine.ignored.switches, VALUE: engine.ignored.values, OBJECT: engine.ignored.objects,
            MODEL: engine.model_flags, FILE: () if file is None else file.flags, UNREAD: self.source.ignored,
        }  # fmt: skip
        self.passed = {_plain(flag): kind for kind, flags in kinds.items() for flag in flags}
        open_ended = False  # after a flag that may have several values
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if word.text.startswith("-") and not _is_number(word.text):
                open_ended = self._flag(word)
            elif self.found.model is None:
                self.found.model = StatedTerm(word.text, word.line, "model")
            elif not open_ended and word.text.strip():
                self._fault("is no flag", _Place(word.line, printable(word.text)))
        for name, text in self.source.variables.items():
            for row in self.dialect.rows:
                if row.env == name:
                    self._note(row, text, _Place(None, name))

    def _fault(self, message: str, place: _Place, allowed: str | None = None, near: str | None = None) -> None:
        self.found.faults.append(Fault(message, self.source.file, place.line, place.name, allowed, near))

    def _take(self, term: Term, value: Value, place: _Place) -> None:
        """Note a term; the last statement of it holds."""
        stated, before = StatedTerm(value, place.line, place.name), self.found.terms.get(term)
        if before is not None and before.value != value:
            self.found.again.append(stated)
        self.found.terms[term] = stated

    def _value(self) -> Word | None:
        """The next word where it is a value."""
        if self.at >= len(self.words):
            return None
        word = self.words[self.at]
        if word.text.startswith("-") and not _is_number(word.text):
            return None
        self.at += 1
        return word

    def _flag(self, word: Word) -> bool:
        """Read one flag with its value; True where more values may follow."""
        name, marked, text = word.text.partition("=")
        base, _, path = name.partition(".")
        kind, place = self.passed.get(_plain(base)), _Place(word.line, name)
        rows = [row for row in self.dialect.rows if not kind and _among(base, (*row.flags, *row.off))]
        switch = bool(rows) and not rows[0].takes_value and rows[0].key is None
        if switch:
            self._take(rows[0].term, (text.lower() != "false") is not _among(base, rows[0].off), place)
        if switch or kind == SWITCH or (self.passed.get(name[:2]) == VALUE and name[2:].isdecimal()):  # -O3 is -O 3
            return False
        following = Word(text, word.line) if marked else self._value() if rows or kind else None
        if not rows and kind is None:
            self._unknown(place)  # whether a value follows is not known
        elif following is None and kind != UNREAD:
            self._fault("has no value", place)
        elif following is not None and kind == MODEL:
            self.found.model = StatedTerm(following.text, word.line, name)
        elif following is not None and kind == FILE:
            self._settings(following.text, place)
        elif following is not None and (kind == OBJECT or (rows and rows[0].key is not None)):
            self._object(rows, following.text, path, place)
        elif following is not None and rows:
            self._note(rows[0], following.text, place)
        return not rows and not (marked and kind is None)

    def _note(self, row: EngineFlag, text: object, place: _Place) -> None:
        """Note the value of a flag, a key or a variable in our words."""
        written = str(text)
        if written in row.unknown:
            self.found.open.add(row.term)
            return
        if row.values:
            ours = {theirs: word for word, theirs in row.values.items()} | row.also
            if written in ours:
                self._take(row.term, ours[written], place)
                return
            known = [*ours, *row.unknown]
            self._fault(f"{written!r} is not known", place, ", ".join(known), nearest(written, known))
            return
        sized = _SIZED.match(written) if row.term in TOKENS else None
        value = int(float(sized[1]) * _SIZES[sized[2]]) if sized else scalar(written) if isinstance(text, str) else text
        wanted = _expected(row)
        if wanted is not None and "$" in written:
            self._fault(f"is set by {printable(written)}, which the file does not state", place, wanted[0])
        elif wanted is not None and not wanted[1](value):
            self._fault(f"must be {wanted[0]}, not {written!r}", place)
        elif isinstance(value, (str, int, float)):
            self._take(row.term, value, place)
        else:
            self._fault(f"{written!r} is no value", place)

    def _unknown(self, place: _Place) -> None:
        """Note a flag that the version does not have, or that is not known at all."""
        engine, what = self.dialect.engine, f"{self.dialect.title} {self.dialect.version}"
        others = [row for row in engine.flags if _among(place.name.partition(".")[0], (*row.flags, *row.off))]
        if others:
            row = others[0]
            when = f"from {row.since}" if row.until is None else f"{row.since} to {row.until}"
            self._fault(f"is no flag of {what}", place, when)
            return
        stated = [flag for row in self.dialect.rows for flag in (*row.flags, *row.off)]
        near = nearest(place.name, [*stated, *(flag for flag, kind in self.passed.items() if kind != UNREAD)])
        self._fault(f"is not known of {what}", place, "--ignore-flags with its name, where it changes nothing", near)

    def _object(self, rows: Sequence[EngineFlag], text: str, path: str, place: _Place) -> None:
        """Read a flag whose value is a JSON object, or one key of it (`--speculative-config.method`)."""
        content: object = {path: scalar(text)} if path else None
        if not path:
            with suppress(ValueError, RecursionError):
                content = json.loads(text)
        if isinstance(content, dict):
            if rows:
                self._keys(rows, content, place)
        elif rows or not isinstance(content, int):  # `--compilation-config 3` is a level
            self._fault(f"must be a JSON object, not {printable(text)!r}", place)

    def _keys(self, rows: Sequence[EngineFlag], content: Mapping[str, object], place: _Place) -> None:
        """Read the keys of an object; those that change nothing are passed over, unknown ones are faults."""
        known = {key: row for row in rows if row.key is not None for key in (row.key, *row.also_keys)}
        passed = self.dialect.engine.ignored.keys
        for path, value in _flat(content, ""):
            row, at = known.get(path), _Place(place.line, path)
            if row is not None and row.absent:
                if value is None:
                    self._take(row.term, True, at)
            elif row is not None:
                if value is not None:
                    self._note(row, value, at)
            elif not any(path == key or path.startswith(f"{key}.") for key in passed):
                self._fault(f"is not known of {place.name}", at, near=nearest(path, [*known, *passed]))

    def _settings(self, name: str, place: _Place) -> None:
        """Read the engine's file of settings, where it stands beside the command."""
        held = self.source.files.get(name.replace("\\", "/").rpartition("/")[2])
        if held is None:
            allowed = "a ConfigMap, a heredoc or a config of the same file"
            self._fault(f"{name!r} is not here: what it states is not known", place, allowed)
            return
        text, first = held
        try:
            content = parse(text, self.source.file)
        except InputError as error:
            for fault in error.faults:
                self._fault(fault.message, _Place((fault.line or 1) + first - 1, fault.field or name))
            return
        if isinstance(content, dict):
            self._keys([row for row in self.dialect.rows if row.file], content, _Place(first, name))
        else:
            self._fault("must hold keys and values", _Place(first, name))


def _flat(content: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    """Yield the values of nested mappings by dotted path."""
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


_PRODUCT = re.compile(r"\$\{=([\w*]+)\}")  # as shell words have it
_VARIABLE = re.compile(r"\$(?:\(([A-Za-z_]\w*)\)|\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))")


def _substituted(words: Iterable[Word], variables: Mapping[str, str]) -> Iterator[Word]:
    """Yield words with the variables that are known; others stay as they are."""

    def value(found: re.Match[str]) -> str:
        return variables.get(found[1] or found[2] or found[4], found[0] if found[3] is None else found[3])

    def product(found: re.Match[str]) -> str:
        factors = [variables.get(factor, factor) for factor in found[1].split("*")]
        return str(math.prod(map(int, factors))) if all(map(str.isdecimal, factors)) else found[0]

    for word in words:
        yield Word(_VARIABLE.sub(value, _PRODUCT.sub(product, word.text)), word.line)
