"""The question in records and in words. The `inputs` of every document are resolved, so that a result can be reproduced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sizing.answers.deployment import Resolved
from sizing.formats.view import Line, fields
from sizing.formats.words import milliseconds, number, percent
from sizing.model.architecture import Layout, is_moe
from sizing.model.settings import NO_CACHE
from sizing.question import demand as demands
from sizing.question.demand import Habits, RateStep, Readings
from sizing.question.question import Question
from sizing.replica.replica import Replica, cache_format, lowered_from
from sizing.report.parts.conversations import ConversationInputs, conversation
from sizing.report.parts.optimised import WRITERS
from sizing.specs.gpu import GpuType
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

    @property
    def backend(self) -> str | None:
        """How tokens reach their experts; None where nothing is sent."""
        return self.serving.get("all2all_backend_in_force")


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

    @property
    def backend(self) -> str | None:
        """How tokens reach their experts; None where nothing is sent."""
        return self.all2all_backend_in_force


def inputs(question: Question, chosen: Replica | None) -> Inputs:
    """The resolved inputs. Inputs that depend on the layout come from `chosen`, and are null without it."""
    origin, workload, gpu_types = question.origin, question.origin.workload, question.space.gpu_types
    return Inputs(
        workload=origin.workload_name,
        model=question.service.model.name,
        model_id=origin.model_id,
        model_asked=origin.model_matched_from or origin.model_id,
        gpu=_chosen_gpu(gpu_types, chosen),
        gpus_considered=tuple(gpu_type.name for gpu_type in gpu_types),
        gpu_ids=tuple(gpu_type.id for gpu_type in gpu_types),
        gpu_asked=dict(origin.gpus_matched_from),
        engine=question.service.engine.name,
        engine_title=question.service.engine.title,
        engine_version=question.service.engine_version,
        weight_precision=_chosen_precision(question, chosen),
        kv_precision=cache_format(chosen) if chosen else question.service.cache_precision,
        activation_precision=chosen.plan.activation if chosen else question.service.model.activation_precision,
        isl=question.service.isl,
        task=question.service.task,
        osl=question.service.output_tokens,
        isl_max=workload.tokens.isl_max or question.service.isl,
        osl_max=workload.tokens.osl_max or question.service.output_tokens,
        max_model_len=question.service.max_model_len,
        mode=workload.mode,
        demand=demand(question),
        limits=limits(question),
        gpu_budget=question.rules.gpu_budget,
        objective=question.rules.objective,
        max_utilisation=question.target.max_utilisation,
        headroom=question.rules.headroom,
        serving=serving(question, chosen),
        optimisations=question.service.optimisations.asked(),
        conversation=conversation(question, placed=chosen is not None),
    )


def _chosen_gpu(gpu_types: Sequence[GpuType], chosen: Replica | None) -> str | None:
    """The GPU type of the answer. Without an answer, the only type considered, or None if there are several."""
    if chosen is not None:
        return chosen.gpu_type.name
    return gpu_types[0].name if len(gpu_types) == 1 else None


def _chosen_precision(question: Question, chosen: Replica | None) -> str:
    if chosen is not None:
        return chosen.plan.weight_format
    return ", ".join(name or question.service.model.quantisation.precision for name in question.space.precisions)


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
        stated=question.origin.workload.model_dump(include={"demand"}, exclude_none=True).get("demand"),
        ranges={name: span.model_dump() for name, span in question.origin.workload.uncertain.items()},
        mean_requests_per_s=found.mean_per_s if found is not None else None,
        steps=found.steps if found is not None else (),
    )


def habits(question: Question) -> Habits:
    """The habits of the users that the rate corresponds to."""
    origin = question.origin
    return question.origin.habits or demands.habits(origin.workload.demand, origin.workload.planning, origin.defaults)


def limits(question: Question) -> LimitsInMs:
    """The limits of a question in ms, each with its statistic; None where no limit is set."""
    return limits_in_ms(question.target.limits)


def limits_in_ms(limits: Limits) -> LimitsInMs:
    """Limits in ms by latency, each with its statistic; None where no limit is set."""
    found = {f"{name}_ms": getattr(limits, name) for name in LATENCIES}
    return {
        name: None if limit is None else LimitInMs(limit.statistic, limit.seconds / MILLI)
        for name, limit in found.items()
    }


def is_by_day(demand: DemandInputs) -> bool:
    """Whether the demand is of users or requests of a whole day, from which their habits give the busiest time."""
    return demand.kind in ("daily_active_users", "mean_requests_per_s")


def is_limited(limits: LimitsInMs) -> bool:
    """Whether a latency limit is set."""
    return any(limits.values())


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


def backend_words(backend: str | None) -> str:
    """Write how tokens reach their experts; empty where nothing is sent."""
    return "" if backend is None else f"; tokens go to experts by {backend}"


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
    request, plan, layout = resolved.question, resolved.plan, resolved.layout
    return LayoutInputs(
        model=request.service.model.name,
        gpu=resolved.gpu_type.gpu.name,
        gpu_id=resolved.gpu_type.id,
        engine=request.service.engine.name,
        engine_title=request.service.engine.title,
        engine_version=request.service.engine_version,
        weight_precision=plan.weight_format,
        kv_precision=cache_format(resolved.replica),
        activation_precision=plan.activation,
        layout=str(layout),
        sizes=layout,
        task=request.service.task,
        **_in_force(request, resolved.replica),
        optimisations=request.service.optimisations.asked(),
        conversation=conversation(request, placed=True),
    )


def replica_lines(inputs: Inputs | LayoutInputs, layout: str = "") -> tuple[Line, ...]:
    """The model, precisions, engine and optimisations, and with a `layout` also the layout and the GPU."""
    i = inputs
    where = f", {layout} on {i.gpu}" if layout else ""
    engine = f"{i.engine_title} {i.engine_version}"
    return (
        Line(f"{i.model}, {formats_in_words(i)}, {engine}{where}{backend_words(i.backend)}", "Replica"),
        *optimised(i),
    )


def formats_in_words(inputs: Inputs | LayoutInputs) -> str:
    """The precision of weights and of the KV cache, in words."""
    weights, cache = f"{inputs.weight_precision.upper()} weights", inputs.kv_precision
    if cache == "auto":
        return weights
    return f"{weights}, {'no' if cache == NO_CACHE else cache.upper()} KV cache"


def optimised(inputs: Inputs | LayoutInputs) -> tuple[Line, ...]:
    """The optimisations that were asked for, and the turns of a conversation; empty if there are none."""
    text = "; ".join(WRITERS[name](stated) for name, stated in inputs.optimisations.items() if name in WRITERS)
    lines = (Line(text, "With"),) if text else ()
    talk = inputs.conversation
    if talk is None:
        return lines
    prompts = talk.isl_by_turn
    found = "" if talk.hit is None else f", {talk.hit * 100:.3g} % of them found in cache ({talk.routing} routing)"
    return (*lines, Line(f"{talk.turns:,}, prompts of {prompts[0]:,} to {prompts[-1]:,} tokens{found}", "Turns"))


MIDDLES = "ranges count with their middle: {} (llmsize plan --uncertain shows the spread)"
MIDDLE_OF = "the middle of "  # how a rate comes from a range, which the words above say with its name


def demand_line(inputs: Inputs, demand: DemandInputs | None = None, same: str = "") -> Line:
    """The demand, the `same` demand in other units, the lengths of a request, and how the rate was derived."""
    asked = demand or inputs.demand
    rate = asked.requests_per_s
    what = "as much as the GPUs serve" if rate is None else f"{number(rate)} requests/s"
    what = people_words(asked) or what
    grown = f" + {percent(inputs.headroom)}" if inputs.headroom else ""
    hows = [step.how for step in asked.steps if step.how != "as stated"]
    if asked.ranges:
        hows = [how for how in hows if not how.startswith(MIDDLE_OF)]
        spans = (f"{name.partition('.')[2]} {span['low']:g} to {span['high']:g}" for name, span in asked.ranges.items())
        hows.append(f"{MIDDLES.format(', '.join(spans))}")
    hows += other_reading(asked)
    return Line(
        f"{what}{grown}{same}, {lengths(inputs.isl, inputs.osl, inputs.task)}"
        + (f"; {', '.join(hows)}" if hows else ""),
        "Demand",
    )


def other_reading(demand: DemandInputs) -> Iterator[str]:
    """Yield the option for the other possible meaning of the same number of people."""
    if demand.concurrent_users is not None:
        users = f"{demand.concurrent_users:g}"
        yield f"if {users} requests are in flight at once, ask --concurrency {users}"
    elif demand.concurrency is not None and not demand.closed_loop:
        flight = f"{demand.concurrency:g}"
        yield f"if {flight} people read and think between requests, ask --users {flight}"


def people_words(demand: DemandInputs) -> str | None:
    """Write a demand of concurrent users or requests in flight; None for a rate."""
    if demand.concurrent_users is not None:
        return f"{number(demand.concurrent_users)} users who think {number(demand.think_time_s)} s after an answer"
    if demand.concurrency is None:
        return None
    return f"{number(demand.concurrency)} requests in flight" + (" (closed loop)" if demand.closed_loop else "")


DAILY_USERS = "daily active users"


def readings(demand: DemandInputs, read: Readings, users: float | None, *, people: bool) -> str:
    """Write a demand in other units: a rate, requests in flight, and, if `people`, concurrent users and users a day."""
    said = {
        "requests_per_s": f"{number(read.requests_per_s)} requests/s",
        "concurrency": f"{number(read.in_flight)} in flight",
        "concurrent_users": f"{number(read.users)} users who think {number(read.think_time_s)} s",
    }
    others = [
        words
        for name, words in said.items()
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
