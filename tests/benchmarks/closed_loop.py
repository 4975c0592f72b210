"""Compare the simulator with measured closed loops: a fixed number of requests in flight.

    python tests/benchmarks/closed_loop.py closed_loop.csv [--gpu h100-sxm] [--engine vllm] [--by engine,gpu,model] [--source text]

Each row is simulated as it was run: its lengths, number of requests (those of a warm-up come before and are left out),
slots, token budget, and how the engine holds prompts back. TTFT, ITL and throughput (requests/s) are means over the requests;
what a row does not state is the engine version's default.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent))

from static_batch import PRECISIONS, Experiment, deploy

from sizing import memory
from sizing.architecture import Layout
from sizing.catalog.engines import load_engine
from sizing.catalog.gpus import load_gpu
from sizing.engine import deploy as deployed_engine
from sizing.engine import rules, run
from sizing.engine.requests import Requests
from sizing.errors import Fault, InputError
from sizing.specs.engine import EngineSettings

METRICS = ("ttft_ms", "itl_ms", "req_per_s")
MILLI = 1e-3
ROUNDS_UNSTATED = 10  # requests in flight so many times over, where a row does not say how many were sent
MORE_PRECISIONS = {"fp8-dynamic": "fp8", "awq": "int4"}
CACHE_PRECISIONS = {"fp8_e4m3": "fp8", "auto": ""}
# How sources call a version that has none: the release that was current.
DATED_VERSIONS = {"1.0 era (2024), not stated": "0.10.0", "gpt-oss-dev": "1.1.0"}
ROW_KEYS = ("engine", "gpu", "model", "weight_precision", "source", "engine_version", "tp", "concurrency", "isl", "osl")


@dataclass(frozen=True, slots=True)
class Compared:
    """A row with what was simulated for it, in the row's units."""

    row: dict[str, str]
    simulated: dict[str, float]
    preempted: int

    def errors(self) -> dict[str, float]:
        """Relative errors (simulated/measured - 1) of the metrics that the row states."""
        measured = {name: float(self.row[name]) for name in METRICS if self.row[name]}
        return {name: self.simulated[name] / value - 1 for name, value in measured.items() if value > 0}

    def key(self, name: str) -> str:
        """Value of a grouping key, models without their publisher."""
        return self.row[name].rpartition("/")[2] if name == "model" else self.row[name]


def whole(text: str) -> int | None:
    """Read a whole number that may be written as a float; None where nothing is stated."""
    return round(float(text)) if text else None


def layout_of(row: dict[str, str]) -> Layout:
    """Read the layout; some sources state attention-data ranks within tp, some beside it."""
    tp, pp, dp, ep = (whole(row[name]) or 1 for name in ("tp", "pp", "attention_dp", "ep"))
    gpus = whole(row["n_gpus"]) or tp * pp * dp
    if tp * pp * dp > gpus and tp % dp == 0:
        tp //= dp
    return Layout(tp=tp, pp=pp, dp=dp, ep=ep if (tp * dp) % ep == 0 else 1)


def settings_of(row: dict[str, str], resolved: EngineSettings, longest: int) -> EngineSettings:
    """Return the engine's settings with what the row states over them."""
    stated = {name: whole(row[name]) for name in ("max_num_seqs", "max_num_batched_tokens")}
    changes = {name: value for name, value in stated.items() if value is not None}
    if resolved.budget_covers_context and "max_num_batched_tokens" not in changes:
        changes["max_num_batched_tokens"] = max(resolved.max_num_batched_tokens, longest)
    return resolved.model_copy(update=changes)


def rules_of(row: dict[str, str], resolved: EngineSettings) -> rules.Rules:
    """Return the scheduler's rules, with the row's batch waiting and arrival polling."""
    return replace(
        rules.of_engine(resolved),
        hold_steps=whole(row["batch_wait_steps"]) or 0,
        hold_ratio=float(row["batch_wait_ratio"] or 1.0),
        poll_steps=whole(row["arrival_poll_steps"]) or 0,
    )


def lengths(row: dict[str, str], seed: int = 0) -> Iterator[tuple[int, int]]:
    """Yield prompt and output lengths: fixed, or uniform between a share of the nominal length and all of it."""
    isl, osl = round(float(row["isl"])), round(float(row["osl"]))
    low = float(row["length_ratio_min"] or 1.0)
    rng = np.random.default_rng(seed)
    while True:
        yield (
            int(rng.integers(max(1, int(low * isl)), isl + 1)),
            int(rng.integers(max(1, int(low * osl)), osl + 1)),
        )


@cache
def engine_name(stated: str) -> str:
    """Return the engine's name without what a source wraps around it, as in `vLLM (Ray Serve)`."""
    for name in (stated, stated.partition("(")[0], stated.partition("(")[2].rstrip(")")):
        try:
            load_engine(name.strip())
            return name.strip()
        except InputError:
            continue
    raise InputError(Fault(f"{stated!r} is not a known engine"))


def compare(row: dict[str, str]) -> Compared:
    """Simulate one row. Raises InputError where the deployment can't be resolved or does not fit."""
    layout = layout_of(row)
    weight = PRECISIONS.get(
        row["weight_precision"], MORE_PRECISIONS.get(row["weight_precision"], row["weight_precision"])
    )
    found = deploy(
        engine_name(row["engine"]),
        DATED_VERSIONS.get(row["engine_version"], row["engine_version"]),
        row["gpu"],
        row["model"],
        weight,
        CACHE_PRECISIONS.get(row["kv_precision"], row["kv_precision"]),
        layout,
        Experiment(),
    )
    longest = round(float(row["isl"])) + round(float(row["osl"]))
    resolved = settings_of(row, found.settings, longest)
    used = memory.use(found.model, found.gpu, layout, found.kernels.plan, resolved, max_model_len=longest)
    if not used.fits:
        raise InputError(Fault("does not fit"))
    copies = max(1, (whole(row["n_gpus"]) or layout.gpus) // layout.gpus)
    requests = Requests()
    scheduling = rules_of(row, resolved)
    # Replicas, and attention-data ranks, share the load evenly, so one of them stands for all.
    replica, *others = deployed_engine.replicas(
        found.model, layout, found.kernels, used, scheduling, requests, count=copies, longest=longest
    )
    ranks = 1 + len(others)
    in_flight = max(1, round(float(row["concurrency"]) / ranks))
    count = max(in_flight, round((whole(row["num_requests"]) or ROUNDS_UNSTATED * ranks * in_flight) / ranks))
    run.closed_loop(requests, replica, in_flight=in_flight, count=count, lengths=lengths(row))
    if replica.refused:
        raise InputError(Fault("a request never fits the cache"))
    arrival, first, finished, osl = (
        np.array(column) for column in (requests.arrival, requests.first_token, requests.finished, requests.osl)
    )
    several = osl > 1
    itl_s = (finished[several] - first[several]) / (osl[several] - 1)
    simulated = {
        "ttft_ms": float((first - arrival).mean()) / MILLI,
        "itl_ms": float(itl_s.mean()) / MILLI if itl_s.size else 0.0,
        "req_per_s": ranks * count / float(finished.max()),
    }
    return Compared(row, simulated, replica.preempted)


def table(compared: list[Compared], by: tuple[str, ...]) -> Table:
    """Median absolute error, bias (median), 90th percentile and count by group, in percent."""
    groups: dict[tuple[str, ...], list[Compared]] = defaultdict(list)
    for one in compared:
        groups[tuple(one.key(name) for name in by)].append(one)
        groups[("all", *[""] * (len(by) - 1))].append(one)
    shown = Table(*by, title="relative error, %: median absolute | bias | p90 absolute | rows")
    for metric in METRICS:
        shown.add_column(metric, justify="right")
    for group in sorted(groups, key=lambda key: (key[0] == "all", key)):
        shown.add_row(*group, *(_cell(groups[group], metric) for metric in METRICS))
    return shown


def _cell(compared: list[Compared], metric: str) -> str:
    errors = np.array([one.errors()[metric] for one in compared if metric in one.errors()])
    if errors.size == 0:
        return "-"
    absolute = 100 * np.abs(errors)
    return f"{np.median(absolute):5.1f} {100 * np.median(errors):+6.1f} {np.percentile(absolute, 90):6.1f} {errors.size:5d}"


def main() -> None:
    """Print the error table, what was left out, and with --rows every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="closed_loop.csv")
    parser.add_argument("--gpu", help="only this GPU, by any of its names")
    for name in ("engine", "source", "model"):
        parser.add_argument(f"--{name}", help=f"only rows whose {name} contains this text")
    parser.add_argument("--by", default="engine,gpu,model", help=f"grouping keys: {', '.join(ROW_KEYS)}")
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args()
    with options.path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for name in ("engine", "source", "model"):
        wanted = getattr(options, name)
        rows = [row for row in rows if not wanted or wanted.lower() in row[name].lower()]
    if options.gpu:
        rows = [row for row in rows if load_gpu(row["gpu"]).id == load_gpu(options.gpu).id]
    started, compared, refused = time.perf_counter(), [], Counter[str]()
    console = Console(width=200)
    for row in rows:
        try:
            compared.append(compare(row))
        except (InputError, ValueError, KeyError) as error:
            refused[f"{row['engine']}, {row['gpu']}, {row['model']}: {error}"] += 1
            continue
        if options.rows:
            errors = {name: f"{100 * error:+.0f}%" for name, error in compared[-1].errors().items()}
            shown = [row[k] for k in ("id", "model", "tp", "isl", "osl", "concurrency")]
            console.print(*shown, errors, f"preempted {compared[-1].preempted}", markup=False)
    console.print(table(compared, tuple(options.by.split(","))))
    seconds = time.perf_counter() - started
    console.print(
        f"{len(compared)} of {len(rows)} rows compared in {seconds:.0f} s; not predicted: {sum(refused.values())}"
    )
    for reason, count in refused.most_common():
        console.print(f"{count:5d}  {reason}", markup=False, highlight=False)


if __name__ == "__main__":
    main()
