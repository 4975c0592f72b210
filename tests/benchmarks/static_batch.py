"""Compare the step-time model with measured static batches: one batch of equal requests, no queue.

    python tests/benchmarks/static_batch.py static_batch.csv [--gpu h100-sxm] [--engine vllm] [--by gpu,tp]

TTFT is the prefill of the whole batch, ITL a decode step at the mean context (it is linear in context), and
E2E = TTFT + ITL * (OSL - 1). Where a source states only E2E (or only output tokens/s, from which E2E
follows), ITL is what remains of it per token after the predicted prefill, if that is at most a quarter.
`--host`, `--launch`, `--small` and `--fused` replace constants in memory, for experiments.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sizing import architecture, memory, precision, settings, step
from sizing.architecture import Layout
from sizing.catalog.engines import load_engine
from sizing.catalog.gpus import borrowed, load_assumptions, load_formats, load_gpu
from sizing.catalog.models import FoundModel, load_model
from sizing.errors import Fault, InputError
from sizing.kernels import Kernels
from sizing.specs.engine import Engine, EngineSettings, HostTime
from sizing.specs.gpu import Gpu
from sizing.specs.model import Model
from sizing.units import GIB, MIB, MICRO

MILLI = 1e-3
WHOLE_BATCH = ("tensorrt-llm",)  # its static sessions prefill the whole batch at once, beyond any token budget
PRECISIONS = {
    "awq-int4": "int4",
    "gptq-int4": "int4",
    "int4-awq": "int4",
    "w4a8-awq": "int4",
    "gptq-int8": "int8",
}
# Versions that a source does not state, or states by date: by the time at which it was run.
UNSTATED_VERSIONS = {"vllm": "0.6.1", "tensorrt-llm": "0.11.0"}
DATED_VERSIONS = {"2023": "0.4.0", "2023-10": "0.4.0", "main 2024-10 (build 9515)": "0.6.3"}
MOST_PREFILL_SHARE = 0.25
KEYS = (
    "gpu",
    "weight_precision",
    "engine",
    "version",
    "tp",
    "batch",
    "model",
    "source",
    "kv_precision",
    "isl",
    "osl",
)


@dataclass(frozen=True, slots=True)
class Experiment:
    """Constants replaced in memory: host time, a gap after every kernel, small kernels' floor, fusion."""

    host: HostTime | None = None
    launch_us: float = 0.0
    small_us: float | None = None
    fused: bool | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A measured static batch; times in seconds, None where not stated."""

    id: str
    source: str
    engine: str
    version: str
    model: str
    weight_precision: str
    kv_precision: str
    gpu: str
    layout: Layout
    isl: float
    osl: float
    batch: float
    budget_tokens: int | None
    ttft_s: float | None
    itl_s: float | None
    e2e_s: float | None


@dataclass(frozen=True, slots=True)
class Deployed:
    """All that a step needs of one row's deployment."""

    model: Model
    layout: Layout
    gpu: Gpu
    engine: Engine
    version: str
    settings: EngineSettings
    kernels: Kernels


@dataclass(frozen=True, slots=True)
class Compared:
    """A row, predicted and measured, in seconds; `itl_implied` where ITL is derived from E2E."""

    row: Row
    deployed: Deployed
    ttft_s: float
    itl_s: float
    e2e_s: float
    gpu_itl_s: float
    kernels_in_step: float
    measured_ttft_s: float | None
    measured_itl_s: float | None
    measured_e2e_s: float | None
    itl_implied: bool

    def errors(self) -> dict[str, float]:
        """Relative errors (predicted/measured - 1) of the metrics that were measured."""
        pairs = {
            "ttft": (self.ttft_s, self.measured_ttft_s),
            "itl": (self.itl_s, self.measured_itl_s),
            "e2e": (self.e2e_s, self.measured_e2e_s),
        }
        return {name: ours / theirs - 1 for name, (ours, theirs) in pairs.items() if theirs}

    def key(self, name: str) -> str:
        """Value of a grouping key; batches fall into buckets of powers of four."""
        if name == "tp":
            return str(self.row.layout.tp)
        if name == "batch":
            low = 4 ** int(np.log(self.row.batch) / np.log(4) + 1e-9)
            return f"{low}-{4 * low - 1}"
        if name == "version":
            return self.deployed.version
        if name == "gpu":
            return self.deployed.gpu.name
        return str(getattr(self.row, name))


def read_rows(path: Path) -> list[Row]:
    """Read the CSV. A row with output tokens/s alone gets E2E = batch * OSL / rate."""
    with path.open(encoding="utf-8", newline="") as stream:
        return [_row(raw) for raw in csv.DictReader(stream)]


def _row(raw: dict[str, str]) -> Row:
    def milliseconds(name: str) -> float | None:
        return float(raw[name]) * MILLI if raw[name] else None

    batch, osl = float(raw["batch"]), float(raw["osl"])
    e2e_s = milliseconds("e2e_ms")
    if e2e_s is None and raw["itl_ms"] == "" and raw["output_tok_per_s"]:
        e2e_s = batch * osl / float(raw["output_tok_per_s"])
    return Row(
        id=raw["id"],
        source=raw["source"],
        engine=raw["engine"],
        version=raw["engine_version"],
        model=raw["model"],
        weight_precision=raw["weight_precision"],
        kv_precision=raw["kv_precision"],
        gpu=raw["gpu"],
        layout=Layout(tp=int(raw["tp"]), pp=int(raw["pp"]), ep=int(raw["ep"] or 1)),
        isl=float(raw["isl"]),
        osl=osl,
        batch=batch,
        budget_tokens=int(raw["max_num_batched_tokens"]) if raw["max_num_batched_tokens"] else None,
        ttft_s=milliseconds("ttft_ms"),
        itl_s=milliseconds("itl_ms"),
        e2e_s=e2e_s,
    )


def known_version(engine: Engine, stated: str) -> str:
    """Return the version to resolve: as stated, by its date, or the nearest end of the profile's range."""
    wanted = DATED_VERSIONS.get(stated, stated or UNSTATED_VERSIONS.get(engine.name, engine.newest))
    try:
        return settings.check_version(engine, wanted)
    except InputError:
        older = settings.parse_version(wanted) < settings.parse_version(engine.oldest)
        return engine.oldest if older else engine.newest


_model = cache(load_model)
_gpu = cache(load_gpu)
_engine = cache(load_engine)
_assumptions = cache(load_assumptions)
_formats = cache(load_formats)


def deployment(gpu: Gpu, model: Model, layout: Layout) -> settings.Deployment:
    """What the engine's settings depend on."""
    memory_ = gpu.datasheet.memory
    smi_gib = memory_.nvidia_smi_mib * MIB / GIB if memory_.nvidia_smi_mib else memory_.cuda_visible_gib
    return settings.Deployment(
        gpu_name=gpu.name,
        architecture=gpu.architecture,
        memory_gib=smi_gib,
        tp=layout.tp,
        pp=layout.pp,
        attention=architecture.attention_class(model),
    )


@cache
def deploy(
    engine_name: str,
    stated_version: str,
    gpu_name: str,
    model_name: str,
    weight: str,
    kv: str,
    layout: Layout,
    experiment: Experiment,
) -> Deployed:
    """Resolve names through the catalogue; raises InputError with the reason why a row can't be predicted."""
    engine = _engine(engine_name)[0].spec
    version = known_version(engine, stated_version)
    gpu = _gpu(gpu_name).spec
    found: FoundModel = _model(model_name)
    model = found.spec
    resolved = settings.resolve(engine, version, deployment(gpu, model, layout))
    changed = {"host": experiment.host, "fused_activation_quantisation": experiment.fused}
    resolved = resolved.model_copy(update={k: v for k, v in changed.items() if v is not None})
    reason = architecture.why_not(model, layout, resolved)
    if reason:
        raise InputError(Fault(reason))
    plan = precision.plan(
        model,
        gpu,
        resolved,
        _formats().spec,
        precision=PRECISIONS.get(weight, weight) or found.precision,
        kv_precision=kv or found.kv_precision,
    )
    assumptions = _assumptions().spec
    if experiment.small_us is not None:
        small = assumptions.small_kernels.model_copy(update={"t0_us": experiment.small_us})
        assumptions = assumptions.model_copy(update={"small_kernels": small})
    return Deployed(
        model, layout, gpu, engine, version, resolved, Kernels(gpu, assumptions, borrowed, engine.name, resolved, plan)
    )


def prefill_batches(deployed: Deployed, row: Row) -> Iterator[step.Batch]:
    """The prefill-only steps of a batch: all at once, whole prompts within the budget, or chunks of one."""
    budget = row.budget_tokens or deployed.settings.max_num_batched_tokens
    if deployed.settings.budget_covers_context:
        budget = max(budget, deployed.model.max_position)
    if deployed.engine.name in WHOLE_BATCH:
        budget = int(row.batch * row.isl)
    if row.isl > budget and deployed.settings.chunked_prefill:
        for start in np.arange(0.0, row.isl, budget):
            tokens = min(budget, row.isl - start)
            chunk = step.Batch(prefill_sequences=1, prefill_tokens=tokens, prefill_prior_tokens=start, finishing=1)
            yield from [chunk] * int(row.batch)
        return
    together = max(1.0, budget // row.isl)
    for first in np.arange(0.0, row.batch, together):
        prompts = min(together, row.batch - first)
        yield step.Batch(prefill_sequences=prompts, prefill_tokens=row.isl, finishing=prompts)


def seconds(deployed: Deployed, batch: step.Batch, launch_us: float) -> tuple[float, float, float]:
    """Return (total, GPU) seconds of a step and the kernels it launches."""
    timed = step.step(deployed.model, deployed.layout, deployed.kernels, batch)
    kernels = sum(timed_.operation.count for timed_ in timed.operations)
    gpu_s = timed.gpu_s + kernels * launch_us * MICRO
    total_s = float(step.with_host_s(gpu_s, deployed.settings.host, batch.decode_sequences + batch.prefill_sequences))
    return total_s, timed.gpu_s, kernels


def compare(row: Row, experiment: Experiment = Experiment()) -> Compared:
    """Predict one row. Raises InputError with the reason where that is impossible."""
    deployed = deploy(
        row.engine,
        row.version,
        row.gpu,
        row.model,
        row.weight_precision,
        row.kv_precision,
        row.layout,
        experiment,
    )
    refuse_waves(deployed, row)
    ttft_s = sum(seconds(deployed, batch, experiment.launch_us)[0] for batch in prefill_batches(deployed, row))
    decode = step.Batch(decode_sequences=row.batch, decode_context_tokens=row.isl + row.osl / 2)
    itl_s, gpu_itl_s, kernels = seconds(deployed, decode, experiment.launch_us)
    measured_itl_s, implied = row.itl_s, False
    if row.itl_s is None and row.e2e_s is not None and row.osl > 1 and ttft_s < MOST_PREFILL_SHARE * row.e2e_s:
        measured_itl_s, implied = (row.e2e_s - ttft_s) / (row.osl - 1), True
    return Compared(
        row=row,
        deployed=deployed,
        ttft_s=ttft_s,
        itl_s=itl_s,
        e2e_s=ttft_s + itl_s * (row.osl - 1),
        gpu_itl_s=gpu_itl_s,
        kernels_in_step=kernels,
        measured_ttft_s=row.ttft_s,
        measured_itl_s=measured_itl_s,
        measured_e2e_s=row.e2e_s,
        itl_implied=implied,
    )


def refuse_waves(deployed: Deployed, row: Row) -> None:
    """Raise InputError where the engine would serve the batch in waves: its cache does not hold it."""
    if deployed.engine.name in WHOLE_BATCH and row.ttft_s is not None:
        return  # the source ran it as one batch, with a cache sized for the run
    use = memory.use(
        deployed.model,
        deployed.gpu,
        deployed.layout,
        deployed.kernels.plan,
        deployed.settings,
        max_model_len=int(row.isl + row.osl),
    )
    if use.max_concurrency < row.batch:
        raise InputError(Fault("its cache does not hold the batch, which is served in waves"))


def compare_all(rows: Iterable[Row], experiment: Experiment) -> tuple[list[Compared], Counter[str]]:
    """Predict what can be predicted; count the reasons of the rest."""
    compared: list[Compared] = []
    refused: Counter[str] = Counter()
    for row in rows:
        if row.ttft_s is row.itl_s is row.e2e_s is None:
            refused["states no time"] += 1
            continue
        try:
            compared.append(compare(row, experiment))
        except (InputError, ValueError) as error:
            refused[f"{row.engine}, {row.gpu}, {row.model}: {error}"] += 1
    return compared, refused


def table(compared: list[Compared], by: tuple[str, ...]) -> Table:
    """Median absolute error, bias (median), 90th percentile and count by group, in percent."""
    groups: dict[tuple[str, ...], list[Compared]] = defaultdict(list)
    for one in compared:
        groups[tuple(one.key(name) for name in by)].append(one)
        groups[("all", *[""] * (len(by) - 1))].append(one)
    shown = Table(*by, title="relative error, %: median absolute | bias | p90 absolute | rows")
    for metric in ("TTFT", "ITL", "E2E"):
        shown.add_column(metric, justify="right")
    for group in sorted(groups, key=lambda key: (key[0] == "all", key)):
        shown.add_row(*group, *(_cell(groups[group], metric) for metric in ("ttft", "itl", "e2e")))
    return shown


def _cell(compared: list[Compared], metric: str) -> str:
    errors = np.array([one.errors()[metric] for one in compared if metric in one.errors()])
    if errors.size == 0:
        return "-"
    absolute = 100 * np.abs(errors)
    median, bias, p90 = np.median(absolute), 100 * np.median(errors), np.percentile(absolute, 90)
    return f"{median:5.1f} {bias:+6.1f} {p90:6.1f} {errors.size:5d}"


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="static_batch.csv")
    parser.add_argument("--gpu", help="only this GPU, by any of its names")
    parser.add_argument("--engine", help="only this engine, by any of its names")
    parser.add_argument("--source", help="only sources that contain this text")
    parser.add_argument("--by", default="gpu,weight_precision,engine", help=f"grouping keys: {', '.join(KEYS)}")
    parser.add_argument("--host", help="per_step_us,per_sequence_us[,overlapped] in place of the engine's")
    parser.add_argument("--launch", type=float, default=0.0, help="us added to every kernel, as without CUDA graphs")
    parser.add_argument("--small", type=float, help="floor of small kernels in us")
    parser.add_argument("--fused", choices=("true", "false"), help="fused activation quantisation")
    return parser.parse_args()


def experiment_of(options: argparse.Namespace) -> Experiment:
    """Collect the replaced constants."""
    host = None
    if options.host:
        parts = options.host.split(",")
        host = HostTime(
            per_step_us=float(parts[0]),
            per_sequence_us=float(parts[1]),
            overlapped=parts[2:] == ["overlapped"],
        )
    return Experiment(host, options.launch, options.small, {"true": True, "false": False}.get(options.fused))


def main() -> None:
    """Print the error table and what was left out."""
    options = arguments()
    rows = read_rows(options.path)
    if options.gpu:
        rows = [row for row in rows if _gpu(row.gpu).id == _gpu(options.gpu).id]
    if options.engine:
        rows = [row for row in rows if _is_engine(row.engine, options.engine)]
    if options.source:
        rows = [row for row in rows if options.source in row.source]
    compared, refused = compare_all(rows, experiment_of(options))
    console = Console(width=200)
    console.print(table(compared, tuple(options.by.split(","))))
    console.print(f"{len(compared)} of {len(rows)} rows compared; not predicted: {sum(refused.values())}")
    for reason, count in refused.most_common():
        console.print(f"{count:5d}  {reason}", markup=False, highlight=False)


def _is_engine(name: str, wanted: str) -> bool:
    try:
        return _engine(name)[0].id == _engine(wanted)[0].id
    except InputError:
        return False


if __name__ == "__main__":
    main()
