"""Variables in a text as a shell replaces them: with defaults and alternatives, and in arithmetic of whole numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

MOST_HELD = 100_000  # characters of a variable
MOST_RECKONED = 100  # characters of arithmetic
NAME = r"[A-Za-z_]\w*"
OPERAND = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*"  # of a default, which may hold a default of its own
SUM = r"\$\(\(((?:[^()]|\([^()]*\))*)\)\)"
VARIABLE = re.compile(
    rf"\$\$|{SUM}|\$\(({NAME})\)|\$\{{({NAME}|\d+)(?:(?P<empty>:?)(?P<rule>[-=+?])(?P<operand>{OPERAND}))?\}}|\$({NAME})"
)
_WORD = re.compile(rf"\b{NAME}")
_ARITHMETIC = re.compile(rf"[\d\s+\-*/%()]{{1,{MOST_RECKONED}}}")


def with_variables(text: str, variables: Mapping[str, str]) -> str:
    """The text with variables replaced if they are known or have a default; others stay, as do those that make it far too long."""
    left = 2 * MOST_HELD

    def value(found: re.Match[str]) -> str:
        nonlocal left
        known = _reckoned(found[1], variables) if found[1] is not None else _known(found, variables)
        left -= len(known or "")
        return found[0] if known is None or left < 0 else known

    return VARIABLE.sub(value, text)


def names_in(text: str) -> Iterator[str]:
    """Yield the variables that a text names."""
    yield from (name for found in VARIABLE.finditer(text) if (name := _name(found)) is not None)


def _name(found: re.Match[str]) -> str | None:
    return found[2] or found[3] or found[7]


def _known(found: re.Match[str], variables: Mapping[str, str]) -> str | None:
    """The value of a variable, or of what is given in its place; None if nothing says it."""
    known = variables.get(_name(found) or "")
    missing, rule = known is None or (bool(found["empty"]) and not known), found["rule"]
    if rule == "+" and missing:
        return ""
    if rule == "+" or (missing and rule in ("-", "=")):
        return with_variables(found["operand"], variables)
    return None if missing else known


def _reckoned(text: str, variables: Mapping[str, str]) -> str | None:
    """The value of arithmetic (`N/4`); None where a variable is not known, or for more than sums and products."""
    plain = _plain(text, variables)
    if not _ARITHMETIC.fullmatch(plain) or "**" in plain or "//" in plain:
        return None
    try:
        return str(_whole(ast.parse(plain, mode="eval").body))
    except (SyntaxError, ZeroDivisionError):
        return None


def _plain(text: str, variables: Mapping[str, str]) -> str:
    return _WORD.sub(lambda found: variables.get(found[0]) or found[0], with_variables(text, variables)).strip()


def is_unread(text: str, variables: Mapping[str, str]) -> bool:
    """Whether a text has an expansion of a form that is not read, or arithmetic beyond sums and products of what is known."""
    sums = (found[1] for found in VARIABLE.finditer(text) if found[1] is not None)
    return "${" in VARIABLE.sub("", text) or any(not _WORD.search(_plain(each, variables)) for each in sums)


def _whole(node: ast.AST) -> int:
    """The whole number of an expression; a division leaves out the rest, as in a shell."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp):
        return -_whole(node.operand) if isinstance(node.op, ast.USub) else _whole(node.operand)
    if not isinstance(node, ast.BinOp):
        raise SyntaxError
    left, right = _whole(node.left), _whole(node.right)
    if isinstance(node.op, (ast.Div, ast.Mod)):
        quotient = abs(left) // abs(right) * (1 if left * right >= 0 else -1)
        return quotient if isinstance(node.op, ast.Div) else left - right * quotient
    return left * right if isinstance(node.op, ast.Mult) else left + (-right if isinstance(node.op, ast.Sub) else right)
