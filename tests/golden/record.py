"""Record golden cases with the code as it stands: `python tests/golden/record.py [--all] [--formats text,json] [CASE ...]`.

CASE is a pattern over `<command>/<case>`, as `estimate/*`. Without any, the cases that have only `args` are recorded;
`--all` takes every case. A case with nothing but `args` gets every format that its command supports (or those of
`--formats`); of one recorded before, the files that exist are written anew, so to drop a format delete its file.
Each case is run twice where it is quick, to see that it gives the same again. To add a case, make
`<command>/<case>/args`, run this, and read what it wrote. Nothing may depend on today's date: give `plan` its `--from`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from golden_cases import FILE, Outcome, folders, formats, name_of, run_case

BAD_INPUT = 2
QUICK_S = 1.0
SETTLED = ("--json", "--format", "--quiet", "-q", "--help", "-h", "--version")  # such a command has one form


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--formats", default="")
    asked = parser.parse_args()
    wanted = [name for name in asked.formats.split(",") if name] or list(FILE)
    for folder in folders():
        matches = any(fnmatchcase(name_of(folder), pattern.strip("/")) for pattern in asked.cases)
        if matches or asked.all or not (asked.cases or formats(folder)):
            print(record(folder, formats(folder) or wanted), flush=True)


def record(folder: Path, wanted: list[str]) -> str:
    """Record one case; return a line that says what came of it."""
    began = time.monotonic()
    first = run_case(folder, "text")
    seconds = time.monotonic() - began
    words = (folder / "args").read_text(encoding="utf-8").split()
    single = first.code == BAD_INPUT or any(word.split("=")[0] in SETTLED for word in words)
    found = {"text": first}
    warnings = []
    for form in () if single else wanted:
        if form != "text":
            try:
                outcome = run_case(folder, form)
            except Exception as error:  # a defect of the command; the format is left out
                warnings.append(f"{form} CRASHES ({type(error).__name__})")
                continue
            if _supported(outcome, first, form):
                found[form] = outcome
    _write(folder, found)
    if seconds < QUICK_S and run_case(folder, "text") != first:
        warnings.append("A SECOND RUN DIFFERS")
    if any(f"{date.today():%Y-%m-%d}" in outcome.out for outcome in found.values()):
        warnings.append("HAS TODAY'S DATE")
    told = first.err.strip().splitlines()[:1] if first.code == BAD_INPUT else []
    return " ".join([f"{name_of(folder)}: exit {first.code}, {'/'.join(found)}, {seconds:.1f} s", *warnings, *told])


def _supported(outcome: Outcome, first: Outcome, form: str) -> bool:
    if outcome.code != first.code or not outcome.out:
        return False
    if form == "json":
        try:
            json.loads(outcome.out)
        except json.JSONDecodeError:
            return False
    return True


def _write(folder: Path, found: dict[str, Outcome]) -> None:
    first = found["text"]
    _put(folder / "code", f"{first.code}\n")
    _put(folder / "err", first.err)
    for form, file in FILE.items():
        if form in found:
            _put(folder / file, found[form].out)
        else:
            (folder / file).unlink(missing_ok=True)
    for old in (folder / "files").glob("*"):
        old.unlink()
    for name, text in first.files.items():
        (folder / "files").mkdir(exist_ok=True)
        _put(folder / "files" / name, text)


def _put(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8"))


if __name__ == "__main__":
    main()
