"""The layers of the package: who may import whom, who may print, what a command must not load to start."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sizing

ROOT = Path(sizing.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if "data" not in path.relative_to(ROOT).parts[:1])
PRINTERS = {"cli", "calibrate", "__main__"}  # the layers that are programs


def order() -> list[str]:
    """The layers, lowest first, as the package's docstring states them."""
    found = re.search(r"in this order:(.*?)\.\s", f"{sizing.__doc__} ", re.DOTALL)
    assert found is not None, "sizing/__init__.py states the order of its layers"
    return [name.strip() for name in found[1].split(",")]


def layer_of(module: str) -> str | None:
    """`sizing.catalog.files` is of layer `catalog`; the package itself (its version) is of none."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, module: str, is_package: bool) -> list[tuple[str, int]]:
    """Every module of the package that a file imports, wherever in it, with the line."""
    found: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = module.split(".") if is_package else module.split(".")[:-1]
                parents = here[: len(here) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            # `from sizing import memory` imports the layer; `from sizing.memory import use` names it already.
            found += [(f"{base}.{a.name}" if base == "sizing" else base, node.lineno) for a in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and str(part.value).startswith("sizing."):
                    found.append((str(part.value).rstrip("."), node.lineno))
    return [(name, line) for name, line in found if name.split(".")[0] == "sizing"]


def upward(path: Path, text: str) -> list[str]:
    """The imports of a file that reach above its own layer."""
    levels = {name: level for level, name in enumerate(order())}
    module = module_name(path)
    own = layer_of(module)
    if own is None or own == "__main__":
        return []
    wrong = []
    for name, line in imported(ast.parse(text), module, path.name == "__init__.py"):
        layer = layer_of(name)
        if layer is None or layer.startswith("__"):
            continue
        if layer not in levels or own not in levels or levels[layer] > levels[own]:
            wrong.append(f"{path.relative_to(ROOT.parent)}:{line}: {own} imports {layer}")
    return wrong


def test_every_module_has_a_layer() -> None:
    layers = {layer_of(module_name(path)) for path in FILES} - {None, "__main__"}
    stated = set(order())
    missing, gone = sorted(map(str, layers - stated)), sorted(stated - layers)
    assert not missing, f"the docstring of sizing/__init__.py places no {', '.join(missing)}"
    assert not gone, f"the docstring of sizing/__init__.py names {', '.join(gone)}, which does not exist"
    assert len(order()) == len(stated)


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_no_module_imports_one_above_it(path: Path) -> None:
    assert upward(path, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "from sizing.search import search",
        "from sizing import search",
        "import sizing.search",
        "def late():\n    from sizing.cli import main",
        "import importlib\nimportlib.import_module('sizing.search')",
        "from .search import search",
        "from sizing.nowhere import x",
    ],
)
def test_the_walk_sees_every_form_of_an_upward_import(text: str) -> None:
    assert upward(ROOT / "memory.py", text)


@pytest.mark.parametrize(
    "text", ["from sizing import units", "from .units import GIB", "from sizing import __version__"]
)
def test_the_walk_allows_downward_imports(text: str) -> None:
    assert upward(ROOT / "memory.py", text) == []


def _talks(tree: ast.Module) -> list[int]:
    """Lines that print, write to the standard streams, or end the process."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in {
                "print",
                "exit",
                "quit",
                "sys.exit",
                "os._exit",
                "os.abort",
                "typer.echo",
                "typer.Exit",
                "input",
            } or name.startswith(("sys.stdout.", "sys.stderr.")):
                lines.append(node.lineno)
        elif isinstance(node, ast.Raise) and node.exc is not None and "SystemExit" in ast.unparse(node.exc):
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("path", [p for p in FILES if layer_of(module_name(p)) not in PRINTERS], ids=module_name)
def test_the_library_neither_prints_nor_exits(path: Path) -> None:
    assert _talks(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("text", ["print(1)", "sys.exit(2)", "raise SystemExit", "sys.stderr.write('x')", "exit()"])
def test_the_search_for_prints_finds_them(text: str) -> None:
    assert _talks(ast.parse(text)) == [1]


def _command_line() -> str:
    """The module that `sizing/__main__.py` runs."""
    tree = ast.parse((ROOT / "__main__.py").read_text(encoding="utf-8"))
    found = [name for name, _ in imported(tree, "sizing.__main__", False) if layer_of(name) == "cli"]
    assert found, "sizing/__main__.py starts the command line"
    return found[0]


@pytest.mark.parametrize("heavy", ["numpy", "yaml", "pydantic"])
def test_the_command_line_starts_without_the_heavy_packages(heavy: str) -> None:
    """`--help` and usage errors must not wait for what only a calculation needs."""
    code = f"import sys, {_command_line()}; sys.exit({heavy!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or f"{heavy} is imported"
