"""Commands of a shell script with their variables, as its conditions, functions and loaded files set them."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice, product, takewhile
from typing import NamedTuple

from sizing.catalog.shelf import only
from sizing.launch.expansion import MOST_HELD, NAME, OPERAND, VARIABLE, with_variables
from sizing.launch.flags import Word
from sizing.launch.script_text import DEFINES, ENDS, MOST_WORDS, RECKONED, commands_of, lines_of, words_of_command
from sizing.specs.errors import InputError
from sizing.specs.launch import LaunchFacts, ScriptLimits
from sizing.specs.units import printable

_SET = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
LASTING = ("gpu", "engine")  # facts in a comment that hold for all commands after it
ABOUT = "llmsize/"  # prefix of a comment on the next command
_SAID = re.compile(rf"{ABOUT}([a-z]+)=(\S+)")
MOST_ALL_WORDS = 10 * MOST_WORDS  # of all commands, with those of variables
MOST_BRANCHES = 16  # that set variables otherwise than others, each of which is followed
_DEFAULTED = re.compile(r"\$\{([A-Za-z_]\w*):?[-=+]")
_NAMED = re.compile(r"\$[({]?([A-Za-z_]\w*)")
_ARRAY = re.compile(rf"\$\{{({NAME})\[[@*]\]\}}")
_ASSIGNED = re.compile(rf"\$\{{({NAME}):?=({OPERAND})\}}")  # in the arguments of `:`, which does nothing else
OWN_ARGUMENTS = ("$@", "$*", "${@}", "${*}")  # of a script
_DECLARES = frozenset({"export", "readonly", "declare", "local", "typeset"})
_STEADY = _DECLARES | {"cd", "set", "source", ".", "mkdir", ":"}
_LOADS, _SETS_NONE, MOST_LOADED = (
    ("source", "."),
    ("activate",),
    4,
)  # a virtual environment sets no flag; files load one another
Load = Callable[[str], str | None]
_SETS_FOR = "env"  # sets variables for the command after it
_COUNTED = {  # what is bounded, in words
    "variables": "variables",
    "nested": "conditions inside one another",
    "loads": "files that it loads",
    "calls": "calls of functions",
    "call_depth": "functions that call one another",
}
_FORGETS, _RECKONS, _RUNS_TEXT, _SETS = frozenset({"unset", "read"}), "let", "eval", "set"
_CHANGED = re.compile(rf"({NAME})\s*(?:\+\+|--|[-+*/%]?=)")
_LOCAL = "local"
_SHOWS = frozenset({"echo", "printf", "grep", "pgrep", "pkill"})  # their words are text, no command
_OPENS, _CLOSES = frozenset({"if", "while", "until", "for", "select", "case"}), frozenset({"fi", "done", "esac"})
_TURNS = frozenset({"else", "elif"})
_RESERVED = _OPENS | _CLOSES | _TURNS | {"then", "do", "{", "}", "!", "time"}
ENDINGS = (".sh", ".bash")  # of the names of scripts
EXEC = "exec"  # a command that takes the place of its script


class ShellCommand(NamedTuple):
    """A command with the variables set for it, the facts in comments before it (`llmsize/gpu=h100-sxm`), and what was assumed.

    `branches` has the number of its branch in each condition around it, by the number of the condition. `set_at` are the places
    that set its variables.
    """

    words: tuple[Word, ...]
    variables: Mapping[str, str]
    said: Mapping[str, Word] = {}
    notes: tuple[str, ...] = ()
    branches: Mapping[int, int] = {}
    set_at: Mapping[str, str] = {}

    def excludes(self, later: ShellCommand) -> bool:
        """Whether a later command runs only where this one does not."""
        replaces = bool(self.words) and self.words[0].text == EXEC
        return replaces or any(self.branches.get(of, branch) != branch for of, branch in later.branches.items())

    def set_apart(self, other: ShellCommand) -> str:
        """The variables that are set otherwise for another command, and where, in words; nothing where there are none."""
        unlike = [name for name, value in self.variables.items() if value != other.variables.get(name)]
        where = {name: [each.set_at[name] for each in (self, other) if name in each.set_at] for name in unlike}
        return "".join(f", as ${name} is set in {' or '.join(dict.fromkeys(at))}" for name, at in where.items() if at)


class ShellScript(NamedTuple):
    """A shell script: its commands, and the files that it writes, with their first lines."""

    commands: tuple[ShellCommand, ...]
    files: dict[str, tuple[str, int]]


def script(
    text: str, file: str, first_line: int = 1, variables: Mapping[str, str] | None = None, load: Load = lambda _: None
) -> ShellScript:
    """Read a script that begins at line `first_line` of a file, with the variables of its environment.

    `load` gives the text of a file that it loads (`source env.sh`), None if that is not here. Raises InputError for a quote or an array that is not closed.
    """
    commands, files, set_in = _script(text, file, first_line, variables or {}, {}, load)
    splits: dict[int, set[int]] = {}
    for (_, number), held in set_in.items():
        if len(set(held.values())) > 1:
            splits.setdefault(number, set()).update(held)
    if math.prod(map(len, splits.values())) > MOST_BRANCHES:
        what = f"has conditions that set variables in more than {MOST_BRANCHES} ways"
        raise InputError(what, file=file, allowed="the command that runs, in quotes or in a script of its own")
    chosen = [dict(zip(splits, each, strict=True)) for each in product(*map(sorted, splits.values()))] if splits else []
    others = [(each, _script(text, file, first_line, variables or {}, each, load)[0]) for each in chosen]
    return ShellScript(tuple(_ways(commands, others)), files)


def _ways(
    commands: list[ShellCommand], others: Iterable[tuple[Mapping[int, int], list[ShellCommand]]]
) -> Iterator[ShellCommand]:
    """Yield each command once, or once for each choice of branches if those give it other words."""
    for at, command in enumerate(commands):
        ways: dict[tuple[str, ...], ShellCommand] = {}
        for branches, read_ in others:
            if at < len(read_) and all(command.branches.get(of, branch) == branch for of, branch in branches.items()):
                way = read_[at]._replace(branches={**command.branches, **branches})
                ways.setdefault(_written(way), way)
        yield from ways.values() if len(ways) > 1 else (command,)


def _written(command: ShellCommand) -> tuple[str, ...]:
    """The words of a command with its variables."""
    return tuple(with_variables(word.text, command.variables) for word in command.words)


def _script(
    text: str, file: str, first_line: int, variables: Mapping[str, str], chosen: Mapping[int, int], load: Load
) -> tuple[list[ShellCommand], dict[str, tuple[str, int]], dict[tuple[str, int], dict[int, str]]]:
    """The commands and files of a script where only the chosen branches set variables, and what branches set, by variable and block."""
    files: dict[str, tuple[str, int]] = {}
    state = _State(file, dict(variables), chosen, lambda name: files[name][0] if name in files else load(name))
    said: dict[str, Word] = {}
    commands: list[ShellCommand] = []
    for line, lines in commands_of(lines_of(text, file), files, first_line, state.variables):
        if lines.lstrip().startswith("#"):
            said = {**said, **{name: Word(value, line) for name, value in _SAID.findall(lines)}}
        for part in _parts(words_of_command(lines, line, file), file):
            commands += (command._replace(said=said) for command in state.run(part))
    return commands, files, state.set_in


class _Part(NamedTuple):
    """The words of one command. `items` are those of the array that its last word sets; `after` ends the command before it, `end` this one."""

    words: tuple[Word, ...]
    items: tuple[Word, ...] | None = None
    after: str = ""
    end: str = ";"


@dataclass(slots=True)
class _Block:
    """A block that a reserved word opens: its number in the script, and the number of the branch that is read."""

    word: str
    number: int
    branch: int = 0


@dataclass(slots=True)
class _State:
    """The variables of a script so far.

    `unsure` are those set where a condition holds, each with a sentence on it. `blocks` are those around a command, `opened`
    counts all of the script, and `steady` says that the command before it hardly fails. Of the blocks in `chosen` only that branch
    sets variables. `set_in` has the values that branches set, by variable and block. `loading` counts the files that
    load one another, `reading` is the innermost, and `unread` is the last that is not here. `set_at` are the places that set variables. `outside` has the variables around each subshell, and `arguments` those that the script sets itself. `functions` have the commands of each
    function, which run where it is called; `defining` is the one that is read, `depth` the braces around it, and `locals` what each call that runs hides.
    `loads`, `calls` and `words` count what is bounded.
    """

    file: str
    variables: dict[str, str]
    chosen: Mapping[int, int]
    load: Load
    loading: int = 0
    reading: str | None = None
    unread: str | None = None
    set_at: dict[str, str] = field(default_factory=dict)
    set_in: dict[tuple[str, int], dict[int, str]] = field(default_factory=dict)
    arguments: tuple[Word, ...] | None = None
    outside: list[tuple[int, dict[str, str], dict[str, str]]] = field(default_factory=list)
    chain: _Block | None = None
    unsure: dict[str, str] = field(default_factory=dict)
    blocks: list[_Block] = field(default_factory=list)
    opened: int = 0
    steady: bool = False
    limits: ScriptLimits = field(default_factory=lambda: only(LaunchFacts).script_limits)
    functions: dict[str, list[_Part]] = field(default_factory=dict)
    defining: str | None = None
    depth: int = 0
    locals: list[dict[str, str | None]] = field(default_factory=list)
    loads: int = 0
    calls: int = 0
    words: int = 0

    def run(self, part: _Part) -> list[ShellCommand]:
        """Set the variables that a command sets, or keep it where it is of a function; the commands that do anything else."""
        if part.words and part.words[0].text == DEFINES and len(part.words) > 1 and self.defining is None:
            self.defining, self.depth, part = part.words[1].text, 0, part._replace(words=part.words[2:])
            self.functions[self.defining] = []
        if self.defining is not None and self._is_kept(part, self.functions[self.defining]):
            return []
        self._most("variables", len(self.variables), part)
        self._most("nested", len(self.blocks), part)
        in_case = bool(self.blocks) and self.blocks[-1].word == "case"
        self._chained(part)
        found = self._run(part) if part.words else []
        opened = part.end == ")" and bool(self.outside) and self.outside[-1][0] == len(self.blocks)
        if opened:
            _, known, self.unsure = self.outside.pop()
            self.variables.clear()
            self.variables.update(known)
        if part.end == ")" and in_case and (not opened or part.after == "("):  # a pattern, before its commands
            self.blocks[-1].branch += 1
        elif part.end == "(":
            self.outside.append((len(self.blocks), dict(self.variables), dict(self.unsure)))
        return found

    def _most(self, what: str, count: int, part: _Part) -> None:
        """Raise InputError for more of something than any script has."""
        most = getattr(self.limits, what)
        if count > most:
            line = part.words[0].line if part.words else None
            raise InputError(f"has more than {most:,} {_COUNTED[what]}", file=self.file, line=line)

    def _is_kept(self, part: _Part, body: list[_Part]) -> bool:
        """Whether a command is of the function that is being read, and kept for its calls."""
        heads = [word.text for word in takewhile(lambda word: word.text in _RESERVED, part.words)]
        self.depth += heads.count("{") - heads.count("}")
        if self.depth > 0 or "}" in heads:
            body.append(part)
        if self.depth <= 0 and (part.words or part.end == "("):
            if not body:  # its commands stand in no braces: they are read where they stand
                del self.functions[str(self.defining)]
            self.defining = None
        return bool(body) or self.defining is not None

    def _called(self, name: str, given: tuple[Word, ...], part: _Part) -> list[ShellCommand]:
        """What a function does where it is called. What it declares as local ends with it."""
        self.calls += 1
        self._most("calls", self.calls, part)
        self._most("call_depth", len(self.locals) + 1, part)
        outer = self.arguments, self.chain, len(self.blocks)
        self.blocks += [self.chain] if self.chain else []
        self.arguments, self.chain = given, None
        self.locals.append({})
        found = [command for each in self.functions[name] for command in self.run(each)]
        for hidden, value in self.locals.pop().items():
            self.variables.pop(hidden, None)
            self.variables |= {} if value is None else {hidden: value}
        self.arguments, self.chain, blocks = outer
        del self.blocks[blocks:]
        return found

    def _chained(self, part: _Part) -> None:
        """Note the branch of `test && a || b` that a command is."""
        if part.after not in ("&&", "||"):
            self.chain = None
        elif self.chain is None and (part.after == "||" or not self.steady):
            self.opened += 1
            self.chain = _Block(part.after, self.opened, int(part.after == "||"))
        elif self.chain is not None and part.after == "||":
            self.chain.branch = 1

    def _around(self) -> list[_Block]:
        return [*self.blocks, self.chain] if self.chain else self.blocks

    def _run(self, part: _Part) -> list[ShellCommand]:
        plain = self._inside(part.words)
        if self.unread is not None:
            defaulted = {name for word in plain for name in _DEFAULTED.findall(word.text)}
            self.unsure |= {name: self.unread.format(name) for name in defaulted - self.variables.keys()}
        named = {name for word in (*plain, *(part.items or ())) for name in _NAMED.findall(word.text)}
        doubt = next((self.unsure[name] for name in sorted(named) if name in self.unsure), None)
        under = bool(self.blocks) or part.after == "||" or (part.after == "&&" and not self.steady)
        first = plain[0].text if plain else ""
        self.steady = not under and bool(first in _STEADY or _SET.fullmatch(first))
        if first in _LOADS and len(plain) > 1:
            self.loads += 1
            self._most("loads", self.loads, part)
            self._load(with_variables(plain[1].text, self.variables), plain[1].line)
            return []
        if first in _FORGETS:
            for word in plain[1:]:
                self.variables.pop(word.text, None)
            return []
        if first == _RECKONS:
            self.variables |= {changed[1]: RECKONED for word in plain[1:] if (changed := _CHANGED.match(word.text))}
            return []
        if part.items is not None and (match := _SET.fullmatch(plain[-1].text)):
            items = shlex.join(word.text for word in _split(part.items, self.variables))
            before = f"{self.variables.get(match[1], '')} " if match[2] else ""
            self._set(match, f"{before}{items}", plain[-1].line, under, doubt)
            return []
        words_ = self._words(plain)
        if first == _SETS and (marks := [at for at, word in enumerate(words_) if word.text == "--"]):
            self.arguments = words_[marks[0] + 1 :]
            return []
        if first in self.functions:
            return self._called(first, words_[1:], part)
        if self.arguments is not None:
            words_ = tuple(
                each for word in words_ for each in (self.arguments if word.text in OWN_ARGUMENTS else (word,))
            )
        if first == _RUNS_TEXT and len(words_) > 1:
            return self._run_text(" ".join(word.text for word in words_[1:]), plain[0].line)
        if first == ":":
            for name, value in (pair for word in words_ for pair in _ASSIGNED.findall(word.text)):
                self.variables[name] = self.variables.get(name) or with_variables(value, self.variables)
            return []
        set_, words_ = _settings(words_)
        if words_:
            own = {match[1]: self.variables.get(match[1], "") * bool(match[2]) + match[3] for match in set_}
            notes = tuple(dict.fromkeys(self.unsure[name] for name in sorted(named) if name in self.unsure))
            branches = {block.number: block.branch for block in self._around()}
            known = {**self.variables, **own}
            command = ShellCommand(words_, known, notes=notes, branches=branches, set_at=dict(self.set_at))
            return [] if first in _SHOWS else [command]
        for match in set_:
            if first == _LOCAL and self.locals:
                self.locals[-1].setdefault(match[1], self.variables.get(match[1]))
            before = self.variables.get(match[1], "") if match[2] else ""
            self._set(match, before + with_variables(match[3], self.variables), plain[0].line, under, doubt)
        return []

    def _words(self, plain: tuple[Word, ...]) -> tuple[Word, ...]:
        """The words of a command with the variables in them. Raises InputError where they are too many."""
        found = tuple(islice(_split(plain, self.variables), MOST_WORDS + 1))
        self.words += len(found)
        if len(found) > MOST_WORDS or self.words > MOST_ALL_WORDS:
            what = f"a command has more than {MOST_WORDS:,} words, or all have more than {MOST_ALL_WORDS:,}"
            raise InputError(what, file=self.file, line=plain[0].line)
        return found

    def _run_text(self, text: str, line: int | None) -> list[ShellCommand]:
        """The commands of a text that `eval` runs. Raises InputError for texts that run one another without end."""
        if self.loading >= MOST_LOADED:
            raise InputError(f"more than {MOST_LOADED} texts run one another", file=self.file, line=line)
        self.loading += 1
        parts = _parts(words_of_command(with_variables(text, self.variables), line or 1, self.file), self.file)
        found = [command for each in parts for command in self.run(each)]
        self.loading -= 1
        return found

    def _load(self, path: str, line: int | None) -> None:
        """Set the variables that a loaded file sets; those that a file may set that is not here are unsure."""
        name = path.rpartition("/")[2]
        text = self.load(path.removeprefix("./")) or self.load(name)
        if text is not None and self.loading < MOST_LOADED:
            outer, self.reading, self.loading = self.reading, name, self.loading + 1
            for at, lines in commands_of(lines_of(text, name), {}, 1, self.variables):
                for part in _parts(words_of_command(lines, at, name), name):
                    self.run(part)
            self.reading, self.loading = outer, self.loading - 1
        elif name not in _SETS_NONE:
            shown = printable(name).replace("{", "{{").replace("}", "}}")
            absent = f"{shown} (line {line}), which is not here"
            self.unread = f"${{}} may be set by {absent}, and is taken as the script has it"
            self.unsure |= {each: self.unread.format(each) for each in self.variables}

    def _inside(self, words_: tuple[Word, ...]) -> tuple[Word, ...]:
        """The words of a command after those that open and close blocks. The variable of a loop has no single value."""
        while words_ and (first := words_[0].text) in _RESERVED:
            if first in _OPENS:
                self.opened += 1
                self.blocks.append(_Block(first, self.opened))
            elif first in _CLOSES:
                del self.blocks[-1:]
            elif first in _TURNS and self.blocks:
                self.blocks[-1].branch += 1
            words_ = words_[1:]
            if first in ("for", "select") and words_:
                self.variables.pop(words_[0].text, None)
        return words_

    def _set(self, match: re.Match[str], value: str, line: int | None, under: bool, doubt: str | None) -> None:
        """Set a variable. Raises InputError for a value that is far too long, as each may be written of others."""
        name = match[1]
        if any(self.chosen.get(block.number, block.branch) != block.branch for block in self._around()):
            return
        for block in self._around():
            self.set_in.setdefault((name, block.number), {})[block.branch] = value
        if len(value) > MOST_HELD:
            what = f"holds more than {MOST_HELD:,} characters"
            raise InputError(what, file=self.file, line=line, field=f"${name}")
        if under:
            self.unsure[name] = f"${name} is set under a condition (line {line}), which is taken to hold"
        elif doubt is not None:
            self.unsure[name] = doubt
        elif not match[2]:
            self.unsure.pop(name, None)
        self.variables[name] = value
        self.set_at[name] = f"line {line}" if self.reading is None else f"{self.reading}:{line}"


def _settings(words_: tuple[Word, ...]) -> tuple[list[re.Match[str]], tuple[Word, ...]]:
    """The variables that are set before a command, and its words. What declares variables has no words."""
    if words_ and words_[0].text in _DECLARES:
        return [match for word in words_[1:] if (match := _SET.fullmatch(word.text))], ()
    set_ = [match for match in takewhile(bool, (_SET.fullmatch(word.text) for word in words_)) if match]
    words_ = words_[len(set_) :]
    at = next((at for at, word in enumerate(words_) if word.text.rpartition("/")[2] == _SETS_FOR), len(words_))
    given = list(takewhile(lambda word: word.text.startswith("-") or _SET.fullmatch(word.text), words_[at + 1 :]))
    if at + 1 + len(given) < len(words_):  # a command follows
        set_ += [match for word in given if (match := _SET.fullmatch(word.text))]
        words_ = words_[:at] + words_[at + 1 + len(given) :]
    return set_, words_


def _parts(words_: Iterable[Word], file: str) -> Iterator[_Part]:
    """Yield the commands in a line. A command ends where its output is redirected to a file."""
    part: list[Word] = []
    items: list[Word] | None = None
    after = ""
    for word in chain(words_, (Word(";"),)):
        if items is not None:
            if word.text != ")":
                items.append(word)
                continue
            yield _Part(tuple(part), tuple(items), after)
            part, items, after = [], None, ""
        elif word.text == "(" and part and (match := _SET.fullmatch(part[-1].text)) and not match[3]:
            items = []
        elif word.text in ENDS:
            kept = takewhile(lambda each: not each.text.startswith((">", "2>")), part)
            found = tuple(each for each in kept if each.text.strip())
            if found or word.text in ("(", ")"):
                yield _Part(found, None, after, word.text)
            part, after = [], word.text
        else:
            part.append(word)
    if items is not None:
        raise InputError("an array is not closed", file=file, line=part[-1].line)


def _split(command: Iterable[Word], variables: Mapping[str, str]) -> Iterator[Word]:
    """Yield the words of a command; a variable that holds several flags gives a word for each of them, as an array does."""
    for number, word in enumerate(command):
        array = _ARRAY.fullmatch(word.text)
        whole = None if array else VARIABLE.fullmatch(word.text)
        held = variables.get(array[1], "") if array else with_variables(word.text, variables) if whole else ""
        if held and (array or number == 0 or held.lstrip().startswith("-")):
            yield from (Word(text, word.line) for text in (shlex.split(held) if array else held.split()))
        elif held or not (whole and whole["rule"] == "+"):
            yield word
