"""What a golden case is, how it is run in this process, and when two outputs count as equal.

A case is a folder `<command>/<case>/` with `args` (one shell-quoted line without the program's name) and what the
command gave: `code`, `err` (stderr), `text` (stdout of the command as given), and where they are recorded `out.json`
(stdout with --json), `out.csv` (--format csv) and `files/` (tables and pages that the command wrote to `<tmp>`).
In `args`, `<tmp>` stands for an empty folder of the run; in outputs, `<root>` stands for the repository's folder.
Input files of cases are in `inputs/`, named from the repository's root (`tests/golden/inputs/x.yaml`).
"""

from __future__ import annotations

import csv
import difflib
import io
import itertools
import json
import math
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXTRA = {"text": (), "json": ("--json",), "csv": ("--format", "csv")}
FILE = {"text": "text", "json": "out.json", "csv": "out.csv"}
KEPT_SUFFIXES = (".csv", ".html", ".json", ".jsonl", ".md")  # of files written; pictures differ between libraries
ENVIRONMENT = {
    "COLUMNS": "80",
    "SOURCE_DATE_EPOCH": "1795867200",  # 2026-11-28: how old prices are must not depend on the day of the test
    "LINES": "24",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "HF_HUB_OFFLINE": "1",
    "LC_ALL": "C.UTF-8",
}
CLEARED = ("XDG_CONFIG_HOME", "FORCE_COLOR", "PYTHONWARNINGS", "_TYPER_FORCE_DISABLE_TERMINAL", "TERMINAL_WIDTH")
RELATIVE = 1e-9
COUNTS = 100  # printed whole numbers below it are counts, which no rounding moves
TEMPORARY = re.compile(r"/tmp/golden-[a-z0-9_]{8}(?![a-z0-9_])")  # as `mkdtemp` names a folder
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Outcome:
    """What one run gave."""

    code: int
    out: str
    err: str
    files: dict[str, str] = field(default_factory=dict)


def folders() -> list[Path]:
    """Return the folders of all cases, in order of their names."""
    return sorted(path.parent for path in HERE.glob("*/*/args"))


def name_of(folder: Path) -> str:
    return folder.relative_to(HERE).as_posix()


def formats(folder: Path) -> list[str]:
    """Return the formats that are recorded of a case."""
    return [name for name, file in FILE.items() if (folder / file).exists()]


@lru_cache(maxsize=1)
def outcomes(folder: Path) -> dict[str, Outcome]:
    """What a case gives in its recorded formats, from one run: the document that is printed is written in the others too.

    A case that prints no document is run in each format.
    """
    from sizing.formats import text
    from sizing.formats.tables import WRITERS

    documents = []

    def kept(document: Any, *more: Any, **options: Any) -> str:
        documents.append(document)
        return render_for(document, *more, **options)

    render_for = text.render_for
    with patch.object(text, "render_for", kept):
        found = {"text": run_case(folder, "text")}
    for form in formats(folder)[1:]:
        if len(documents) == 1:
            written = WRITERS[form](documents[0]) + "\n"
            found[form] = replace(found["text"], out=_plain(written))
        else:
            found[form] = run_case(folder, form)
    return found


def run_case(folder: Path, form: str) -> Outcome:
    """Run a case in one format. Repository paths and the temporary folder are named `<root>` and `<tmp>`."""
    from sizing.cli.main import run

    scratch = Path(tempfile.mkdtemp(prefix="golden-", dir="/tmp"))  # always as long, so that lines fold alike
    words = shlex.split((folder / "args").read_text(encoding="utf-8"))
    argv = [word.replace("<tmp>", str(scratch)) for word in words] + list(EXTRA[form])
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="", write_through=True) for _ in range(2))
    before = Path.cwd()
    environment = {
        key: value for key, value in os.environ.items() if key not in CLEARED and not key.startswith("LLMSIZE_")
    }
    environment |= {**ENVIRONMENT, "HOME": str(scratch)}
    try:
        os.chdir(ROOT)
        with (
            patch.dict(os.environ, environment, clear=True),
            patch.object(sys, "stdout", out),
            patch.object(sys, "stderr", err),
        ):
            code = run(argv)
        written = {
            path.name: path.read_bytes().decode("utf-8")
            for path in sorted(scratch.iterdir())
            if path.suffix in KEPT_SUFFIXES
        }
    finally:
        os.chdir(before)
        shutil.rmtree(scratch, ignore_errors=True)
    printed, complained = (_plain(stream.buffer.getvalue().decode("utf-8")) for stream in (out, err))  # type: ignore[attr-defined]
    return Outcome(code, printed, complained, {name: _plain(text) for name, text in written.items()})


def _plain(text: str) -> str:
    return TEMPORARY.sub("<tmp>", text).replace(str(ROOT), "<root>")


def read(path: Path) -> str:
    """Return a recorded file's text as it was written: no newline is translated."""
    return path.read_bytes().decode("utf-8")


def recorded(folder: Path, form: str) -> Outcome:
    """Return what is recorded of a case in one format."""
    kept = sorted((folder / "files").iterdir()) if form == "text" and (folder / "files").is_dir() else []
    return Outcome(
        int(read(folder / "code")),
        read(folder / FILE[form]),
        read(folder / "err"),
        {path.name: read(path) for path in kept},
    )


def differences(expected: Outcome, got: Outcome, form: str, *, exact: bool) -> Iterator[str]:
    """Yield what differs, each as a short text."""
    if expected.code != got.code:
        yield f"exit code {got.code}, expected {expected.code}\n{got.err}"
    yield from _differs("stderr", expected.err, got.err, "text", exact)
    yield from _differs("stdout", expected.out, got.out, form, exact)
    if form != "text":
        return
    if list(expected.files) != list(got.files):
        yield f"files written: {list(got.files)}, expected {list(expected.files)}"
    for name in expected.files.keys() & got.files.keys():
        kind = {".csv": "csv", ".json": "json"}.get(Path(name).suffix, "text")
        yield from _differs(name, expected.files[name], got.files[name], kind, exact)


def _differs(name: str, expected: str, got: str, form: str, exact: bool) -> Iterator[str]:
    if expected == got:
        return
    where = "" if exact else {"text": _text, "json": _json, "csv": _csv}[form](expected, got)
    if where is None:
        return
    diff = difflib.unified_diff(expected.splitlines(), got.splitlines(), "recorded", "now", lineterm="", n=1)
    shown = [line[:300] for line in itertools.islice(diff, 60)]
    yield "\n".join([f"{name} differs {where}".rstrip(), *shown])


def _text(expected: str, got: str) -> str | None:
    """Say where two texts differ, None where they are equal but for spacing in a line and roundings of numbers."""
    left, right = expected.splitlines(), got.splitlines()
    if len(left) != len(right):
        return f"in its number of lines: {len(left)}, now {len(right)}"
    for number, (one, other) in enumerate(zip(left, right, strict=True), 1):
        if not _same_line(one, other):
            return f"in line {number}"
    return None


def _same_line(one: str, other: str) -> bool:
    if one == other:
        return True
    if NUMBER.sub("#", one).split() != NUMBER.sub("#", other).split():
        return False
    return all(map(_same_printed, NUMBER.findall(one), NUMBER.findall(other)))


def _same_printed(one: str, other: str) -> bool:
    """Say whether two printed numbers differ by no more than a unit of the last digit shown."""
    if one == other:
        return True
    values = [float(text.replace(",", "")) for text in (one, other)]
    units = [_unit(text) for text in (one, other)]
    if max(units) >= 1 and min(values) < COUNTS:
        return False
    return abs(values[0] - values[1]) <= max(units) * (1 + 1e-6)


def _unit(text: str) -> float:
    mantissa, _, power = text.partition("e")
    return float(10.0 ** (int(power or 0) - len(mantissa.partition(".")[2])))


def _json(expected: str, got: str) -> str | None:
    try:
        return _tree(json.loads(expected), json.loads(got), "$")
    except json.JSONDecodeError as error:
        return f"and is no JSON: {error}"


def _tree(one: Any, other: Any, path: str) -> str | None:
    if isinstance(one, float) and isinstance(other, float):
        return None if math.isclose(one, other, rel_tol=RELATIVE) else f"at {path}: {one!r}, now {other!r}"
    if type(one) is not type(other):
        return f"at {path}: {one!r:.80}, now {other!r:.80}"
    if isinstance(one, dict):
        if list(one) != list(other):
            return f"at {path}: keys {list(one)}, now {list(other)}"
        return next((found for key in one if (found := _tree(one[key], other[key], f"{path}.{key}"))), None)
    if isinstance(one, list):
        if len(one) != len(other):
            return f"at {path}: {len(one)} entries, now {len(other)}"
        pairs = enumerate(zip(one, other, strict=True))
        return next((found for k, (a, b) in pairs if (found := _tree(a, b, f"{path}[{k}]"))), None)
    same = _text(one, other) is None if isinstance(one, str) else one == other
    return None if same else f"at {path}: {one!r:.200}, now {other!r:.200}"


def _csv(expected: str, got: str) -> str | None:
    left, right = (list(csv.reader(io.StringIO(text, newline=""))) for text in (expected, got))
    if [len(row) for row in left] != [len(row) for row in right]:
        return f"in its shape: {len(left)} rows, now {len(right)}"
    for number, (one, other) in enumerate(zip(left, right, strict=True), 1):
        for k, (a, b) in enumerate(zip(one, other, strict=True)):
            if not _same_cell(a, b):
                return f"in row {number}, {left[0][k]}: {a!r:.80}, now {b!r:.80}"
    return None


def _same_cell(one: str, other: str) -> bool:
    if one == other:
        return True
    if re.fullmatch(r"-?\d+", one) or re.fullmatch(r"-?\d+", other):
        return False
    try:
        return math.isclose(float(one), float(other), rel_tol=RELATIVE)
    except ValueError:
        return _text(one, other) is None
