"""Splits the text of a shell script into commands, and these into words with their lines. Heredocs become files."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator, Mapping

from sizing.catalog.shelf import only
from sizing.launch.expansion import NAME, OPERAND, SUM, with_variables
from sizing.launch.flags import Word
from sizing.specs.errors import InputError
from sizing.specs.launch import LaunchFacts

DEFINES = "function"
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_TARGET = re.compile(r">\s*([^\s<>|&]+)")
_OUTPUT = re.compile(rf"\$\((?!{NAME}\))[^()]*\)|`[^`]*`|\$\{{#[^{{}}]*\}}")
RECKONED = "${_}"  # stands for what is known only as a script runs: the output of a command, the length of an array
MOST_INSIDE = 8  # commands whose output is a word of another
MOST_WORDS = 10_000  # words in a command: far more than a person writes
_WHOLE_WORD = re.compile(  # what keeps its blanks and signs in one word
    rf"{SUM}|\$\({NAME}\)|\$\{{{NAME}:?[-=+?]{OPERAND}\}}|(?<=[^\s;|&()])\#"
)
_KEPT = {ord(sign): 0xE000 + number for number, sign in enumerate(" \t\n;|&()#")}  # by signs that no command has
_GIVEN_BACK = {kept: sign for sign, kept in _KEPT.items()}
_BRACKETS = re.compile(  # and what holds none: quotes, also open ones, and comments
    r"""'[^']*(?:'|\Z)|"(?:[^"\\]|\\.)*(?:"|\Z)|\\.|(?<![^\s(;])\#[^\n]*|(?P<open>(?P<array>(?<!\w)[A-Za-z_]\w*\+?=)?\()|(?P<close>\))""",
    re.DOTALL,
)
ENDS = frozenset({"&&", "||", ";", "|", "&", "(", ")"})
_END = re.compile(r"&&|\|\||[();|&]")
_QUOTES = re.compile(r"\\.|['\"]|(?<![^\s;(&|])#.*")  # and what holds none: comments
_GOES_ON = re.compile(r"\A\s*[^\s#].*(?:&&|\|)\s*\Z")  # a line whose last command has another after it
_CHANGES = re.compile(rf"(?<![$\w])\(\(\s*({NAME})\s*(?:(?:\+\+|--)\s*|[-+*/%]?=(?!=)[^()]*)\)\)")  # ((TP *= 2))
_DEFINED = re.compile(rf"(?m)^(\s*)(?:{DEFINES}\s+)?([A-Za-z_][\w-]*)[ \t]*\([ \t]*\)")


def lines_of(text: str, file: str) -> list[str]:
    """The lines of a script. Raises InputError for one that is far too long."""
    if len(text) > (most := only(LaunchFacts).script_limits.characters):
        raise InputError(f"holds a script of more than {most:,} characters", file=file)
    return text.splitlines()


def commands_of(
    lines: list[str], files: dict[str, tuple[str, int]], first_line: int, variables: Mapping[str, str]
) -> Iterator[tuple[int, str]]:
    """Yield each command, its lines joined by newlines, with the number of its first line. Heredocs go to `files`."""
    at = 0
    while at < len(lines):
        start, held, more = at, [lines[at]], _array_lines(lines, at)
        quote = _quote_after(lines[at])
        while at + 1 < len(lines):
            if quote:
                quote = _quote_after(lines[at + 1], quote)
            elif held[-1].endswith("\\") and not held[-1].lstrip().startswith("#"):
                held[-1] = held[-1][:-1]
                quote = _quote_after(lines[at + 1])
            elif at - start >= more and not _GOES_ON.search(held[-1]):
                break
            else:
                quote = _quote_after(lines[at + 1])
            at += 1
            held.append(lines[at])
        at += 1
        written = _HEREDOC.search(held[-1])
        if written:
            end = next((k for k in range(at, len(lines)) if lines[k].strip() == written[2]), len(lines))
            if target := _TARGET.search(held[-1]):
                body = "\n".join(lines[at:end])
                body = body if written[1] else with_variables(body, variables)
                files[target[1].strip("'\"").rpartition("/")[2]] = (body, first_line + at)
            at = end + 1
            continue
        yield first_line + start, "\n".join(held)


def _quote_after(line: str, quote: str = "") -> str:
    """The quote that is open after a line, which begins within `quote`; empty for none."""
    for found in _QUOTES.finditer(line):
        sign = found[0]
        if quote:
            quote = "" if sign == quote else quote
        elif sign.startswith("#"):
            return ""
        else:
            quote = sign if sign in ("'", '"') else ""
    return quote


def _array_lines(lines: list[str], at: int) -> int:
    """The lines after this one that an array covers, if one begins here."""
    arrays = (found for found in _BRACKETS.finditer(lines[at] if "=(" in lines[at] else "") if found["array"])
    opened = next(arrays, None)
    count = 1 if opened else 0
    while opened and at + count <= len(lines):
        text, depth = "\n".join(lines[at : at + count]), 0
        for found in _BRACKETS.finditer(text, opened.start()):
            depth += bool(found["open"]) - bool(found["close"])
            if found["close"] and depth == 0:
                return text.count("\n", 0, found.end())
        count = count * 2 if at + count == len(lines) else min(count * 2, len(lines) - at)
    return len(lines) - at - 1 if opened else 0


def words_of_command(command: str, line: int, file: str) -> Iterator[Word]:
    """Yield the words of one command with their lines. Raises InputError for an open quote, and for far too many words."""
    lines_of(command, file)
    command = _CHANGES.sub(rf"\1={RECKONED}", _DEFINED.sub(rf"\1{DEFINES} \2 ;", command))
    for _ in range(MOST_INSIDE):
        command, count = _OUTPUT.subn(lambda found: RECKONED + "\n" * found[0].count("\n"), command)
        if not count:
            break
    text = io.StringIO(_WHOLE_WORD.sub(lambda found: found[0].translate(_KEPT), command))
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
        end, word = text.tell(), word.translate(_GIVEN_BACK)
        before, at = before + command.count("\n", at, end), end
        ended = word not in ENDS and command[end - 1 : end] == "\n"  # the parser also reads the character after a word
        place = line + max(0, before - ended - word.count("\n"))
        together = len(word) > 1 and not word.strip("();|&")  # the parser joins them
        yield from (Word(each, place) for each in (_END.findall(word) if together else (word,)))
    raise InputError(f"a command has more than {MOST_WORDS:,} words", file=file, line=line)


def words(text: str, file: str, line: int = 1) -> tuple[Word, ...]:
    """The words of one command line. Raises InputError for an open quote."""
    return tuple(words_of_command(text, line, file))
