"""Sizes that a row leaves unsaid: slots and token budget of its engine, requests of its run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sizing import architecture, memory
from sizing.architecture import Layout
from sizing.catalog.measured_csv import MeasuredRow
from sizing.precision import PrecisionPlan
from sizing.specs.benchmark import Conventions, OfEngine, RoundingStep, SizeHeuristic
from sizing.specs.engine import Engine, EngineSettings
from sizing.specs.gpu import Gpu
from sizing.specs.model import Model
from sizing.units import GIB
from sizing.validation.stated import NoteFacts, holds


class Sizes(NamedTuple):
    """Most sequences and tokens of a step; None leaves the engine's default."""

    max_num_seqs: int | None
    max_num_batched_tokens: int | None


class Run(NamedTuple):
    """What a row's run is known by: engine, version, model, layout and shape."""

    engine: Engine
    version: str
    model_id: str
    model: Model
    layout: Layout
    isl: float
    osl: float

    def is_of(self, entry: OfEngine) -> bool:
        """Return whether an entry of the conventions is about this run."""
        gpus = self.layout.tp * self.layout.dp
        return holds(entry, self.engine, self.version, self.model_id, gpus, self.isl, self.osl)


def sizes_of(
    row: MeasuredRow,
    facts: NoteFacts,
    run: Run,
    gpu: Gpu,
    plan: PrecisionPlan,
    resolved: EngineSettings,
    conventions: Conventions,
) -> tuple[Sizes, str | None]:
    """Return the sizes of a row's engine and a note where they follow from a convention.

    What the row or its notes state wins; a saturated run takes the sizes of its source's tables, else what the
    benchmark tool would choose; an offline call of equal prompts the offline budget.
    """
    sequences = row.max_num_seqs or facts.max_num_seqs
    tokens = row.max_num_batched_tokens or facts.max_num_batched_tokens
    note = None
    if row.mode == "max_throughput" and row.ttft_ms is None:
        found, note = _of_saturated(run, gpu, plan, resolved, conventions)
        sequences, tokens = sequences or found.max_num_seqs, tokens or found.max_num_batched_tokens
    elif row.mode == "static_batch" and tokens is None:
        server = resolved.max_num_batched_tokens
        fitting = (entry for entry in conventions.offline_budgets if run.is_of(entry) and entry.server == server)
        tokens = next((entry.offline for entry in fitting), None)
    return Sizes(sequences, tokens), note


def _of_saturated(
    run: Run, gpu: Gpu, plan: PrecisionPlan, resolved: EngineSettings, conventions: Conventions
) -> tuple[Sizes, str | None]:
    for built in conventions.sizes:
        if run.is_of(built):
            found = Sizes(built.max_num_seqs, built.max_num_batched_tokens)
            return found, "engine sizes of the source's table"
    for rule in conventions.heuristics:
        if run.is_of(rule):
            return by_heuristic(rule, run, gpu, plan, resolved), "engine sized by the benchmark tool's heuristic"
    return Sizes(None, None), None


def by_heuristic(rule: SizeHeuristic, run: Run, gpu: Gpu, plan: PrecisionPlan, resolved: EngineSettings) -> Sizes:
    """Return the sizes that a benchmark tool chooses for equal lengths on the GPUs of one instance.

    Sequences are what the cache holds, at most the rule's limit, over the pipeline's stages; tokens are so many times
    (1 + ISL/OSL). Source: tensorrt_llm/bench/build/tuning.py.
    """
    model, layout = run.model, run.layout
    shards = layout.tp * layout.pp * layout.dp
    one_gpu = Layout()
    whole = architecture.whole(model)
    weights = memory.weight_bytes(model, whole, one_gpu, plan, resolved)
    per_token, fixed = memory.rate_bytes(model, whole, one_gpu, plan)
    cache = (gpu.datasheet.memory.cuda_visible_gib * GIB * shards - weights) * rule.memory_share
    fitting = max(0.0, cache) / (per_token * (run.isl + run.osl) + fixed)
    sequences = min(fitting, rule.most_sequences) / layout.pp
    tokens = min(sequences * (1 + run.isl / run.osl), rule.most_tokens)
    return Sizes(
        max(rule.least_sequences, rounded_up(sequences, rule.sequence_steps)),
        max(rule.least_tokens, rounded_up(tokens, rule.token_steps)),
    )


def rounded_up(size: float, steps: Iterable[RoundingStep]) -> int:
    """Round a size up to a multiple of the step that its magnitude has."""
    step = next(entry.step for entry in steps if entry.below is None or size < entry.below)
    return -int(-size // step) * step


def requests_of(row: MeasuredRow, run: Run, conventions: Conventions) -> int:
    """Return how many requests a run sends: as stated, else by its source's table, else the usual number.

    A closed loop sends at least `least_rounds` for each request in flight.
    """
    if row.mode == "static_batch":
        return row.batch or 1
    if row.mode == "closed_loop":
        in_flight = row.concurrency or 1
        stated = row.num_requests or conventions.unstated_rounds * in_flight
        return max(stated, conventions.least_rounds * in_flight)
    if row.num_requests:
        return row.num_requests
    fitting = (entry.requests for entry in conventions.requests if run.is_of(entry))
    return next(fitting, conventions.unstated_requests)
