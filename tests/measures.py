"""What the ratchets measure of the package: lines, files, functions, names. Counted from the source, nothing is imported."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from places import ROOT

PACKAGE = ROOT / "sizing"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def files() -> list[Path]:
    """The files of the package, but for the data that a wheel puts there."""
    return sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "data")


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    """The folder of a file, from the package on; the package itself is `.`."""
    return path.parent.relative_to(PACKAGE).as_posix()


@cache
def trees() -> tuple[tuple[Path, str, ast.Module], ...]:
    """Each file with its text and its syntax tree."""
    texts = [(path, path.read_text(encoding="utf-8")) for path in files()]
    return tuple((path, text, ast.parse(text)) for path, text in texts)


def code_lines(text: str, tree: ast.Module) -> int:
    """Lines that are neither blank, docstring, comment nor import."""
    passed: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            passed.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                passed.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate((line.strip() for line in text.splitlines()), start=1)
    return sum(1 for number, line in lines if line and not line.startswith("#") and number not in passed)


def package_lines() -> tuple[int, int]:
    """Code lines and raw lines of the package."""
    counts = [(code_lines(text, tree), len(text.splitlines())) for _, text, tree in trees()]
    return sum(code for code, _ in counts), sum(raw for _, raw in counts)


def code_lines_by_room() -> dict[str, int]:
    """Code lines of each room, its folders included; the package itself is `.`."""
    count: dict[str, int] = defaultdict(int)
    for path, text, tree in trees():
        count[room_of(path).split("/")[0]] += code_lines(text, tree)
    return dict(count)


def files_by_room() -> dict[str, int]:
    """Files of each room, `__init__` apart."""
    count: dict[str, int] = defaultdict(int)
    for path in files():
        if path.name != "__init__.py":
            count[room_of(path)] += 1
    return dict(count)


def lines_by_file() -> dict[str, int]:
    return {name_of(path): len(text.splitlines()) for path, text, _ in trees()}


def lines_by_test_file() -> dict[str, int]:
    tests = ROOT / "tests"
    return {
        path.relative_to(tests).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in sorted(tests.rglob("*.py"))
    }


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function and method with its name, as `replica/step.py:Curve.at`."""
    for path, _, tree in trees():
        yield from _functions_in(tree, f"{name_of(path)}:")


def _functions_in(holder: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(holder):
        if isinstance(node, FUNCTIONS):
            yield f"{prefix}{node.name}", node
        name = f"{prefix}{node.name}." if isinstance(node, (ast.ClassDef, *FUNCTIONS)) else prefix
        yield from _functions_in(node, name)


def lines_by_function() -> dict[str, int]:
    """Lines of each function, from `def` to its last, docstring apart."""
    found = {}
    for name, node in functions():
        documented = ast.get_docstring(node) is not None
        first = node.body[0]
        docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
        found[name] = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring
    return found


def parameters_by_function() -> dict[str, int]:
    """Positional parameters of each function, `self` and `cls` apart; those by keyword alone name themselves."""
    found = {}
    for name, node in functions():
        given = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        found[name] = len(given) - (given[:1] in (["self"], ["cls"]))
    return found


def classes_of_one_name() -> dict[str, list[str]]:
    """Names that several classes have, with their files."""
    where: dict[str, list[str]] = defaultdict(list)
    for path, _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                where[node.name].append(name_of(path))
    return {name: paths for name, paths in where.items() if len(paths) > 1}


def any_and_string_keys() -> dict[str, tuple[int, int]]:
    """By room: uses of `Any`, and reads of a mapping by a literal key, `values["gpu"]` or `.get("gpu")`."""
    count: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path, _, tree in trees():
        room = room_of(path).split("/")[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == "Any":
                count[room][0] += 1
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                count[room][1] += _is_text(node.slice) and not _is_annotation(node)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                count[room][1] += bool(node.args) and _is_text(node.args[0])
    return {room: (anys, keys) for room, (anys, keys) in count.items()}


def parameters_of_mappings() -> dict[str, int]:
    """By room: parameters that are mappings of names to `Any`, where a typed record says what is passed."""
    count: dict[str, int] = defaultdict(int)
    for name, node in functions():
        kinds = [argument.annotation for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        passed = [kind for kind in kinds if kind is not None and _OF_ANY.search(ast.unparse(kind))]
        count[name.split(":")[0].split("/")[0] if "/" in name else "."] += len(passed)
    return {room: number for room, number in count.items() if number}


_OF_ANY = re.compile(r"\b(?:Mapping|dict)\[str, Any\]")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_annotation(node: ast.Subscript) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in {"Literal", "Annotated", "type", "tuple"}


def unformatted() -> int:
    """Lines that the formatter is told to leave as they are."""
    return sum(text.count("# fmt: skip") for _, text, _ in trees())
