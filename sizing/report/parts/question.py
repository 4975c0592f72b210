"""The question in records and in words. The `inputs` of every document are resolved, so that a result can be reproduced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sizing.answers.deployment import Resolved
from sizing.formats.view import Line, fields, filled
from sizing.formats.words import milliseconds, number
from sizing.model.architecture import Layout, is_moe
from sizing.model.extras import prefixes
from sizing.model.settings import NO_CACHE, Service
from sizing.question import demand as demands
from sizing.question.demand import Habits, RateStep, Readings
from sizing.question.question import Question
from sizing.replica.replica import Replica, cache_format, lowered_from
from sizing.report.parts.sentences import line, optimised_words, said
from sizing.specs.units import MILLI
from sizing.specs.workload import LATENCIES, Limits, latency_name


class LimitInMs(NamedTuple):
    """A limit on a statistic of a latency."""

    statistic: str
    ms: float


LimitsInMs = Mapping[str, LimitInMs | None]  # by the name of the latency, `ttft_ms`; None where none is set


class DemandInputs(NamedTuple):
    """The demand: the rate or concurrency to serve, its kind, and how it was derived."""

    requests_per_s: float | None
    concurrency: float | None
    closed_loop: bool
    concurrent_users: float | None
    think_time_s: float | None
    daily_active_users: float | None
    habits: Habits
    profile: str | None
    kind: str | None
    stated: dict[str, Any] | None
    ranges: dict[str, dict[str, float]]
    mean_requests_per_s: float | None
    steps: tuple[RateStep, ...]


class ConversationInputs(NamedTuple):
    """The conversations whose turns are the requests.

    The share found in cache depends on blocks and replicas, so it is null without a single layout.
    """

    turns: int
    isl_first: int
    shared_tokens: int
    added_tokens_per_turn: int
    isl_mean: float
    isl_by_turn: tuple[int, ...]
    cached_tokens_by_turn: tuple[float, ...] | None
    hit: float | None
    routing: str
    caches: int | None
    block_tokens: int | None
    think_time_s: float | None
    histories_kept: float | None


class Inputs(NamedTuple):
    """The resolved inputs of a question. Inputs that depend on the layout are null without an answer."""

    workload: str | None
    model: str
    model_id: str
    model_asked: str
    gpu: str | None
    gpus_considered: tuple[str, ...]
    gpu_ids: tuple[str, ...]
    gpu_asked: dict[str, str]
    engine: str
    engine_title: str
    engine_version: str
    weight_precision: str
    kv_precision: str
    activation_precision: str
    isl: int
    task: str
    osl: int
    isl_max: int
    osl_max: int
    max_model_len: int
    mode: str
    demand: DemandInputs
    limits: LimitsInMs
    gpu_budget: int | None
    objective: str
    max_utilisation: float
    headroom: float
    serving: dict[str, Any]
    optimisations: dict[str, Any]
    conversation: ConversationInputs | None
    prefixes_kept: float | None

    @property
    def single_result(self) -> bool:
        """Whether a request has one result, and so one latency."""
        return self.osl <= 1

    @property
    def backend(self) -> str | None:
        """How tokens reach their experts; None where nothing is sent."""
        return self.serving.get("all2all_backend_in_force")


class Replayed(NamedTuple):
    """The trace of a sizing: its busiest minute, which begins at `start_s` of the trace, and its mean rate."""

    file: str
    requests: int
    start_s: float
    minute_requests: int
    requests_per_s: float
    mean_requests_per_s: float

    def line(self, *, replayed: bool | None) -> Line:
        """The busiest minute, and whether it was replayed; None without an answer."""
        return line("trace", self, replayed=replayed, unplayed=replayed is False)


class LayoutInputs(NamedTuple):
    """The resolved inputs of one layout."""

    model: str
    gpu: str
    gpu_id: str
    engine: str
    engine_title: str
    engine_version: str
    weight_precision: str
    kv_precision: str
    activation_precision: str
    layout: str
    sizes: Layout
    task: str
    max_model_len: int
    memory_fraction: float
    max_num_seqs: int
    max_num_seqs_lowered_from: int | None
    max_num_batched_tokens: int
    cuda_graphs_gib: float
    all2all_backend_in_force: str | None
    optimisations: dict[str, Any]
    conversation: ConversationInputs | None
    prefixes_kept: float | None

    @property
    def backend(self) -> str | None:
        """How tokens reach their experts; None where nothing is sent."""
        return self.all2all_backend_in_force


def inputs(question: Question, chosen: Replica | None) -> Inputs:
    """The resolved inputs. Inputs that depend on the layout come from `chosen`, and are null without it."""
    origin, workload, gpu_types = question.origin, question.origin.workload, question.space.gpu_types
    service, tokens = question.service, workload.tokens
    return filled(
        Inputs,
        of_service(service),
        _of_any(question) if chosen is None else of_replica(chosen),
        question.rules,
        workload=origin.workload_name,
        model_id=origin.model_id,
        model_asked=origin.model_matched_from or origin.model_id,
        gpus_considered=tuple(gpu_type.name for gpu_type in gpu_types),
        gpu_ids=tuple(gpu_type.id for gpu_type in gpu_types),
        gpu_asked=dict(origin.gpus_matched_from),
        isl_max=tokens.isl_max or service.isl,
        osl_max=tokens.osl_max or service.output_tokens,
        mode=workload.mode,
        demand=demand(question),
        limits=limits_in_ms(question.target.limits),
        max_utilisation=question.target.max_utilisation,
        serving=serving(question, chosen),
        conversation=conversation(question, placed=chosen is not None),
        prefixes_kept=None if chosen is None else _kept(chosen),
    )


def of_service(service: Service) -> dict[str, Any]:
    """What documents say of a service, by the names of their fields: its model, engine, lengths and optimisations."""
    return {
        "model": service.model.name,
        "engine": service.engine.name,
        "engine_title": service.engine.title,
        "engine_version": service.engine_version,
        "isl": service.isl,
        "task": service.task,
        "osl": service.output_tokens,
        "max_model_len": service.max_model_len,
        "optimisations": service.optimisations.asked(),
    }


def of_replica(replica: Replica) -> dict[str, Any]:
    """What documents say of a replica, by the names of their fields: its GPU type, layout and formats."""
    return {
        "gpu": replica.gpu_type.name,
        "gpu_id": replica.gpu_type.id,
        "gpus_per_replica": replica.layout.gpus,
        "sizes": replica.layout,
        "weight_precision": replica.plan.weight_format,
        "kv_precision": cache_format(replica),
        "activation_precision": replica.plan.activation,
    }


def _of_any(question: Question) -> dict[str, Any]:
    """The same without a replica, as far as all that are considered have it in common."""
    service, gpu_types = question.service, question.space.gpu_types
    formats = (name or service.model.quantisation.precision for name in question.space.precisions)
    return {
        "gpu": gpu_types[0].name if len(gpu_types) == 1 else None,
        "weight_precision": ", ".join(formats),
        "kv_precision": service.cache_precision,
        "activation_precision": service.model.activation_precision,
    }


def demand(question: Question) -> DemandInputs:
    """The demand: the rate or concurrency to serve, its kind, and how it was derived."""
    stated, found, target = question.origin.workload.demand, question.origin.demanded, question.target
    by_users = target.think_time_s > 0
    return DemandInputs(
        requests_per_s=target.requests_per_s,
        concurrency=target.concurrency if target.concurrency is not None or by_users else target.population,
        closed_loop=target.concurrency is not None,
        concurrent_users=target.population if by_users else None,
        think_time_s=target.think_time_s if by_users else None,
        daily_active_users=stated.daily_active_users if stated else None,
        habits=habits(question),
        profile=found.shape.name if found is not None and found.shape is not None else None,
        kind=found.kind if found is not None else None,
        # The workload's own writer is there; that of its demand alone would have to be built.
        stated=question.origin.workload.model_dump(exclude_none=True).get("demand"),
        ranges={name: span.model_dump() for name, span in question.origin.workload.uncertain.items()},
        mean_requests_per_s=found.mean_per_s if found is not None else None,
        steps=found.steps if found is not None else (),
    )


def habits(question: Question) -> Habits:
    """The habits of the users that the rate corresponds to."""
    origin = question.origin
    return question.origin.habits or demands.habits(origin.workload.demand, origin.workload.planning)


def limits_in_ms(limits: Limits) -> LimitsInMs:
    """Limits in ms by latency, each with its statistic; None where no limit is set."""
    found = {name: getattr(limits, name) for name in LATENCIES}
    return {
        f"{name}_ms": None if limit is None else LimitInMs(limit.statistic, limit.seconds / MILLI)
        for name, limit in found.items()
    }


def conversation(question: Question, *, placed: bool) -> ConversationInputs | None:
    """The conversations in a document's inputs; None if requests are not turns. `placed` says whether a layout is known."""
    cached = question.service.extras.cached
    conversation = cached.conversation
    if conversation is None:
        return None
    return ConversationInputs(
        turns=conversation.turns,
        isl_first=conversation.first,
        shared_tokens=conversation.shared,
        added_tokens_per_turn=conversation.adds,
        isl_mean=conversation.mean_isl,
        isl_by_turn=tuple(conversation.prompts),
        cached_tokens_by_turn=tuple(prefixes.found_by_turn(conversation, cached.finding)) if placed else None,
        hit=cached.hit if placed else None,
        routing="affinity" if cached.affinity else "random",
        caches=cached.engines if placed else None,
        block_tokens=cached.block if placed else None,
        think_time_s=cached.think_time_s,
        histories_kept=cached.kept if placed else None,
    )


def is_by_day(demand: DemandInputs) -> bool:
    """Whether the demand is of users or requests of a whole day, from which their habits give the busiest time."""
    return demand.kind in ("daily_active_users", "mean_requests_per_s")


def is_limited(limits: LimitsInMs) -> bool:
    """Whether a latency limit is set."""
    return any(limits.values())


def not_replayed(demand: DemandInputs, where: str = ": llmsize estimate FILE does that") -> str:
    """Write that only the rate of a trace was taken, and `where` it is replayed; nothing of another demand."""
    return f"{demands.NOT_REPLAYED}{where}" if demand.kind == "trace" else ""


def is_demanded(demand: DemandInputs) -> bool:
    """Whether a rate or a number of requests in flight is asked for; otherwise the GPUs are given."""
    return any(each is not None for each in (demand.requests_per_s, demand.concurrency, demand.concurrent_users))


def is_rate(demand: DemandInputs) -> bool:
    """Whether the demand is a rate, not a number of concurrent requests or users."""
    return demand.requests_per_s is not None


def serving(question: Question, chosen: Replica | None) -> dict[str, Any]:
    """The engine settings that matter for the answer: as stated, else the defaults of the engine version."""
    asked = question.service.serving.model_dump()
    if chosen is None:
        return asked
    return {
        **asked,
        **chosen.layout._asdict(),
        **{name: value for name, value in _in_force(question, chosen).items() if value is not None},
        "chunked_prefill": chosen.settings.chunked_prefill,
        "prefix_caching": chosen.settings.prefix_caching,
    }


def backend_in_force(question: Question, chosen: Replica) -> str | None:
    """How the tokens of several attention ranks reach their experts; None where nothing is sent to experts."""
    sent = chosen.layout.token_ranks > 1 and is_moe(question.service.model)
    return chosen.settings.all2all_backend if sent else None


def _in_force(question: Question, chosen: Replica) -> dict[str, Any]:
    """The limits on the lengths, memory and batch of a replica."""
    settings, memory = chosen.settings, chosen.memory
    return {
        "max_model_len": question.service.max_model_len,
        "memory_fraction": settings.memory_fraction or memory.budget_gib / memory.visible_gib,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_seqs_lowered_from": lowered_from(chosen),
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "cuda_graphs_gib": memory.cuda_graphs_gib,
        "all2all_backend_in_force": backend_in_force(question, chosen),
    }


def inputs_of_layout(resolved: Resolved) -> LayoutInputs:
    """The resolved inputs of one layout."""
    return filled(
        LayoutInputs,
        _in_force(resolved.question, resolved.replica),
        of_service(resolved.question.service),
        of_replica(resolved.replica),
        gpu=resolved.replica.gpu_type.gpu.name,
        layout=str(resolved.replica.layout),
        conversation=conversation(resolved.question, placed=True),
        prefixes_kept=_kept(resolved.replica),
    )


def _kept(replica: Replica) -> float | None:
    """The share of the stated prefixes that the caches of `replica` keep; None where all are taken to fit."""
    cached = replica.service.extras.cached
    return cached.kept if cached.evicts else None


def replica_lines(inputs: Inputs | LayoutInputs, layout: str = "") -> tuple[Line, ...]:
    """The model, precisions, engine and optimisations, and with a `layout` also the layout and the GPU."""
    return line("replica", inputs, formats=formats_in_words(inputs), layout=layout), *optimised(inputs)


def formats_in_words(inputs: Inputs | LayoutInputs) -> str:
    """The precision of weights and of the KV cache, in words."""
    known: dict[str, str | None] = {"auto": None, NO_CACHE: "no"}
    cache = inputs.kv_precision.upper()
    return said("formats", inputs, cache=known.get(inputs.kv_precision, cache))


def optimised(inputs: Inputs | LayoutInputs) -> Iterator[Line]:
    """Yield the optimisations that were asked for, and the turns of a conversation."""
    kept, talk = inputs.prefixes_kept, inputs.conversation
    if words := "; ".join(filter(None, (optimised_words(*each) for each in inputs.optimisations.items()))):
        yield line("optimised", words=words, kept=kept if kept is not None and kept < 1 else None)
    if talk is not None:
        first, *_, last = (*talk.isl_by_turn, talk.isl_by_turn[-1])
        found = None if talk.hit is None else talk.hit * 100
        turns = line("turns of talk", talk, first=first, last=last, found=found, idle=talk.think_time_s is None)
        # that idle conversations keep their cache decides the size
        yield turns._replace(spare=0) if found is not None and talk.think_time_s is None else turns


MIDDLES = "ranges count with their middle: {} (llmsize plan --uncertain shows the spread)"
MIDDLE_OF = "the middle of "  # how a rate comes from a range, which the words above say with its name


def demand_line(inputs: Inputs, demand: DemandInputs | None = None, same: str = "") -> Line:
    """The demand, the `same` demand in other units, the lengths of a request, and how the rate was derived."""
    asked = demand or inputs.demand
    rate = asked.requests_per_s
    what = "as much as the GPUs serve" if rate is None else f"{number(rate)} request{'s' * (rate != 1)}/s"
    what = people_words(asked) or what
    hows = [step.how for step in asked.steps if step.how != "as stated"]
    if asked.kind == "documents":
        what = f"{hows.pop(0)} = {what}"
    if asked.ranges:
        hows = [how for how in hows if not how.startswith(MIDDLE_OF)]
        spans = (f"{name.partition('.')[2]} {span['low']:g} to {span['high']:g}" for name, span in asked.ranges.items())
        hows.append(f"{MIDDLES.format(', '.join(spans))}")
    hows += other_reading(asked)
    request, headroom = lengths(inputs.isl, inputs.osl, inputs.task), inputs.headroom or None
    return line("demand", what=what, headroom=headroom, same=same, request=request, hows=", ".join(hows))


def other_reading(demand: DemandInputs) -> Iterator[str]:
    """Yield the option for the other possible meaning of the same number of people."""
    if demand.concurrent_users is not None:
        yield said("if in flight", demand)
    elif demand.concurrency is not None and not demand.closed_loop:
        yield said("if people", demand)


def people_words(demand: DemandInputs) -> str | None:
    """Write a demand of concurrent users or requests in flight; None for a rate."""
    if demand.concurrent_users is not None:
        return said("users", demand, several=demand.concurrent_users != 1)
    return None if demand.concurrency is None else said("in flight", demand)


DAILY_USERS = "daily active users"


def readings(demand: DemandInputs, read: Readings, users: float | None, *, people: bool) -> str:
    """Write a demand in other units: a rate, requests in flight, and, if `people`, concurrent users and users a day."""
    units = {
        "requests_per_s": f"{number(read.requests_per_s)} request{'s' * (read.requests_per_s != 1)}/s",
        "concurrency": f"{number(read.in_flight)} in flight",
        "concurrent_users": f"{number(read.users)} users who think {number(read.think_time_s)} s",
    }
    others = [
        words
        for name, words in units.items()
        if getattr(demand, name) is None and (people or name != "concurrent_users")
    ]
    if users is not None and people:
        others.append(f"{number(users)} {DAILY_USERS}")
    return "".join(f" = {words}" for words in others)


def limits_in_words(limits: LimitsInMs, *, single: bool = False) -> str:
    """Write the limits on latencies; `single` says that a request has a single result."""
    found = [
        f"{latency_name(name.removesuffix('_ms'), single=single)} {limit.statistic} <= {milliseconds(limit.ms)}"
        for name, limit in limits.items()
        if limit is not None
    ]
    return ", ".join(found) or "none"


def lengths(isl: int, osl: int | None, task: str) -> str:
    """Write the mean lengths. A task without output has the task's name in place of the output length."""
    return f"ISL {isl:,}, {f'OSL {osl:,}' if osl else task}"


LABELS = ("model", "weight_precision", "isl", "osl", "engine", "engine_version")


def labels(inputs: NamedTuple, keys: Sequence[str] = LABELS) -> dict[str, Any]:
    """The labels of every figure: the first columns of CSV."""
    stated = dict(fields(inputs))
    return {key: stated.get(key) for key in keys}
