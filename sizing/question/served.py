"""A workload as its replicas run it: prompts with images and earlier turns, and the optimisations of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sizing.catalog import models, shelf
from sizing.model import architecture, extras
from sizing.model.extras import NOTHING, Extras, Speculation, adapters, drafts, images
from sizing.model.extras.prefixes import Conversation
from sizing.question.options import is_given
from sizing.question.question import OF_STATES
from sizing.specs.errors import Fault, InputError, placed, raise_any
from sizing.specs.model import Model
from sizing.specs.optimisations import NOTHING_ASKED, Speculative
from sizing.specs.workload import RESULTS, Workload

if TYPE_CHECKING:
    from sizing.specs.facts import OptimisationFacts

# Serving flags about experts (except their number of ranks) and about an image encoder.
OF_EXPERTS = ("all2all_backend", "expert_imbalance", "redundant_experts")
OF_IMAGES = ("language_model_only", "limit_mm_per_prompt")


def check_served(workload: Workload, extras: Extras, model: Model) -> None:
    """Raise InputError where images make a workload too long, or shared tokens exceed those found in cache."""
    check_images(workload, extras, model)
    check_prefix(extras, workload.tokens.isl)


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
        raise InputError("no images are encoded", field="serving.language_model_only", allowed="without --images")
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
        cached=extras.cached(asked, _conversation(workload, encoder.tokens if encoder else 0), think_s),
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
        raise InputError(twice, field="optimisations.prefix.turns", allowed="one of them")
    return Conversation(asked.turns, first, shared, tokens.osl)


def idle(model: Model) -> dict[str, str]:
    """The serving fields that change nothing of a model, each with what the model lacks for it."""
    kinds = (
        (OF_EXPERTS, architecture.is_moe(model), "experts"),
        (OF_IMAGES, bool(model.vision or model.vision_parameters), "encoder of images"),
        (OF_STATES, architecture.has_states(model), "recurrent states"),
    )
    return {name: what for names, has, what in kinds if not has for name in names}


def check_asked(workload: Workload, model: Model) -> None:
    """Raise InputError for serving flags and tokens that do not apply to the task or the model."""
    _check_task(workload)
    serving = workload.serving
    faults = [
        Fault(f"{model.name} has no {what}", field=f"serving.{name}", allowed=f"a model with {what}")
        for name, what in idle(model).items()
        if is_given(getattr(serving, name))
    ]
    if serving.enforce_eager and serving.cuda_graphs_gib is not None:
        eager = "contradicts --enforce-eager, which captures no graphs"
        faults.append(Fault(eager, field="serving.cuda_graphs_gib", allowed="one of them"))
    if serving.offload_backend is not None and serving.cpu_offload_gb is None:
        nothing = "has no weights to bring from host memory"
        faults.append(Fault(nothing, field="serving.offload_backend", allowed="with --cpu-offload-gb"))
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


def speculation(asked: Speculative, model: Model, facts: OptimisationFacts) -> Speculation:
    """Speculative decoding as asked, with the published figures of its method and its draft model.

    Raises InputError for an unknown method or draft model, and for a draft that cannot be of this model.
    """
    method = facts.method(asked.method)
    drafting = None if asked.model is None else _draft_model(asked.model)
    if drafting is None and method.head is None and not method.free:
        form = "draft:MODEL[:TOKENS][@ACCEPTANCE]"
        raise InputError("a draft model needs its name", field="optimisations.speculative", allowed=form)
    return drafts.speculation(asked, method, model, drafting, models.with_modules)


def _draft_model(name: str) -> Model:
    with placed(lambda fault: replace(fault, field=fault.field or "optimisations.speculative")):
        return models.load_model(name).spec
