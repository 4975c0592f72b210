"""The assumptions of a result, by the rows of assumptions.csv: inputs and optimisations, each with value, kind and source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sizing.answers.answer import Answer
from sizing.catalog import shelf
from sizing.formats.view import Assumption
from sizing.model import settings
from sizing.model.architecture import has_states, is_moe, sparse_class
from sizing.model.operations import Operation, dispatches
from sizing.question.demand import comes_of_users
from sizing.question.question import Question
from sizing.replica.kernels import Kernels
from sizing.replica.replica import Replica, conditions_of, lowered_from
from sizing.replica.step import every_operation
from sizing.report.parts.sentences import assumed
from sizing.specs.gpu import Assumptions, Gpu
from sizing.specs.units import GIGA, MICRO, TERA
from sizing.specs.values import KIND_OF_EVIDENCE
from sizing.specs.workload import Defaults, Workload

# Settings of the engine that its memory depends on, besides its memory fraction.
OF_MEMORY = ("non_torch_gib", "sampler_bytes_per_logit", "cuda_graphs", "max_num_seqs", "max_num_batched_tokens")
MOST_NAMED = 3  # GPU types left out
LEFT_OUT = "left out of the workload"  # what it states of its own model, where an option names another
PRECISION = "precision"  # a format that a GPU cannot multiply


def of_model(question: Question, notes: Iterable[str]) -> Iterator[Assumption]:
    """Yield the source of the architecture, the notes of its reader, and the notes on the model's name."""
    model = question.service.model
    yield assumed("architecture", model)
    yield from (assumed("note on the model", model, note=note) for note in (*model.notes, *notes))
    yield from (assumed("left out", left=left) for left in question.origin.left_out)
    if model.pooled:
        yield assumed("no head", task=question.service.task)
    yield from of_optimisations(question)


def of_memory(question: Question, chosen: Replica) -> Iterator[Assumption]:
    """Yield the engine's memory rules and the card's visible memory."""
    sheet, model, serving = chosen.gpu_type.gpu.datasheet, question.service.model, question.service.serving
    sources = "; ".join(sheet.sources)
    yield assumed("visible memory", sheet.memory, sources=sources)
    offloaded, stated = chosen.service.serving.cpu_offload_gb, serving.cpu_offload_gb
    if offloaded is not None and offloaded != stated:
        yield assumed("offloaded", stated=stated, value=round(offloaded, 2))
    given = {**serving.model_dump(), "cuda_graphs": 0.0 if serving.enforce_eager else serving.cuda_graphs_gib}
    fraction = "reserve" if chosen.settings.memory_fraction is None else "memory_fraction"
    if model.unstretched == (longest := question.service.max_model_len) != serving.max_model_len:
        yield _of_setting(question, chosen, "unstretched_default", "unstretched", value=longest)
    for name in (fraction, *OF_MEMORY):
        if given.get(name) is not None:
            continue
        if name == "max_num_seqs" and (own := lowered_from(chosen)) is not None:
            by_pages, value = chosen.settings.states.rule == "pages", chosen.settings.max_num_seqs
            yield _of_setting(question, chosen, "states", "lowered sequences", by_pages=by_pages, own=own, value=value)
        else:
            yield _of_setting(question, chosen, name)
    kept = "compressed" if sparse_class(model) == "compressed" else "states"
    if kept == "compressed" or has_states(model):
        yield _of_setting(question, chosen, kept)
    if gib := chosen.memory.warm_up_gib:
        yield _of_setting(question, chosen, "graphs_in_budget", "warm-up", value=round(gib, 2))
    yield from (assumed("format", note=note, sources=sources) for note in chosen.plan.notes)


def _of_setting(question: Question, chosen: Replica, name: str, key: str = "setting", **own: object) -> Assumption:
    """A row of the engine's profile as the assumption `key`."""
    service = question.service
    conditions = conditions_of(service, chosen.gpu_type.gpu, chosen.layout)
    row = settings.source_of(service.engine, service.engine_version, conditions, name)
    value = ", ".join(f"{k} {v}" for k, v in row.value.items()) if isinstance(row.value, dict) else row.value
    stated = {"value": value, "unit": "GiB" if name == "non_torch_gib" else "", "known": KIND_OF_EVIDENCE[row.evidence]}
    version = service.engine_version
    return assumed(key, row, **{**stated, "engine": service.engine.name, "version": version, "name": name, **own})


def of_answer(best: Answer | None, question: Question) -> Iterator[Assumption]:
    """Yield the assumptions of an answer: the model, and memory, time, limits, planning and price of each pool.

    Without an answer, they are those that hold for every layout.
    """
    yield from of_model(question, question.origin.notes)
    if best is None:
        yield from of_limits(question)
        return
    yield from of_budget(question, best.gpus)
    several = len({pool.replica.gpu_type.id for pool in best.pools}) > 1
    for pool in best.pools:
        yield from of_replica(question, pool.replica, pool.timed.kernels)
        yield from of_limits(question)
        for each in of_planning(question, pool.replica):
            notes = filter(None, (pool.replica.gpu_type.name, each.note))
            yield each._replace(note=", ".join(notes)) if several and each.what == "price" else each


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
    yield assumed("bandwidth", sheet.memory, sources=sources)
    for precision in dict.fromkeys((chosen.plan.gemm, chosen.plan.activation)):
        yield assumed("peak", precision=precision, value=kernels.peak(precision) / TERA, sources=sources)
    choices = kernels.choices(every_operation(kernels.shard) if timed is None else timed)
    for (operation, asked), choice in choices.items():
        had = getattr(choice.row, "precision", "")
        key, wanted = "borrowed kernel" if choice.borrowed_from else "kernel", asked if had and had != asked else None
        own = {"operation": operation, "borrowed_from": choice.borrowed_from}
        yield assumed(key, choice.row, had=had, wanted=wanted, **own)
    if chosen.layout.gpus > sheet.island_gpus:
        _, bytes_per_s, alpha_s = kernels.links.inter_node_link()
        yield assumed("network", shelf.only(Assumptions), gb_per_s=bytes_per_s / GIGA, alpha_us=alpha_s / MICRO)
    yield from _of_layout(question, chosen)
    yield assumed("small kernels", shelf.only(Assumptions).small_kernels)
    yield _of_setting(question, chosen, "host")
    by = kernels.correction
    if (by.decode, by.prefill) != (1.0, 1.0):
        yield assumed("correction", by)
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
    yield assumed("own runs", own)
    if own.closed_loop:
        yield assumed("arrivals of own runs", own)
    if (other := own.other_version(title, version)) is not None:
        yield assumed("own runs of another version", own, other=other)


def _of_layout(question: Question, chosen: Replica) -> Iterator[Assumption]:
    """Yield the assumptions on experts and caches shared between ranks."""
    layout, serving, moe = chosen.layout, question.service.serving, is_moe(question.service.model)
    if layout.ep > 1 and moe:
        stated = serving.expert_imbalance
        yield assumed("random routing" if stated is None else "stated routing", value=stated)
    ranks = layout.token_ranks > 1
    if moe and serving.all2all_backend is not None:
        used = dispatches(layout, chosen.settings) or (ranks and serving.all2all_backend == "allgather")
        yield assumed("backend", used=used, ranks=ranks)
    elif ranks and moe:
        yield _of_setting(question, chosen, "all2all_backend")
    if layout.dp > 1:
        yield assumed("attention groups", layout)
    for size, name in ((layout.cp, "context_parallel"), (layout.dcp, "decode_context_parallel")):
        if size > 1:
            yield _of_setting(question, chosen, name)


def of_budget(question: Question, gpus: int) -> Iterator[Assumption]:
    """Yield the GPUs of a budget that an answer of `gpus` leaves unused."""
    budget = question.rules.gpu_budget
    if budget is not None and budget > gpus:
        yield assumed("unused GPUs", value=budget - gpus, budget=budget, gpus=gpus)


def of_limits(question: Question) -> Iterator[Assumption]:
    """Yield the limits on ITL that do not apply because an output has one token."""
    if question.service.single_result and question.target.limits.itl is not None:
        yield assumed("no ITL")


def of_planning(question: Question, chosen: Replica) -> Iterator[Assumption]:
    """Yield the assumptions on planning, and the price."""
    defaults, workload, target = shelf.only(Defaults), question.origin.workload, question.target
    if target.amount is not None and target.concurrency is None and not target.offline:
        source = "as asked" if workload.planning.max_utilisation is not None else defaults.source
        yield assumed("utilisation", value=target.max_utilisation, source=source)
        yield assumed("open loop")
    if target.concurrency is not None:
        yield assumed("closed loop")
    demand, turns = workload.demand, workload.optimisations.prefix
    stated_s = (demand and demand.think_time_s, turns and turns.think_time_s)
    if target.think_time_s > 0 and all(seconds is None for seconds in stated_s):
        yield assumed("think time", defaults, value=target.think_time_s)
    for name in _habits_assumed(workload):
        if getattr(workload.planning, name) is None:
            yield assumed("habit", defaults, what=name.replace("_", " "), value=getattr(defaults, name))
    if (found := question.origin.demanded) is not None and found.shape is not None:
        yield assumed("load by hour", found.shape)
    yield from (assumed("range", span, field=field) for field, span in workload.uncertain.items())
    gpu_type, of = chosen.gpu_type, chosen.gpu_type.price_providers
    if gpu_type.usd_per_gpu_hour is not None:
        # A list price on a date, or a stated one: the price paid depends on contract, region and term.
        yield assumed("price", gpu_type, source=gpu_type.price_source or "", several=(of or 0) > 1, one=of in (0, 1))
    if unsold := question.origin.unsold:
        more = len(unsold) - MOST_NAMED if len(unsold) > MOST_NAMED else None
        yield assumed("unsold", question.origin.prices, names=unsold[:MOST_NAMED], more=more)


def _habits_assumed(workload: Workload) -> tuple[str, ...]:
    """The user habits that may be assumed: none without users, and no active hours with a load profile.

    Tasks for vectors or scores, and offline work, have users only if the demand states daily active users or a mean rate.
    """
    demand, planning, offline = workload.demand, workload.planning, workload.mode == "offline"
    by_demand = demand is not None and demand.kind in ("daily_active_users", "mean_requests_per_s")
    if ((workload.pooled or offline) and not by_demand) or not comes_of_users(demand, planning, offline=offline):
        return ()
    each = ("requests_per_user_per_day",)
    return each if planning.profile is not None else (*each, "active_hours", "peak_to_mean")


def shared(lists: Sequence[Sequence[Assumption]]) -> Iterator[Assumption]:
    """Yield the assumptions common to every list, in the order of the first list."""
    if lists:
        rest = [set(other) for other in lists[1:]]
        yield from (entry for entry in lists[0] if all(entry in other for other in rest))


def of_optimisations(question: Question) -> Iterator[Assumption]:
    """Yield the assumptions of the chosen optimisations."""
    extras, model = question.service.extras, question.service.model
    if (spoken := extras.speculation) is not None:
        alike = len(set(spoken.acceptance)) == 1
        each_of = spoken.acceptance[0] if alike else ", then ".join(f"{share:g}" for share in spoken.acceptance)
        yield assumed("acceptance", spoken, value=each_of, known=KIND_OF_EVIDENCE[spoken.evidence])
        if spoken.draft is not None and spoken.draft.of_checkpoint and model.mtp is not None:
            yield assumed("mtp", model.mtp, source=model.source)
        yield assumed("drafting needs", spoken)
        yield assumed("drafted", spoken)
    if (facts := extras.sparsity) is not None:
        yield assumed("pruned", facts, value=1 + facts.reached * (facts.rate - 1))
    cached, talk = extras.cached, extras.cached.conversation
    if talk is not None:
        yield assumed("turns", talk)
        yield assumed("next turn", cached, several=cached.engines > 1)
        yield assumed("idle conversations" if cached.think_time_s is None else "histories kept", cached)
    elif cached.hit:
        yield assumed("prefix hit", cached, kept_share=cached.kept if cached.kept < 1 else None)
    if cached.shared_tokens:
        of = cached.prefixes if cached.distinct < cached.prefixes else None
        yield assumed("shared prefixes", cached, of=of)
    if cached.restored:
        yield assumed("restored", cached)
    if extras.adapters is not None:
        yield assumed("adapters", extras.adapters)
    if (encoder := extras.encoder) is not None:
        known, counted = KIND_OF_EVIDENCE[encoder.evidence], bool(model.vision_parameters)
        yield assumed("image encoder", encoder, known=known, counted=counted)
        yield assumed("image tokens", encoder, known=known)


BESIDE = {"lora": "LoRA adapters", "speculative": "draft", "images": "image encoder"}  # memory that counts as weights


def beside_weights(optimisations: Iterable[str]) -> str:
    """Name what the memory of the weights includes beside the model's own: adapters, a draft, an image encoder."""
    return " and ".join(BESIDE[name] for name in optimisations if name in BESIDE)
