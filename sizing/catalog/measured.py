"""Measured serving benchmarks from CSV files: one typed row per benchmark point, and a fault for each wrong cell."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from sizing.catalog.files import expanded, read_text
from sizing.catalog.shelf import only
from sizing.catalog.workloads import load_workload
from sizing.specs.errors import Fault, InputError, nearest, unknown
from sizing.specs.frozen import Frozen
from sizing.specs.measurements import Conventions, SystemBenchmark
from sizing.specs.optimisations import MOST_DRAFTED
from sizing.specs.units import MILLI

MOST_FAULTS = 10  # shown per file; more faults of the same kind help nobody

MODES = ("static_batch", "closed_loop", "open_loop", "max_throughput", "server_slo")
PERCENTILE = re.compile(r"(?P<metric>ttft|itl|e2e)_(?P<percentile>p[1-9]\d?)_ms")
METRICS = ("ttft_ms", "itl_ms", "e2e_ms", "req_per_s", "output_tok_per_s")
NEEDED = ("id", "engine", "model", "gpu", "isl", "osl", "mode")
TEXTS = ("source", "url", "engine_version", "weight_precision", "kv_precision", "notes")


class Bounds(NamedTuple):
    """The smallest and largest allowed value of a number. `whole` numbers are counts."""

    least: float
    most: float
    whole: bool = False

    def __str__(self) -> str:
        """Describe the allowed values for a fault."""
        return f"{'whole numbers, ' if self.whole else ''}{self.least:,.10g} to {self.most:,.10g}"


# A number outside these bounds is a mistake (wrong unit, decimal point). Comparing or simulating it would be useless.
LATENCY_MS = Bounds(1e-3, 1e9)  # a microsecond, less than one kernel takes to start; 11 days, longer than any run
RATE_PER_S = Bounds(1e-6, 1e9)  # one in 11 days; far above what a whole data centre generates
TOKENS = Bounds(1, 10 * 2**20)  # the longest published context, 10 Mi (Llama 4 Scout)
BUDGET_TOKENS = TOKENS._replace(whole=True)
POOL_TOKENS = Bounds(1, 10**12, whole=True)  # of one replica; a token takes a kilobyte or more
GPUS = Bounds(1, 4096, whole=True)  # GPUs of one deployment; published ones have at most a rack
IN_FLIGHT = Bounds(1, 50_000, whole=True)  # published runs have up to 7,168; more take minutes to simulate
REQUESTS = Bounds(1, 500_000, whole=True)  # ten rounds of the most in flight
STEPS = Bounds(1, 1_000_000, whole=True)  # a wait of hours
SHARE, PERCENT = Bounds(0, 1), Bounds(0, 100)
# The shape of the gaps between arrivals: a burst in a thousand gaps; even to a part in a thousand.
BURSTINESS = Bounds(1e-3, 1e6)
TOKENS_PER_STEP = Bounds(1, MOST_DRAFTED + 1)

BOUNDS: dict[str, Bounds] = {
    **dict.fromkeys(("isl", "osl"), TOKENS),
    **dict.fromkeys(("n_gpus", "tp", "pp", "ep", "attention_dp"), GPUS),
    **dict.fromkeys(("concurrency", "batch"), IN_FLIGHT),
    **dict.fromkeys(("num_requests", "max_num_seqs"), REQUESTS),
    "max_num_batched_tokens": BUDGET_TOKENS,
    "kv_cache_tokens": POOL_TOKENS,
    **dict.fromkeys(("batch_wait_steps", "arrival_poll_steps"), STEPS),
    "warmup_requests": Bounds(0, REQUESTS.most),
    **dict.fromkeys(("length_ratio_min", "batch_wait_ratio"), SHARE),
    "ttft_p99_ms": LATENCY_MS,
    **{name: LATENCY_MS if name.endswith("_ms") else RATE_PER_S for name in METRICS},
}
COLUMNS = tuple(dict.fromkeys((*NEEDED, *TEXTS, *BOUNDS)))
PERCENTILE_COLUMNS = tuple(f"{name}_p{percent:g}_ms" for name in ("ttft", "itl", "e2e") for percent in (50, 90, 95, 99))

AGREEING = "figures of one run: ms, requests/s and tokens/s of all GPUs, ITL without the first token, 10 requests or more of each client"


class MeasuredSetting(Frozen, kw_only=True):
    """The setup of a benchmark. Unknown fields are empty or None. `concurrency` counts requests in flight over all GPUs."""

    model: str = ""
    engine: str = ""
    engine_version: str = ""
    gpu: str = ""
    weight_precision: str = ""
    kv_precision: str = ""
    n_gpus: int | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    attention_dp: int | None = None
    concurrency: int | None = None


class MeasuredRow(MeasuredSetting, kw_only=True):
    """One benchmark point. Fields that the source does not state are None. `cells` is the row as written, for grouping.

    ISL and OSL are nominal tokens per request. With `length_ratio_min`, lengths are uniform from that share of the nominal length
    upwards. `output_tok_per_s` counts only output tokens. `kv_cache_tokens` is the pool of one replica, as its engine prints it.
    """

    id: str
    isl: float
    osl: float
    mode: str
    source: str = ""
    url: str = ""
    notes: str = ""
    batch: int | None = None
    num_requests: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_tokens: int | None = None
    batch_wait_steps: int | None = None
    arrival_poll_steps: int | None = None
    warmup_requests: float | None = None
    length_ratio_min: float | None = None
    batch_wait_ratio: float | None = None
    ttft_p99_ms: float | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None
    req_per_s: float | None = None
    output_tok_per_s: float | None = None
    cells: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def parts_ms(self) -> float | None:
        """The E2E that follows from TTFT and ITL; None if one of them is not stated."""
        return None if self.ttft_ms is None or self.itl_ms is None else self.ttft_ms + self.itl_ms * (self.osl - 1)

    @property
    def whole_ms(self) -> float | None:
        """The E2E as stated, otherwise from TTFT and ITL."""
        return self.parts_ms if self.e2e_ms is None else self.e2e_ms

    @property
    def in_flight(self) -> float | None:
        """Mean requests in flight over all GPUs by Little's law; None if rate or latencies are not stated."""
        return _product(self.req_per_s, self.whole_ms, MILLI)

    def measured(self) -> dict[str, float]:
        """The metrics that the row states."""
        return {name: value for name in METRICS if (value := getattr(self, name)) is not None}

    def percentiles_ms(self) -> dict[str, dict[str, float]]:
        """The percentiles of `ttft`, `itl` and `e2e` that the row states: {"ttft": {"p99": 812.0}}."""
        found: dict[str, dict[str, float]] = {}
        if self.ttft_p99_ms is not None:
            found["ttft"] = {"p99": self.ttft_p99_ms}
        for name, text in self.cells.items():
            if text and (stated := PERCENTILE.fullmatch(name)):
                found.setdefault(stated["metric"], {})[stated["percentile"]] = read_number(text, LATENCY_MS)
        return found


class LeftOut(NamedTuple):
    """The name of a row that is not used, and the reason."""

    id: str
    reason: str


class Unread(NamedTuple):
    """A row that cannot be read: its name, and the faults of its missing or wrong cells."""

    id: str
    faults: tuple[Fault, ...]

    @property
    def reason(self) -> str:
        """The faults of all cells in one line."""
        return "; ".join(f"{fault.field}: {fault.message}" if fault.field else fault.message for fault in self.faults)


class MeasuredRows(NamedTuple):
    """The rows of a file that can be read, and the rows that cannot."""

    rows: tuple[MeasuredRow, ...]
    unread: tuple[Unread, ...]


def unread_columns(rows: Iterable[MeasuredRow], used: Iterable[str] = ()) -> list[Fault]:
    """A notice for each column of the rows that nothing reads, with the nearest name; `used` are columns to group by."""
    read = (*COLUMNS, *PERCENTILE_COLUMNS)
    names = dict.fromkeys(name for row in rows for name in row.cells)
    own = (name for name in names if name not in (*read, *used) and not PERCENTILE.fullmatch(name))
    what = "the column is not read; validate --by can group by it"
    return [Fault(what, field=name, nearest=nearest(name, read)) for name in own]


def load_measured(path: Path | str) -> tuple[MeasuredRow, ...]:
    """The rows of a file without any mistake.

    Unknown columns are kept for grouping, see `unread_columns`. Raises InputError for a file that can't be read, lacks needed columns, has no rows, or
    has wrong cells (the first ten are named by line and column).
    """
    found = _read(path)
    if found.unread:
        raise InputError([fault for row in found.unread for fault in row.faults][:MOST_FAULTS])
    return found.rows


def read_measured(paths: Iterable[Path | str]) -> MeasuredRows:
    """The rows of several files that can be read, and the other rows with reasons.

    Raises InputError if a file can't be read, or if no row of any file is right.
    """
    rows: list[MeasuredRow] = []
    unread: list[Unread] = []
    wrong: list[Fault] = []
    broken = False
    for path in paths:
        try:
            found = _read(path)
        except InputError as error:
            broken = True
            wrong += error.faults
            continue
        rows += found.rows
        unread += found.unread
        wrong += [] if found.rows else [fault for row in found.unread for fault in row.faults][:MOST_FAULTS]
    if broken or not rows:
        raise InputError(wrong)
    return MeasuredRows(tuple(rows), tuple(unread))


def _read(path: Path | str) -> MeasuredRows:
    file = str(path)
    reader = csv.DictReader(io.StringIO(read_text(expanded(file)), newline=""), restkey="", strict=True)
    rows: list[MeasuredRow] = []
    unread: list[Unread] = []
    faults: list[Fault] = []
    try:
        faults += _wrong_head(reader.fieldnames or (), file)
        for cells in reader if not faults else ():
            line = reader.line_num
            if "" in cells:
                unread.append(Unread(f"line {line}", (Fault("has more cells than the head", file, line),)))
                continue
            row = _filled({name: (text or "").strip() for name, text in cells.items()})
            wrong = checked_cells(row, file, line)
            made = None if wrong else row_of(row)
            wrong += [] if made is None else [replace(fault, file=file, line=line) for fault in contradictions(made)]
            if made is None or wrong:
                unread.append(Unread(row["id"] or f"line {line}", tuple(wrong)))
            else:
                rows.append(made)
    except csv.Error as error:
        faults.append(Fault(f"is not valid CSV: {error}", file, reader.line_num))
    if not faults and not rows and not unread:
        faults.append(Fault("holds no rows", file))
    if faults:
        raise InputError(faults[:MOST_FAULTS])
    return MeasuredRows(tuple(rows), tuple(unread))


def contradictions(row: MeasuredRow, arrivals_per_s: float | None = None) -> Iterator[Fault]:
    """Yield faults for figures that no run can have measured together.

    Examples are an E2E unlike the sum of its parts, counts that break Little's law, and percentiles out of order.
    `arrivals_per_s` is the arrival rate, if there was one. It reveals a wrong unit of the throughput.
    """
    allowed = only(Conventions).agreement
    no_less, in_order = (1.0, math.inf), (allowed.over_lower_percentile, math.inf)
    ttft, e2e, rate = row.ttft_ms, row.e2e_ms, row.req_per_s
    parts = None if e2e is not None and e2e < (ttft or 0.0) else row.parts_ms
    clients = row.concurrency if row.mode in ("closed_loop", "open_loop") else None  # of arrivals at a rate, the most
    least_clients, most_clients = allowed.clients_over_in_flight
    of_clients = (least_clients, most_clients if row.mode == "closed_loop" else math.inf)
    tokens, in_flight = _product(rate, row.osl), "requests in flight by Little's law, req_per_s x E2E"
    checks: list[tuple[str, float | None, str, float | None, tuple[float, float]]] = [
        ("e2e_ms", e2e, "its part ttft_ms", ttft, no_less),
        ("e2e_ms", e2e, "ttft_ms + itl_ms x (OSL - 1)", parts, allowed.e2e_over_parts),
        ("output_tok_per_s", row.output_tok_per_s, "req_per_s x OSL", tokens, allowed.tokens_over_requests),
        ("req_per_s", rate, "the arrivals a second", arrivals_per_s, allowed.served_over_arrivals),
        ("concurrency", clients, in_flight, row.in_flight, of_clients),
        ("num_requests", row.num_requests, in_flight, row.in_flight, (allowed.e2e_over_parts[0], math.inf)),
    ]
    for name, listed in row.percentiles_ms().items():
        known = sorted((float(percentile[1:]), value) for percentile, value in listed.items())
        columns = [(f"{name}_p{percent:g}_ms", percent, value) for percent, value in known]
        for (low, _, below), (high, _, above) in pairwise(columns):
            checks.append((high, above, f"the {low}", below, in_order))
        mean = getattr(row, f"{name}_ms")
        checks += [(high, value, "the mean", mean, in_order) for high, percent, value in columns if percent >= 99]
        if columns and name != "itl":  # whose mean may be by token, and its percentiles by chunk of several
            least_mean, high = max(((1 - percent / 100) * value, high) for high, percent, value in columns)
            checks.append((f"{name}_ms", mean, f"the least mean with that {high}", least_mean, in_order))
    for column, value, of, other, (least, most) in checks:
        if value is not None and other and not least <= value / other <= most:
            yield Fault(f"{value:,.5g} contradicts {of}, {other:,.4g}", field=column, allowed=AGREEING)


def _product(*factors: float | None) -> float | None:
    return math.prod(known) if len(known := [one for one in factors if one is not None]) == len(factors) else None


def benchmark_of(source: str, model: str) -> SystemBenchmark | None:
    """The system benchmark of a row, found by its source and model; None for a run of one deployment."""
    known = only(Conventions).systems
    return next((one for one in known if one.rows_of in source and one.model_of.lower() in model.lower()), None)


def _filled(cells: dict[str, str]) -> dict[str, str]:
    """The cells of a row. Missing lengths are filled from the row's system benchmark."""
    of = benchmark_of(cells.get("source", ""), cells["model"])
    if of is None:
        return cells
    tokens = load_workload(of.workload).spec.tokens
    return {**cells, "isl": cells["isl"] or str(tokens.isl), "osl": cells["osl"] or str(tokens.osl)}


def _wrong_head(names: Any, file: str) -> list[Fault]:
    known = [name for name in names if name]
    if not set(NEEDED) & set(known):
        allowed = f"columns {', '.join(NEEDED)}, as llmsize import writes them"
        return [Fault("is no file of measured rows", file, 1, allowed=allowed)]
    missing = [name for name in NEEDED if name not in known]
    own = [name for name in known if name not in COLUMNS]
    allowed_of = {"mode": ", ".join(MODES)}
    faults = [
        Fault("the column is missing", file, 1, name, allowed=allowed_of.get(name), nearest=nearest(name, own))
        for name in missing
    ]
    twice = sorted({name for name in known if known.count(name) > 1})
    faults += [Fault("the column is given twice", file, 1, name) for name in twice]
    if not faults and not set(METRICS) & set(known):
        faults.append(Fault("no column holds a result", file, 1, allowed=", ".join(METRICS)))
    return faults


def checked_cells(cells: Mapping[str, str], file: str, line: int | None) -> list[Fault]:
    """A fault for each wrong cell of a row."""
    faults = []
    bounds = BOUNDS | {name: LATENCY_MS for name in cells if PERCENTILE.fullmatch(name)}
    for name in dict.fromkeys((*COLUMNS, *bounds)):
        text = cells.get(name, "")
        if not text:
            if name in NEEDED:
                faults.append(Fault("is empty", file, line, name))
            continue
        if name == "mode" and text not in MODES:
            faults.append(replace(unknown(text, "mode", MODES, field=name), file=file, line=line))
        elif name in bounds:
            try:
                read_number(text, bounds[name])
            except ValueError as error:
                faults.append(Fault(f"{text!r} is {error}", file, line, name, allowed=str(bounds[name])))
    return faults


def row_of(cells: Mapping[str, str]) -> MeasuredRow:
    """The row of cells that are right."""
    given: dict[str, Any] = {
        name: read_number(text, BOUNDS[name]) if name in BOUNDS else text
        for name in COLUMNS
        if (text := cells.get(name, ""))
    }
    return MeasuredRow(**given, cells=cells)


def read_number(text: str, bounds: Bounds) -> float:
    """The number in `text`, an int where `bounds` require whole numbers.

    Raises ValueError, saying what the text is instead, for no number and one out of bounds.
    """
    try:
        value = float(text)
    except ValueError:
        raise ValueError("no number") from None
    if not math.isfinite(value):
        raise ValueError("not finite")
    if bounds.whole and not value.is_integer():
        raise ValueError("no whole number")
    if not bounds.least <= value <= bounds.most:
        raise ValueError("out of range")
    return int(value) if bounds.whole else value
