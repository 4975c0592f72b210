"""Commands of a straight shell script, or of a systemd unit, with their variables.

What is not followed is noted with each command that it may change.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from sizing.catalog.shelf import only
from sizing.launch.documents import entries
from sizing.launch.script_text import NAME, RECKONED, SAID, VARIABLE, ScriptPart, names_in, parts, with_variables, words
from sizing.launch.terms import Word
from sizing.specs.errors import InputError
from sizing.specs.launch import LaunchFacts, ScriptLimits
from sizing.specs.units import printable

LASTING = ("gpu", "engine")  # facts in a comment that hold for all commands after it
OWN_ARGUMENTS = ("$@", "$*", "${@}", "${*}")  # of a script
ENDINGS = (".sh", ".bash")  # of the names of scripts
IN_LOOP = "stands in a loop"
EXEC = "exec"  # a command that takes the place of its script
_SET = re.compile(rf"({NAME})(\+?)=(.*)", re.DOTALL)
_ARRAY = re.compile(rf"\$\{{({NAME})\[[@*]\]\}}")
_DECLARES = frozenset({"export", "readonly", "declare", "local", "typeset"})
_STEADY = _DECLARES | {"cd", "set", "mkdir", ":", "source", "."}  # hardly fail
_LOADS, _SETS_NONE = frozenset({"source", "."}), "activate"  # of a virtual environment, which sets no flag
_ALTERS = frozenset({"unset", "read", "let", "mapfile", "readarray", "getopts"})  # the variables that they name
_SHOWS = frozenset({"echo", "printf", "grep", "pgrep", "pkill", "trap"})  # their words are text, no command
_LOOPS = frozenset({"while", "until", "for", "select"})
_OPENS, _CLOSES = _LOOPS | {"if", "case", "{"}, frozenset({"fi", "done", "esac", "}"})
_RESERVED = _OPENS | _CLOSES | {"then", "do", "else", "elif", "!", "time"}
_PLACES = {"function": "of a function", "(": "in a subshell"}
_FUNCTION, _SUBSHELL, _GROUP, _CHAIN = "function", "(", "{", ("&&", "||")


class ShellCommand(NamedTuple):
    """A command with the variables set for it, and the facts in comments before it (`llmsize/gpu=h100-sxm`).

    `doubts` say of each variable, and file, how it may be set otherwise. `around` says what it stands in that is not followed,
    `condition` what decides whether it runs. `ends` says that the script ends with it. `own` are the words as they are written.
    `loaded` says what may set variables of its environment that the script does not name; `unexported` are not of it.
    """

    words: tuple[Word, ...]
    variables: Mapping[str, str]
    said: Mapping[str, Word] = {}
    doubts: Mapping[str, str] = {}
    around: str | None = None
    condition: str | None = None
    ends: bool = False
    own: tuple[Word, ...] = ()
    loaded: str | None = None
    unexported: frozenset[str] = frozenset()

    def unfollowed(self, environment: Iterable[str]) -> str | None:
        """What is not followed and may change the command, or a variable of its environment that the engine reads; else None."""
        names = (*(name for word in self.own for name in _names(word.text)), *environment)
        own = (f"${name} is set without `export`" for name in environment if name in self.unexported)
        return self.around or next((self.doubts[name] for name in names if name in self.doubts), next(own, None))


class ShellScript(NamedTuple):
    """A shell script: its commands, and the files that it writes, with their first lines."""

    commands: tuple[ShellCommand, ...]
    files: dict[str, tuple[str, int]]


def script(text: str, file: str, first_line: int = 1, variables: Mapping[str, str] | None = None) -> ShellScript:
    """Read a script that begins at line `first_line` of a file, with the variables of its environment.

    Raises InputError for a quote or an array that is not closed, and for more than a person writes.
    """
    state = _State(file, dict(variables or {}))
    found = [command for part in parts(text, file, first_line) for command in state.run(part)]
    return ShellScript(tuple(found), state.files)


def _names(text: str) -> Iterator[str]:
    """Yield the variables that a word names, and the file that it may name."""
    yield from names_in(text)
    yield from (found[1] for found in _ARRAY.finditer(text))
    yield from ("@",) if text in OWN_ARGUMENTS else ()
    yield f"/{text.rpartition('/')[2].rpartition('=')[2]}"


@dataclass(slots=True)
class _Block:
    """What stands around a command: its word and line, and what is set in it."""

    word: str
    line: int
    sets: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _State:
    """The variables of a script so far, and how each, and each file that it writes, may be set otherwise.

    `blocks` are those around the next command, `sure` says that the commands before it hardly fail. `functions` are their names,
    `defining` says that the body of one follows, and `altered` has what they may set. `loaded` says what may set variables that
    the script does not set. `count` is that of all words.
    """

    file: str
    variables: dict[str, str]
    doubts: dict[str, str] = field(default_factory=dict)
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    arrays: set[str] = field(default_factory=set)
    unexported: set[str] = field(default_factory=set)
    blocks: list[_Block] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)
    altered: dict[str, str] = field(default_factory=dict)
    defining: bool = False
    loaded: str | None = None
    sure: bool = True
    count: int = 0
    limits: ScriptLimits = field(default_factory=lambda: only(LaunchFacts).script_limits)

    def run(self, part: ScriptPart) -> Iterator[ShellCommand]:
        """Yield the command of a part unless it only sets variables."""
        self._chained(part)
        if self._defines(part):
            return
        words_ = self._inside(part)
        pattern = part.end == ")" and self._in("case")
        if not pattern and (words_ or part.writes):
            yield from self._command(part._replace(words=words_))
        steady = bool(part.words) and (part.words[0].text in _STEADY or _SET.fullmatch(part.words[0].text) is not None)
        self.sure = steady and (self.sure or part.after not in ("&&", "||"))
        if part.end == "(":
            self._open(_SUBSHELL, part.line)
        elif part.end in (")", ";;") and not pattern:
            if self._in(*_CHAIN):
                self._close()
            if part.end == ";;":
                self._turn()
            elif self._in(_SUBSHELL, _FUNCTION):
                self._close()

    def _in(self, *blocks: str) -> bool:
        return bool(self.blocks) and self.blocks[-1].word in blocks

    def _chained(self, part: ScriptPart) -> None:
        """Note the chain (`test && a || b`) that a command is of, or that ends before it."""
        if part.after not in _CHAIN:
            if self._in(*_CHAIN):
                self._close()
        elif self._in(*_CHAIN):
            self.blocks[-1].word = part.after
        elif part.after == "||" or not self.sure:
            self._open(part.after, part.line)

    def _defines(self, part: ScriptPart) -> bool:
        """Whether a part is the head of a function: its name and parentheses."""
        texts = [word.text for word in part.words]
        named = texts[1:2] if texts[:1] == [_FUNCTION] else texts if part.end == "(" and len(texts) == 1 else []
        if named and named[0] not in _RESERVED:
            self.functions.add(named[0])
            self.defining = True
            return part.end == "(" or len(texts) == 2
        return self.defining and part.after == "(" and part.end == ")" and not texts

    def _inside(self, part: ScriptPart) -> tuple[Word, ...]:
        """The words of a command after those that open and close blocks; none of the head of a loop or a case."""
        words_ = part.words[2:] if part.words and part.words[0].text == _FUNCTION else part.words
        while words_ and (first := words_[0].text) in _RESERVED:
            words_ = words_[1:]
            if first in _OPENS:
                self._open(first, part.line)
            elif first in _CLOSES:
                self._close()
            elif first in ("else", "elif"):
                self._turn()
            if first in ("for", "select") and words_:
                self._doubt(words_[0].text, f"${words_[0].text} is set by a loop (line {part.line})")
            if first in ("for", "select", "case"):
                return ()
        return words_

    def _open(self, word: str, line: int) -> None:
        if len(self.blocks) >= self.limits.nested:
            what = f"has more than {self.limits.nested} conditions inside one another"
            raise InputError(what, file=self.file, line=line)
        self.blocks.append(_Block(_FUNCTION if self.defining and word in (_GROUP, _SUBSHELL) else word, line))
        self.defining = False

    def _turn(self) -> None:
        """What a branch sets may be set or not after it."""
        if self.blocks and self.blocks[-1].word != _GROUP:
            self.doubts |= self.blocks[-1].sets

    def _close(self) -> None:
        self._turn()
        del self.blocks[-1:]

    def _command(self, part: ScriptPart) -> Iterator[ShellCommand]:
        own, line = part.words, part.line
        words_ = self._split(own, line)
        doubt = self._doubted((*own, *(part.items or ())))
        for word in own:
            for found in VARIABLE.finditer(word.text):
                if found["rule"] == "=":
                    self._set(found[2], with_variables(found[0], self.variables), line, doubt)
        self._write(part)
        set_, rest = _settings(words_)
        first = rest[0].text if rest else ""
        if part.items is not None and own and (match := _SET.fullmatch(own[-1].text)):
            value = shlex.join(word.text for word in self._split(part.items, line))
            if match[2] and match[1] in self.variables and match[1] not in self.arrays:
                self.variables[match[1]] = shlex.quote(self.variables[match[1]])  # becomes its first item
            self.arrays.add(match[1])
            self._set(match[1], f"{match[2] and ' '}{value}", line, doubt, appends=bool(match[2]))
        elif not rest:
            names = {word.text.partition("=")[0].rstrip("+") for word in words_}
            if words_ and words_[0].text in _DECLARES:
                self.unexported -= names if words_[0].text == "export" or "-x" in names else set()
            else:
                self.unexported |= names - self.variables.keys()
            for match in set_:
                both = f"${match[1]} is set as an array and as text (line {line})" if match[1] in self.arrays else doubt
                self._set(match[1], with_variables(match[3], self.variables), line, both, appends=bool(match[2]))
        else:
            given = {match[1]: with_variables(match[3], self.variables) for match in set_}
            yield from self._started(part, rest, given)
            self._changed_by(first, rest, line)

    def _started(self, part: ScriptPart, words_: tuple[Word, ...], given: Mapping[str, str]) -> Iterator[ShellCommand]:
        """Yield a command with what it stands in, and the doubts in what it may read."""
        first, line = words_[0].text, part.line
        around = next((each for each in self.blocks if each.word in (*_LOOPS, _FUNCTION)), None)
        condition = next((each for each in self.blocks if each.word in ("if", "case", *_CHAIN)), None)
        why = None
        if around is not None:
            why = f"{'stands in a function' if around.word == _FUNCTION else IN_LOOP} (line {around.line})"
        elif first == "eval":
            why, words_ = (
                "is run by `eval`",
                words(with_variables(" ".join(each.text for each in words_[1:]), self.variables), self.file, line),
            )
        elif first in self.functions:
            why = f"is run by the function {printable(first)}"
        elif part.end == "(":
            why = "holds a parenthesis"
        named = {name for word in part.words for name in names_in(word.text)}
        for names, what in (
            (named & given.keys(), "which it also sets"),
            (named & self.arrays, "an array, without [@]"),
        ):
            why = why or next((f"names ${name}, {what}" for name in sorted(names)), None)
        doubts = {name: text for name, text in self.doubts.items() if name not in given}
        if self.loaded:
            open_ = {found[2] for word in part.words for found in VARIABLE.finditer(word.text) if found["rule"]}
            doubts |= {name: f"${name} may be set by {self.loaded}" for name in open_ - self.variables.keys()}
        ends = first == EXEC and part.end not in ("&", "|") and not any(each.word == _SUBSHELL for each in self.blocks)
        at = None if condition is None else f"the condition of line {condition.line}"
        if first not in _SHOWS and words_:
            variables, kept = {**self.variables, **given}, frozenset(self.unexported - given.keys())
            yield ShellCommand(words_, variables, part.said, doubts, why, at, ends, part.words, self.loaded, kept)

    def _changed_by(self, first: str, words_: tuple[Word, ...], line: int) -> None:
        """Note what a command may set that is not followed."""
        where = f"(line {line})"
        names = [found[0] for word in words_[1:] if (found := re.match(NAME, word.text))]
        if first in _ALTERS or [word.text for word in words_[:2]] == ["printf", "-v"]:
            for name in names:
                self._doubt(name, f"${name} is changed by `{first}` {where}")
        elif first == "shift" or (first == "set" and any(word.text == "--" for word in words_[1:])):
            for name in "@123456789":
                self._doubt(name, f"${name} is changed by `{first}` {where}")
        elif first == "eval" or (first in _LOADS and len(words_) > 1):
            name = words_[-1 if first == "eval" else 1].text.rpartition("/")[2]
            if first == "eval" or name != _SETS_NONE:
                self.loaded = f"{'`eval`' if first == 'eval' else printable(name)} {where}"
                for name in tuple(self.variables):
                    self._doubt(name, f"${name} may be set by {self.loaded}")

    def _write(self, part: ScriptPart) -> None:
        """Keep the lines that a command writes to a file; note any other way to write one."""
        for sign, path in part.writes:
            name = path.rpartition("/")[2]
            if part.heredoc is None or ">>" in sign or name in self.files:
                self._doubt(f"/{name}", f"{printable(name)} is written by the command of line {part.line}")
                continue
            text, line, literal = part.heredoc
            doubt = None if literal else self._doubted((Word(text),))
            self.files[name] = (text if literal else with_variables(text, self.variables), line)
            self._noted(f"/{name}", f"{printable(name)} is written in line {part.line}", doubt)

    def _doubted(self, words_: Iterable[Word]) -> str | None:
        """How the first of the words may be another, by the variables that it names."""
        names = (name for word in words_ for name in _names(word.text))
        return next((self.doubts[name] for name in names if name in self.doubts), None)

    def _doubt(self, name: str, text: str) -> None:
        self._noted(name, text, text)

    def _set(self, name: str, value: str, line: int, doubt: str | None, *, appends: bool = False) -> None:
        """Set a variable. Raises InputError for a value that is far too long, as each may be written of others."""
        if appends:
            value, doubt = self.variables.get(name, "") + value, doubt or self.doubts.get(name)
        if len(value) > self.limits.held:
            what = f"holds more than {self.limits.held:,} characters"
            raise InputError(what, file=self.file, line=line, field=f"${name}")
        self.variables[name] = value
        if len(self.variables) > self.limits.variables:
            raise InputError(f"has more than {self.limits.variables:,} variables", file=self.file, line=line)
        self._noted(name, f"${name} is set in line {line}", doubt)

    def _noted(self, name: str, told: str, doubt: str | None) -> None:
        """Note that a variable, or a file, is set here, for what stands around it. What a function sets is never sure again."""
        if around := next((block.word for block in reversed(self.blocks) if block.word != _GROUP), None):
            told = f"{told} {_PLACES.get(around, 'under a condition')}"
        if any(block.word == _FUNCTION for block in self.blocks):
            self.altered[name] = doubt or told
        doubt = self.altered.get(name) or (told if self._in("||") else doubt)
        self.doubts.pop(name, None)
        self.doubts |= {} if doubt is None else {name: doubt}
        for block in self.blocks:
            block.sets[name] = doubt or told

    def _split(self, command: Iterable[Word], line: int) -> tuple[Word, ...]:
        """The words of a command, of which a variable without quotes, and an array, may hold several."""
        found = list[Word]()
        for word in command:
            array = _ARRAY.fullmatch(word.text)
            array = array if array and array[1] in self.arrays else None
            whole = None if array or word.whole else VARIABLE.fullmatch(word.text)
            text = (
                self.variables.get(array[1]) if array else with_variables(word.text, self.variables) if whole else None
            )
            if text is None or text == word.text:
                found.append(word)
            else:
                found += (Word(each, word.line) for each in (shlex.split(text) if array else text.split()))
            if len(found) > self.limits.words or self.count + len(found) > self.limits.all_words:
                what = f"a command has more than {self.limits.words:,} words, or all have more than {self.limits.all_words:,}"
                raise InputError(what, file=self.file, line=line)
        self.count += len(found)
        return tuple(found)


def _settings(words_: tuple[Word, ...]) -> tuple[list[re.Match[str]], tuple[Word, ...]]:
    """The variables that are set before a command, and its words. What declares variables has no words."""
    if words_ and words_[0].text in _DECLARES:
        return [match for word in words_[1:] if (match := _SET.fullmatch(word.text))], ()
    set_ = [match for match in takewhile(bool, (_SET.fullmatch(word.text) for word in words_)) if match]
    words_ = words_[len(set_) :]
    at = next((at for at, word in enumerate(words_) if word.text.rpartition("/")[2] == "env"), len(words_))
    given = list(takewhile(lambda word: word.text.startswith("-") or _SET.fullmatch(word.text), words_[at + 1 :]))
    if at + 1 + len(given) < len(words_):  # a command follows
        set_ += [match for word in given if (match := _SET.fullmatch(word.text))]
        words_ = words_[:at] + words_[at + 1 + len(given) :]
    return set_, words_


_HEADER = re.compile(r"\[[A-Za-z][\w-]*\]\s*\Z")
_LINE = re.compile(r"(?m)^[ \t]*(?:(?P<said>[#;].*)|(?P<name>\w+)[ \t]*=[ \t]*(?P<value>(?:\\\n|.)*))$")
_SPECIFIER = re.compile(r"%(.)")
_INSIDE = re.compile(rf"\$\$|\$\{{({NAME})\}}")
START, ENVIRONMENT, LOADED = "ExecStart", "Environment", "EnvironmentFile"
PREFIXES = "-@:+!"  # of a command, which say how it is run
COMMENTS = ("#", ";")


def is_unit(text: str) -> bool:
    """Whether a text is a unit of systemd: its first line, except for comments, names a section."""
    lines = (line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith(COMMENTS))
    return _HEADER.match(next(lines, "")) is not None


def unit_script(text: str, file: str, load: Callable[[str], str | None]) -> ShellScript:
    """The commands of a unit, with facts in its comments. Its files of variables take precedence, wherever they stand."""
    set_, loaded, gone, said = dict[str, str](), dict[str, str](), list[str](), dict[str, Word]()
    starts: list[tuple[str, int]] = []
    line, before = 1, 0
    for found in _LINE.finditer(text):
        line, before = line + text.count("\n", before, found.start()), found.start()
        name, value = found["name"], _SPECIFIER.sub(_specified, found["value"] or "")
        said |= {key: Word(fact, line) for key, fact in SAID.findall(found["said"] or "")}
        if name == ENVIRONMENT:
            pairs = (word.text.partition("=") for word in words(value, file, line))
            set_ = {**set_, **{key: held for key, _, held in pairs}} if value.strip() else {}
        elif name == LOADED:
            path = value.strip().removeprefix("-")
            held = load(path) or load(path.rpartition("/")[2])
            loaded |= {} if held is None else entries(held.splitlines())
            gone += [f"{path} (line {line}), a file that is not here"] if held is None else []
        elif name == START:
            starts = [*starts, (value.lstrip(PREFIXES), line)] if value.strip() else []
    variables = {**set_, **loaded}
    commands = []
    for command, at in starts:
        own = words(command, file, at)
        named = {name for word in own for name in names_in(word.text)} if gone else ()
        doubts = {name: f"${name} may be set by {gone[-1]}" for name in named}
        split = tuple(each for word in own for each in _replaced(word, variables, file))
        commands.append(ShellCommand(split, variables, said, doubts, own=own))
    return ShellScript(tuple(each for each in commands if each.words), {})


def _specified(match: re.Match[str]) -> str:
    return "%" if match[1] == "%" else RECKONED


def _replaced(word: Word, variables: dict[str, str], file: str) -> Iterator[Word]:
    """Yield the words that systemd makes of one: `$NAME` alone may be several, `${NAME}` stays within its word."""
    if re.fullmatch(rf"\${NAME}", word.text):
        yield from (Word(each, word.line) for each in variables.get(word.text[1:], "").split())
        return
    text = _INSIDE.sub(lambda found: "$" if found[1] is None else variables.get(found[1], found[0]), word.text)
    if re.search(rf"\$\{{{NAME}:", text) and not set(text) & set(" \n"):  # of a shell, it may be
        raise InputError("is no syntax of systemd", file=file, line=word.line, field=text, allowed="${NAME}")
    yield word._replace(text=text)
