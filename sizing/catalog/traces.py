"""Request traces: arrival times and lengths of requests, from CSV or JSON lines, optionally compressed with gzip.

Columns are recognised by the names used in published traces. A wrong row is a fault with its line.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from io import BufferedReader, TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.catalog.files import open_bytes
from sizing.specs.errors import Fault, InputError, raise_any
from sizing.specs.units import MILLI, MOST_DURATION_S, SECONDS_PER_HOUR

GZIP_MAGIC = b"\x1f\x8b"
MOST_FAULTS = 10  # shown per file; more faults of the same kind help nobody
MOST_TOKENS = 10**9  # per request: beyond any model, and exact in a float
# Seconds since 1970 are below 2e9 until 2033. Up to here a float resolves microseconds, and steps take milliseconds.
MOST_ARRIVAL_S = 1e10

COLUMNS = 3  # arrival, prompt tokens, output tokens


def _moment_s(value: object) -> float:
    """Parse a date and time into seconds since 1970. Without a time zone it is UTC."""
    moment = datetime.fromisoformat(str(value).strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class Columns(NamedTuple):
    """The columns of a published trace format: arrival with its parser into seconds, prompt tokens, output tokens."""

    arrival: str
    input: str
    output: str
    seconds: Callable[[Any], float]
    reads: str  # what an arrival is, for the fault

    @property
    def names(self) -> tuple[str, str, str]:
        """The three column names in the order of a row."""
        return self.arrival, self.input, self.output


KNOWN = (
    Columns("arrival_s", "input_tokens", "output_tokens", float, "seconds"),
    # What `llmsize simulate --requests-out` writes.
    Columns("arrival_s", "isl", "osl", float, "seconds"),
    # Azure LLM inference traces: https://github.com/Azure/AzurePublicDataset
    Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", _moment_s, "a date and time"),
    # Mooncake: https://github.com/kvcache-ai/Mooncake, FAST25-release/traces
    Columns("timestamp", "input_length", "output_length", lambda value: float(value) * MILLI, "milliseconds"),
    # BurstGPT: https://github.com/HPMLL/BurstGPT
    Columns("Timestamp", "Request tokens", "Response tokens", float, "seconds"),
)


def load_trace(path: Path | str, *, most: int | None = None) -> NDArray[np.float64]:
    """The requests of a trace, one row each: arrival in s after the first one, prompt tokens, output tokens.

    At most the first `most` requests are read. Raises InputError for a file that can't be read, lacks needed columns, has no
    requests, has arrivals out of order, or has wrong rows (the first ten are named).
    """
    file = str(path)
    try:
        with open_bytes(Path(path)) as raw, _text_of(raw) as stream:
            rows = np.frombuffer(_rows(stream, file, most)).reshape(-1, COLUMNS)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = "it is no UTF-8 text" if isinstance(error, UnicodeError) else getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read: {reason}", file=file) from None
    if rows.size == 0:
        raise InputError("holds no request", file=file)
    rows[:, 0] -= rows[0, 0]
    return rows


def _text_of(raw: BufferedReader) -> TextIOWrapper:
    """The text of an open file, decompressed if necessary, whatever its name. It is read once, so pipes work."""
    packed = raw.peek(len(GZIP_MAGIC))[: len(GZIP_MAGIC)] == GZIP_MAGIC
    content = gzip.GzipFile(fileobj=raw) if packed else raw
    return TextIOWrapper(content, encoding="utf-8-sig", newline="")


def _rows(stream: IO[str], file: str, most: int | None) -> array[float]:
    first = stream.readline()
    if not first.strip():
        raise InputError("is empty, or starts with an empty line", file=file)
    is_json = first.lstrip().startswith("{")
    if not is_json and _is_json_value(first):
        raise InputError("is no object with keys, nor a header of columns", file=file, line=1)
    lines = chain([first], stream)
    columns, entries = _json_entries(first, lines, file) if is_json else _csv_entries(lines, file)
    return _checked(entries, columns, file, most)


def _csv_entries(lines: Iterable[str], file: str) -> tuple[Columns, Iterator[tuple[int, Any]]]:
    """The columns of a CSV file, and its rows as (line, three cells or a fault)."""
    reader = csv.reader(lines)
    header = [name.strip() for name in next(reader)]
    columns = _known(header, file)
    at, prompt, out = (header.index(name) for name in columns.names)

    def entries() -> Iterator[tuple[int, Any]]:
        try:
            for row in reader:
                if len(row) > len(header):
                    yield reader.line_num, f"has {len(row)} cells, and the header {len(header)}"
                elif row:
                    try:
                        yield reader.line_num, (row[at], row[prompt], row[out])
                    except IndexError:
                        yield reader.line_num, f"has {len(row)} of {len(header)} cells"
        except csv.Error as error:
            yield reader.line_num, f"is not CSV: {error}"

    return columns, entries()


def _is_json_value(line: str) -> bool:
    """Whether a line is a JSON value, such as true, 3 or "text"."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _json_entries(first: str, lines: Iterable[str], file: str) -> tuple[Columns, Iterator[tuple[int, Any]]]:
    """The columns of JSON lines, and the objects as (line, three values or a fault)."""
    try:
        keys = list(json.loads(first))
    except (ValueError, RecursionError):
        raise InputError("is not valid JSON", file=file, line=1) from None
    columns = _known(keys, file)

    def entries() -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    entry = json.loads(line)
                    yield number, tuple(entry[name] for name in columns.names)
                except (ValueError, RecursionError):
                    yield number, "is not valid JSON"
                except KeyError as error:
                    yield number, f"has no {error.args[0]}"
                except TypeError:
                    yield number, "is no object with keys"

    return columns, entries()


def _known(names: list[str], file: str) -> Columns:
    """The format whose columns are all in the file. Names match exactly, otherwise without case."""
    for columns in KNOWN:
        if set(columns.names) <= set(names):
            return columns
    by_lower = {name.lower(): name for name in names}
    for columns in KNOWN:
        if {name.lower() for name in columns.names} <= set(by_lower):
            arrival, input_, output = (by_lower[name.lower()] for name in columns.names)
            return columns._replace(arrival=arrival, input=input_, output=output)
    forms = "; or ".join(", ".join(columns.names) for columns in KNOWN)
    found = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
    message = f"has no columns of arrival, prompt and output tokens (found: {found})"
    raise InputError(message, file=file, line=1, allowed=forms)


def _checked(entries: Iterator[tuple[int, Any]], columns: Columns, file: str, most: int | None) -> array[float]:
    """The rows in one flat array, which saves memory for millions of rows. Raises InputError for the first wrong rows."""
    rows = array("d")
    faults: list[Fault] = []
    start, before = math.nan, -math.inf  # there is no start before the first row
    for line, entry in islice(entries, most):
        try:
            if isinstance(entry, str):
                raise InputError(entry)
            at = _arrival(entry[0], columns, before, start)
            rows.extend((at, _tokens(entry[1], columns.input), _tokens(entry[2], columns.output)))
        except InputError as error:
            faults += [replace(fault, file=file, line=line) for fault in error.faults]
            if len(faults) == MOST_FAULTS:
                break
            continue
        start, before = (at if math.isnan(start) else start), at
    raise_any(faults)
    return rows


def _arrival(value: Any, columns: Columns, before: float, start: float) -> float:
    """An arrival in s. Raises InputError if it is not a time, is before the last arrival, or is far off."""
    try:
        at = math.nan if isinstance(value, bool) else columns.seconds(value)
    except (ValueError, TypeError, OverflowError):
        at = math.nan
    wrong, allowed = "is no arrival", columns.reads
    if math.isfinite(at):
        if max(before, 0.0) <= at <= MOST_ARRIVAL_S and not at - start > MOST_DURATION_S:
            return at
        if at < before:
            wrong, allowed = "is before the row above", "arrivals in order"
        elif at < 0:
            wrong = "is below 0"
        elif at > MOST_ARRIVAL_S:
            wrong, allowed = "is too large to tell steps apart", f"{columns.reads}, at most {MOST_ARRIVAL_S:g} s"
        else:
            hours = MOST_DURATION_S / SECONDS_PER_HOUR
            wrong = f"is {(at - start) / SECONDS_PER_HOUR:,.0f} h after the first request"
            allowed = f"{columns.reads}, at most {hours:,.0f} h after it"
    raise InputError(f"{value!r} {wrong}", field=columns.arrival, allowed=allowed)


def _tokens(value: Any, column: str) -> float:
    """A number of tokens. Raises InputError for any other value."""
    try:
        tokens = 0.0 if isinstance(value, bool) else float(value)
    except (ValueError, TypeError, OverflowError):
        tokens = 0.0
    if 1 <= tokens <= MOST_TOKENS and tokens.is_integer():
        return tokens
    raise InputError(
        f"{'null' if value is None else repr(value)} is no number of tokens",
        field=column,
        allowed="a whole number above 0",
    )
