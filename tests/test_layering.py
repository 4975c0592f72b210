"""The rooms of the package and their floors: who may import whom, who may print, what a command must not load to start."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import sizing

ROOT = Path(sizing.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if "data" not in path.relative_to(ROOT).parts[:1])
PRINTERS = {"cli", "calibration", "__main__"}  # the rooms that are programs
MOST_FLOORS = 10
# Circles between files that still stand, each as its files; none may be added.
CIRCLES: set[tuple[str, ...]] = set()


@cache
def floors() -> list[list[str]]:
    """The rooms of each floor, lowest first, as the package's docstring states them."""
    lines = re.findall(r"^ {4}([a-z]+(?:, [a-z]+)*) {2,}\S", sizing.__doc__ or "", re.MULTILINE)
    assert lines, "sizing/__init__.py states the floors of the package"
    return [line.split(", ") for line in reversed(lines)]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def dotted(called: ast.expr) -> str:
    """The name of what is called, `sys.stdout.write`; what is no name is left out."""
    if isinstance(called, ast.Attribute):
        return f"{dotted(called.value)}.{called.attr}"
    return called.id if isinstance(called, ast.Name) else ""


def layer_of(module: str) -> str | None:
    """`sizing.catalog.files` is of room `catalog`; the package itself (its version) is of none."""
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
        elif isinstance(node, ast.Call) and dotted(node.func).endswith("import_module"):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and str(part.value).startswith("sizing."):
                    found.append((str(part.value).rstrip("."), node.lineno))
    return [(name, line) for name, line in found if name.split(".")[0] == "sizing"]


def upward(path: Path, tree: ast.Module) -> list[str]:
    """The imports of a file that reach above its own floor, or into another room on it."""
    levels = {room: level for level, rooms in enumerate(floors()) for room in rooms}
    module = module_name(path)
    own = layer_of(module)
    if own is None or own == "__main__":
        return []
    wrong = []
    for name, line in imported(tree, module, path.name == "__init__.py"):
        room = layer_of(name)
        if room is None or room.startswith("__") or room == own:
            continue
        if room not in levels or own not in levels or levels[room] >= levels[own]:
            wrong.append(f"{path.relative_to(ROOT.parent)}:{line}: {own} imports {room}")
    return wrong


def test_every_room_has_a_floor() -> None:
    rooms = {layer_of(module_name(path)) for path in FILES} - {None, "__main__"}
    stated = [room for floor in floors() for room in floor]
    missing = sorted(map(str, rooms - set(stated)))
    assert not missing, f"the docstring of sizing/__init__.py places no {', '.join(missing)}"
    assert len(stated) == len(set(stated))
    assert len(floors()) <= MOST_FLOORS
    assert len([path for path in FILES if path.parent == ROOT]) <= 2


def circles() -> set[tuple[str, ...]]:
    """The groups of files that import each other, directly or through others, wherever in them."""
    names = {module_name(path) for path in FILES}
    graph: dict[str, set[str]] = {}
    for path in FILES:
        module = module_name(path)
        graph[module] = set()
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                inside = {f"{node.module}.{alias.name}" for alias in node.names} & names
                graph[module] |= (inside or {node.module} & names) - {module}
    reached = {module: set(others) for module, others in graph.items()}
    for through in names:  # Warshall
        for module in names:
            if through in reached[module]:
                reached[module] |= reached[through]
    groups = {tuple(sorted(n for n in reached[m] if m in reached[n])) for m in names if m in reached[m]}
    return {tuple(name.removeprefix("sizing.") for name in group) for group in groups}


def test_no_circle_between_files() -> None:
    assert circles() == CIRCLES


def command_of(module: str) -> str | None:
    """The command that a file of `report` is of; None of parts, which are of several."""
    name = module.removeprefix("sizing.report").lstrip(".").partition(".")[0]
    return None if name in ("", "parts") else name


def test_a_command_reports_without_another_one() -> None:
    """What several say stands in parts, which know no command; only the page and a notebook show what commands do."""
    names = {module_name(path) for path in FILES}
    for path in (ROOT / "report").rglob("*.py"):
        own = command_of(module_name(path))
        if own in ("page", "notebook"):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sizing.report"):
                taken = {f"{node.module}.{alias.name}" for alias in node.names} & names or {str(node.module)}
                assert {command_of(name) for name in taken} <= {own, None}, f"{path.name}:{node.lineno}"


def private_taken(path: Path) -> list[str]:
    """The names with a leading underscore that a file takes from another."""
    return [
        f"{path.relative_to(ROOT.parent)}:{node.lineno}: {alias.name}"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sizing")
        for alias in node.names
        if re.match(r"_[a-z]", alias.name)
    ]


def test_no_private_name_is_taken_from_another_file() -> None:
    assert [taken for path in FILES for taken in private_taken(path)] == []


def test_no_module_imports_one_above_it() -> None:
    assert [wrong for path in FILES for wrong in upward(path, tree_of(path))] == []


@pytest.mark.parametrize(
    "text",
    [
        "from sizing.answers.search import search",
        "from sizing import answers",
        "import sizing.answers.search",
        "def late():\n    from sizing.cli import main",
        "import importlib\nimportlib.import_module('sizing.answers.search')",
        "from ..answers.search import search",
        "from sizing.nowhere import x",
    ],
)
def test_the_walk_sees_every_form_of_an_upward_import(text: str) -> None:
    assert upward(ROOT / "model" / "memory.py", ast.parse(text))


@pytest.mark.parametrize(
    "text", ["from sizing.specs import units", "from ..specs.units import GIB", "from sizing import __version__"]
)
def test_the_walk_allows_downward_imports(text: str) -> None:
    assert upward(ROOT / "model" / "memory.py", ast.parse(text)) == []


ENDS_OR_PRINTS = {"print", "exit", "quit", "sys.exit", "os._exit", "os.abort", "typer.echo", "typer.Exit", "input"}


def _talks(tree: ast.Module) -> list[int]:
    """Lines that print, write to the standard streams, or end the process."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in ENDS_OR_PRINTS or name.startswith(("sys.stdout.", "sys.stderr.")):
                lines.append(node.lineno)
        elif isinstance(node, ast.Raise) and node.exc is not None and "SystemExit" in ast.unparse(node.exc):
            lines.append(node.lineno)
    return lines


def test_the_library_neither_prints_nor_exits() -> None:
    silent = [path for path in FILES if layer_of(module_name(path)) not in PRINTERS]
    assert [f"{path}:{line}" for path in silent for line in _talks(tree_of(path))] == []


@pytest.mark.parametrize("text", ["print(1)", "sys.exit(2)", "raise SystemExit", "sys.stderr.write('x')", "exit()"])
def test_the_search_for_prints_finds_them(text: str) -> None:
    assert _talks(ast.parse(text)) == [1]


def _command_line() -> str:
    """The module that `sizing/__main__.py` runs."""
    found = [
        name for name, _ in imported(tree_of(ROOT / "__main__.py"), "sizing.__main__", False) if layer_of(name) == "cli"
    ]
    assert found, "sizing/__main__.py starts the command line"
    return found[0]


@pytest.mark.parametrize("heavy", ["numpy", "yaml", "pydantic"])
def test_the_command_line_starts_without_the_heavy_packages(heavy: str) -> None:
    """`--help` and usage errors must not wait for what only a calculation needs."""
    code = f"import sys, {_command_line()}; sys.exit({heavy!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or f"{heavy} is imported"


LAYOUT = ["-m", "llama-3.1-8b", "-g", "h100-sxm"]
CHAT = ["chat", "-g", "h100-sxm", "--no-verify"]
SIMULATOR, POOLS = "sizing.engine", "sizing.answers.pools"
MONEY = ("sizing.planning.plan", "sizing.planning.cost")
FLEETS = ("sizing.planning.fleet", "sizing.specs.prices")
NOT_LOADED = {
    "estimate": (["estimate", *CHAT], (SIMULATOR, POOLS, *MONEY, *FLEETS, "sizing.evidence", "sizing.specs.facts")),
    "compare": (["compare", *CHAT], (SIMULATOR, POOLS, *MONEY, *FLEETS, "sizing.evidence", "sizing.specs.facts")),
    "sweep": (["sweep", *CHAT[:3], "--vary", "rps=1"], (SIMULATOR, POOLS, *MONEY, "sizing.evidence")),
    "plan": (["plan", *CHAT], (SIMULATOR, POOLS, "sizing.planning.cost", "sizing.evidence")),
    "cost": (["cost", *CHAT], (SIMULATOR, POOLS, "sizing.planning.plan", "sizing.evidence")),
    "curve": (["curve", *CHAT, "--concurrency", "1,8"], (POOLS, "sizing.engine.transfer", "sizing.answers.pool_lines")),
    "simulate": (["simulate", *CHAT[:3], "--rps", "1", "--requests", "5"], (POOLS, "sizing.engine.transfer", *MONEY)),
    "ticks": (
        ["simulate", "--ticks", "--requests", "5"],
        ("sizing.replica", "sizing.answers", "sizing.catalog.models"),
    ),
    "memory": (["memory", *LAYOUT], (SIMULATOR, POOLS, "sizing.answers.search", *MONEY)),
    "step": (["step", *LAYOUT, "--prefill", "100"], (SIMULATOR, POOLS, *MONEY)),
    "roofline": (["roofline", *LAYOUT], (SIMULATOR, POOLS, "sizing.answers.search", *MONEY)),
    "gpus": (["gpus"], ("sizing.question.ask", "sizing.replica", "sizing.answers", "numpy")),
    "explain": (["explain"], ("sizing.question.ask", "sizing.replica", "sizing.answers", "numpy")),
}


@pytest.mark.parametrize("command", NOT_LOADED)
def test_a_command_loads_nothing_that_it_does_not_use(command: str) -> None:
    arguments, unused = NOT_LOADED[command]
    code = (
        "import io, sys; from sizing.cli.main import run; out, sys.stdout = sys.stdout, io.StringIO(); "
        f"run({arguments!r}); print(*sys.modules, file=out)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, check=True, capture_output=True, text=True)
    loaded = done.stdout.split()
    never = (
        "rich",
        "jinja2",
        "matplotlib",
        "pydantic",
        *(f"sizing.cli.{name}" for name in ("whatif", "validate", "report")),
    )
    assert [name for name in (*unused, *never) if name in loaded] == []


def resolves(dotted: str) -> bool:
    """Whether the modules of a dotted name are files of the package, and its last word stands in the file of what has it."""
    path, *rest = ROOT, *dotted.split(".")
    while rest and (path / rest[0]).is_dir():
        path /= rest.pop(0)
    if rest and (path / f"{rest[0]}.py").is_file():
        path /= f"{rest.pop(0)}.py"
    file = path / "__init__.py" if path.is_dir() else path
    return not rest or re.search(rf"\b{rest[0]}\b", file.read_text(encoding="utf-8")) is not None


def test_allowed_holds_values_and_what_to_do_is_a_remedy() -> None:
    words = r'f?"(?:(?:with|without|after|another|llmsize|pip) |without it|one of them'
    advice = re.compile(rf"allowed={words}|--)|[Ff]ault\(.*, {words})")
    assert [(path.name, found) for path in FILES for found in advice.findall(path.read_text(encoding="utf-8"))] == []


def test_every_dotted_name_of_the_package_resolves() -> None:
    """In docs, docstrings and data: a renamed module or function leaves no statement about its old name behind."""
    top = ROOT.parent
    texts = [
        *top.glob("*.md"),
        *(top / "docs").rglob("*.md"),
        *(top / "hardware_profiles").rglob("*.yaml"),
        *(top / "workloads").rglob("*.yaml"),
    ]
    texts += [path for path in ROOT.rglob("*.*") if path.suffix in (".py", ".md", ".csv", ".txt", ".yaml")]
    told = {
        (p.name, n)
        for p in texts
        for n in re.findall(r"(?<![\w./-])sizing\.([a-z_]\w*(?:\.\w+)*)", p.read_text(encoding="utf-8"))
    }
    assert len(told) > 100
    assert sorted(each for each in told if not resolves(each[1])) == []
