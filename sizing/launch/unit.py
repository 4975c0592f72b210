"""A systemd unit as a script: its command with the variables that systemd replaces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from sizing.launch.compose import entries
from sizing.launch.expansion import NAME, names_in
from sizing.launch.flags import Word
from sizing.launch.script_text import RECKONED, SAID, words
from sizing.launch.shell import ShellCommand, ShellScript
from sizing.specs.errors import InputError

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


def script(text: str, file: str, load: Callable[[str], str | None]) -> ShellScript:
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


def _specified(found: re.Match[str]) -> str:
    return "%" if found[1] == "%" else RECKONED


def _replaced(word: Word, variables: dict[str, str], file: str) -> Iterator[Word]:
    """Yield the words that systemd makes of one: `$NAME` alone may be several, `${NAME}` stays within its word."""
    if re.fullmatch(rf"\${NAME}", word.text):
        yield from (Word(each, word.line) for each in variables.get(word.text[1:], "").split())
        return
    text = _INSIDE.sub(lambda found: "$" if found[1] is None else variables.get(found[1], found[0]), word.text)
    if re.search(rf"\$\{{{NAME}:", text) and not set(text) & set(" \n"):  # of a shell, it may be
        raise InputError("is no syntax of systemd", file=file, line=word.line, field=text, allowed="${NAME}")
    yield word._replace(text=text)
