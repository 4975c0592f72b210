"""Measured rows from runs. The user states what a file does not record, or is asked for it by name. Nothing is guessed."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain, combinations
from typing import Any, NamedTuple, get_args

from sizing.catalog import models, profiles
from sizing.catalog.files import expanded, resolved
from sizing.catalog.imports.engine_logs import EngineFacts
from sizing.catalog.imports.results import Reading, read_results, read_scrapes
from sizing.catalog.imports.run import PREFIXES_KEPT, UNVERSIONED, BenchmarkRun, LatencyFigures, RunSettings
from sizing.catalog.imports.scrapes import Scrape
from sizing.catalog.measured import (
    BOUNDS,
    COLUMNS,
    PERCENTILE_COLUMNS,
    RATE_PER_S,
    MeasuredRow,
    checked_cells,
    contradictions,
    read_number,
    row_of,
)
from sizing.catalog.shelf import by_stem, only
from sizing.catalog.workloads import optimisations
from sizing.specs.errors import Fault, InputError, collected, raise_any, unknown
from sizing.specs.measurements import Conventions
from sizing.specs.model import MoeMlp, NameRules
from sizing.specs.units import MILLI
from sizing.specs.workload import KvPrecision, Precision

# Options by the setting that they state. The settings of the first group must be known for every run.
NEEDED = {"model": "--model", "engine": "--engine", "gpu": "--gpu", "tp": "--tp", "weight_precision": "--precision", "isl": "--isl",
          "osl": "--osl", "load": "--concurrency or --rps"}  # fmt: skip
OPTIONS = NEEDED | {"kv_precision": "--kv-precision", "n_gpus": "--gpus", "pp": "--pp", "ep": "--ep", "attention_dp": "--dp",
                    "concurrency": "--concurrency", "rate_per_s": "--rps", "speculative": "--speculative",
                    "prefix": "--prefix-hit", "prefix_hit": "--prefix-hit",
                    "engine_version": "--engine"}  # fmt: skip
UNLIKE_PLAIN = {name: OPTIONS[name] for name in ("speculative", "prefix")}
LOGGED = ("max_num_seqs", "max_num_batched_tokens", "kv_cache_tokens")  # settings that only a start-up log states
HEAD = tuple(dict.fromkeys((*COLUMNS, *PERCENTILE_COLUMNS)))


Cells = dict[str, str | float | None]


class Imports(NamedTuple):
    """The rows of files by column, a fault for each run or file without a row, and the facts of start-up logs."""

    rows: list[Cells]
    faults: list[Fault]
    facts: tuple[EngineFacts, ...]


def stated(given: Mapping[str, Any]) -> RunSettings:
    """The settings in `given` as `RunSettings`, with names looked up in the catalogue.

    Raises InputError with every unknown name and every number out of range.
    """
    faults: list[Fault] = []
    values = dict(given)
    for name, find in (("model", models.load_model), ("gpu", profiles.load_gpu)):
        with collected(faults):
            values |= {name: find(values[name]).id} if name in values else {}
    if "engine" in values:
        with collected(faults):
            engine, version = profiles.load_engine(values["engine"])
            values |= {"engine": engine.id, "engine_version": version or ""}
    for name, known in (("weight_precision", get_args(Precision)), ("kv_precision", get_args(KvPrecision))):
        if name in values and values[name] not in known:
            faults.append(unknown(values[name], "precision", known, field=OPTIONS[name]))
    for name, bounds in {**BOUNDS, "rate_per_s": RATE_PER_S}.items():
        if name in values:
            try:
                read_number(str(values[name]), bounds)
            except ValueError as error:
                faults.append(Fault(f"{values[name]} is {error}", field=OPTIONS[name], allowed=str(bounds)))
    ran_with = {name: values.pop(name) for name in UNLIKE_PLAIN if name in values}
    with collected(faults):
        found = optimisations(UNLIKE_PLAIN, ran_with)
    raise_any(faults)
    hit = found.prefix.hit if found.prefix else None
    return RunSettings(**values, speculative=str(found.speculative or ""), prefix_hit=hit)


def import_files(files: Sequence[str], settings: RunSettings, seconds: float | None = None) -> Imports:
    """The rows of result files, and the facts of start-up logs.

    Scrapes of one engine are used in order, and each pair of neighbours gives a run. `seconds` is the time between two scrapes,
    or since the start of the engine. A single start-up log is that of the engine that served the runs: it fills the settings
    that they leave out. `seconds` without scrapes are a fault. Raises InputError for a file that is named twice.
    """
    _refuse_named_twice(files)
    readings: list[tuple[str, Reading]] = []
    for file in files:
        try:
            readings.append((file, read_results(file)))
        except InputError as error:
            readings.append((file, Reading((), tuple(error.faults))))
    engines: dict[tuple[str, str], list[Scrape]] = {}
    for one in (one for _, reading in readings for one in reading.scrapes):
        engines.setdefault((one.engine, one.model), []).append(one)
    readings += [(group[-1].file, read_scrapes(group, seconds)) for group in engines.values()]
    logs = tuple(facts for _, reading in readings for facts in reading.facts)
    found: list[Cells] = []
    faults: list[Fault] = []
    if seconds is not None and not engines and not any(reading.faults for _, reading in readings):
        why = "has no meaning where files record their own durations"
        faults.append(Fault(why, field="--seconds", remedy="use it with scrapes of an engine's metrics"))
    for file, reading in readings:
        good, wrong = rows(reading.runs, settings, file, logs[0] if len(logs) == 1 else None)
        found += good
        faults += (*reading.faults, *wrong)
    apart = {log.file: _against_log(log, settings) for log in logs}
    if len(logs) > 1 or not any(reading.runs for _, reading in readings):  # else told of each run
        faults += chain.from_iterable(apart.values())
    return Imports(found, faults, tuple(log for log in logs if not apart[log.file]))


def _refuse_named_twice(files: Sequence[str]) -> None:
    """Raise InputError for files that are named twice: their runs would count twice, and of scrapes none lies between."""
    paths = Counter(resolved(expanded(file)) for file in files)
    twice = [file for file in dict.fromkeys(files) if paths[resolved(expanded(file))] > 1]
    if twice:
        raise InputError([Fault("is named twice", file) for file in twice])


def csv_text(found: Sequence[Cells]) -> str:
    """Rows as a CSV file of measured rows."""
    out = io.StringIO()
    writer = csv.DictWriter(out, HEAD, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return out.getvalue()


def _value(name: str, text: str) -> str | float | None:
    """The value of a cell: a number in columns of numbers, None for an empty one."""
    if not text:
        return None
    return float(text) if name in PERCENTILE_COLUMNS else read_number(text, BOUNDS[name]) if name in BOUNDS else text


# Settings that a file records reliably, so that a contradicting option is a mistake. Model names are free text, so they contradict
# only where both are known. Engine names are mostly those of the client.
RECORDED = ("engine", "weight_precision", "kv_precision", "n_gpus", "tp", "pp", "ep", "attention_dp", "concurrency")
LENGTHS = ("isl", "osl")  # stated and measured values contradict if they differ by more than tokenizers' counts do


def rows(
    runs: Sequence[BenchmarkRun], settings: RunSettings, file: str, log: EngineFacts | None = None
) -> tuple[list[Cells], list[Fault]]:
    """A row of values, by column, for each run of a file, and the faults of the runs without a row.

    `log` is the start-up log of the engine that served the runs.
    """
    found: list[Cells] = []
    faults: list[Fault] = []
    for index, recorded in enumerate(runs):
        run = recorded if settings.osl is None else recorded.forced_to(settings.osl)
        of_engine = log if log is not None and run.engine in ("", log.engine) else None
        cells = _cells(run, settings, of_engine, f"{file}:{run.line or index}")
        wrong = [*_against_record(run, settings, of_engine), *_against_ranks(run, cells)]
        needed = [*NEEDED, *(["n_gpus"] if run.one_replica else [])]
        if absent := [name for name in needed if not cells.get("mode" if name == "load" else name)]:
            options = ", ".join(OPTIONS[name] for name in absent)
            wrong.append(Fault(f"{run.tool} does not record {', '.join(absent)}", remedy=f"state {options}"))
        else:
            wrong += checked_cells(cells, file, run.line)
        wrong += _not_usable(run, settings)
        if not wrong:
            made = row_of(cells)
            wrong += contradictions(made, run.rate_per_s or settings.rate_per_s)
            wrong += _against_duration(run)
            wrong += () if run.one_replica else _no_layout(made)
            if short := _idle(made):
                cells |= {"notes": f"{made.notes}; a short run: {short}".removeprefix("; ")}
            if short and run.concurrency is None:
                wrong.append(Fault(short, field="--concurrency", allowed="the requests in flight of the run"))
        faults += [replace(fault, file=file, line=run.line) for fault in wrong]
        if not wrong:
            found.append({name: _value(name, text) for name, text in cells.items()})
    return found, faults


def _idle(row: MeasuredRow) -> str:
    """How few clients of a closed loop were busy, in words; empty where enough were."""
    clients = (row.concurrency or 0) if row.mode == "closed_loop" else 0
    if row.in_flight is None or row.in_flight >= only(Conventions).agreement.least_busy * clients:
        return ""
    return f"{row.in_flight:,.3g} of {clients:,} clients were busy by Little's law, req_per_s x E2E"


def _not_usable(run: BenchmarkRun, settings: RunSettings) -> Iterator[Fault]:
    """Yield a fault for each name of the file that no profile has, and for a run of which too many requests failed."""
    lookups = {"gpu": (profiles.load_gpu, "GPU"), "engine": (profiles.load_engine, "engine")}
    for name, (find, noun) in lookups.items():
        recorded = getattr(run, name)
        if recorded and not getattr(settings, name):
            try:
                find(recorded)
            except InputError as error:
                for fault in error.faults:
                    message = f"the file records {recorded!r}, which is no known {noun}"
                    yield Fault(message, nearest=fault.nearest, remedy=f"state {OPTIONS[name]}")
    most, sent = only(Conventions).agreement.most_failed, run.failed + (run.requests or 0)
    if run.requests is not None and run.failed > most * sent:
        what = f"{_failed(run)}: the others do not show the load that was asked for"
        yield Fault(what, allowed=f"at most {most:.0%}")


def _against_duration(run: BenchmarkRun) -> Iterator[Fault]:
    """Yield a fault where requests/s are not those completed over the duration of the run."""
    if run.requests and run.duration_s and run.req_per_s:
        least, most = only(Conventions).agreement.served_over_duration
        if not least <= run.req_per_s * run.duration_s / run.requests <= most:
            said = f"{run.req_per_s:,.4g} contradicts {run.requests:,} requests in {run.duration_s:,.4g} s"
            yield Fault(said, field="req_per_s", allowed="completed requests over the duration of the run")


def _against_ranks(run: BenchmarkRun, cells: Mapping[str, str]) -> Iterator[Fault]:
    """Yield a fault where several ranks served the run, and the GPUs of all are not known or another number."""
    gpus, tp = (int(cells[name]) if cells[name].isdigit() else 0 for name in ("n_gpus", "tp"))
    if run.ranks > 1 and tp and gpus % (tp * run.ranks):
        seen = f"{run.ranks} engines or ranks of data parallelism served the load, and {gpus} GPUs of TP{tp} are stated"
        yield Fault(seen, remedy=f"state --dp {run.ranks}, or the GPUs of all as --gpus")


def _no_layout(row: MeasuredRow) -> Iterator[Fault]:
    """Yield a fault for GPUs that TP, PP and EP cannot share."""
    tp, pp, gpus = row.tp or 1, row.pp or 1, row.n_gpus or 1
    if gpus % (tp * pp):
        what = f"{gpus} GPUs are no whole number of replicas of TP{tp} PP{pp}"
        yield Fault(what, field="--gpus", allowed=f"a multiple of {tp * pp}")
    elif (gpus // pp) % (row.ep or 1):
        yield Fault(f"EP{row.ep} does not divide the {gpus // pp} GPUs of a stage", field="--ep")


def _is_dense(model: object) -> bool:
    """Whether a model of the catalogue has no experts: its ranks of data parallelism are replicas."""
    name = models.known_id(str(model or ""))
    kinds = () if name is None else models.load_model(name).spec.kinds
    return name is not None and not any(isinstance(mlp, MoeMlp) for kind in kinds for mlp in kind.mlps)


def _failed(run: BenchmarkRun) -> str:
    """How many requests of the run failed, in words; empty if none did."""
    if not run.failed:
        return ""
    if run.requests is None:
        return f"{run.failed:,} requests failed, and the file does not state of how many"
    return f"{run.failed:,} of {run.failed + run.requests:,} requests failed"


def _sent(run: BenchmarkRun, cap: int | None) -> Iterator[str]:
    """Yield how arrivals at a rate differ from random ones. `cap` is the most requests that the client kept in flight."""
    if math.isinf(run.burstiness):
        yield "even arrivals: TTFT of random ones is longer"
    elif run.burstiness != 1:
        kind, than = ("even", "longer") if run.burstiness > 1 else ("bursty", "shorter")
        yield f"{kind} arrivals, burstiness {run.burstiness:g}: TTFT of random ones is {than}"
    if cap:
        yield f"arrivals capped at {cap:,} in flight by the client: others waited there, which TTFT leaves out"


def _never_reached(cap: int | None, run: BenchmarkRun) -> bool:
    """Whether a client's cap is so far above the requests in flight (Little's law) that none waited for it."""
    if cap is None or run.req_per_s is None or run.e2e.mean is None:
        return False
    return cap > only(Conventions).agreement.clients_over_in_flight[1] * run.req_per_s * run.e2e.mean * MILLI


def _against_record(run: BenchmarkRun, settings: RunSettings, log: EngineFacts | None) -> Iterator[Fault]:
    """Yield a fault for each setting that the file, the engine's log and the user state differently."""
    tellers: list[tuple[object, str]] = [(run, "the file records"), (settings, "")]
    if log is not None:
        tellers.insert(1, (log._replace(weight_precision=""), f"{log.file} says"))  # its words name families of formats
    yield from _apart(tellers)
    for name in LENGTHS:
        recorded, said = getattr(run, name), getattr(settings, name)
        if recorded and said and abs(said / recorded - 1) > only(Conventions).agreement.tokenizer:
            yield Fault(f"the file records a mean of {recorded:,.5g}, --{name} says {said:,.5g}")
    sent = "" if not run.concurrency else f"{run.concurrency} requests in flight"
    sent = sent if not run.rate_per_s or math.isinf(run.rate_per_s) else f"{run.rate_per_s:g} requests/s"
    if settings.rate_per_s and sent and settings.rate_per_s != run.rate_per_s:
        yield Fault(f"the file records {sent}, --rps says {settings.rate_per_s:g}")
    if settings.concurrency and sent and not run.concurrency:
        yield Fault(f"the file records {sent}, --concurrency says {settings.concurrency}")


def _apart(tellers: Sequence[tuple[object, str]]) -> Iterator[Fault]:
    """Yield a fault for each setting that two tellers state differently. A teller without words is the user."""
    for (one, who), (other, whom) in combinations(tellers, 2):
        for name, compared in COMPARED.items():
            told, said = (getattr(of, name, None) for of in (one, other))
            if told and said and "" != compared(told) != compared(said) != "":
                shown = str if name == "model" else compared
                yield Fault(f"{who} {shown(told)}, {whom or f'{OPTIONS[name]} says'} {shown(said)}")


def _against_log(log: EngineFacts, settings: RunSettings) -> list[Fault]:
    """A fault for each setting that a log and the user state differently, and for a GPU that cannot hold what the log says."""
    apart = list(_apart([(log._replace(weight_precision=""), "the engine says"), (settings, "")]))
    held, gpu = (log.weights_gib or 0) + (log.kv_cache_gib or 0), _known_gpu(settings.gpu)
    if gpu and held > (most := profiles.load_gpu(gpu).spec.datasheet.memory.cuda_visible_gib):
        says = f"--gpu says {gpu}, which has {most:.1f} GiB"
        apart.append(Fault(f"weights and KV cache of a GPU take {held:.1f} GiB, {says}"))
    return [replace(fault, file=log.file) for fault in apart]


def _known_gpu(name: str) -> str:
    """The id of a GPU of the catalogue; empty for other names, which contradict nothing."""
    found = profiles.named_gpu(name)[0]
    return found if found in profiles.GPUS.ids else ""


def _known_engine(name: str) -> str:
    """The id of an engine with a profile; empty for other names, as those of a router before it, which contradict nothing."""
    try:
        return profiles.load_engine(name)[0].id
    except InputError:
        return ""


# Settings in the form in which they are compared. An empty form contradicts nothing.
COMPARED: dict[str, Callable[..., str]] = {
    **dict.fromkeys(RECORDED, str),
    "engine_version": lambda text: known[0] if (known := re.match(r"\d+\.\d+", text)) else "",  # 0.19, whatever follows
    "model": lambda name: models.known_id(name) or "",
    "gpu": _known_gpu,
    "engine": _known_engine,
    "speculative": lambda said: re.split("[:@]", said)[0],
    "prefix_hit": lambda said: f"{said:.0%}",
}


def _cells(run: BenchmarkRun, settings: RunSettings, log: EngineFacts | None, id_: str) -> dict[str, str]:
    """The cells of a row. A cell is empty if neither the file, the user nor the engine's log states its value."""
    values: dict[str, object] = {
        name: next((known for of in (settings, run, log) if (known := getattr(of, name, None))), None)
        for name in (*(one.name for one in fields(RunSettings)), *LOGGED)
    }
    ranks = int(str(values["attention_dp"] or 1))
    within = run.attention_dp is not None or values["ep"] or (log and log.dp_in_tp)
    if ranks > 1 and not within and _is_dense(values["model"]):
        tp, pp = (int(str(values[name] or 1)) for name in ("tp", "pp"))
        values |= {"attention_dp": None, "n_gpus": values["n_gpus"] or tp * pp * ranks}
        ranks = 1
    if log is not None and log.kv_cache_tokens:  # each rank of attention prints its own
        values["kv_cache_tokens"] = log.kv_cache_tokens * ranks
    rate_per_s = settings.rate_per_s if run.rate_per_s is None else run.rate_per_s
    concurrency = run.concurrency or settings.concurrency
    values["mode"] = _mode(concurrency, rate_per_s)
    if values["mode"] == "open_loop" and _never_reached(concurrency, run):
        concurrency = None
    values |= {"concurrency": concurrency, "engine": values["engine"] or run.named_engine}
    absent, failed = run.absent(), _failed(run)
    notes = [*run.notes, *([f"latencies that the file does not state: {absent}"] if absent else [])]
    notes += [*([failed] if failed else []), *_unlike_plain(run, settings, log)]
    notes += [UNVERSIONED] if values["engine"] and not values["engine_version"] else []
    if values["mode"] == "open_loop":
        notes += _sent(run, concurrency)
    if log is not None:
        notes += [f"memory fraction {log.memory_fraction:g}"] if log.memory_fraction else []
        notes.append(f"settings of {log.file}")
    if values["mode"] == "open_loop":
        notes.insert(0, f"rate={rate_per_s:.6f}".rstrip("0").rstrip("."))
    named = models.parsed(run.model, only(NameRules)).quantisation if run.model else None
    if named and not values["weight_precision"]:
        values["weight_precision"] = named.precision
        notes.append(f"-{named.suffix} in the model's name: {named.says}")
    known = by_stem(models.without_organisation(run.model), models.SHELF) if run.model else None
    if settings.model and run.model and settings.model not in (run.model, known and known.id):
        notes.append(f"the file names another model: {run.model}")
    values |= {"id": id_, "source": run.tool, "num_requests": run.requests, "notes": "; ".join(notes)}
    values |= {"req_per_s": run.req_per_s, "output_tok_per_s": run.output_tok_per_s}
    for name in ("ttft", "itl", "e2e"):
        latency: LatencyFigures = getattr(run, name)
        values[f"{name}_ms"] = latency.mean
        values |= {f"{name}_p{percent:g}_ms": value for percent, value in latency.percentiles.items()}
    sizes: list[int] = [count for name in ("tp", "pp", "attention_dp") if isinstance(count := values[name], int)]
    of_layout = math.prod(sizes) if values["tp"] and not run.one_replica else None
    values["n_gpus"] = values["n_gpus"] or of_layout
    return {name: _written(values.get(name)) for name in HEAD}


def _unlike_plain(run: BenchmarkRun, settings: RunSettings, log: EngineFacts | None) -> Iterator[str]:
    """Yield what tells the run from one without drafts and cached prefixes, in the form that predictions read."""
    named = settings.speculative or run.speculative or (log.speculative if log else "")
    tokens = run.drafted or (log.drafted if log else None)
    drafted = f"{tokens:g}" if tokens else ""
    if named or drafted or run.tokens_per_step:
        unnamed = f"{drafted} tokens drafted" if drafted else "method not stated"
        told = f"{named}:{drafted}" if named and drafted and ":" not in named else named or unnamed
        given = f", {run.tokens_per_step:.4g} tokens a step" if run.tokens_per_step and "@" not in told else ""
        yield f"speculative decoding: {told}{given}"
    hit = run.prefix_hit if settings.prefix_hit is None else settings.prefix_hit
    if hit:
        yield f"prefix caching: {100 * hit:.3g}% of prompt tokens were found"
    elif hit is None and log is not None and log.prefix_caching and PREFIXES_KEPT not in run.notes:
        yield PREFIXES_KEPT


def _mode(concurrency: int | None, rate_per_s: float | None) -> str:
    """How requests arrived: at a rate, all at once, or one new request for each that ends."""
    if rate_per_s is not None and math.isfinite(rate_per_s) and rate_per_s > 0:
        return "open_loop"
    if concurrency:
        return "closed_loop"
    return "max_throughput" if rate_per_s is not None else ""


def _written(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else "" if value is None else str(value)
