"""Formats for continuous integration: GitHub annotations, JUnit XML, SARIF 2.1.0."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import date
from itertools import groupby
from pathlib import PurePath
from typing import Literal, NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree

from sizing import __version__
from sizing.specs.errors import Fault
from sizing.specs.units import printable

SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


class Remark(NamedTuple):
    """One checked rule: the deployment (`suite`), the rule, its result, a message, and the file and line.

    The `number` distinguishes suites with the same name. A rule is `judged` unless what it bounds is not known.
    """

    suite: str
    rule: str
    level: Literal["ok", "warning", "error"]
    message: str
    file: str | None = None
    line: int | None = None
    number: int = 0
    judged: bool = True


def github(remarks: Sequence[Remark], day: date) -> str:
    """An annotation for each broken rule, at its file and line; then a line in the log for each suite."""
    lines = [_annotation(remark) for remark in remarks if remark.level != "ok"]
    for suite, found in _suites(remarks):
        failed = [remark.rule for remark in found if remark.level == "error"]
        lines.append(f"{suite}: fails {', '.join(failed)}" if failed else f"{suite}: passes")
    return "\n".join(lines)


def _suites(remarks: Iterable[Remark]) -> list[tuple[str, list[Remark]]]:
    """The remarks of each deployment in each file, in their order."""
    found = groupby(remarks, key=lambda remark: (remark.suite, remark.number, remark.file))
    return [(suite, list(each)) for (suite, *_), each in found]


def _annotation(remark: Remark) -> str:
    file = remark.file and PurePath(remark.file).as_posix()
    place = {"file": file, "line": remark.file and remark.line, "title": f"{remark.suite}: {remark.rule}"}
    stated = ",".join(f"{name}={_escaped(str(value), more=True)}" for name, value in place.items() if value is not None)
    return f"::{remark.level} {stated}::{_escaped(remark.message)}"


def _escaped(text: str, *, more: bool = False) -> str:
    """Escaped text for a workflow command. With `more` (for its properties), commas and colons are escaped too."""
    pairs = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), *([(":", "%3A"), (",", "%2C")] if more else [])]
    for character, code in pairs:
        text = text.replace(character, code)
    return text


def junit(remarks: Sequence[Remark], day: date) -> str:
    """A suite for each deployment and a case for each rule, valid for the schemas of Ant and Jenkins."""
    root = ElementTree.Element("testsuites")
    for number, (suite, cases) in enumerate(_suites(remarks)):
        failed = sum(case.level == "error" for case in cases)
        about = {
            "name": printable(suite), "package": "llmsize", "id": number, "timestamp": f"{day.isoformat()}T00:00:00",
            "hostname": "localhost", "time": "0", "tests": len(cases), "failures": failed, "errors": 0,
        }  # fmt: skip
        holder = ElementTree.SubElement(root, "testsuite", {key: str(value) for key, value in about.items()})
        ElementTree.SubElement(holder, "properties")
        for case in cases:
            named = {"name": case.rule, "classname": printable(case.file or suite), "time": "0"}
            entry = ElementTree.SubElement(holder, "testcase", named)
            if case.level == "error":
                place = "" if case.file is None else f"{case.file}:{case.line}: " if case.line else f"{case.file}: "
                said = {"message": printable(case.message), "type": case.rule}
                failure = ElementTree.SubElement(entry, "failure", said)
                failure.text = printable(f"{place}{case.message}")
            elif not case.judged:
                ElementTree.SubElement(entry, "skipped", {"message": printable(case.message)})
        for name in ("system-out", "system-err"):
            ElementTree.SubElement(holder, name)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode")


def sarif(remarks: Sequence[Remark], day: date) -> str:
    """One run with a result for each rule that was checked."""
    names = dict.fromkeys(remark.rule for remark in remarks)
    rules = [{"id": name, "name": name, "shortDescription": {"text": f"llmsize check: {name}"}} for name in names]
    driver = {"name": "llmsize", "version": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": [_result(each) for each in remarks]}
    return json.dumps({"$schema": SARIF, "version": "2.1.0", "runs": [run]}, indent=2)


def _result(remark: Remark) -> dict[str, object]:
    kept = remark.level == "ok"
    kind, level = ("pass", "none") if kept else ("fail", remark.level)
    message = {"text": f"{remark.suite}: {remark.message}"}
    found: dict[str, object] = {"ruleId": remark.rule, "kind": kind, "level": level, "message": message}
    if remark.file is not None:
        region = {} if remark.line is None else {"region": {"startLine": remark.line}}
        artifact = {"artifactLocation": {"uri": quote(PurePath(remark.file).as_posix())}, **region}
        found["locations"] = [{"physicalLocation": artifact}]
    return found


WRITERS: dict[str, Callable[[Sequence[Remark], date], str]] = {"github": github, "junit": junit, "sarif": sarif}


def remarks_of(faults: Iterable[Fault]) -> tuple[Remark, ...]:
    """The faults of the input itself as remarks, each with its file and line."""
    return tuple(
        Remark("input", "input", "error", str(replace(fault, file=None, line=None)), fault.file, fault.line)
        for fault in faults
    )
