"""Commands of a shell script: words with their lines, variables, and the files that heredocs write."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from sizing.launch.flags import Word
from sizing.specs.errors import InputError

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_TARGET = re.compile(r">\s*([^\s<>|&]+)")
_SET = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
MOST_WORDS = 10_000  # of a command: far beyond any that a person writes
_ENDS = frozenset({"&&", "||", ";", "|", "&", "(", ")"})


class ShellScript(NamedTuple):
    """A shell script: its commands, the variables that it sets, and the files that it writes, each with its first line."""

    commands: tuple[tuple[Word, ...], ...]
    variables: dict[str, str]
    files: dict[str, tuple[str, int]]


def script(text: str, file: str, first_line: int = 1) -> ShellScript:
    """Read a script whose first line is `first_line` of a file. Raises InputError for a quote that nothing closes."""
    files: dict[str, tuple[str, int]] = {}
    variables: dict[str, str] = {}
    commands = []
    for line, command in _commands(text.splitlines(), files, first_line):
        words = list(_words(command, line, file))
        while words and (found := _SET.fullmatch(words[0].text)):
            variables[found[1]] = found[2]
            words = words[1:]
        if words and words[0].text != "export":
            commands.append(tuple(words))
        elif words:
            variables |= {set_[1]: set_[2] for word in words[1:] if (set_ := _SET.fullmatch(word.text))}
    return ShellScript(tuple(commands), variables, files)


def _commands(lines: list[str], files: dict[str, tuple[str, int]], first_line: int) -> Iterator[tuple[int, str]]:
    """Yield commands, each of its lines joined by newlines, with the number of its first line; heredocs go to `files`."""
    at = 0
    while at < len(lines):
        start, held = at, [lines[at]]
        while held[-1].endswith("\\") and not held[-1].lstrip().startswith("#") and at + 1 < len(lines):
            held[-1] = held[-1][:-1]
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


def _words(command: str, line: int, file: str) -> Iterator[Word]:
    """Yield the words of one command with their lines. Raises InputError for an open quote, and for far too many words."""
    text = io.StringIO(command)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();|&")
    lexer.whitespace_split, lexer.commenters = True, "#"
    before, at = 0, 0  # lines, and characters, that are read
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
        ended = (
            command[end - 1 : end] == "\n" if word not in _ENDS else False
        )  # the character after a word is read with it
        yield Word(word, line + max(0, before - ended - word.count("\n")))
    raise InputError(f"a command has more than {MOST_WORDS:,} words", file=file, line=line)


def words(text: str, file: str, line: int = 1) -> tuple[Word, ...]:
    """The words of one command line. Raises InputError for a quote that nothing closes."""
    return tuple(_words(text, line, file))
