"""Build a resolved question from options: look up names in the catalogue, read separate pools, and add prompts' images and turns."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sizing.catalog import models, profiles, shelf
from sizing.catalog.runs import published
from sizing.catalog.shelf import Found
from sizing.model import extras as of_model
from sizing.model.architecture import SIZES, Layout
from sizing.model.extras import NOTHING, Extras, Speculation, adapters, drafts, images
from sizing.model.extras.prefixes import Conversation
from sizing.question.demand import AT_ONCE, Demanded
from sizing.question.names import FILES, SEPARATE, Catalog, Names, look_up
from sizing.question.options import (
    LAYOUT_OPTIONS,
    QUESTION_OPTIONS,
    WORKLOAD_OPTIONS,
    Field,
    GivenOptions,
    Options,
    check_rules,
    of_question,
    of_workload,
    options_of,
    unpooled,
)
from sizing.question.question import (
    PoolSpace,
    Question,
    SeparatePools,
    Space,
    check_asked,
    check_images,
    check_prefix,
    check_served,
    demand_of,
    pause_between_turns_s,
    question_of_workload,
    question_without_demand,
    service_of,
    target_of,
)
from sizing.specs.bands import LEAST_CONFIDENCE, MOST_CONFIDENCE, USUAL
from sizing.specs.errors import Fault, InputError, Part, check, collected, nearest, placed, raise_any
from sizing.specs.gpu import GpuType
from sizing.specs.model import Model
from sizing.specs.optimisations import NOTHING_ASKED, PHASES, HandOver, Speculative
from sizing.specs.units import parse_share
from sizing.specs.workload import Defaults, Planning, Serving, Target, Workload

if TYPE_CHECKING:
    from sizing.specs.facts import OptimisationFacts

Check = Callable[[Workload], Fault | None]


def separate_pools(names: Names, checks: Sequence[Check]) -> SeparatePools | None:
    """The pools to consider; None without separate pools.

    Raises InputError for an unknown GPU type, and for a workload that one of `checks` rejects.
    """
    workload = names.workload.value
    wanted = workload.optimisations.disaggregate
    if wanted is None:
        return None
    considered = names.gpu_types
    faults = [fault for check in (*checks, _of_turns) if (fault := check(workload)) is not None]
    sides = []
    for pool in (wanted.prefill, wanted.decode):
        with collected(faults):
            own = None if pool.gpu is None else names.priced(profiles.load_gpu(pool.gpu))
            sides.append(PoolSpace(considered if own is None else (own,), pool))
    raise_any(faults)
    return SeparatePools(sides[0], sides[1], shelf.only(HandOver))


def _of_turns(workload: Workload) -> Fault | None:
    """The fault of conversations over separate pools whose requests may not find their cache."""
    prefix = workload.optimisations.prefix
    if prefix is None or (prefix.turns or 1) == 1:
        return None
    apart = prefix.think_time_s is not None or (workload.demand is not None and workload.demand.sessions is not None)
    if prefix.routing == "affinity" and not apart:
        return None
    message = "turns over separate pools are sized where each finds its cache, without a think time (sessions have one)"
    return Fault(message, field="optimisations.prefix.turns", remedy="use --prefix-routing affinity; or --prefix-hit")


def decodes(workload: Workload) -> Fault | None:
    """The fault of a workload without decode steps."""
    if workload.tokens.osl > 1:
        return None
    return Fault("nothing decodes with OSL 1", field=SEPARATE, allowed="an output of two tokens and more")


def rated(workload: Workload) -> Fault | None:
    """The fault of a workload that states no request rate: separate pools are sized by a rate."""
    demand = workload.demand
    if demand is not None and demand.kind in AT_ONCE:
        what = "pools are sized by a rate, and requests in flight or concurrent users state none"
        return Fault(what, field=SEPARATE, remedy="use it with --rps or --dau")
    if demand is None and workload.mode == "offline":
        return Fault(
            "pools are sized by a rate, which offline work has none of", field=SEPARATE, remedy="use it with --rps"
        )
    return None


NAMES = ("model", "gpu", "precision", "engine")  # options that are text or a path, or a list of them
SEPARATE_PATH = ("optimisations", "disaggregate")
# A workload needs lengths; a question about one layout states none.
PLACEHOLDER_TOKENS = {"isl": 1, "osl": 1}
NO_OPTION = "is no option here"
NO_GROWTH = Fault("there is no demand to grow", field="--headroom", remedy="use it with --rps, --concurrency or --dau")
NO_MODEL = Fault("is needed", field="--model", allowed="a name (llmsize models), a config.json or its folder")


def ask(workload: str | os.PathLike[str] | None = None, **options: Any) -> Question:
    """The question of a workload (file or ready name) and options, which override it; names as on the command line.

    Raises InputError with all faults that can be found, including unknown options.

    >>> question = ask("chat", gpu="h100-sxm", rps=2)
    >>> question.service.model.name, question.target.requests_per_s
    ('meta-llama/Llama-3.1-70B-Instruct', 2.0)
    """
    named = _text("workload", workload)
    stated, unknown = _stated(QUESTION_OPTIONS, options)
    question = question_of(named, stated, unknown, pooled=True)
    return with_confidence(question, stated)


def _stated(fields: tuple[Field, ...], options: Mapping[str, Any]) -> tuple[Options, Part[None]]:
    """The known options, with lists as comma-separated text; and a part with the faults of the others."""
    known = [field.name for field in fields]
    others = [Fault(NO_OPTION, field=name, nearest=nearest(name, known)) for name in options if name not in known]
    options = {name: value for name, value in options.items() if name in known}
    lists = {name for name, value in options.items() if isinstance(value, list | tuple) and name != "set"}
    joined = {name: ",".join(map(str, value)) if name in lists else value for name, value in options.items()}
    texts = {name: _text(name, value) if name in NAMES else value for name, value in joined.items()}
    return options_of(GivenOptions(fields, texts)), Part(lambda: raise_any(others))


def _text(name: str, value: object) -> str | None:
    """A name or a path as text. Raises InputError for anything else."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return str(value)
    raise InputError(f"{value!r} is no text", field=name, allowed="a name, or the path of a file")


def question_of(
    workload: str | Found[Workload] | None,
    options: Options,
    *parts: Part[Any],
    catalog: Catalog = FILES,
    pooled: bool = False,
) -> Question:
    """Look up all names of a workload and its options, and resolve the question.

    The name of a quantised checkpoint (`...-FP8`) sets the precision where neither workload nor option does. `pooled` allows separate pools for prefill and decode. Raises InputError with all faults
    that can be found, including those of `parts`.
    """
    names = look_up(workload, options, catalog=catalog)
    grows = "planning.headroom" in options.fields
    growth = Part(lambda: raise_any([NO_GROWTH] if grows and names.workload.value.demand is None else []))
    question = Part(lambda: resolved(names, names.workload.value), names.layers.by_field)
    checks = (decodes, rated) if pooled else (lambda workload: unpooled("this command", SEPARATE),)
    pools = Part(lambda: separate_pools(names, checks), names.layers.at(SEPARATE_PATH))
    idle = Part(lambda: check_rules(of_question(question.value), options.stated(WORKLOAD_OPTIONS)))
    check(*parts, *names.parts, growth, question, pools, idle)
    return with_origin(question.value, names, pools.value)


def resolved(
    names: Names,
    workload: Workload,
    *,
    gpu_budget: int | None = None,
    caches: int = 1,
    traced: bool = False,
) -> Question:
    """The question of a workload with the model and the engine of `names`.

    `gpu_budget` replaces the workload's. `caches` is the number of prefix caches of the given replicas. The lengths of a `traced` load are checked where the trace
    is read. Raises InputError for options that the task or the model does not have.
    """
    model = names.model.value
    check_asked(workload, model.spec)
    extras = extras_of(workload, model.spec, pause_between_turns_s(workload)).over(caches)
    whole = as_served(workload, extras)
    if not traced:
        check_served(whole, extras, model.spec)
    service = service_of(whole, model.spec, names.engine.value, extras)
    return question_of_workload(whole, service, gpu_budget=gpu_budget)


def with_origin(question: Question, names: Names, pools: SeparatePools | None = None) -> Question:
    """A question with its space to search and the origin of its values. No part of `names` may have faults."""
    model, stated = names.model.value, names.workload.value
    precisions = names.precisions.value
    if precisions == (None,):
        precisions = (stated.precision or model.precision,)
    gpu_types = _told_apart(names.gpu_types)
    priced = sum(gpu_type.usd_per_gpu_hour is not None for gpu_type in gpu_types)
    target, rules = question.target, question.rules
    if stated.planning.objective is None and priced > 1:
        rated = target.limits.stated or target.amount is None or target.requests_per_s is not None
        rules = replace(rules, objective="cost" if rated else "request-cost")
    return replace(
        question,
        rules=rules,
        space=Space(gpu_types, precisions, pools, stated.planning.layouts or "usual"),
        origin=replace(
            question.origin,
            workload=as_served(stated, question.service.extras),
            workload_name=names.name,
            model_id=model.id,
            model_matched_from=model.matched_from,
            gpus_matched_from=names.gpus_matched,
            notes=model.name_notes,
            left_out=names.left_out,
            prices=names.price.value,
            unsold=names.unsold,
        ),
    )


def _told_apart(gpu_types: Iterable[GpuType]) -> tuple[GpuType, ...]:
    """GPU types; those with equal names get a distinguishing mark."""
    known = tuple(gpu_types)
    times = Counter(gpu_type.gpu.name for gpu_type in known)
    return tuple(replace(gpu_type, shares_name=times[gpu_type.gpu.name] > 1) for gpu_type in known)


def with_confidence(question: Question, options: Options) -> Question:
    """The question sized for the confidence that options state; `conservative` alone means 90 %.

    Raises InputError for a confidence outside 50 to 95 %, for a question that sizes nothing, and for a question without
    similar published runs.
    """
    if options.confidence is None and not options.conservative:
        return question
    share, field, target = _confidence(options.confidence), "--confidence", question.target
    if options.conservative and share != USUAL:
        raise InputError(f"{share:.0%} contradicts --conservative", field=field, remedy="state one of them")
    if target.offline and target.amount is None:
        what = "offline work without a demand takes no number of GPUs; its rate is shown with its error band"
        raise InputError(what, field=field, remedy="use it with --rps, --concurrency or --dau, or another --mode")
    runs, service = published(), question.service
    plain = service.extras == NOTHING and not service.model.pooled and question.space.pools is None
    if not plain or not any(
        runs.like(service.situation(of.gpu), target.decisive) is not None for of in question.space.gpu_types
    ):
        own = any(of.gpu.own_runs is not None for of in question.space.gpu_types)
        few = "own runs measured what is asked" if own else "groups of published runs are like this"
        what = f"not known: fewer than {runs.least_groups} {few}"
        measure = "; or measure one replica: llmsize deploy --benchmark, then llmsize import and llmsize calibrate"
        raise InputError(what, field=field, remedy=f"leave it out, as predicted{measure if plain else ''}")
    return question.with_(confidence=share)


def _confidence(stated: str | None) -> float:
    allowed = f"{LEAST_CONFIDENCE:.0%} to {MOST_CONFIDENCE:.0%}"
    try:
        share = USUAL if stated is None else parse_share(stated)
    except ValueError as error:
        raise InputError(str(error), field="--confidence", allowed=allowed) from None
    if not LEAST_CONFIDENCE <= share <= MOST_CONFIDENCE:
        raise InputError(f"{stated} is no confidence", field="--confidence", allowed=allowed)
    return share


class MeasuredQuestion(NamedTuple):
    """A question about measured replicas: target, headroom, and the GPU types of the rows that have a profile."""

    target: Target
    headroom: float
    workload_name: str | None
    gpu_types: tuple[GpuType, ...]
    demanded: Demanded | None
    planning: Planning


def measured_question(workload: Found[Workload] | None, options: Options, *parts: Part[Any]) -> MeasuredQuestion:
    """The demand and limits of a workload and options; model, lengths and GPU types come from measured rows.

    Raises InputError with all faults that can be found, including those of `parts`.
    """
    names = look_up(workload, options)
    gpu_types = Part(lambda: names.gpu_types if "gpu" in options.fields else ())

    def asked() -> MeasuredQuestion:
        stated = names.workload.value
        demanded, headroom = demand_of(stated), stated.planning.headroom
        return MeasuredQuestion(
            target_of(stated, demanded),
            shelf.only(Defaults).headroom if headroom is None else headroom,
            names.name,
            gpu_types.value,
            demanded,
            stated.planning,
        )

    question, own = Part(asked, names.layers.by_field), options.stated(WORKLOAD_OPTIONS)
    idle = Part(lambda: check_rules(of_workload(names.workload.value, question.value.target), own))
    check(*parts, names.found, names.workload, names.price, gpu_types, question, idle)
    return question.value


# --- one layout, without a load ------------------------------------------------------------------------------------------


def ask_layout(**options: Any) -> Question:
    """A question about one layout on one GPU type, without a demand.

    Sequences have `max_model_len` tokens, by default the model's maximum. Raises InputError as `ask` does.

    >>> ask_layout(model="llama-3.1-8b", gpu="h100-sxm", tp=2).service.max_model_len
    131072
    """
    return layout_question(*_stated(LAYOUT_OPTIONS, options))


def layout_question(options: Options, *parts: Part[Any]) -> Question:
    """The question about one layout, or about one layout for each of two separate pools.

    Raises InputError with all faults that can be found, including those of `parts`.
    """
    names = look_up(None, options, single=True, tokens=PLACEHOLDER_TOKENS, no_model=NO_MODEL)
    pools = Part(lambda: separate_pools(names, ()), names.layers.at(SEPARATE_PATH))

    def layout(phase: str) -> Layout:
        serving = names.workload.value.serving
        return layout_of(serving if pools.value is None else getattr(pools.value, phase).serving(serving))

    layouts = [Part(partial(layout, phase), names.layers.by_field) for phase in PHASES]
    question = Part(lambda: _undemanded(names), names.layers.by_field)
    check(*parts, *names.parts, pools, *layouts, question)
    return with_origin(question.value, names, pools.value)


def _undemanded(names: Names) -> Question:
    workload, model = names.workload.value, names.model.value.spec
    check_asked(workload, model)
    extras = extras_of(workload, model)
    service = service_of(workload, model, names.engine.value, extras, full=True)
    check_images(with_images(workload, extras), extras, model)
    check_prefix(extras, service.max_model_len)
    return question_without_demand(workload, service)


def layout_of(serving: Serving) -> Layout:
    """The stated layout; unstated sizes are 1. Raises InputError where EP does not divide the GPUs of a stage."""
    layout = Layout(**{name: getattr(serving, name) or 1 for name in SIZES})
    if layout.stage_gpus % layout.ep:
        raise InputError(f"{layout.ep} does not divide the {layout.stage_gpus} GPUs of a stage", field="serving.ep")
    return layout


# --- a workload as its replicas run it -----------------------------------------------------------------------------------


def as_served(workload: Workload, extras: Extras) -> Workload:
    """A workload with prompts as the engine sees them: with image tokens and all earlier turns.

    Raises InputError where the last turn's prompt exceeds the longest prompt.
    """
    whole, conversation = with_images(workload, extras), extras.cached.conversation
    if conversation is None or conversation.turns == 1:
        return whole
    tokens, last = whole.tokens, conversation.prompts[-1]
    if tokens.isl_max is not None and tokens.isl_max < last:
        what = f"the prompt of turn {conversation.turns:,} is {last:,} tokens, more than the longest prompt, {tokens.isl_max:,}"
        turn = f"the first prompt; each turn adds {conversation.adds:,} and the answer's {conversation.osl:,}"
        allowed = f"isl_max (--isl-max) of at least {last:,}, fewer turns, or a shorter ISL ({turn})"
        raise InputError(what, field="optimisations.prefix.turns", allowed=allowed)
    return whole.model_copy(update={"tokens": tokens.growing(conversation.prompts)})


def with_images(workload: Workload, extras: Extras) -> Workload:
    """A workload whose prompts include the tokens of their images."""
    if extras.encoder is None:
        return workload
    more, tokens = extras.encoder.tokens, workload.tokens
    longest = None if tokens.isl_max is None else tokens.isl_max + more
    whole = tokens.model_copy(update={"isl": tokens.isl + more, "isl_max": longest})
    return workload.model_copy(update={"tokens": whole})


def extras_of(workload: Workload, model: Model, think_s: float | None = None) -> Extras:
    """The extras that a workload's optimisations add to a model, with the published figures of each.

    `think_s` is the think time between turns where none is stated for them.

    Raises InputError for an unknown method or draft model, and for optimisations that cannot be combined.
    """
    asked = workload.optimisations
    if asked == NOTHING_ASKED:
        return NOTHING
    serving, asked_images = workload.serving, asked.images.count if asked.images else 0
    if asked_images and serving.language_model_only:
        raise InputError("no images are encoded", field="serving.language_model_only", remedy="use it without --images")
    limit = serving.limit_mm_per_prompt
    if limit is not None and asked_images > limit.count:
        what = (
            f"the engine takes {limit.count:,} images of a prompt at most, fewer than the {asked_images:,} of --images"
        )
        raise InputError(what, field="serving.limit_mm_per_prompt", allowed=f"image={asked_images} or more")
    from sizing.specs.facts import OptimisationFacts

    facts = shelf.only(OptimisationFacts)  # read where an optimisation is on
    spoken = asked.speculative
    encoder = images.encoder(asked.images, model, facts.encoder, facts.image_rules) if asked.images else None
    return Extras(
        speculation=speculation(spoken, model, facts) if spoken else None,
        sparsity=facts.sparsity if asked.sparsity else None,
        adapters=adapters.adapters(asked.lora, facts.lora, model) if asked.lora else None,
        encoder=encoder,
        cached=of_model.cached(asked, _conversation(workload, encoder.tokens if encoder else 0), think_s),
    )


def _conversation(workload: Workload, of_images: int) -> Conversation | None:
    """The conversations whose turns are a workload's requests; None without turns.

    Raises InputError where shared tokens fill the first prompt, and for turns together with `isl_std`.
    """
    asked, tokens = workload.optimisations.prefix, workload.tokens
    if asked is None or asked.turns is None:
        return None
    first, shared = tokens.isl + of_images, asked.shared_tokens or 0
    if shared >= first:
        what = f"{shared:,} shared tokens leave nothing of the {first:,} of the first prompt (ISL) for the user to add"
        allowed = f"at most {first - 1:,}; or an ISL that counts them"
        raise InputError(what, field="optimisations.prefix.shared_tokens", allowed=allowed)
    if tokens.isl_std is not None and asked.turns > 1:
        twice = "turns spread the lengths of prompts, and so does isl_std"
        raise InputError(twice, field="optimisations.prefix.turns", remedy="state one of them")
    return Conversation(asked.turns, first, shared, tokens.osl)


def speculation(speculative: Speculative, model: Model, facts: OptimisationFacts) -> Speculation:
    """Speculative decoding as asked, with the published figures of its method and its draft model.

    Raises InputError for an unknown method or draft model, and for a draft that cannot be of this model.
    """
    method = facts.method(speculative.method)
    drafting = None if speculative.model is None else _draft_model(speculative.model)
    if drafting is None and method.head is None and not method.free:
        form = "draft:MODEL[:TOKENS][@ACCEPTANCE]"
        raise InputError("a draft model needs its name", field="optimisations.speculative", allowed=form)
    return drafts.speculation(speculative, method, model, drafting, models.with_modules)


def _draft_model(name: str) -> Model:
    with placed(lambda fault: replace(fault, field=fault.field or "optimisations.speculative")):
        return models.load_model(name).spec
