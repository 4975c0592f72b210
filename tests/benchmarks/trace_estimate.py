"""How far a reader of one command goes: the files and functions that it passes, and the calls that go up a floor.

    python tests/benchmarks/trace_estimate.py [llmsize's arguments; `estimate chat --gpu h100-sxm` where none are given]

Runs the command in this process under a profile hook and prints, with names: files passed and functions, arrows from
file to file, the deepest chain of calls, calls from a room to one on a higher floor, pairs of files that call each
other; code and raw lines of the package. Floors are those of the docstring of `sizing/__init__.py`.

A call up a floor is one by name where the calling file imports a module of the higher room. What is handed down is told
apart, because a lower room that runs it names nothing above: a function in an argument, such as how a part of a question is
read; a column's function of a record; a property of an answer that fills a record's field; sections that are made one by one.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import measures
from places import ROOT

import sizing
from sizing.cli.main import run

DEFAULT = ["estimate", "chat", "--gpu", "h100-sxm"]
PACKAGE = f"{ROOT / 'sizing'}/"
MODULE = "<module>"  # what runs when a file is imported is no call of the request
INSIDE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # part of the function that they stand in


@dataclass
class Trace:
    """What a run passed. A call counts from the nearest caller in the package, through whatever lies between."""

    functions: set[tuple[str, str, int]] = field(default_factory=set)
    arrows: Counter[tuple[str, str]] = field(default_factory=Counter)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    stack: list[tuple[FrameType, str]] = field(default_factory=list)
    deepest: tuple[str, ...] = ()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take an event of `sys.setprofile`."""
        if event == "return" and self.stack and self.stack[-1][0] is frame:
            self.stack.pop()
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or code.co_name in INSIDE or _imports(frame):
            return
        file = code.co_filename.removeprefix(PACKAGE)
        name = f"{file}:{code.co_qualname}"
        self.functions.add((file, code.co_qualname, code.co_firstlineno))
        if self.stack:
            caller = self.stack[-1][1]
            before = caller.partition(":")[0]
            if before != file:
                self.arrows[before, file] += 1
                self.calls[caller, name] += 1
        self.stack.append((frame, name))
        if len(self.stack) > len(self.deepest):
            self.deepest = tuple(name for _, name in self.stack)


def _imports(frame: FrameType | None) -> bool:
    """Whether a frame runs because a file is imported."""
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        if frame.f_code.co_name == MODULE:
            return True
        frame = frame.f_back
    return False


def traced(arguments: list[str]) -> Trace:
    """Run a command, its output thrown away."""
    trace = Trace()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        sys.setprofile(trace)
        try:
            run(arguments)
        finally:
            sys.setprofile(None)
    return trace


def floors() -> dict[str, int]:
    """The floor of each room, lowest 0."""
    lines = re.findall(r"^ {4}([a-z]+(?:, [a-z]+)*) {2,}\S", sizing.__doc__ or "", re.MULTILINE)
    return {room: level for level, rooms in enumerate(reversed(lines)) for room in rooms.split(", ")}


def upward(trace: Trace) -> tuple[list[str], list[str]]:
    """Calls from a room to one above it, with how often: those by name, and those of what was handed down."""
    level = floors()

    def room(name: str) -> str:
        return name.partition(":")[0].partition("/")[0].removesuffix(".py")

    def floor(name: str) -> int:
        return level.get(room(name), len(level))

    named, handed_down = [], []
    for (a, b), count in trace.calls.items():
        if floor(b) > floor(a):
            source = Path(PACKAGE, a.partition(":")[0]).read_text(encoding="utf-8")
            by_name = re.search(rf"\bsizing\.{room(b)}\b|\bfrom sizing import .*\b{room(b)}\b", source)
            (named if by_name else handed_down).append(f"{a} -> {b} ({count} times)")
    return named, handed_down


def back_and_forth(trace: Trace) -> list[str]:
    """Pairs of files of which each calls the other."""
    pairs = {tuple(sorted(pair)) for pair in trace.arrows if pair[::-1] in trace.arrows}
    return [f"{a} <-> {b}" for a, b in sorted(pairs)]


def main() -> None:
    """Trace and print."""
    arguments = sys.argv[1:] or DEFAULT
    trace = traced(arguments)
    files = sorted({file for file, _, _ in trace.functions})
    (up, handed_down), pairs = upward(trace), back_and_forth(trace)
    code, raw = measures.package_lines()
    print(f"llmsize {' '.join(arguments)}")
    print(f"files passed: {len(files)}")
    print(f"functions: {len(trace.functions)}")
    print(f"arrows between files: {len(trace.arrows)}")
    print(f"deepest chain: {len(trace.deepest)} calls")
    for title, lines in (
        ("files", files),
        ("deepest chain", trace.deepest),
        (f"calls up a floor: {len(up)}", up),
        (f"calls of what was handed down: {len(handed_down)}", handed_down),
        (f"files that call each other: {len(pairs)}", pairs),
    ):
        print(f"\n{title}")
        for line in lines:
            print(f"    {line}")
    print("\ncode lines by room")
    for room, lines in sorted(measures.code_lines_by_room().items(), key=lambda entry: -entry[1]):
        print(f"    {room}: {lines:,}")
    print(f"\npackage: {code:,} code lines, {raw:,} raw lines")


if __name__ == "__main__":
    main()
