"""Commands in a shell script: words with their lines, variables, and the files that heredocs write."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, takewhile
from typing import NamedTuple

from sizing.launch.flags import Word
from sizing.specs.errors import InputError

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_TARGET = re.compile(r">\s*([^\s<>|&]+)")
_SET = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
LASTING = ("gpu", "engine")  # facts in a comment that hold for all commands after it
ABOUT = "llmsize/"  # prefix of a comment on the next command
_SAID = re.compile(rf"{ABOUT}([a-z]+)=(\S+)")
_KUBERNETES = re.compile(r"\$\(([A-Za-z_]\w*)\)")
_OUTPUT = re.compile(r"\$\(\(([^()]*)\)\)|\$\([^()]*\)")
_OF_PRODUCT = re.compile(r"[\s${}]")
MOST_WORDS = 10_000  # words in a command: far more than a person writes
MOST_HELD = 100_000  # characters of a variable
_VARIABLE = re.compile(r"\$(?:\(([A-Za-z_]\w*)\)|\{([A-Za-z_]\w*|\d+)(?::?[-=]([^}]*))?\}|([A-Za-z_]\w*))")
_ARRAY = re.compile(
    r"\s*(?:(?:export|readonly|local|declare\s+-a)\s+)?([A-Za-z_]\w*)(\+?)=\((.*)\)\s*(?:#.*)?", re.DOTALL
)
_OPENED = re.compile(r"\s*(?:[\w-]+\s+)*[A-Za-z_]\w*\+?=\([^)]*\Z")
_WHOLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\[[@*]\]\}|\{?([A-Za-z_]\w*)\}?)")
_ASSIGNED = re.compile(r"\$\{([A-Za-z_]\w*):?=([^}]*)\}")  # in the arguments of `:`, which does nothing else
OWN_ARGUMENTS = ("$@", "$*", "${@}", "${*}")  # of a script
_ENDS = frozenset({"&&", "||", ";", "|", "&", "(", ")"})


class ShellCommand(NamedTuple):
    """A command with the variables set for it, and the facts in comments before it (`llmsize/gpu=h100-sxm`)."""

    words: tuple[Word, ...]
    variables: Mapping[str, str]
    said: Mapping[str, Word] = {}


def with_variables(text: str, variables: Mapping[str, str]) -> str:
    """The text with variables replaced if they are known or have a default; others stay."""

    def value(found: re.Match[str]) -> str:
        return variables.get(found[1] or found[2] or found[4], found[0] if found[3] is None else found[3])

    return _VARIABLE.sub(value, text)


class ShellScript(NamedTuple):
    """A shell script: its commands, and the files that it writes, with their first lines."""

    commands: tuple[ShellCommand, ...]
    files: dict[str, tuple[str, int]]


def script(text: str, file: str, first_line: int = 1) -> ShellScript:
    """Read a script that begins at line `first_line` of a file. Raises InputError for an open quote."""
    files: dict[str, tuple[str, int]] = {}
    variables: dict[str, str] = {}
    said: dict[str, Word] = {}
    commands = []
    for line, lines in _commands(text.splitlines(), files, first_line):
        if lines.lstrip().startswith("#"):
            said |= {name: Word(value, line) for name, value in _SAID.findall(lines)}
        array = _ARRAY.fullmatch(lines)
        if array is not None:
            items = shlex.join(word.text for word in _split(_words(array[3], line, file), variables))
            held = {array[1]: f"{variables.get(array[1], '')} {items}" if array[2] else items}
            variables |= _bounded(held, file, line)
            continue
        for command in _parts(_words(lines, line, file)):
            words, set_ = _settings(tuple(_split(command, variables)))
            if words and words[0].text == ":":
                set_ = {name: value for word in words for name, value in _ASSIGNED.findall(word.text)}
                variables |= {name: value for name, value in set_.items() if name not in variables}
            elif words:
                commands.append(ShellCommand(words, {**variables, **set_}, said))
                said = {name: word for name, word in said.items() if name in LASTING}
            else:
                held = {name: with_variables(value, variables) for name, value in set_.items()}
                variables |= _bounded(held, file, line)
    return ShellScript(tuple(commands), files)


def _bounded(held: Mapping[str, str], file: str, line: int) -> Mapping[str, str]:
    """The values of variables. Raises InputError for one that is far too long, as each may be written of others."""
    for name, value in held.items():
        if len(value) > MOST_HELD:
            raise InputError(f"holds more than {MOST_HELD:,} characters", file=file, line=line, field=f"${name}")
    return held


def _parts(words: Iterable[Word]) -> Iterator[tuple[Word, ...]]:
    """Yield the commands in a line. A command ends where its output is redirected to a file."""
    for ends, part in groupby(words, lambda word: word.text in _ENDS):
        if not ends:
            kept = takewhile(lambda word: not word.text.startswith((">", "2>")), part)
            yield tuple(word for word in kept if word.text.strip())


def _split(command: Iterable[Word], variables: Mapping[str, str]) -> Iterator[Word]:
    """Yield the words of a command; a variable that holds several flags gives a word for each of them, as an array does."""
    for word in command:
        found = _WHOLE.fullmatch(word.text)
        held = variables.get(found[1] or found[2], "") if found else ""
        if found and held and (found[1] or held.startswith("-")):
            yield from (Word(text, word.line) for text in (shlex.split(held) if found[1] else held.split()))
        else:
            yield word


def _settings(command: tuple[Word, ...]) -> tuple[tuple[Word, ...], dict[str, str]]:
    """The words of a command, and the variables that are set before it. `export` has no words."""
    export = command[:1] and command[0].text == "export"
    words = command[1:] if export else command
    set_ = list(takewhile(bool, (_SET.fullmatch(word.text) for word in words)))
    found = {match[1]: match[2] for match in set_ if match}
    return () if export else words[len(set_) :], found


def _commands(lines: list[str], files: dict[str, tuple[str, int]], first_line: int) -> Iterator[tuple[int, str]]:
    """Yield each command, its lines joined by newlines, with the number of its first line. Heredocs go to `files`."""
    at = 0
    while at < len(lines):
        start, held = at, [lines[at]]
        array = _OPENED.match(lines[at])
        while at + 1 < len(lines):
            if held[-1].endswith("\\") and not held[-1].lstrip().startswith("#"):
                held[-1] = held[-1][:-1]
            elif not array or ")" in held[-1]:
                break
            at += 1
            held.append(lines[at])
        at += 1
        written = _HEREDOC.search(held[-1])
        if written:
            end = next((k for k in range(at, len(lines)) if lines[k].strip() == written[2]), len(lines))
            if target := _TARGET.search(held[-1]):
                files[target[1].strip("'\"").rpartition("/")[2]] = ("\n".join(lines[at:end]), first_line + at)
            at = end + 1
            continue
        yield first_line + start, "\n".join(held)


def _reckoned(found: re.Match[str]) -> str:
    """One word for shell arithmetic (`${=A*8}`) or for the unknown output of a command, with the same number of lines."""
    word = "_" if found[1] is None else f"={_OF_PRODUCT.sub('', found[1])}"
    return f"${{{word}}}" + "\n" * found[0].count("\n")


def _words(command: str, line: int, file: str) -> Iterator[Word]:
    """Yield the words of one command with their lines. Raises InputError for an open quote, and for far too many words."""
    command = _OUTPUT.sub(_reckoned, _KUBERNETES.sub(r"${\1}", command))
    text = io.StringIO(command)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();|&")
    lexer.whitespace_split, lexer.commenters = True, "#"
    before, at = 0, 0  # lines and characters read so far
    for count in range(MOST_WORDS + 1):
        try:
            word = lexer.get_token()
        except ValueError:
            raise InputError("a quote is not closed", file=file, line=line) from None
        if word is None:
            return
        if count == MOST_WORDS:
            break
        end = text.tell()
        before, at = before + command.count("\n", at, end), end
        ended = word not in _ENDS and command[end - 1 : end] == "\n"  # the parser also reads the character after a word
        yield Word(word, line + max(0, before - ended - word.count("\n")))
    raise InputError(f"a command has more than {MOST_WORDS:,} words", file=file, line=line)


def words(text: str, file: str, line: int = 1) -> tuple[Word, ...]:
    """The words of one command line. Raises InputError for an open quote."""
    return tuple(_words(text, line, file))
