"""The assumptions of a result: each input and chosen optimisation with its value, kind and source, and the section that lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sizing.answers.answer import Answer
from sizing.formats.view import Assumption, taken
from sizing.formats.words import number, percent, plural
from sizing.model import settings
from sizing.model.architecture import has_states, is_moe, sparse_class
from sizing.model.extras import Cached
from sizing.model.operations import Operation, dispatches
from sizing.question.demand import comes_of_users
from sizing.question.question import Question
from sizing.replica.kernels import Kernels
from sizing.replica.replica import Replica, conditions_of, lowered_from
from sizing.replica.step import every_operation
from sizing.specs.engine import Engine
from sizing.specs.gpu import Gpu
from sizing.specs.units import GIGA, MICRO
from sizing.specs.values import KIND_OF_EVIDENCE
from sizing.specs.workload import Workload

NO_ITL = Assumption("limit on ITL", "does not apply, there is no token after the first", "", "derived", "OSL 1")
# Settings of the engine that its memory depends on, besides its memory fraction.
OF_MEMORY = ("non_torch_gib", "sampler_bytes_per_logit", "cuda_graphs", "max_num_seqs", "max_num_batched_tokens")
REQUESTS_OF_USER = "requests per user per day"
UNSOLD, MOST_NAMED = "GPU types left out", 3  # and how many of them are named

LEFT_OUT = "left out of the workload"  # what it states of its own model, where an option names another
PRECISION = "precision"  # a format that a GPU cannot multiply
CLOSED_LOOP = (
    "random arrivals, whose TTFT is shorter than that of your runs in a closed loop: their clients send in waves"
)


def of_model(question: Question, notes: Iterable[str]) -> Iterator[Assumption]:
    """Yield the source of the architecture, the notes of its reader, and the notes on the model's name."""
    model = question.service.model
    yield Assumption("model architecture", model.name, "", "datasheet", model.source)
    for note in (*model.notes, *notes):
        yield taken("note on the model", note, model.source)
    for left in question.origin.left_out:
        yield taken(LEFT_OUT, left, "the model that is asked for, as if it were asked for alone")
    if model.pooled:
        head = f"none: {question.service.task} pools states, its own matrix of labels is not counted"
        yield taken("output head", head, "as asked")
    yield from of_optimisations(question)


def of_memory(question: Question, chosen: Replica) -> Iterator[Assumption]:
    """Yield the engine's memory rules and the card's visible memory."""
    sheet, model, serving = chosen.gpu_type.gpu.datasheet, question.service.model, question.service.serving
    yield Assumption("CUDA-visible memory", sheet.memory.cuda_visible_gib, "GiB", "datasheet", "; ".join(sheet.sources))
    offloaded, stated = chosen.service.serving.cpu_offload_gb, serving.cpu_offload_gb
    if offloaded is not None and offloaded != stated:
        capped = f"the weights of all layers of a GPU stay in host memory, fewer than the stated {stated:g} GiB"
        yield Assumption(capped, round(offloaded, 2), "GiB", "derived", "an engine offloads until no layer is left")
    graphs = 0.0 if serving.enforce_eager else serving.cuda_graphs_gib
    given = {**dict(serving), "cuda_graphs": graphs}
    fraction = "reserve" if chosen.settings.memory_fraction is None else "memory_fraction"
    if model.unstretched == question.service.max_model_len != serving.max_model_len:
        yield _of_setting(question, chosen, "unstretched_default")._replace(
            what="longest sequence, the engine's own for LongRoPE; --max-model-len has more",
            value=question.service.max_model_len,
            unit="tokens",
        )
    for name in (fraction, *OF_MEMORY):
        if given.get(name) is None:
            yield _of_sequences(question, chosen) if name == "max_num_seqs" else _of_setting(question, chosen, name)
    kept = "compressed" if sparse_class(model) == "compressed" else "states"
    if kept == "compressed" or has_states(model):
        yield _of_setting(question, chosen, kept)
    if chosen.memory.warm_up_gib:
        outside = settings.source_of(*_where(question, chosen), "graphs_in_budget")
        what = "missing outside the memory fraction for CUDA graphs and the sampler's warm-up, which may fail at start"
        yield Assumption(what, round(chosen.memory.warm_up_gib, 2), "GiB", "derived", outside.source)
    for note in chosen.plan.notes:
        yield Assumption(PRECISION, note, "", "derived", "; ".join(sheet.sources))


def _of_sequences(question: Question, chosen: Replica) -> Assumption:
    """The number of sequences: the engine's own, or the smaller number of recurrent states in the cache."""
    default, own = _of_setting(question, chosen, "max_num_seqs"), lowered_from(chosen)
    if own is None:
        return default
    row, by_pages = settings.source_of(*_where(question, chosen), "states"), chosen.settings.states.rule == "pages"
    held = "with which it is sure to start" if by_pages else "as many as its pool of them holds"
    what = f"{default.what}, {held}: recurrent states allow no more; the engine's own is {own:,}"
    return Assumption(what, chosen.settings.max_num_seqs, "", "derived", row.source)


def _where(question: Question, chosen: Replica) -> tuple[Engine, str, settings.SettingsConditions]:
    """(engine, version, conditions) that select rows of the engine's profile."""
    service = question.service
    return service.engine, service.engine_version, conditions_of(service, chosen.gpu_type.gpu, chosen.layout)


def _of_setting(question: Question, chosen: Replica, name: str) -> Assumption:
    row = settings.source_of(*_where(question, chosen), name)
    value = row.value
    shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
    unit = "GiB" if name == "non_torch_gib" else ""
    what = f"{question.service.engine.name} {question.service.engine_version} {name}"
    return Assumption(what, shown, unit, KIND_OF_EVIDENCE[row.evidence], row.source)


def of_answer(best: Answer | None, question: Question) -> Iterator[Assumption]:
    """Yield the assumptions of an answer: the model, and memory, time, limits, planning and price of each pool.

    Without an answer, they are those that hold for every layout.
    """
    yield from of_model(question, question.origin.notes)
    if best is None:
        yield from of_limits(question)
        return
    several = len({pool.replica.gpu_type.id for pool in best.pools}) > 1
    for pool in best.pools:
        yield from of_replica(question, pool.replica, pool.load.kernels)
        yield from of_limits(question)
        for each in of_planning(question, pool.replica):
            gpu = pool.replica.gpu_type.name
            yield (
                each._replace(note=f"{gpu}, {each.note}" if each.note else gpu)
                if several and each.what == "price"
                else each
            )


def of_replica(question: Question, chosen: Replica, kernels: Kernels) -> Iterator[Assumption]:
    """Yield the assumptions on a replica: its memory, its steps, and the front end outside of them."""
    yield from of_memory(question, chosen)
    yield from of_steps(question, chosen, kernels)
    yield _of_setting(question, chosen, "front_end")


def of_steps(
    question: Question, chosen: Replica, kernels: Kernels, timed: Iterable[Operation] | None = None
) -> Iterator[Assumption]:
    """Yield peaks, the efficiency of each kernel (measured here or borrowed), and the host's time.

    The kernels are those of the `timed` operations; by default, those of all operations that a step may have.
    """
    sheet = chosen.gpu_type.gpu.datasheet
    sources = "; ".join(sheet.sources)
    yield Assumption("memory bandwidth", sheet.memory.bandwidth_gb_per_s, "GB/s", "datasheet", sources)
    for precision in dict.fromkeys((chosen.plan.gemm, chosen.plan.activation)):
        yield Assumption(f"dense {precision} peak", kernels.peak(precision) / 1e12, "TFLOPS", "datasheet", sources)
    choices = kernels.choices(every_operation(kernels.shard) if timed is None else timed)
    for (operation, wanted), choice in choices.items():
        row = choice.row
        had = getattr(row, "precision", "")
        label = f"{operation} efficiency" + (f", {had}" if had else "")
        if had and had != wanted:
            label += f" in place of {wanted}"
        if choice.borrowed_from:
            yield taken(label, f"borrowed from {choice.borrowed_from}", row.source)
        else:
            yield Assumption(label, f"{row.engine} {row.version}", "", "measured", row.source)
    if chosen.layout.gpus > sheet.island_gpus:
        _, bytes_per_s, alpha_s = kernels.links.inter_node_link()
        each = f"{bytes_per_s / GIGA:.3g} GB/s per GPU, {alpha_s / MICRO:.3g} us a message"
        yield Assumption("network between a replica's nodes", each, "", "derived", kernels.assumptions.source)
    yield from _of_layout(question, chosen)
    small = kernels.assumptions.small_kernels
    yield Assumption("small kernels", small.t0_us, "us each", "assumed", small.source)
    yield _of_setting(question, chosen, "host")
    by = kernels.correction
    if (by.decode, by.prefill) != (1.0, 1.0):
        factors = f"decode x {by.decode:g}, prefill x {by.prefill:g}"
        of = f"medians of {by.groups} groups of published runs like it, each judged by the others: {by.source}"
        yield Assumption("correction of step times", factors, "", "measured", of)
    yield from _of_own_runs(chosen.gpu_type.gpu, question.service.engine.title, question.service.engine_version)
    if question.service.extras.speculation is not None:
        yield _of_setting(question, chosen, "speculation")
    if chosen.settings.host.eager_launch_us:
        yield _of_setting(question, chosen, "captured_prefill_tokens")


def _of_own_runs(gpu: Gpu, title: str, version: str) -> Iterator[Assumption]:
    """Yield the calibration of a GPU's kernels and steps by the user's own runs, and a difference in engine version."""
    own = gpu.own_runs
    if own is None:
        return
    factors = f"compute x {own.compute:.3g}, bandwidth x {own.bandwidth:.3g}, {own.step_us:+.3g} us a step, {own.sequence_us:+.3g} us a sequence"
    of = f"{own.points} own runs of {own.engine} {own.engine_version}, {own.settings}: {own.source}, {own.date}"
    yield Assumption("own runs", factors, "", "measured", of)
    if own.closed_loop:
        yield taken("arrivals of own runs", CLOSED_LOOP, own.source)
    if (other := own.other_version(title, version)) is not None:
        yield taken("own runs of another version", other, own.source)


def _of_layout(question: Question, chosen: Replica) -> Iterator[Assumption]:
    """Yield the assumptions on experts and caches shared between ranks."""
    layout, serving = chosen.layout, question.service.serving
    if layout.ep > 1 and is_moe(question.service.model):
        what = "load of the busiest expert rank over the mean"
        stated, random = serving.expert_imbalance, ("that of random routing", "sizing.operation.busiest")
        yield taken(what, *(random if stated is None else (stated, "as asked")))
    if is_moe(question.service.model) and serving.all2all_backend is not None:
        ranks = layout.token_ranks > 1
        used = dispatches(layout, chosen.settings) or (ranks and serving.all2all_backend == "allgather")
        why = "experts are cut by width, so tokens are gathered" if ranks else "attention is on one rank"
        yield Assumption("all2all_backend", "as asked" if used else f"not used: {why}", "", "derived", "the layout")
    elif layout.token_ranks > 1 and is_moe(question.service.model):
        yield _of_setting(question, chosen, "all2all_backend")
    if layout.dp > 1:
        spread = "step together; sequences spread evenly, each prompt on one, caches as one pool"
        yield taken(f"the {layout.dp} attention groups of a replica", spread, "sizing.engine.deploy")
    for size, name in ((layout.cp, "context_parallel"), (layout.dcp, "decode_context_parallel")):
        if size > 1:
            yield _of_setting(question, chosen, name)


def of_limits(question: Question) -> Iterator[Assumption]:
    """Yield the limits on ITL that do not apply because an output has one token."""
    if question.service.osl == 1 and question.target.limits.itl is not None:
        yield NO_ITL


def of_planning(question: Question, chosen: Replica) -> Iterator[Assumption]:
    """Yield the assumptions on planning, and the price."""
    defaults, workload = question.origin.defaults, question.origin.workload
    target = question.target
    if target.amount is not None and target.concurrency is None and not target.offline:
        stated = "as asked" if workload.planning.max_utilisation is not None else defaults.source
        yield taken("highest stable utilisation", target.max_utilisation, stated)
        yield taken("arrivals", "Poisson", "open loop: requests come at random times")
    if target.concurrency is not None:
        grouped, why = "all requests start together and stay grouped", "requests in flight that wait for each other"
        yield taken("arrivals", grouped, f"closed loop: {why}")
    demand, turns = workload.demand, workload.optimisations.prefix
    stated_s = (demand and demand.think_time_s, turns and turns.think_time_s)
    if target.think_time_s > 0 and all(seconds is None for seconds in stated_s):
        yield Assumption("think time", target.think_time_s, "s", "assumed", defaults.source)
    for name in _habits_assumed(workload):
        if getattr(workload.planning, name) is None:
            yield taken(name.replace("_", " "), getattr(defaults, name), defaults.source)
    shape = question.origin.demanded.shape if question.origin.demanded is not None else None
    if shape is not None:
        yield Assumption("load by hour", shape.name, "", shape.kind, shape.source)
    for field, span in workload.uncertain.items():
        middle = f"the middle of {span.low:g} to {span.high:g}"
        yield taken(field, middle, "a range, as asked; llmsize plan --uncertain draws from it")
    if chosen.gpu_type.usd_per_gpu_hour is not None:
        price = chosen.gpu_type.usd_per_gpu_hour
        # A list price on a date, or a stated one: the price paid depends on contract, region and term.
        source, among = chosen.gpu_type.price_source or "", of_providers(chosen.gpu_type.price_providers)
        yield Assumption("price", price, "$ per GPU-hour", "assumed", source, among)
    if unsold := question.origin.unsold:
        names = ", ".join(unsold[:MOST_NAMED]) + (f" and {len(unsold) - MOST_NAMED} more" * (len(unsold) > MOST_NAMED))
        yield taken(UNSOLD, names, f"{question.origin.prices.provider} offers none")


def of_providers(count: int | None) -> str:
    """Write how many providers a price is the median of; empty for another price."""
    return "" if count is None else f"median of {count}" if count > 1 else "the only provider known"


def _habits_assumed(workload: Workload) -> tuple[str, ...]:
    """The user habits that may be assumed: none without users, and no active hours with a load profile.

    Tasks for vectors or scores, and offline work, have users only if the demand states daily active users or a mean rate.
    """
    demand, planning = workload.demand, workload.planning
    by_demand = demand is not None and demand.kind in ("daily_active_users", "mean_requests_per_s")
    if (workload.pooled or workload.mode == "offline") and not by_demand:
        return ()
    if not comes_of_users(demand, planning, offline=workload.mode == "offline"):
        return ()
    each = ("requests_per_user_per_day",)
    return each if planning.profile is not None else (*each, "active_hours", "peak_to_mean")


def shared(lists: Sequence[Sequence[Assumption]]) -> Iterator[Assumption]:
    """Yield the assumptions common to every list, in the order of the first list."""
    if lists:
        rest = [set(other) for other in lists[1:]]
        yield from (entry for entry in lists[0] if all(entry in other for other in rest))


HIT, ACCEPTANCE = "hit", "acceptance"


def _drafted(stated: Any) -> str:
    """Write what speculative decoding drafts, and how often a drafted token is accepted."""
    tokens, rates = stated.get("tokens"), stated.get("by_depth") or ()
    by = f"{stated['method']} ({stated['model']})" if "model" in stated else stated["method"]
    drafts = f"speculative decoding by {by}" + (f" drafts {plural(tokens, 'token')}" if tokens else "")
    if rates:
        return f"{drafts}, accepted in {', '.join(map(percent, rates))} of cases by their place"
    return drafts + (f", each accepted in {percent(stated[ACCEPTANCE])} of cases" if ACCEPTANCE in stated else "")


def _found_in_cache(stated: Any) -> str:
    """Write the part of a prompt that is found in the prefix cache, or the turns of a conversation."""
    hit, shared, distinct = (stated.get(name) for name in (HIT, "shared_tokens", "distinct"))
    turns, think_s, routing = (stated.get(name) for name in ("turns", "think_time_s", "routing"))
    return ", ".join(
        [
            *([f"{percent(hit)} of each prompt is found in the prefix cache"] if isinstance(hit, float) else []),
            *([f"{shared:,} tokens at the start of prompts are shared"] if shared else []),
            *([f"{distinct:,} different ones"] if distinct else []),
            *([f"conversations of {plural(turns, 'turn')}"] if turns else []),
            *([f"{number(think_s)} s between turns"] if think_s else []),
            *([f"{routing} routing"] if routing else []),
        ]
    )


def _adapters(stated: Any) -> str:
    experts = ", on experts too" if stated.get("experts") else ""
    return f"{plural(stated['slots'], 'LoRA adapter')} of rank {stated['rank']}{experts}"


def _images(stated: Any) -> str:
    size = f"{stated['width']:,} x {stated['height']:,} pixels (width x height)"
    return f"each request has {plural(stated['count'], 'image')} of {size}"


def _offloaded(stated: Any) -> str:
    speed = f", read at {number(stated['gb_per_s'])} GB/s" if "gb_per_s" in stated else ""
    return f"{percent(stated[HIT])} of each prompt is found in host memory{speed}"


WRITERS: dict[str, Callable[[Any], str]] = {  # by the key of an optimisation
    "speculative": _drafted,
    "sparsity": "{} sparse weights".format,
    "prefix": _found_in_cache,
    "lora": _adapters,
    "images": _images,
    "kv_offload": _offloaded,
}


def of_optimisations(question: Question) -> Iterator[Assumption]:
    """Yield the assumptions of the chosen optimisations."""
    extras, model = question.service.extras, question.service.model
    if (spoken := extras.speculation) is not None:
        known = KIND_OF_EVIDENCE[spoken.evidence]
        alike = len(set(spoken.acceptance)) == 1
        each_of = spoken.acceptance[0] if alike else ", then ".join(f"{share:g}" for share in spoken.acceptance)
        yield Assumption(f"acceptance of a token drafted by {spoken.method}", each_of, "", known, spoken.source)
        if spoken.draft is not None and spoken.draft.of_checkpoint and model.mtp is not None:
            yield Assumption(model.mtp.field, model.mtp.modules, "", "datasheet", model.source)
        yield taken("speculative decoding needs", spoken.needs, "as asked")
        each = f"{spoken.tokens} drafted, {spoken.tokens_per_step:.3g} kept on average"
        yield Assumption("tokens of a step", each, "", "derived", "https://arxiv.org/abs/2211.17192")
    if (facts := extras.sparsity) is not None:
        rate = 1 + facts.reached * (facts.rate - 1)
        yield Assumption("products of pruned weights", rate, "times the dense rate", "derived", facts.reached_source)
    cached = extras.cached
    if cached.conversation is not None:
        yield from _of_turns(cached)
    elif cached.hit:
        kept = f", of the {percent(cached.kept)} of prefixes that fit" if cached.kept < 1 else ""
        yield taken("share of a prompt in the prefix cache", cached.hit, f"as asked{kept}")
    if cached.shared_tokens:
        amount = f"{cached.distinct:,} of {cached.shared_tokens:,} tokens on every replica"
        of = f", its part of {cached.prefixes:,}" if cached.distinct < cached.prefixes else ""
        why = "affinity routing, as asked" if cached.affinity else "a router that knows them needs fewer on each"
        yield taken("shared prefixes", amount + of, f"as asked; {why}")
    if cached.restored:
        yield taken("share of a prompt restored from host memory", cached.restored, "as asked")
    if (adapters := extras.adapters) is not None:
        where = ", each routed expert too" if adapters.experts else " but routed experts"
        amount = f"{adapters.slots:,} of rank {adapters.rank:,}, on every linear layer{where}"
        yield taken("LoRA adapters on the GPU", amount, adapters.facts.source)
    if (encoder := extras.encoder) is not None:
        source, known = f"{encoder.title}: {encoder.source}", KIND_OF_EVIDENCE[encoder.evidence]
        stated = "the model's config states none: it must be one that takes images"
        if model.vision_parameters:
            stated = "in place of the model's own, whose weights are counted"
        value = f"the model's own; {encoder.title}" if encoder.own else f"borrowed, {encoder.title}; {stated}"
        yield Assumption("image encoder", value, "", known, source)
        yield Assumption("tokens of a request's images", encoder.tokens, "", known, source)


def _of_turns(cached: Cached) -> Iterator[Assumption]:
    """Yield the assumptions on conversations: equally frequent turns, answers of mean length, and cache hits."""
    conversation = cached.conversation
    assert conversation is not None
    each = f"{conversation.turns:,}, each as frequent; the first prompt is the ISL, a later one adds {conversation.adds:,} and the answers"
    yield taken("turns of a conversation", each, "as asked")
    where = "on the replica that has its cache"
    if not cached.affinity:
        where = f"on any of {cached.engines:,} at random" if cached.engines > 1 else "on the only replica"
    yield taken("the next turn comes", where, "as asked (routing)")
    if cached.think_time_s is None:
        yield taken("caches of idle conversations", "all kept", "no think time was stated")
    else:
        yield Assumption(
            "histories kept between turns", cached.kept, "", "derived",
            "room over need: exact for think times without memory whose ended talks go first; least recently used caches keep "
            "less where all think times are alike",
        )  # fmt: skip


BESIDE = {"lora": "LoRA adapters", "speculative": "draft", "images": "image encoder"}  # memory that counts as weights


def beside_weights(optimisations: Iterable[str]) -> str:
    """Name what the memory of the weights includes beside the model's own: adapters, a draft, an image encoder."""
    return " and ".join(BESIDE[name] for name in optimisations if name in BESIDE)
