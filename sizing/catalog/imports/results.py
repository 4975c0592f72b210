"""Result files: recognised by content and read into runs. For an unknown kind, the fault says what the file looks like."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sizing.catalog.files import expanded, json_value, read_text
from sizing.catalog.imports import engine_logs, guidellm, metric_objects, scrapes, serving_scripts
from sizing.catalog.imports.run import BenchmarkRun, MalformedRunError
from sizing.specs.errors import Fault, InputError

MOST_BYTES = 256 * 2**20
TOO_LARGE = "summaries are small; leave out the lists of single requests"
ACCEPTED = (
    "JSON or CSV of genai-perf, AIPerf or guidellm; JSON of vllm bench serve, SGLang bench_serving, LLMPerf or "
    "InferenceMAX; Prometheus metrics or a start-up log of vLLM or SGLang, a log of TensorRT-LLM"
)
SHOWN_KEYS = 6


# The beginning of a log whose first character could also begin a JSON list.
LOG = re.compile(r"\[(?:\d{4}-\d\d|TensorRT-LLM\]|TRT-LLM\])")


class Reading(NamedTuple):
    """The runs of a file, a fault for each run that cannot be used, and facts from start-up logs."""

    runs: tuple[BenchmarkRun, ...]
    faults: tuple[Fault, ...]
    scrapes: tuple[scrapes.Scrape, ...] = ()
    facts: tuple[engine_logs.EngineFacts, ...] = ()


def read_results(path: str) -> Reading:
    """The runs of a result file.

    Raises InputError for a file that can't be read or has no known kind. A run that can't be used is a fault in the result.
    """
    content = read_text(expanded(path), MOST_BYTES, TOO_LARGE, coloured=True)
    if not content.strip():
        raise InputError("is empty", file=path)
    start = content.lstrip()
    if start[0] in "{[" and not LOG.match(start):
        return _taken(*_objects(content, path), path)
    try:
        if scrapes.recognised(content):
            return Reading((), (), scrapes=scrapes.scrapes(content, path))
        if engine_logs.engine_of(content):
            return Reading((), (), facts=(engine_logs.facts(content, path),))
    except MalformedRunError as error:
        raise InputError(str(error), file=path, allowed=error.allowed, remedy=error.remedy) from None
    return _table(content, path)


def read_scrapes(taken: Sequence[scrapes.Scrape], seconds: float | None) -> Reading:
    """The runs of scrapes of one engine, in order."""
    return _settled([(None, scrapes.runs(taken, seconds))], taken[-1].file)


def _objects(content: str, file: str) -> tuple[list[tuple[int | None, Any]], list[Fault]]:
    """The JSON values of a file, each with its line, and the faults of lines without one.

    The file has one value, a list, or one value per line, where the last one may be torn.
    """
    lines = [(number, line) for number, line in enumerate(content.splitlines(), start=1) if line.strip()]
    found: list[tuple[int | None, Any]] = []
    faults: list[Fault] = []
    for number, line in lines if len(lines) > 1 and all(line.lstrip()[0] == "{" for _, line in lines) else ():
        try:
            found.append((number, json_value(line, file, number)))
        except InputError as error:
            faults += error.faults
    if found:
        return found, faults
    value = json_value(content, file)
    return [(None, each) for each in value] if isinstance(value, list) else [(None, value)], []


def _taken(entries: Sequence[tuple[int | None, Any]], torn: Sequence[Fault], file: str) -> Reading:
    """The runs of JSON values, and the faults of `torn` lines. All records of single requests make one run."""
    records, others = [], []
    for line, entry in entries:
        if isinstance(entry, Mapping) and metric_objects.is_record(entry):
            records.append(entry)
        else:
            others.append((line, _runs(entry)))
    of_records = [(None, metric_objects.from_records(records))] if records else []
    found = _settled([*of_records, *others], file)
    return found._replace(faults=(*found.faults, *torn))


def _runs(entry: Any) -> Iterator[BenchmarkRun]:
    """The runs of an object, read by the first module that recognises it. Raises MalformedRunError."""
    for kind in (guidellm, metric_objects, serving_scripts):
        if isinstance(entry, Mapping) and kind.recognised(entry):
            yield from kind.runs(entry)
            return
    raise MalformedRunError(f"is no result of a known tool{_looks(entry)}", ACCEPTED)


def _table(content: str, file: str) -> Reading:
    head = content.lstrip().splitlines()[0]
    for kind in (metric_objects, guidellm):
        if kind.is_table(head):
            return _settled([(None, kind.from_table(content))], file)
    shown = head[:80] + ("..." if len(head) > 80 else "")
    raise InputError(f"is no result of a known tool: its first line is {shown!r}", file=file, line=1, allowed=ACCEPTED)


def _settled(sources: Iterable[tuple[int | None, Iterator[BenchmarkRun]]], file: str) -> Reading:
    """The runs at each line of a file. A run that can't be used gives a fault, and the runs after it on its line are skipped."""
    runs: list[BenchmarkRun] = []
    faults: list[Fault] = []
    for line, found in sources:
        try:
            runs += [replace(run.settled(), line=line) for run in found]
        except MalformedRunError as error:
            faults.append(Fault(str(error), file, line, allowed=error.allowed, remedy=error.remedy))
        except csv.Error as error:
            faults.append(Fault(str(error), file, line))
    if not runs and not faults:
        faults.append(Fault("holds no runs", file))
    return Reading(tuple(runs), tuple(faults))


def _looks(entry: Any) -> str:
    """The first keys of an object, for the fault."""
    if not isinstance(entry, Mapping):
        return f": it is {type(entry).__name__ if entry is not None else 'null'}"
    keys = ", ".join(str(key)[:40] for key in list(entry)[:SHOWN_KEYS])
    return f": it has the keys {keys}{', ...' if len(entry) > SHOWN_KEYS else ''}" if keys else ": it is {}"
