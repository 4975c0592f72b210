"""Result files: recognised by content, read into runs; what a file of no known kind looks like is said."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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


# How a log begins that is no JSON, though its first character might begin a list.
LOG = re.compile(r"\[(?:\d{4}-\d\d|TensorRT-LLM\]|TRT-LLM\])")


class Reading(NamedTuple):
    """The runs of a file, a fault for each one that cannot be taken, and what engines say of themselves."""

    runs: tuple[BenchmarkRun, ...]
    faults: tuple[Fault, ...]
    scrapes: tuple[scrapes.Scrape, ...] = ()
    facts: tuple[engine_logs.EngineFacts, ...] = ()


def read_results(path: str) -> Reading:
    """The runs of a result file.

    Raises InputError for a file that can't be read or is of no known kind; a run that can't be taken is a fault.
    """
    content = read_text(expanded(path), MOST_BYTES, TOO_LARGE)
    if not content.strip():
        raise InputError("is empty", file=path)
    start = content.lstrip()
    if start[0] in "{[" and not LOG.match(start):
        return _taken(_objects(content, path), path)
    try:
        if scrapes.recognised(content):
            return Reading((), (), scrapes=(scrapes.scrape(content, path),))
        if engine_logs.engine_of(content):
            return Reading((), (), facts=(engine_logs.facts(content, path),))
    except MalformedRunError as error:
        raise InputError(str(error), file=path) from None
    return _table(content, path)


def read_scrapes(taken: Sequence[scrapes.Scrape], seconds: float | None) -> Reading:
    """The runs of scrapes of one engine, in order."""
    runs: list[BenchmarkRun] = []
    faults: list[Fault] = []
    _collect(lambda: scrapes.runs(taken, seconds), taken[-1].file, None, runs, faults)
    return Reading(tuple(runs), tuple(faults))


def _objects(content: str, file: str) -> list[tuple[int | None, Any]]:
    """The JSON values of a file with the line of each: one value, a list of them, or one a line."""
    lines = [(number, line) for number, line in enumerate(content.splitlines(), start=1) if line.strip()]
    if len(lines) > 1 and all(line.lstrip()[0] == "{" and line.rstrip()[-1] == "}" for _, line in lines):
        return [(number, json_value(line, file, number)) for number, line in lines]
    value = json_value(content, file)
    return [(None, each) for each in value] if isinstance(value, list) else [(None, value)]


def _taken(entries: Sequence[tuple[int | None, Any]], file: str) -> Reading:
    """The runs of JSON values, each by the first kind that knows it; records of single requests are one run."""
    records = [entry for _, entry in entries if isinstance(entry, Mapping) and metric_objects.is_record(entry)]
    runs: list[BenchmarkRun] = []
    faults: list[Fault] = []
    if records:
        _collect(lambda: [metric_objects.from_records(records)], file, None, runs, faults)
    for line, entry in entries:
        if isinstance(entry, Mapping) and metric_objects.is_record(entry):
            continue
        if (read := _reader(entry)) is None:
            faults.append(Fault(f"is no result of a known tool{_looks(entry)}", file, line, allowed=ACCEPTED))
        else:
            _collect(read, file, line, runs, faults)
    if not entries:
        faults.append(Fault("holds no runs", file))
    return Reading(tuple(runs), tuple(faults))


def _reader(entry: Any) -> Callable[[], Iterator[BenchmarkRun] | list[BenchmarkRun]] | None:
    """What reads an object; None where no kind knows it."""
    if not isinstance(entry, Mapping):
        return None
    if guidellm.recognised(entry):
        return lambda: guidellm.runs(entry)
    if metric_objects.is_raw(entry):
        return lambda: metric_objects.from_raw(entry)
    for kind in (metric_objects, serving_scripts):
        if kind.recognised(entry):
            return lambda: [kind.run(entry)]
    return None


def _table(content: str, file: str) -> Reading:
    head = content.lstrip().splitlines()[0]
    runs: list[BenchmarkRun] = []
    faults: list[Fault] = []
    if metric_objects.is_table(head):
        _collect(lambda: [metric_objects.from_table(content)], file, None, runs, faults)
    elif guidellm.is_table(head):
        _collect(lambda: guidellm.from_table(content), file, None, runs, faults)
    else:
        shown = head[:80] + ("..." if len(head) > 80 else "")
        raise InputError(
            f"is no result of a known tool: its first line is {shown!r}", file=file, line=1, allowed=ACCEPTED
        )
    return Reading(tuple(runs), tuple(faults))


def _collect(
    read: Callable[[], Iterator[BenchmarkRun] | list[BenchmarkRun]],
    file: str,
    line: int | None,
    runs: list[BenchmarkRun],
    faults: list[Fault],
) -> None:
    """Add what `read` gives to `runs`; a run that can't be taken, and all after it, are a fault."""
    try:
        for found in read():
            runs.append(replace(found.settled(), line=line))
    except (MalformedRunError, csv.Error) as error:
        faults.append(Fault(str(error), file, line))


def _looks(entry: Any) -> str:
    """The first keys of an object, for the fault."""
    if not isinstance(entry, Mapping):
        return f": it is {type(entry).__name__ if entry is not None else 'null'}"
    keys = ", ".join(str(key)[:40] for key in list(entry)[:SHOWN_KEYS])
    return f": it has the keys {keys}{', ...' if len(entry) > SHOWN_KEYS else ''}" if keys else ": it is {}"
