"""The optimisations that were asked for: each as a sentence, and the assumptions that it brings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sizing.formats.view import Assumption, taken
from sizing.formats.words import number, percent, plural
from sizing.model.extras import Cached
from sizing.question.question import Question
from sizing.specs.values import KIND_OF_EVIDENCE

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


def assumptions(question: Question) -> Iterator[Assumption]:
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
        yield taken("share of a prompt in the prefix cache", cached.hit, "as asked")
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
