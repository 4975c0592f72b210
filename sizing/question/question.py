"""The resolved question: a workload with its model, engine version and planning rules filled in and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, fields, replace
from typing import Any, NamedTuple

from sizing.catalog import shelf, workloads
from sizing.catalog.files import expanded
from sizing.catalog.prices import PriceRule
from sizing.model.architecture import SIZES, has_states, is_moe, with_redundant_experts
from sizing.model.extras import NOTHING, Extras, images
from sizing.model.settings import Service, length_by_default
from sizing.question import demand
from sizing.question.demand import Demanded, Habits, Shape
from sizing.specs.demand import LEAST_REQUESTS_PER_S
from sizing.specs.engine import Engine
from sizing.specs.errors import Fault, InputError, raise_any
from sizing.specs.frozen import Frozen
from sizing.specs.gpu import GpuType
from sizing.specs.model import Model
from sizing.specs.optimisations import HandOver, PoolLayout
from sizing.specs.workload import (
    ANY_NUMBER,
    RESULTS,
    Aim,
    Defaults,
    ImageLimit,
    Limits,
    Reach,
    Serving,
    Target,
    Workload,
)

MOST_REQUESTS_PER_S = 1e9  # no service has more: a unit must be wrong
DEMANDS = (
    "one of --rps, --users, --dau, --concurrency (or demand: in the workload), or --gpus alone for what N GPUs serve"
)


class Rules(Frozen):
    """The rules that choose an answer: objective, GPU budget, and headroom, the growth of the demand (0.2 is 20 %)."""

    objective: Aim
    gpu_budget: int | None
    headroom: float


OF_A_POOL = ("all2all_backend", "max_num_seqs", "max_num_batched_tokens")  # settings that may differ between pools


class PoolSpace(NamedTuple):
    """The GPU types and the stated sizes of one of two separate pools."""

    gpu_types: tuple[GpuType, ...]
    pool: PoolLayout

    def serving(self, whole: Serving) -> Serving:
        """The serving flags of this pool: in its own layout and with its own settings where given, else with those of `whole`."""
        sizes = {name: getattr(self.pool, name) for name in SIZES}
        own = {name: value for name in OF_A_POOL if (value := getattr(self.pool, name)) is not None}
        return whole.model_copy(update={**(sizes if any(sizes.values()) else {}), **own})


class SeparatePools(NamedTuple):
    """The prefill and decode pools to consider, and the assumptions on the transfer between them."""

    prefill: PoolSpace
    decode: PoolSpace
    facts: HandOver

    @classmethod
    def of_any(cls, gpu_types: tuple[GpuType, ...]) -> SeparatePools:
        """Pools of any layout on some GPU types."""
        pool = PoolSpace(gpu_types, PoolLayout())
        return cls(pool, pool, shelf.only(HandOver))

    @property
    def given(self) -> tuple[int | None, int | None]:
        """The stated replicas of each pool."""
        return self.prefill.pool.replicas, self.decode.pool.replicas

    def by_type(self, gpu_types: Iterable[GpuType]) -> tuple[SeparatePools, ...]:
        """Pools on each GPU type of `gpu_types`. A pool that names its type keeps it; if both do, one entry is returned."""
        found: dict[tuple[str, str], SeparatePools] = {}
        for gpu_type in gpu_types:
            pools = (self.prefill, self.decode)
            prefill, decode = (of if of.pool.gpu is not None else of._replace(gpu_types=(gpu_type,)) for of in pools)
            of_both = (prefill.gpu_types[0].id, decode.gpu_types[0].id)
            found.setdefault(of_both, self._replace(prefill=prefill, decode=decode))
        return tuple(found.values())


class Space(Frozen):
    """The space to search: GPU types, weight precisions (None: the checkpoint's own), separate pools, layouts.

    The search begins with the set `layouts`. On GPU types where none of these suffices, it goes on to further layouts.
    """

    gpu_types: tuple[GpuType, ...] = ()
    precisions: tuple[str | None, ...] = (None,)
    pools: SeparatePools | None = None
    layouts: Reach = "usual"


class Origin(Frozen):
    """The origin of a question's values: the workload as served, and the names written by the user."""

    workload: Workload
    workload_name: str | None = None
    model_id: str = ""
    model_matched_from: str | None = None  # as written, where it differs from the name
    gpus_matched_from: Mapping[str, str] = field(default_factory=dict)  # likewise, by profile id
    notes: tuple[str, ...] = ()  # about the model's name
    left_out: tuple[str, ...] = ()  # what the workload states of another model
    demanded: Demanded | None = None  # the steps to the peak
    habits: Habits | None = None  # which turn a rate into daily users
    prices: PriceRule = field(default_factory=PriceRule)
    unsold: tuple[str, ...] = ()  # GPU types that the stated provider does not sell

    @property
    def rate_of_trace(self) -> bool:
        """Whether the demand is the rate of a trace, whose arrivals are then not replayed."""
        return self.demanded is not None and self.demanded.kind == "trace"


class Question(Frozen):
    """The resolved question: the service of a replica, the target, the rules of the choice, and the space to search.

    Questions with equal values are equal, whatever the origin of the values.
    """

    service: Service
    target: Target
    rules: Rules
    space: Space
    origin: Origin = field(compare=False)

    def with_(self, **changes: Any) -> Question:
        """This question with `changes` to fields of its parts. Raises TypeError for an unknown field."""
        parts = {}
        for part, names in PARTS.items():
            mine = {name: changes.pop(name) for name in names if name in changes}
            if mine:
                parts[part] = replace(getattr(self, part), **mine)
        if changes:
            raise TypeError(f"a question has no {', '.join(changes)}")
        return replace(self, **parts)


PARTS = {
    name: frozenset(field.name for field in fields(kind))
    for name, kind in (("service", Service), ("target", Target), ("rules", Rules), ("space", Space))
}  # the names of the fields of each part


def shape_of(workload: Workload) -> Shape | None:
    """The hourly profile of a workload: its own weights, or a named profile; None without one."""
    stated = workload.planning.profile
    if stated is None:
        return None
    if isinstance(stated, str):
        found = workloads.load_profile(stated)
        return Shape(found.id, found.spec.weights, found.spec.source, found.spec.kind)
    return Shape("of its own", stated, "as asked", "assumed")


def demand_of(workload: Workload) -> Demanded | None:
    """The resolved demand of a workload; None without a demand.

    Raises InputError where the peak is unknown, too low to be timed, or too high for a service.
    """
    stated = workload.demand
    if stated is None:
        return None
    arrivals = None
    if stated.trace is not None:
        from sizing.catalog import traces  # loaded where one is stated

        rows = traces.load_trace(expanded(stated.trace))
        arrivals = demand.of_trace(rows[:, 0], shelf.only(Defaults).trace_window_s)
    offline, shape, ranges = workload.mode == "offline", shape_of(workload), workload.uncertain
    found = demand.resolve_demand(
        stated, workload.planning, offline=offline, shape=shape, arrivals=arrivals, ranges=ranges
    )
    rate_per_s, least, most = found.peak_per_s, LEAST_REQUESTS_PER_S, MOST_REQUESTS_PER_S
    if rate_per_s is not None and not least <= rate_per_s <= most:
        why = "few to be timed" if rate_per_s < least else "many for one service"
        allowed = f"what makes at least {least:g} and at most {most:g} requests/s"
        raise InputError(f"{rate_per_s:.2g} requests/s at the peak are too {why}", field="demand", allowed=allowed)
    return found


def think_time_of(workload: Workload) -> float:
    """Seconds between an answer and a user's next request: as stated for users or for turns, else the default."""
    stated = [of.think_time_s for of in (workload.demand, workload.optimisations.prefix) if of is not None]
    return next((seconds for seconds in stated if seconds is not None), shelf.only(Defaults).think_time_s)


def think_time_of_users(workload: Workload) -> float | None:
    """The think time of a demand of concurrent users, which their idle conversations have too; None of another demand."""
    by_users = workload.demand is not None and workload.demand.concurrent_users is not None
    return think_time_of(workload) if by_users else None


def pause_between_turns_s(workload: Workload) -> float | None:
    """The time that a demand gives between the turns of a user, None where it gives none.

    For sessions it is the time from one request to the next. That includes the answer, so caches need no less room.
    """
    sessions = workload.demand and workload.demand.sessions
    if not sessions:
        return think_time_of_users(workload)
    return sessions.session_s / sessions.requests_per_session


OF_STATES = ("mamba_full_memory_ratio", "max_mamba_cache_size")  # serving flags about recurrent states


def service_of(
    workload: Workload, model: Model, engine: tuple[Engine, str], extras: Extras = NOTHING, *, full: bool = False
) -> Service:
    """The service of a workload on an engine version. With `full`, prompts have the maximum length.

    Raises InputError where lengths exceed the model's maximum or `max_model_len`.
    """
    serving, tokens = workload.serving, workload.tokens
    longest = serving.max_model_len or (length_by_default(model, *engine) if full else workload.longest)
    _check_lengths(workload, model, longest)
    _check_states(serving, engine[0])
    _check_budget(workload, engine[0])
    return Service(
        model=with_redundant_experts(_with_encoder(model, serving, longest), serving.redundant_experts or 0),
        isl=longest if full else tokens.isl,
        osl=1 if full else tokens.osl,
        max_model_len=longest,
        serving=serving,
        engine=engine[0],
        engine_version=engine[1],
        kv_precision=workload.kv_precision,
        optimisations=workload.optimisations,
        extras=extras,
        task=workload.task,
        mode="offline" if workload.mode == "offline" else "served",
    )


def _check_states(serving: Serving, engine: Engine) -> None:
    """Raise InputError for flags about the state pool on an engine without a separate pool of recurrent states."""
    if any(row.value["rule"] == "split" for row in engine.settings["states"]):
        return
    given = [name for name in OF_STATES if getattr(serving, name) is not None]
    told = f"{engine.title} keeps recurrent states in no pool of their own"
    raise_any(Fault(told, field=f"serving.{name}", remedy="use --engine sglang") for name in given)


def _check_budget(workload: Workload, engine: Engine) -> None:
    """Raise InputError for a token budget that the engine refuses, because it is below the number of sequences.

    Of separate pools each may bound one of the two.
    """
    most, budget = workload.serving.max_num_seqs, workload.serving.max_num_batched_tokens
    apart = workload.optimisations.disaggregate is not None
    if engine.budget_holds_sequences and not apart and most is not None and budget is not None and budget < most:
        what = f"{engine.title} refuses fewer tokens a step ({budget:,}) than sequences at once ({most:,})"
        raise InputError(what, field="serving.max_num_batched_tokens", allowed=f"at least {most:,}")


def _with_encoder(model: Model, serving: Serving, positions: int) -> Model:
    """The model with its largest image or video input; without the encoder where the flags leave it out."""
    if model.vision is None:
        return model
    from sizing.specs.facts import OptimisationFacts  # read only for a model with an encoder

    limit = serving.limit_mm_per_prompt
    if serving.language_model_only or (limit is not None and not limit.tower):
        return images.without_encoder(model)
    facts, most = shelf.only(OptimisationFacts), limit or ImageLimit(count=ANY_NUMBER)
    return images.with_largest(model, most, positions, facts.encoder, facts.image_rules)


def question_of_workload(workload: Workload, service: Service, *, gpu_budget: int | None = None) -> Question:
    """The question of a workload, with defaults filled in and an empty space to search. `gpu_budget` replaces the workload's.

    Raises InputError where neither a demand nor a GPU budget is stated, and as `demand_of` does.
    """
    planning, demanded = workload.planning, demand_of(workload)
    budget = workload.gpus if gpu_budget is None else gpu_budget
    if workload.demand is None and budget is None and workload.mode != "offline":
        raise InputError("nothing says how much to serve", field="demand", allowed=DEMANDS)
    headroom = shelf.only(Defaults).headroom if planning.headroom is None else planning.headroom
    rules = Rules(planning.objective or "gpus", budget, headroom)
    habits = demanded.habits if demanded else demand.habits(None, planning, shape_of(workload))
    origin = Origin(workload, demanded=demanded, habits=habits)
    return Question(service, target_of(workload, demanded), rules, Space(), origin)


def target_of(workload: Workload, demanded: Demanded | None) -> Target:
    """The target of a workload, with the rate from `demanded` and defaults filled in."""
    stated, offline = workload.demand, workload.mode == "offline"
    closed = stated is not None and bool(stated.closed_loop or offline)  # offline requests in flight form a closed loop
    return Target(
        requests_per_s=demanded.peak_per_s if demanded else None,
        concurrency=stated.concurrency if stated and closed else None,
        limits=Limits() if offline else workload.limits,
        offline=offline,
        max_utilisation=workload.planning.max_utilisation or shelf.only(Defaults).max_utilisation,
        population=None if stated is None or closed else stated.concurrency or stated.concurrent_users,
        think_time_s=think_time_of_users(workload) or 0.0,
        within_s=None if stated is None else stated.within_s,
    )


def question_without_demand(workload: Workload, service: Service) -> Question:
    """The question of a service without a demand, for the memory of a layout."""
    defaults = shelf.only(Defaults)
    target = Target(None, None, Limits(), offline=True, max_utilisation=defaults.max_utilisation)
    return Question(service, target, Rules("gpus", None, defaults.headroom), Space(), Origin(workload))


def with_longest(question: Question, tokens: int) -> Question:
    """The question of one layout where `--max-model-len` says that sequences have up to `tokens` tokens."""
    serving = question.service.serving.model_copy(update={"max_model_len": tokens})
    seeing = _with_encoder(question.service.model, serving, tokens)
    return question.with_(serving=serving, max_model_len=tokens, isl=tokens, model=seeing)


LONGER = "; for more, give a config.json with rope_scaling and its larger max_position_embeddings"


def _check_lengths(workload: Workload, model: Model, longest: int) -> None:
    needed, stated, most = workload.longest, workload.serving.max_model_len, model.max_position
    positions, at_most, faults = f"the {most:,} positions of {model.name}", f"at most {most:,}{LONGER}", []
    if needed > most:
        what = f"{needed:,} tokens (ISL + OSL at their longest) exceed {positions}"
        faults.append(Fault(what, field="tokens", allowed=at_most))
    if stated and stated > most:
        faults.append(Fault(f"{stated:,} exceeds {positions}", field="serving.max_model_len", allowed=at_most))
    elif longest < needed:
        what = f"{longest:,} is shorter than the longest sequence served, {needed:,} tokens"
        faults.append(Fault(what, field="serving.max_model_len", allowed=f"{needed:,} to {most:,}"))
    raise_any(faults)


# Serving flags about experts (except their number of ranks) and about an image encoder.
OF_EXPERTS = ("all2all_backend", "expert_imbalance", "redundant_experts")
OF_IMAGES = ("language_model_only", "limit_mm_per_prompt")


def check_served(workload: Workload, extras: Extras, model: Model) -> None:
    """Raise InputError where images make a workload too long, or shared tokens exceed those found in cache."""
    check_images(workload, extras, model)
    check_prefix(extras, workload.tokens.isl)


def idle(model: Model) -> dict[str, str]:
    """The serving fields that change nothing of a model, each with what the model lacks for it."""
    kinds = (
        (OF_EXPERTS, is_moe(model), "experts"),
        (OF_IMAGES, bool(model.vision or model.vision_parameters), "encoder of images"),
        (OF_STATES, has_states(model), "recurrent states"),
    )
    return {name: what for names, has, what in kinds if not has for name in names}


def check_asked(workload: Workload, model: Model) -> None:
    """Raise InputError for serving flags and tokens that do not apply to the task or the model."""
    _check_task(workload)
    serving = workload.serving
    faults = [
        Fault(f"{model.name} has no {what}", field=f"serving.{name}", allowed=f"a model with {what}")
        for name, what in idle(model).items()
        if (stated := getattr(serving, name)) is not None and stated is not False
    ]
    if serving.enforce_eager and serving.cuda_graphs_gib is not None:
        eager = "contradicts --enforce-eager, which captures no graphs"
        faults.append(Fault(eager, field="serving.cuda_graphs_gib", remedy="state one of them"))
    if serving.offload_backend is not None and serving.cpu_offload_gb is None:
        nothing = "has no weights to bring from host memory"
        faults.append(Fault(nothing, field="serving.offload_backend", remedy="use it with --cpu-offload-gb"))
    raise_any(faults)


def _check_task(workload: Workload) -> None:
    """Raise InputError for output tokens, or speculative decoding, in a task without output tokens."""
    if not workload.pooled:
        return
    tokens, what = workload.tokens, f"{workload.task} gives no tokens"
    given = [name for name in ("osl_max", "osl_std") if getattr(tokens, name) not in (None, RESULTS)]
    faults = [Fault(what, field=f"tokens.{name}", allowed="none") for name in given]
    if tokens.osl != RESULTS:
        faults.append(Fault(what, field="tokens.osl", allowed="1, its result (--osl 1)"))
    if workload.optimisations.speculative is not None:
        drafts_nothing = f"{workload.task} decodes nothing to draft"
        faults.append(Fault(drafts_nothing, field="optimisations.speculative", allowed="none"))
    raise_any(faults)


def check_prefix(extras: Extras, isl: int) -> None:
    """Raise InputError for a shared prefix longer than the cached part of a prompt."""
    cached = extras.cached
    if not cached.within(isl):
        found = f"the {cached.hit * isl:,.0f} of a prompt that are found in cache ({cached.hit:g} of {isl:,})"
        what, allowed = (
            f"{cached.shared_tokens:,} shared tokens are more than",
            "at most the hit rate times the prompt's tokens",
        )
        raise InputError(f"{what} {found}", field="optimisations.prefix", allowed=allowed)


def check_images(workload: Workload, extras: Extras, model: Model) -> None:
    """Raise InputError where images alone make prompts too long; `workload` has the image tokens in its prompts."""
    tokens, of_images = workload.longest, extras.encoder.tokens if extras.encoder else 0
    most = min(workload.serving.max_model_len or model.max_position, model.max_position)
    if tokens - of_images <= most < tokens:
        what = f"{of_images:,} tokens of a request's images make {tokens:,} with the text"
        allowed = f"at most {most - tokens + of_images:,} tokens of images: fewer or smaller ones"
        more = f"more than the {most:,} that a sequence may have"
        raise InputError(f"{what}, {more}", field="optimisations.images", allowed=allowed)
