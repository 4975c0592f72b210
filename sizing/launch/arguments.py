"""Reads the words after an engine's command, its variables and its settings file into terms."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sizing.catalog.files import expanded, is_file, read_text
from sizing.catalog.yaml import Spot, documents, scalar
from sizing.launch.script_text import RECKONED, RECKONED_TOLD, is_unread, with_variables
from sizing.launch.terms import Dialect, ReadArgs, StatedTerm, Value, Word
from sizing.model.settings import is_within
from sizing.specs.errors import Fault, InputError, nearest
from sizing.specs.launch import COUNTS, SHARES, TOKENS, EngineFlag, Term
from sizing.specs.units import printable

_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}  # as vLLM reads them
_SIZED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG])\Z")


class Source(NamedTuple):
    """The source of arguments: its file, variables, embedded files by name, and flags that the user says change nothing.

    Other files are looked for in `folder`, where the command runs; None if it runs on another machine.
    """

    file: str
    variables: Mapping[str, str] = {}
    files: Mapping[str, tuple[str, int]] = {}
    ignored: frozenset[str] = frozenset()
    folder: Path | None = None


def read(dialect: Dialect, words: Sequence[Word], source: Source) -> ReadArgs:
    """Read the terms in the words after an engine's command. Unknown flags are faults, each with its line."""
    replaced = (word._replace(text=with_variables(word.text, source.variables)) for word in words)
    reader = _Reader(dialect, source, tuple(replaced))
    reader.read()
    return reader.found


def _is_number(text: str) -> bool:
    return not isinstance(scalar(text), str) and text not in ("-", "")


def _plain(flag: str) -> str:
    """A flag in the form that engines compare, with hyphens for underscores."""
    return flag.replace("_", "-")


def _among(flag: str, flags: Iterable[str]) -> bool:
    return _plain(flag) in map(_plain, flags)


def _is_number_within(value: object, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= most


def _expected(row: EngineFlag) -> tuple[str, Callable[[object], bool]] | None:
    """The requirement on a flag's value, in words and as a test; None if any value is valid."""
    if row.switch:
        return "true or false", lambda value: isinstance(value, bool)
    if row.term in COUNTS:
        return "a whole number above 0", lambda value: isinstance(value, int) and _is_number_within(value, math.inf)
    if row.term in SHARES:
        return "a share above 0 and at most 1", lambda value: _is_number_within(value, 1)
    return None


IGNORED = "use --ignore-flags with its name, where it changes nothing"
OFF = "--no-"  # before the name of a switch
# Kinds of flags that state no term. The kind says what follows the flag.
KINDS = ["switch", "on", "value", "object", "override", "model", "file", "unread"]
SWITCH, ON, VALUE, OBJECT, OVERRIDE, MODEL, FILE, UNREAD = KINDS


class _Place(NamedTuple):
    """The place of a value: its line, and its flag, key or variable."""

    line: int | None
    name: str


@dataclass(slots=True)
class _Reader:
    """Reads the words of a command in order; `at` is the index of the next word."""

    dialect: Dialect
    source: Source
    words: tuple[Word, ...]
    at: int = 0
    found: ReadArgs = field(default_factory=ReadArgs)
    passed: dict[str, str] = field(default_factory=dict)
    beside: list[ReadArgs] = field(default_factory=list)  # settings files

    def read(self) -> None:
        engine, file = self.dialect.engine, self.dialect.engine.file
        kinds = {
            SWITCH: engine.ignored.switches, ON: engine.ignored.on, VALUE: (*engine.ignored.values, *engine.ignored.limited, *engine.ignored.unmodelled), OBJECT: engine.ignored.objects,
            OVERRIDE: engine.ignored.of_model, MODEL: engine.model_flags, FILE: () if file is None else file.flags, UNREAD: self.source.ignored,
        }  # fmt: skip
        self.passed = {_plain(flag): kind for kind, flags in kinds.items() for flag in flags}
        open_ended = False  # whether the last flag may have several values
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if word.text.startswith("-") and not _is_number(word.text):
                open_ended = self._flag(word)
            elif self.found.model is None and not (open_ended and not isinstance(scalar(word.text), str)):
                self.found.model = StatedTerm(word.text, word.line, "model")
            elif not open_ended and word.text.strip():
                self._fault(
                    RECKONED_TOLD if RECKONED in word.text else "is no flag", _Place(word.line, printable(word.text))
                )
        for name, text in self.source.variables.items():
            if why := self.dialect.engine.refused_variables.get(name, {}).get(text.lower()):
                self._fault(f"{text} {why}, which is not predicted", _Place(None, name), remedy="leave it out")
            for row in self.dialect.rows:
                if row.env == name:
                    self._note(row, text, _Place(None, name))
        for below in self.beside:
            self.found.under(below)

    def _fault(self, message: str, place: _Place, allowed: str | None = None, **named: str | None) -> None:
        self.found.faults.append(Fault(message, self.source.file, place.line, place.name, allowed, **named))

    def _take(self, term: Term, value: Value, place: _Place) -> None:
        """Record a term; its last value counts."""
        stated, before = StatedTerm(value, place.line, place.name), self.found.terms.get(term)
        if before is not None and before.value != value:
            self.found.again.append(stated)
        self.found.terms[term] = stated

    def _value(self) -> Word | None:
        """The next word if it is a value, else None."""
        if self.at >= len(self.words):
            return None
        word = self.words[self.at]
        if word.text.startswith("-") and not _is_number(word.text):
            return None
        self.at += 1
        return word

    def _flag(self, word: Word) -> bool:
        """Read one flag with its value. Returns True if more values may follow."""
        name, marked, text = word.text.partition("=")
        if name[2:].isdecimal() and self.passed.get(name[:2]):  # -O3 means -O 3
            name, marked, text = name[:2], "=", name[2:]
        base, _, path = name.partition(".")
        kind, place = self.passed.get(_plain(base)), _Place(word.line, name)
        rows = [row for row in self.dialect.rows if kind in (None, OBJECT) and _among(base, (*row.flags, *row.off))]
        switch = bool(rows) and not rows[0].takes_value and rows[0].key is None
        if kind == UNREAD:
            self._pass(base, place)
        if not rows and kind is None and (switched := self._switched_off(base)) is not None:
            rows, kind, text, switch = *switched, "false", bool(switched[0])
        if switch or kind in (SWITCH, ON):
            given = text if marked else self._truth()
            if switch:
                self._take(rows[0].term, (text.lower() != "false") is not _among(base, rows[0].off), place)
            if kind == ON and (text or given).lower() == "false":
                self._fault("changes what is predicted, and is not read", place, remedy="leave it out")
            elif given and (kind != ON or self._negates()):
                off = f"use {OFF}{base.removeprefix('--')}" if self._negates() else "leave it out"
                remedy = off if given.lower() == "false" else f"use {base}"
                self._fault("is a switch, which takes no value", place, remedy=remedy)
            return False
        following = Word(text, word.line) if marked else self._value() if rows or kind else None
        if not rows and kind is None:
            self._unknown(place)  # it is unknown whether a value follows
        elif following is None and kind != UNREAD:
            self._fault("has no value", place)
        elif following is not None and kind == MODEL:
            self.found.model = StatedTerm(following.text, word.line, name)
        elif following is not None and kind == FILE:
            self._settings(following.text, place)
        elif following is not None and kind == VALUE:
            self._limited(name, following.text, place)
        elif following is not None and (kind in (OBJECT, OVERRIDE) or (rows and rows[0].key is not None)):
            self._object(rows, following.text, path, place)
        elif following is not None and rows and path:  # a key of an object: --limit-mm-per-prompt.image 2
            before = self.found.terms.pop(rows[0].term, None)
            others = "" if before is None or "=" not in str(before.value) else f"{before.value},"
            self._note(rows[0], f"{others}{path}={following.text}", place)
        elif following is not None and rows:
            self._note(rows[0], following.text, place)
        return not rows and not (marked and kind is None)

    def _truth(self) -> str:
        """The next word if it is true or false; else nothing."""
        following = self.words[self.at].text if self.at < len(self.words) else ""
        is_truth = following.lower() in ("true", "false")
        self.at += is_truth
        return following if is_truth else ""

    def _negates(self) -> bool:
        """Whether this version has a form of each switch that turns it off, and then no value of it."""
        since = self.dialect.engine.negated
        return since is not None and is_within(self.dialect.version, since, None)

    def _switched_off(self, flag: str) -> tuple[list[EngineFlag], str | None] | None:
        """The term, or the kind, of the switch that `flag` turns off (`--no-` before its name); None for any other flag."""
        name = _plain(flag)
        if not (self._negates() and name.startswith(OFF)):
            return None
        named = f"--{name.removeprefix(OFF)}"
        kind = self.passed.get(named)
        rows = [row for row in self.dialect.rows if not kind and not row.takes_value and _among(named, row.flags)]
        return (rows, kind) if rows or kind in (SWITCH, ON) else None

    def _pass(self, flag: str, place: _Place) -> None:
        """Skip a flag, as the user says; a flag that states a term of the prediction is a fault."""
        self.found.passed.add(_plain(flag))
        if any(_among(flag, (*row.flags, *row.off)) for row in self.dialect.engine.flags):
            self._fault("changes what is predicted", place, remedy="use --ignore-flags without it")

    def _limited(self, name: str, text: object, place: _Place) -> None:
        """Record a fault for a value outside those with which a flag, or a key, changes nothing, and a flag that is not modelled."""
        if _among(name, self.dialect.engine.ignored.unmodelled):
            self.found.unmodelled.append(StatedTerm(printable(str(text)), place.line, name))
        limited = self.dialect.engine.ignored.limited
        known = next((limited[each] for each in limited if _plain(each) == _plain(name)), None)
        if known is not None and str(text) not in known:
            remedy = None if known else IGNORED
            what = f"{printable(str(text))} changes what is predicted, and is not read"
            self._fault(what, place, ", ".join(known) or None, remedy=remedy)

    def _note(self, row: EngineFlag, text: object, place: _Place) -> None:
        """Record the value of a flag, key or variable, translated to our terms."""
        written = str(text)
        if row.values:
            self.found.words[row.term] = StatedTerm(written, place.line, place.name)
        if written in row.unknown:
            self.found.open.add(row.term)
            return
        if written in row.unread:
            self._fault(f"{written} {row.unread[written]}, which is not predicted", place, remedy="leave it out")
            return
        if row.values:
            if written in (ours := row.ours):
                if row.recalled:
                    self.found.recalled.append(StatedTerm(written, place.line, place.name))
                self._take(row.term, True if row.states_on else ours[written], place)
                return
            known = [*ours, *row.unknown]
            self._fault(f"{written!r} is not known", place, ", ".join(known), nearest=nearest(written, known))
            return
        sized = _SIZED.match(written) if row.term in TOKENS else None
        value = int(float(sized[1]) * _SIZES[sized[2]]) if sized else scalar(written) if isinstance(text, str) else text
        wanted = _expected(row)
        if wanted is not None and "$" in written:
            why = "an expansion that is not read" if is_unread(written) else "which the file does not state"
            unstated = f"is set by {printable(written)}, {why}"
            what = RECKONED_TOLD if RECKONED in written else unstated
            self._fault(what, place, wanted[0])
        elif wanted is not None and not wanted[1](value):
            same = (each for each in self.dialect.engine.flags if set(each.flags) & set(row.flags))
            later = next(
                (f"{wanted[0]}; {written} from {each.since}" for each in same if written in each.unknown), None
            )
            self._fault(f"must be {wanted[0]}, not {written!r}", place, later)
        elif row.choices and value not in row.choices:
            self._fault(f"takes no {written}", place, ", ".join(map(str, row.choices)))
        elif isinstance(value, (str, int, float)):
            self._take(row.term, value, place)
        else:
            self._fault(f"{written!r} is no value", place)

    def _unknown(self, place: _Place) -> None:
        """Record a fault for a flag that this version does not have, or that is unknown."""
        engine, what = self.dialect.engine, f"{self.dialect.title} {self.dialect.version}"
        others = [row for row in engine.flags if _among(place.name.partition(".")[0], (*row.flags, *row.off))]
        if others:
            row = others[0]
            when = f"from {row.since}" if row.until is None else f"{row.since} to {row.until}"
            self._fault(f"is no flag of {what}", place, when)
            return
        stated = [flag for row in self.dialect.rows for flag in (*row.flags, *row.off)]
        near = nearest(place.name, [*stated, *(flag for flag, kind in self.passed.items() if kind != UNREAD)])
        self._fault(f"is not known of {what}", place, nearest=near, remedy=IGNORED)

    def _object(self, rows: Sequence[EngineFlag], text: str, path: str, place: _Place) -> None:
        """Read a flag whose value is a JSON object, one key of it (`--speculative-config.method`), or a level in its place."""
        content: object = {path: scalar(text)} if path else None
        if not path:
            with suppress(ValueError, RecursionError):
                content = json.loads(text)
        level = next((row.key for row in rows if row.bare), None)
        if isinstance(content, int) and level is not None:
            content = {level: content}
        if isinstance(content, dict):
            if rows or self.passed.get(_plain(place.name.partition(".")[0])) == OVERRIDE:
                self._keys(rows, content, place)
        elif rows or not isinstance(content, int):  # `--compilation-config 3` is a level
            self._fault(f"must be a JSON object, not {printable(text)!r}", place)

    def _keys(self, rows: Sequence[EngineFlag], content: Mapping[str, object], place: _Place) -> None:
        """Read the keys of an object. Keys that change nothing are skipped; unknown keys are faults."""
        known = {key: row for row in rows if row.key is not None for key in (row.key, *row.also_keys)}
        ignored = self.dialect.engine.ignored
        passed = ignored.keys if rows else ignored.model_keys
        open_ = self.passed.get(_plain(place.name.partition(".")[0])) == OBJECT  # its other keys change nothing
        for path, value in _flat(content, ""):
            row, at = known.get(path), _Place(place.line, path)
            if row is not None and row.absent:
                if value is None:
                    self._take(row.term, True, at)
            elif row is not None:
                if value is not None:
                    self._note(row, value, at)
            elif limited := next(_holding(path, (*ignored.limited, *ignored.unmodelled)), None):
                self._limited(limited, value, at)
            elif open_:
                continue
            elif rows and not any(_holding(path, passed)):
                self._fault(f"is not known of {place.name}", at, nearest=nearest(path, [*known, *passed]))
            elif not any(_holding(path, passed)):
                remedy = f"use --ignore-flags {place.name}, where it changes nothing"
                self._fault("is another model than the checkpoint's", at, remedy=remedy)

    def _settings(self, name: str, place: _Place) -> None:
        """Read the engine's settings file, from the same file as the command or from its folder."""
        path = name.replace("\\", "/")
        held = self.source.files.get(path, self.source.files.get(path.rpartition("/")[2]))
        beside = None if held is not None or self.source.folder is None else self.source.folder / expanded(name)
        if beside is not None and is_file(beside):
            held = (read_text(beside), 1)
        if held is None:
            allowed = "a ConfigMap that the container mounts, a heredoc or a config of the same file"
            unread = f"{name!r} is not here: what it states is not known"
            self._fault(RECKONED_TOLD if RECKONED in name else unread, place, allowed)
            return
        text, first = held
        reader = _Reader(
            self.dialect, Source(self.source.file if beside is None else str(beside), ignored=self.source.ignored), ()
        )
        reader.of_file(text, first, name)
        if beside is not None:  # its terms get the line of the flag that names it
            reader.found.terms = {term: each._replace(line=place.line) for term, each in reader.found.terms.items()}
        self.beside.append(reader.found)

    def of_file(self, text: str, first: int, name: str) -> None:
        """Read the text of a settings file that begins at line `first`."""
        try:
            held = documents(text, self.source.file)
        except InputError as error:
            for fault in error.faults:
                self._fault(fault.message, _Place((fault.line or 1) + first - 1, fault.field or name))
            return
        content = held[0].data if len(held) == 1 else None
        if not isinstance(content, dict):
            self._fault("must hold keys and values", _Place(first, name))
        elif rows := [row for row in self.dialect.rows if row.file]:
            self._keys(rows, content, _Place(first, name))
        else:
            self.words = tuple(_as_flags(content, held[0].spots, first))
            self.read()


def _as_flags(content: Mapping[str, object], spots: Mapping[tuple[str | int, ...], Spot], first: int) -> Iterator[Word]:
    """Yield the keys of a settings file as flags, in the way the engines read them."""
    for key, value in content.items():
        line, written = (spots[(key,)].line + first - 1, spots[(key,)].text) if (key,) in spots else (None, None)
        if value is None or value is False:
            continue
        yield Word(f"--{key}", line)
        for each in value if isinstance(value, list) else () if value is True else (value,):
            text = json.dumps(each) if isinstance(each, dict) else str(each)
            yield Word(text if written is None else written, line)


def _holding(path: str, keys: Iterable[str]) -> Iterator[str]:
    """Yield those of the keys that are a dotted path, or hold it."""
    return (key for key in keys if f"{path}.".startswith(f"{key}."))


def _flat(content: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    """Yield the values of nested mappings by dotted path."""
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
