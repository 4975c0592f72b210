"""The flags of one engine version, and the function that writes terms as flags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import yaml

from sizing.catalog.profiles import launches
from sizing.catalog.shelf import load
from sizing.model.settings import is_within
from sizing.specs.errors import Fault, raise_any
from sizing.specs.launch import EngineFlag, EngineFlags, Term

Value = str | int | float | bool
Terms = dict[Term, Value]


class Word(NamedTuple):
    """A word of a command, its line, and whether quotes keep it one word."""

    text: str
    line: int | None = None
    whole: bool = False


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
        """The flag of this version that states a term; None if there is none."""
        return next((row for row in self.rows if row.term == term and not row.read_only), None)

    @property
    def file_flag(self) -> str:
        """The flag of this version that names the settings file."""
        assert self.engine.file is not None
        file = self.engine.file
        old = [flag for flag, until in file.flag_until.items() if is_within(self.version, "0.1", until)]
        return old[0] if old else file.flags[0]


class Args(NamedTuple):
    """The arguments of an engine: words after its command, environment variables, and the text of its settings file."""

    words: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    file: str | None = None


def dialect_of(name: str, title: str, version: str) -> Dialect:
    """The flags of an engine version. Raises InputError for an engine with unknown flags."""
    return Dialect(flags_of(name), title, version)


@cache
def flags_of(name: str) -> EngineFlags:
    """The flags of an engine, read once. Raises InputError for an engine with unknown flags."""
    return load(launches(), name).spec


@cache
def engine_names() -> tuple[str, ...]:
    """The engines with known flags."""
    return launches().ids


# --- written ----------------------------------------------------------------------------------------------------------


def write(dialect: Dialect, terms: Mapping[Term, Value]) -> Args:
    """The arguments that state `terms`. Raises InputError for each term without a flag, or a word, in this version."""
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
    raise_any(faults)
    for flag, content in objects.items():
        words[words.index(flag) + 1] = json.dumps(content)
    if not settings:
        return Args(tuple(words), tuple(env))
    assert dialect.engine.file is not None
    named = (dialect.file_flag, dialect.engine.file.name)
    return Args((*words, *named), tuple(env), yaml.safe_dump(settings, sort_keys=False, default_flow_style=False))


def _said(row: EngineFlag, value: Value) -> Value | None:
    """A value in the engine's words; None if the engine has no word for it."""
    if row.choices and value not in row.choices:
        return None
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
        allowed = ", ".join(row.values or map(str, row.choices))
        return Fault(f"{what} has no word for {value}", field=row.name, allowed=allowed)
    others = [row for row in dialect.engine.flags if row.term == term and not row.read_only]
    since = f"; {others[0].name} is there since {others[0].since}" if others else ""
    return Fault(f"{what} has no flag for it{since}", field=term)
