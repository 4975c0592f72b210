"""A measured row as a case to simulate: its deployment on the catalogue's GPU, model and engine, and the traffic of its run.

If a row does not state its slots, token budget or number of requests, conventions of its source supply them.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from sizing.catalog import models, profiles, shelf, workloads
from sizing.catalog.measured import MeasuredRow, benchmark_of
from sizing.catalog.models import FoundModel
from sizing.catalog.profiles import stands_for
from sizing.catalog.shelf import Found
from sizing.engine import rules as scheduling
from sizing.engine.deployment import Deployment
from sizing.engine.requests import Arrivals, Lengths
from sizing.engine.rules import SchedulerRules
from sizing.engine.simulation import Traffic
from sizing.evidence.notes import (
    RANKS,
    NoteFacts,
    Setup,
    as_sent,
    check_layout,
    check_stated,
    facts_of,
    formats_of,
    longest_of,
    stretched,
    version_of,
    weights_of,
)
from sizing.model import architecture, memory, precision, settings
from sizing.model.architecture import Layout, Shard
from sizing.model.extras import NOTHING, Extras, Speculation, acceptance_of
from sizing.model.extras import cached as cached_prefixes
from sizing.model.footprint import caches, weight_bytes
from sizing.model.settings import Service
from sizing.question.ask import speculation
from sizing.replica.kernels import Kernels
from sizing.replica.replica import Replica, conditions_of, laid_out
from sizing.specs.data import Formats
from sizing.specs.engine import Engine, EngineSettings
from sizing.specs.errors import Fault, InputError
from sizing.specs.facts import OptimisationFacts
from sizing.specs.frozen import Frozen
from sizing.specs.gpu import Gpu, GpuType
from sizing.specs.measurements import Conventions, RoundingStep, SizeHeuristic
from sizing.specs.model import DenseMlp, Model, MoeMlp
from sizing.specs.optimisations import NOTHING_ASKED, Optimisations
from sizing.specs.units import GIB
from sizing.specs.workload import Serving


class BatchLimits(NamedTuple):
    """The most sequences and tokens in a step; None keeps the engine's default."""

    max_num_seqs: int | None
    max_num_batched_tokens: int | None


def sizes_of(
    row: MeasuredRow, facts: NoteFacts, setup: Setup, shard: Shard, gpu: Gpu, conventions: Conventions
) -> tuple[BatchLimits, str | None]:
    """The batch limits of a row's engine, and a note if a convention decides them.

    Values in the row or its notes come first. A saturated run takes the limits from its source's tables, otherwise those that the
    benchmark tool would choose. An offline call with equal prompts takes the offline budget.
    """
    sequences = row.max_num_seqs or facts.max_num_seqs
    tokens = row.max_num_batched_tokens or facts.max_num_batched_tokens or _generated(row, setup, conventions)
    note = None
    if row.mode == "server_slo" or (row.mode == "max_throughput" and row.ttft_ms is None):
        found, note = _of_saturated(setup, shard, gpu, conventions)
        sequences, tokens = sequences or found.max_num_seqs, tokens or found.max_num_batched_tokens
    elif row.mode == "static_batch" and tokens is None:
        server = shard.settings.max_num_batched_tokens
        fitting = (entry for entry in conventions.offline_budgets if setup.is_of(entry) and entry.server == server)
        tokens = next((entry.offline for entry in fitting), None)
    return BatchLimits(sequences, tokens), note


def _generated(row: MeasuredRow, setup: Setup, conventions: Conventions) -> int | None:
    on_rank = -(-(row.concurrency or row.batch or 1) // setup.layout.dp)
    fitting = (entry for entry in conventions.generated_budgets if setup.is_of(entry) and entry.in_notes in row.notes)
    return next((round(on_rank + row.isl + entry.spare_tokens) for entry in fitting), None)


def _of_saturated(setup: Setup, shard: Shard, gpu: Gpu, conventions: Conventions) -> tuple[BatchLimits, str | None]:
    for built in conventions.sizes:
        if setup.is_of(built):
            found = BatchLimits(built.max_num_seqs, built.max_num_batched_tokens)
            return found, "engine sizes of the source's table"
    for rule in conventions.heuristics:
        if setup.is_of(rule):
            return by_heuristic(rule, setup, shard, gpu), "engine sized by the benchmark tool's heuristic"
    return BatchLimits(None, None), None


def by_heuristic(rule: SizeHeuristic, setup: Setup, shard: Shard, gpu: Gpu) -> BatchLimits:
    """The batch limits that a benchmark tool chooses for equal lengths on the GPUs of one instance.

    Sequences: as many as the cache holds, at most the limit of `rule`, divided by the pipeline stages. Tokens: sequences times
    (1 + ISL/OSL). Source: tensorrt_llm/bench/build/tuning.py.
    """
    layout, one_gpu = shard.layout, replace(shard, layout=Layout())
    whole = architecture.whole(shard.model)
    weights = weight_bytes(one_gpu, whole)
    per_token, fixed = memory.rate_bytes(one_gpu, whole)
    shards = layout.tp * layout.pp * layout.dp
    cache = (gpu.datasheet.memory.cuda_visible_gib * GIB * shards - weights) * rule.memory_share
    fitting = max(0.0, cache) / (per_token * (setup.isl + setup.osl) + fixed)
    sequences = min(fitting, rule.most_sequences) / layout.pp
    tokens = min(sequences * (1 + setup.isl / setup.osl), rule.most_tokens)
    return BatchLimits(
        max(rule.least_sequences, rounded_up(sequences, rule.sequence_steps)),
        max(rule.least_tokens, rounded_up(tokens, rule.token_steps)),
    )


def rounded_up(size: float, steps: Iterable[RoundingStep]) -> int:
    """Round `size` up to a multiple of the step for its magnitude."""
    step = next(entry.step for entry in steps if entry.below is None or size < entry.below)
    return -int(-size // step) * step


def requests_of(row: MeasuredRow, setup: Setup, conventions: Conventions) -> int:
    """Number of requests of a run: as stated, otherwise from the table of its source, otherwise the usual number.

    A closed loop that was measured in time windows sends the least rounds of its source.
    """
    if row.mode == "static_batch":
        return row.batch or 1
    if row.mode == "closed_loop":
        in_flight = row.concurrency or 1
        stated = row.num_requests or conventions.unstated_rounds * in_flight
        rounds = next((entry.rounds for entry in conventions.windows if entry.rows_of in row.source), 0)
        return max(stated, rounds * in_flight)
    if row.num_requests:
        return row.num_requests
    fitting = (entry.requests for entry in conventions.requests if setup.is_of(entry))
    return next(fitting, conventions.unstated_requests)


WHOLE_POOL = 1.0  # a static session allocates all the memory that its batch needs, not a share

_gpu = cache(profiles.load_gpu)
_model = cache(models.load_model)
_engine = cache(profiles.load_engine)


class Case(Frozen):
    """A row with the deployment and traffic to simulate for it.

    `missed` says why the model can't run it at all; then all predictions are 0. `statistic` and `itl_definition` are the
    source's definitions. `notes` lists choices for what the row does not state.
    """

    row: MeasuredRow
    model: str
    is_moe: bool
    replica: Replica
    deployed: Deployment
    traffic: Traffic
    statistic: str
    itl_definition: str | None
    missed: str | None
    notes: tuple[str, ...]


def case_of_row(row: MeasuredRow, on: Found[Gpu] | None = None) -> Case:
    """Look up a row's names and resolve its setup. `on` is a profile of its GPU to use instead of the catalogue's.

    Raises InputError with the reason if the row can't be predicted.
    """
    conventions = shelf.only(Conventions)
    facts = facts_of(row.notes, conventions.notes)
    check_stated(row, facts)
    row, sent_note = as_sent(row, facts, conventions.agreement)
    found, gpu = _model(row.model), _gpu(row.gpu) if on is None else on
    found = of_maker(row, found, conventions)
    model, length_note = stretched(found.spec, row, conventions.stretch.factor)
    named, in_name = _engine(row.engine)
    engine = named.spec
    _check_profile(row, engine, gpu, given=on is not None)
    version, version_note = version_of(engine, row.engine_version or in_name or "", row.source, conventions)
    layout, replicas = layout_of_row(row, facts)
    weights, kv, kv_note = formats_of(row, engine, found, shelf.only(Formats).formats, conventions)
    longest = longest_of(row)
    asked = optimisations_of(facts)
    setup = Setup(engine, version, found.id, layout, row.isl, row.osl)
    if any(setup.is_of(entry) and entry.rows_of in row.source for entry in conventions.tailed_lengths):
        facts = facts._replace(tailed="exponential")
    extras = with_beams(with_repeated(extras_of(asked, model), row, setup, conventions), row, gpu.spec)
    service = Service(model, round(row.isl), round(row.osl), longest, Serving(), engine, version, kv, asked, extras)
    gpu_type = GpuType(gpu.id, gpu.spec, None, None)
    resolved = settings.resolve(engine, version, conditions_of(service, gpu.spec, layout))
    resolved = as_run(resolved, row, setup, gpu.spec, conventions)
    model = architecture.attending(model, resolved)
    service = replace(service, model=model)
    if facts.memory_fraction:
        resolved = resolved.model_copy(update={"memory_fraction": facts.memory_fraction})
    if facts.graphs == "off":
        resolved = resolved.eager(len(model.layers))
    if facts.scheduler_steps:
        resolved = resolved.model_copy(update={"host": resolved.host.shared_by(facts.scheduler_steps)})
    known = shelf.only(Formats)
    plan = precision.plan(model, gpu.spec, resolved, known, precision=weights, kv_precision=kv, extras=extras)
    if refused := architecture.why_not(model, layout, resolved):
        raise InputError(Fault(f"{found.id} as {layout}: {refused}"))
    sizes, size_note = sizes_of(row, facts, setup, Shard(model, layout, resolved, plan, extras), gpu.spec, conventions)
    whole_batch = row.mode == "static_batch" and engine.name in conventions.whole_batch_engines
    resolved = sized(resolved, sizes, model, whole_batch=whole_batch)
    replica, pool_note = with_pool(laid_out(service, gpu_type, weights, resolved, plan, layout), row.kv_cache_tokens)
    rules, rules_note = rules_of(row, facts, resolved, extras.verified, whole_batch=whole_batch)
    rules = balanced(rules, row, setup, conventions)
    traffic = traffic_of(row, facts, requests_of(row, setup, conventions), longest)
    if facts.policy == "static":  # one batch, the largest that the cache holds
        traffic = replace(traffic, count=max(1, min(rules.slots, int(replica.memory.max_concurrency))))
    shard = replace(replica.shard, model=with_experts_of(row, model, conventions))
    kernels = Kernels(gpu.spec, engine.name, shard)
    notes = (sent_note, version_note, length_note, kv_note, size_note, pool_note, rules_note)
    return Case(
        row=row,
        model=found.id,
        is_moe=architecture.is_moe(model),
        replica=replica,
        deployed=Deployment(kernels, replica.memory, rules, replicas),
        traffic=traffic,
        statistic=facts.statistic or "mean",
        itl_definition=facts.itl_definition,
        missed=None if replica.memory.fits else f"does not fit: {replica.memory.deficit_gib:.1f} GiB a GPU are missing",
        notes=tuple(note for note in notes if note),
    )


def of_maker(row: MeasuredRow, found_model: FoundModel, conventions: Conventions) -> FoundModel:
    """The checkpoint of a row's model in the row's format, if its maker publishes one by this name; else the model as it is."""
    weights = weights_of(row, shelf.only(Formats).formats, conventions)
    if weights and weights not in row.model.lower() and found_model.spec.quantisation.method is None:
        with suppress(InputError):
            own = _model(f"{row.model}-{weights.upper()}")
            if own.id == found_model.id and own.spec.quantisation.method == weights:
                return own
    return found_model


def with_pool(replica: Replica, tokens: int | None) -> tuple[Replica, str | None]:
    """The replica with a cache of `tokens` tokens, as its engine printed it, and a note that says so; the same without them.

    The predicted cache stays for models with windows or states, whose tokens depend on the length of a sequence. Raises
    InputError for a cache that the GPU cannot hold, or that holds no request.
    """
    if tokens is None:
        return replica, None
    shard, service = replica.shard, replica.service
    if not _is_printed_as_held(shard):
        return replica, "the cache as predicted: what an engine prints of windows and states depends on the length"
    size_bytes = tokens / shard.layout.dp * max(memory.growing_bytes(shard, stage) for stage in shard.stages)
    service = replace(service, serving=service.serving.model_copy(update={"kv_cache_bytes": size_bytes}))
    found = replace(replica, service=service)
    found = replace(found, memory=found.memory_at(service.max_model_len))
    if replica.memory.fits and not found.memory.fits:
        message = f"{tokens:,} tokens exceed the memory beside the weights, or hold no request"
        allowed = f"about {replica.memory.kv_cache_tokens:,}, as predicted; kv_precision says in which format"
        raise InputError(message, field="kv_cache_tokens", allowed=allowed)
    return found, "the cache that the engine printed"


def _is_printed_as_held(shard: Shard) -> bool:
    """Whether the tokens of a cache do not depend on the length of a sequence: no windows, no recurrent states."""
    held = [one for stage in shard.stages for one, _ in caches(shard, stage)]
    return not any(one.window_tokens or one.windows or one.fixed_bytes_per_sequence for one in held)


def cache_over_predicted(row: MeasuredRow) -> float | None:
    """Tokens of the cache that the row's engine printed over the predicted ones; None where one of them is not known.

    Raises InputError for a cache that the GPU cannot hold, or that holds no request.
    """
    try:
        replica = case_of_row(replace(row, kv_cache_tokens=None)).replica
    except InputError:
        return None
    with_pool(replica, row.kv_cache_tokens)
    predicted = replica.memory.kv_cache_tokens if _is_printed_as_held(replica.shard) else 0
    return row.kv_cache_tokens / predicted if row.kv_cache_tokens and predicted else None


IN_NOTES = {"speculative": "notes", "prefix": "notes"}


def optimisations_of(facts: NoteFacts) -> Optimisations:
    """The drafts and the cached prefixes of a run.

    Raises InputError for drafts that are not of the form of --speculative, and for more tokens a step than were drafted.
    """
    if facts.speculative is None and not facts.prefix_hit:
        return NOTHING_ASKED
    hit = facts.prefix_hit / 100 if facts.prefix_hit else None
    asked = workloads.optimisations(IN_NOTES, {"speculative": facts.speculative, "prefix": hit})
    drafted = asked.speculative
    if drafted is None or drafted.tokens is None or facts.tokens_per_step is None or drafted.acceptance is not None:
        return asked
    if facts.tokens_per_step > drafted.tokens + 1:
        message = f"{facts.tokens_per_step:g} tokens a step, where {drafted.tokens} are drafted"
        raise InputError(message, field="notes", allowed=f"at most {drafted.tokens + 1}")
    known = drafted.model_copy(update={"acceptance": acceptance_of(facts.tokens_per_step, drafted.tokens)})
    return asked.model_copy(update={"speculative": known})


def extras_of(optimisations: Optimisations, model: Model) -> Extras:
    """What the optimisations of a run add to its model. Raises InputError for an unknown method, or a draft of another model."""
    if optimisations == NOTHING_ASKED:
        return NOTHING
    spoken = optimisations.speculative
    drafted = None if spoken is None else speculation(spoken, model, shelf.only(OptimisationFacts))
    return Extras(speculation=drafted, cached=cached_prefixes(optimisations))


def with_repeated(extras: Extras, row: MeasuredRow, setup: Setup, conventions: Conventions) -> Extras:
    """`extras` with the prompts that a run found in the prefix cache, because a run of its source had sent them before."""
    for entry in conventions.repeated_prompts:
        if setup.is_of(entry) and entry.requests == row.num_requests and entry.rows_of in row.source:
            return replace(extras, cached=replace(extras.cached, repeated=entry.found))
    return extras


def with_beams(extras: Extras, row: MeasuredRow, gpu: Gpu) -> Extras:
    """`extras` with the beam search of a row's system benchmark: a step computes a token of each beam, of which one is kept.

    So do drafts of which none is accepted. All beams keep one cache of the prompt, and each reads it: the memory once, L2 each
    time. What their own tokens keep beyond one answer's is left out.
    """
    of = benchmark_of(row.source, row.model)
    if of is None or of.l2_gb_per_s is None:
        return extras
    others, reads = of.beams - 1, of.beams * gpu.datasheet.memory.bandwidth_gb_per_s / of.l2_gb_per_s
    beams = Speculation("beam search", others, (0.0,) * others, None, source=of.source, passes=max(1.0, reads))
    return replace(extras, speculation=beams)


def _check_profile(row: MeasuredRow, engine: Engine, gpu: Found[Gpu], *, given: bool) -> None:
    """Raise InputError for a profile of another GPU, or with own runs of another engine."""
    own = gpu.spec.own_runs
    if own is not None and own.engine != engine.name:
        raise InputError(Fault(f"a run of {engine.name}, and {gpu.spec.name} is of runs of {own.engine}"))
    if given and not stands_for(gpu, row.gpu, _gpu):
        raise InputError(Fault(f"a run on {row.gpu}, which is not {gpu.spec.name}"))


def layout_of_row(row: MeasuredRow, facts: NoteFacts) -> tuple[Layout, int]:
    """(layout, number of replicas) of a row.

    With attention data parallelism, sources state as tp either the ranks of a stage or the GPUs of one rank. The reading that
    fits the number of GPUs is used. Experts over more GPUs than tp imply attention data parallelism over the rest. Raises
    InputError if no layout fits the row.
    """
    tp, pp = row.tp or 1, row.pp or 1
    gpus_ = max(row.n_gpus or tp * pp, tp * pp)
    stated = row.attention_dp or _ranks(facts.attention_dp, tp)
    ep = row.ep or (stated if stated > 1 else 1)
    dp = stated
    if dp == 1 and ep > tp:
        dp = max(1, gpus_ // (tp * pp))
    if tp * pp * dp > gpus_:
        tp = max(1, tp // dp)
        dp = min(dp, max(1, gpus_ // (tp * pp)))
    layout = Layout(tp, pp, ep if (tp * dp) % ep == 0 else 1, dp)
    replicas = max(1, gpus_ // layout.gpus)
    check_layout(row, stated, layout, replicas)
    return layout, replicas


def _ranks(stated: int | str | None, tp: int) -> int:
    if stated is None:
        return 1
    return tp if stated == RANKS else int(stated)


def as_run(
    resolved: EngineSettings, row: MeasuredRow, setup: Setup, gpu: Gpu, conventions: Conventions
) -> EngineSettings:
    """`resolved` as the source ran the engine: with or without a server, with the settings of its scripts."""
    for entry in conventions.scripts:
        of_gpu = entry.architecture in (None, gpu.architecture)
        if setup.is_of(entry) and of_gpu and entry.rows_of in row.source:
            resolved = resolved.model_copy(update=entry.given(resolved.host))
    return resolved if is_served(row) else resolved.in_process()


def with_experts_of(row: MeasuredRow, model: Model, conventions: Conventions) -> Model:
    """`model` with the experts that a row's tokens choose from: all experts, or only as many as one token uses."""
    if not any(entry.rows_of in row.source for entry in conventions.same_experts):
        return model

    def chosen(mlp: DenseMlp | MoeMlp) -> DenseMlp | MoeMlp:
        return replace(mlp, experts=mlp.experts_per_token) if isinstance(mlp, MoeMlp) else mlp

    return replace(model, kinds=tuple(replace(kind, mlps=tuple(map(chosen, kind.mlps))) for kind in model.kinds))


def is_served(row: MeasuredRow) -> bool:
    """Whether clients wait for tokens from a server under load. Static batches and offline runs have no server."""
    return row.mode in ("closed_loop", "open_loop") or (row.mode == "max_throughput" and row.ttft_ms is not None)


def sized(resolved: EngineSettings, sizes: BatchLimits, model: Model, *, whole_batch: bool) -> EngineSettings:
    """`resolved` with the batch limits of a row. The cache of a static session takes all remaining memory."""
    tokens = sizes.max_num_batched_tokens or resolved.max_num_batched_tokens
    if resolved.budget_covers_context and not sizes.max_num_batched_tokens:
        tokens = max(tokens, model.max_position)
    changed: dict[str, float | int] = {"max_num_batched_tokens": tokens}
    if sizes.max_num_seqs:
        changed["max_num_seqs"] = sizes.max_num_seqs
    if whole_batch:
        changed["memory_fraction"] = WHOLE_POOL
    return resolved.model_copy(update=changed)


def rules_of(
    row: MeasuredRow, facts: NoteFacts, resolved: EngineSettings, verified: int, *, whole_batch: bool
) -> tuple[SchedulerRules, str | None]:
    """The scheduling rules of a row, and a note if they differ from the engine's defaults."""
    rules = scheduling.of_engine(resolved, verified=verified)
    note = None
    if whole_batch:
        return replace(rules, slots=row.batch or 1, budget=float("inf"), splits=False), None
    if not rules.splits and row.isl > rules.budget:
        rules = replace(rules, splits=True)
        note = "prompts longer than the token budget: chunked"
    if facts.policy:
        rules = scheduling.with_policy(rules, facts.policy, ticks=False)
    steps, ratio = row.batch_wait_steps or 0, row.batch_wait_ratio or 0.0
    polls = row.arrival_poll_steps or facts.scheduler_steps or 0
    blocks = facts.scheduler_steps or 1
    return replace(rules, hold_steps=steps, hold_ratio=ratio, poll_steps=polls, block_steps=blocks), note


def balanced(rules: SchedulerRules, row: MeasuredRow, setup: Setup, conventions: Conventions) -> SchedulerRules:
    """`rules` with prompts held until each attention-data rank has one, where the row's source ran so."""
    for entry in conventions.balanced_prompts:
        if setup.is_of(entry) and entry.rows_of in row.source and setup.layout.dp > 1 and not rules.hold_steps:
            return replace(rules, hold_steps=entry.steps, ready_steps=entry.ready, hold_balanced=True)
    return rules


def traffic_of(row: MeasuredRow, facts: NoteFacts, count: int, longest: int) -> Traffic:
    """The traffic of a row's run: lengths, and either a rate, a number in flight, or all requests at once."""
    lengths, most = spread_of(row) or _lengths(row, facts), None if facts.tailed else longest
    if facts.lengths:
        most = round(facts.lengths[1] * (row.isl + row.osl))
    rate = facts.rate_per_s if row.mode == "open_loop" else None
    sent: Arrivals = "poisson" if facts.arrivals is None else "even" if facts.burstiness is None else "gamma"
    return Traffic(
        *lengths,
        count,
        rate_per_s=rate if rate is not None and rate < float("inf") else None,
        arrivals="poisson" if rate is None else sent,
        burstiness=facts.burstiness or 1.0,
        in_flight=row.concurrency if row.mode == "closed_loop" else None,
        longest=most,
    )


def spread_of(row: MeasuredRow) -> tuple[Lengths, Lengths] | None:
    """Lengths spread as in the workload of a system benchmark, around the lengths of the row; None for other rows."""
    of = benchmark_of(row.source, row.model)
    if of is None:
        return None
    tokens = workloads.load_workload(of.workload).spec.tokens
    return (
        Lengths(row.isl, tokens.isl_std or 0.0, "lognormal", longest=tokens.isl_max),
        Lengths(row.osl, tokens.osl_std or 0.0, "lognormal", longest=tokens.osl_max),
    )


def _lengths(row: MeasuredRow, facts: NoteFacts) -> tuple[Lengths, Lengths]:
    """Lengths of the row's requests: spread as its notes say, else uniform from `length_ratio_min`, else equal.

    Notes state the mean of the drawn lengths, so the few requests of a run must keep that mean.
    """
    if facts.tailed:
        return Lengths(row.isl, shape="exponential"), Lengths(row.osl, shape="exponential")
    if facts.lengths is not None:
        low, high = facts.lengths
        return tuple(Lengths(high * n, shape="spread", low_share=low / high) for n in (row.isl, row.osl))  # type: ignore[return-value]
    ratio = row.length_ratio_min
    if ratio is not None and ratio < 1 and row.mode == "closed_loop":
        return tuple(Lengths(n, shape="uniform", low_share=ratio) for n in (row.isl, row.osl))  # type: ignore[return-value]
    return Lengths(max(1, round(row.isl))), Lengths(max(1, round(row.osl)))
