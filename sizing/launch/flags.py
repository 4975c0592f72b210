"""The flags of one engine version, written from terms and read back to them by the same table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import yaml

from sizing.catalog.shelf import Shelf, load
from sizing.catalog.yaml import parse, scalar
from sizing.model.settings import is_within
from sizing.specs.errors import Fault, InputError, nearest
from sizing.specs.launch import EngineFlag, EngineFlags, Term
from sizing.specs.units import printable

Value = str | int | float | bool
Terms = dict[Term, Value]
SHELF = Shelf(EngineFlags, "engine with flags", "hardware_profiles", "launch", "llmsize engines")

_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}  # as vLLM reads them
_SIZED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG])\Z")
COUNTED = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_total_tokens")


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
    return Dialect(load(SHELF, name).spec, title, version)


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


class Stated(NamedTuple):
    """A term as it was read: its value, and the line and the flag that state it."""

    value: Value
    line: int | None
    flag: str


@dataclass(slots=True)
class ReadArgs:
    """What the arguments of an engine state, and the faults of those that are not known."""

    model: Stated | None = None
    terms: dict[Term, Stated] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def take(self, term: Term, value: Value, line: int | None, flag: str) -> None:
        """Note a term; the last statement of it holds, as for the engines."""
        self.terms[term] = Stated(value, line, flag)


class Source(NamedTuple):
    """Where arguments stand: the file, its variables, its other files by name, and flags that the user says change nothing."""

    file: str
    variables: Mapping[str, str] = {}
    files: Mapping[str, tuple[str, int]] = {}
    ignored: frozenset[str] = frozenset()


def read(dialect: Dialect, words: Sequence[Word], source: Source) -> ReadArgs:
    """The terms that the words after an engine's command state. Unknown flags are faults, each with its line."""
    found, rest = ReadArgs(), _Words(tuple(_substituted(words, source.variables)))
    open_ended = False  # after a flag that may have several values
    while rest.left:
        word = rest.next()
        if not word.text.startswith("-") or _is_number(word.text):
            if found.model is None:
                found.model = Stated(word.text, word.line, "model")
            elif not open_ended and word.text.strip():
                found.faults.append(Fault("is no flag", source.file, word.line, printable(word.text)))
            continue
        open_ended = _take(dialect, word, rest, source, found)
    for name, text in source.variables.items():
        for row in dialect.rows:
            if row.env == name:
                _note(dialect, row, text, None, found, source, name)
    return found


@dataclass(slots=True)
class _Words:
    words: tuple[Word, ...]
    at: int = 0

    @property
    def left(self) -> bool:
        return self.at < len(self.words)

    def next(self) -> Word:
        self.at += 1
        return self.words[self.at - 1]

    def value(self) -> Word | None:
        """The next word where it is a value."""
        if not self.left or (self.words[self.at].text.startswith("-") and not _is_number(self.words[self.at].text)):
            return None
        return self.next()


def _is_number(text: str) -> bool:
    return not isinstance(scalar(text), str) and text not in ("-", "")


def _plain(flag: str) -> str:
    """A flag as engines compare it: hyphens and underscores alike."""
    return flag.replace("_", "-")


def _take(dialect: Dialect, word: Word, rest: _Words, source: Source, found: ReadArgs) -> bool:
    """Read one flag with its value; True where more values may follow."""
    name, marked, text = word.text.partition("=")
    base, _, path = name.partition(".")
    rows = [row for row in dialect.rows if _plain(base) in map(_plain, (*row.flags, *row.off))]
    engine, plain = dialect.engine, _plain(base)

    def value() -> str | None:
        following = Word(text, word.line) if marked else rest.value()
        if following is None:
            found.faults.append(Fault("has no value", source.file, word.line, name))
        return None if following is None else following.text

    if plain in map(_plain, source.ignored | set(engine.ignored.switches)):
        if plain in map(_plain, source.ignored):
            rest.value()
        return False
    if plain in map(_plain, engine.ignored.values):
        return value() is not None
    if plain in map(_plain, engine.model_flags):
        found.model = Stated(value() or "", word.line, name)
        return False
    if engine.file is not None and plain in map(_plain, engine.file.flags):
        _settings(dialect, value(), word.line, source, found)
    elif not rows:
        found.faults.append(_unknown(dialect, name, word.line, source))
        return not marked  # whether a value follows is not known
    elif rows[0].key is not None:
        _object(dialect, rows, value(), path, word.line, source, found)
    elif not rows[0].takes_value:
        off = _plain(base) in map(_plain, rows[0].off)
        found.take(rows[0].term, (text.lower() != "false") is not off, word.line, name)
    elif (stated := value()) is not None:
        _note(dialect, rows[0], stated, word.line, found, source, name)
    return False


def _note(
    dialect: Dialect, row: EngineFlag, text: object, line: int | None, found: ReadArgs, source: Source, name: str
) -> None:
    """Note the value of a flag, a key or a variable in our words."""
    written = str(text)
    if written in row.unknown:
        return
    ours = {theirs: word for word, theirs in row.values.items()} | row.also
    if row.values:
        if written not in ours:
            known = [*ours, *row.unknown]
            found.faults.append(
                Fault(f"{written!r} is not known", source.file, line, name, ", ".join(known), nearest(written, known))
            )
            return
        found.take(row.term, ours[written], line, name)
        return
    sized = _SIZED.match(written) if row.term in COUNTED else None
    value = int(float(sized[1]) * _SIZES[sized[2]]) if sized else scalar(written) if isinstance(text, str) else text
    if row.switch and not isinstance(value, bool):
        found.faults.append(Fault(f"must be true or false, not {written!r}", source.file, line, name))
    elif isinstance(value, (str, int, float)):
        found.take(row.term, value, line, name)
    else:
        found.faults.append(Fault(f"{written!r} is no value", source.file, line, name))


def _unknown(dialect: Dialect, name: str, line: int | None, source: Source) -> Fault:
    """The fault of a flag that the version does not have, or that is not known at all."""
    engine, what = dialect.engine, f"{dialect.title} {dialect.version}"
    others = [row for row in engine.flags if _plain(name.partition(".")[0]) in map(_plain, (*row.flags, *row.off))]
    if others:
        row = others[0]
        versions = f"from {row.since}" if row.until is None else f"{row.since} to {row.until}"
        return Fault(f"is no flag of {what}", source.file, line, name, f"{versions}")
    known = [
        *(flag for row in dialect.rows for flag in (*row.flags, *row.off)),
        *engine.ignored.values,
        *engine.ignored.switches,
    ]
    allowed = "--ignore-flags with its name, where it changes nothing"
    return Fault(f"is not known of {what}", source.file, line, name, allowed, nearest(name, known))


def _object(
    dialect: Dialect,
    rows: Sequence[EngineFlag],
    text: str | None,
    path: str,
    line: int | None,
    source: Source,
    found: ReadArgs,
) -> None:
    """Read a flag whose value is a JSON object, or one key of it (`--speculative-config.method`)."""
    if text is None:
        return
    if path:
        content: object = {path: scalar(text)}
    else:
        try:
            content = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            content = None
    if not isinstance(content, dict):
        found.faults.append(Fault("must be a JSON object", source.file, line, rows[0].flags[0]))
        return
    _keys(dialect, rows, content, line, source, found, rows[0].flags[0])


def _keys(
    dialect: Dialect,
    rows: Sequence[EngineFlag],
    content: Mapping[str, object],
    line: int | None,
    source: Source,
    found: ReadArgs,
    of: str,
) -> None:
    """Read the keys of an object; those that change nothing are passed over, unknown ones are faults."""
    known = {key: row for row in rows if row.key is not None for key in (row.key, *row.also_keys)}
    for path, value in _flat(content, ""):
        row = known.get(path)
        if row is not None:
            if row.absent:
                if value is None:
                    found.take(row.term, True, line, path)
            elif value is not None:
                _note(dialect, row, value, line, found, source, path)
        elif not any(path == key or path.startswith(f"{key}.") for key in dialect.engine.ignored.keys):
            near = nearest(path, [*known, *dialect.engine.ignored.keys])
            found.faults.append(Fault(f"is not known of {of}", source.file, line, path, nearest=near))


def _flat(content: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _settings(dialect: Dialect, name: str | None, line: int | None, source: Source, found: ReadArgs) -> None:
    """Read the engine's file of settings, where it stands beside the command."""
    if name is None:
        return
    held = source.files.get(name.replace("\\", "/").rpartition("/")[2])
    if held is None:
        message = f"{name!r} is not here: what it states is not known"
        found.faults.append(
            Fault(message, source.file, line, dialect.file_flag, "a ConfigMap, a heredoc or a config of the same file")
        )
        return
    text, first = held
    try:
        content = parse(text, source.file)
    except InputError as error:
        found.faults += (
            Fault(fault.message, source.file, (fault.line or 1) + first - 1, fault.field) for fault in error.faults
        )
        return
    if not isinstance(content, dict):
        found.faults.append(Fault("must hold keys and values", source.file, first, name))
        return
    _keys(dialect, [row for row in dialect.rows if row.file], content, first, source, found, name)


_VARIABLE = re.compile(r"\$(?:\(([A-Za-z_]\w*)\)|\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))")


def _substituted(words: Iterable[Word], variables: Mapping[str, str]) -> Iterator[Word]:
    """Yield words with the variables that are known; others stay as they are."""
    for word in words:
        text = _VARIABLE.sub(
            lambda found: variables.get(
                found[1] or found[2] or found[4], found[3] if found[3] is not None else found[0]
            ),
            word.text,
        )
        yield Word(text, word.line)
