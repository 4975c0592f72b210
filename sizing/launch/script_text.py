"""The text of a shell script: its commands, their words with lines, and the variables in them as a shell replaces them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from sizing.catalog.shelf import only
from sizing.launch.terms import Word
from sizing.specs.errors import InputError
from sizing.specs.launch import LaunchFacts

NAME = r"[A-Za-z_]\w*"
OPERAND = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*"  # of a default, which may hold a default of its own
VARIABLE = re.compile(
    rf"\$\$|\$\(({NAME})\)|\$\{{({NAME}|\d+)(?:(?P<empty>:?)(?P<rule>[-=+?])(?P<operand>{OPERAND}))?\}}|\$({NAME}|\d)"
)


def with_variables(text: str, variables: Mapping[str, str]) -> str:
    """The text with variables replaced if they are known or have a default; others stay, as do those that make it far too long."""
    left = 2 * only(LaunchFacts).script_limits.held

    def value(match: re.Match[str]) -> str:
        nonlocal left
        known = _known(match, variables)
        left -= len(known or "")
        return match[0] if known is None or left < 0 else known

    return VARIABLE.sub(value, text) if "$" in text else text


def names_in(text: str) -> Iterator[str]:
    """Yield the variables that a text names, also in defaults of others."""
    for found in VARIABLE.finditer(text):
        yield from (name for name in (name_of(found),) if name is not None)
        yield from names_in(found["operand"] or "")


def name_of(match: re.Match[str]) -> str | None:
    """The variable of a match of VARIABLE; None for `$$`."""
    return match[1] or match[2] or match[6]


def _known(match: re.Match[str], variables: Mapping[str, str]) -> str | None:
    """The value of a variable, or of what is given in its place; None if nothing says it."""
    known = variables.get(name_of(match) or "")
    missing, rule = known is None or (bool(match["empty"]) and not known), match["rule"]
    if rule == "+" and missing:
        return ""
    if rule == "+" and is_variable(known or ""):
        return None  # it may be empty
    if rule == "+" or (missing and rule in ("-", "=")):
        return with_variables(match["operand"], variables)
    return None if missing else known


def is_variable(text: str) -> bool:
    """Whether a value is set by a variable, which the file may not state."""
    return "$" in text


def is_unread(text: str) -> bool:
    """Whether a text has an expansion of a form that is not read."""
    return "${" in VARIABLE.sub("", text)


RECKONED = "${_}"  # stands for what is not followed inside a word
RECKONED_TOLD = "is known only as it runs: the output of a command (also process substitution, `<(...)`), arithmetic or a specifier, which is not followed"
ABOUT = "llmsize/"  # prefix of a comment on the next command
SAID = re.compile(rf"{ABOUT}([a-z]+)=(\S+)")
_OUTPUT = re.compile(rf"\$\(\((?:[^()]|\([^()]*\))*\)\)|[$<>]\((?!{NAME}\)|\()[^()]*\)|`[^`]*`|\$\{{#[^{{}}]*\}}")
_CHANGES = re.compile(rf"(?<![$\w])\(\(\s*({NAME})\s*(?:\+\+|--|[-+*/%]?=(?!=))")  # ((TP *= 2))
_PIECE = rf"""'[^']*'|"(?:[^"\\]|\\.)*"|\\(?![ \t\r]+(?:\n|\Z)).|\$\({NAME}\)|\$\{{{OPERAND}\}}|\$[^\s'"(]|[^\s'"\\;|&()<>]"""
_TOKEN = re.compile(
    rf"""
    (?P<blank>(?:[ \t\r\f\v]|\\(?:\n|\Z))+) | (?P<comment>\#[^\n]*) | (?P<broken>\\[ \t\r]+(?=\n|\Z))
  | <<-?[ \t]*(?P<quote>['"]?)(?P<heredoc>\w+)(?P=quote) | \d*[<>]&(?P<joined>[\d-]+) | (?P<redirect>&>>?|\d*(?:<<<|>>|>\||[<>]))
  | (?P<end>\n|&&|\|\|?|;;?|[&()]) | (?P<word>(?:{_PIECE})+)
    """,
    re.VERBOSE | re.DOTALL,
)
_PIECES = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)|([^'"\\]+)""", re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\`\n])')
_ARRAY = re.compile(rf"{NAME}\+?=\Z")


class Heredoc(NamedTuple):
    """Lines that a command reads: their text, the first line, and whether variables in them stay as they are."""

    text: str
    line: int
    literal: bool


class ScriptPart(NamedTuple):
    """One command: its words, `items` of the array that its last word sets, and the signs before and after it.

    `writes` are the signs and names of the files that it writes. `said` has the facts in comments before it.
    """

    words: tuple[Word, ...]
    line: int
    items: tuple[Word, ...] | None = None
    after: str = ""
    end: str = ";"
    writes: tuple[tuple[str, str], ...] = ()
    heredoc: Heredoc | None = None
    said: Mapping[str, Word] = {}


class _Token(NamedTuple):
    kind: str
    word: Word
    heredoc: Heredoc | None = None


def _tokens(text: str, file: str, line: int) -> Iterator[_Token]:
    """Yield the words, signs, redirections and comments of a text. Raises InputError for an open quote."""
    limits = only(LaunchFacts).script_limits
    if len(text) > limits.characters:
        raise InputError(f"holds a script of more than {limits.characters:,} characters", file=file)
    if "\r\n" in text:
        what, line = "its lines end as those of Windows (CRLF)", line + text.partition("\r\n")[0].count("\n")
        raise InputError(what, file=file, line=line, allowed="what `dos2unix` makes of it")
    text = _CHANGES.sub(r"let \1; \g<0>", text)
    for _ in range(limits.inside):
        text, count = _OUTPUT.subn(lambda found: RECKONED + "\n" * found[0].count("\n"), text)
        if not count:
            break
    at, skipped = 0, (-1, 0)  # the lines of a heredoc: the end of the line before them, and their end
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise InputError("a quote is not closed", file=file, line=line)
        kind, at = str(found.lastgroup), found.end()
        if kind == "broken":
            what = "a blank stands after a backslash, which therefore ends the command"
            raise InputError(what, file=file, line=line, allowed="the backslash at the end of its line")
        if kind == "heredoc":
            begin = text.find("\n", at)
            if skipped[0] >= at or begin < 0:
                raise InputError("a heredoc is not closed, or is the second of its line", file=file, line=line)
            closed = re.compile(rf"^[ \t]*{found['heredoc']}[ \t]*$", re.MULTILINE).search(text, begin + 1)
            body = text[begin + 1 : closed.start() if closed else len(text)]
            skipped = (begin, closed.end() if closed else len(text))
            written = Heredoc(body, line + text.count("\n", at, begin + 1), bool(found["quote"]))
            yield _Token(kind, Word("", line), written)
        elif kind == "word":
            yield _Token(kind, Word(_PIECES.sub(_unquoted, found[0]), line, found[0][0] in "'\""))
        elif kind != "blank":
            yield _Token(kind, Word(found[0], line))
        line += text.count("\n", found.start(), at)
        if kind == "end" and found.start() == skipped[0]:
            line, at = line + text.count("\n", at, skipped[1]), skipped[1]


def _unquoted(piece: re.Match[str]) -> str:
    """A piece of a word without its quotes and backslashes."""
    single, double, escaped, plain = piece.groups()
    if double is not None:
        return _ESCAPED.sub(lambda found: found[1].strip("\n"), double)
    return single or plain or (escaped or "").strip("\n")


def parts(text: str, file: str, line: int = 1) -> Iterator[ScriptPart]:
    """Yield the commands of a script that begins at a line. Raises InputError for a quote or an array that is not closed."""
    part, words_, items, target, said = ScriptPart((), line), list[Word](), list[Word](), "", dict[str, Word]()
    for kind, word, heredoc in chain(_tokens(text, file, line), (_Token("end", Word("\n")),)):
        if kind == "comment":
            said = {**said, **{name: Word(value, word.line) for name, value in SAID.findall(word.text)}}
        elif kind == "redirect":
            target = word.text
        elif kind == "heredoc":
            part = part._replace(heredoc=heredoc)
        elif kind == "word" and target:
            part, target = (
                part._replace(writes=(*part.writes, (target, word.text)) if ">" in target else part.writes),
                "",
            )
        elif kind == "word":
            (words_ if part.items is None else items).append(word)
        elif kind == "joined" or (part.items is not None and word.text != ")" and word.line):
            continue
        elif part.items is not None and word.text != ")":
            raise InputError("an array is not closed", file=file, line=words_[-1].line)
        elif word.text == "(" and words_ and _ARRAY.match(words_[-1].text):
            part = part._replace(items=())
        elif word.text != "\n" or words_ or part.after not in ("&&", "||", "|"):
            end = word.text if part.items is None else ";"
            part = part._replace(items=None if part.items is None else tuple(items), end=end, said=said)
            if words_ or part.heredoc or part.writes or end in ("(", ")", ";;"):
                yield part._replace(words=tuple(words_), line=(words_[0].line if words_ else word.line) or line)
            part, words_, items = ScriptPart((), line, after=end), [], []


def words(text: str, file: str, line: int = 1) -> tuple[Word, ...]:
    """The words of one command line. Raises InputError for an open quote."""
    kept = ("word", "end", "redirect", "joined")
    return tuple(word for kind, word, _ in _tokens(text, file, line) if kind in kept and word.text != "\n")
