"""What runs or is held beside a model: a draft, adapters, an image encoder, prefixes in cache; and how weights are pruned.

Optimisations as asked (`specs.optimisations`) with what is published of them become `Extras`, which operations, memory and
schedule read. Nothing here depends on a GPU or a layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sizing import images, reuse
from sizing.attention.terms import KEY_AND_VALUE, Matrix
from sizing.errors import Fault, InputError
from sizing.reuse import Conversation, Finding
from sizing.specs.model import (
    DenseMlp,
    GqaAttention,
    LayerKind,
    Model,
    MoeMlp,
    Mtp,
    Quantisation,
    SlidingWindowAttention,
    Vision,
)
from sizing.specs.optimisations import Images, Lora, Optimisations, Prefix, Speculative
from sizing.units import GIGA

if TYPE_CHECKING:  # read where an optimisation is on
    from sizing.specs.optimisation_facts import DraftHead, EncoderFacts, ImageRule, LoraFacts, Method, SparsityFacts


HAIR = 1e-9  # of a token: 0.29 of 100 tokens are 29


@dataclass(frozen=True, slots=True)
class Draft:
    """What drafts: a small model that runs `passes` times a step, or heads that each sequence's last state goes through.

    `joined` projects the target's hidden states once a step, `each` stands in front of the model in every pass. Weights have
    the draft's own precision unless it `follows_precision` of the target. Of `modules` equal models each holds weights and
    cache, and a pass runs through one; `of_checkpoint` marks those that the model's own checkpoint brings.
    """

    model: Model | None
    passes: int
    joined: Matrix | None = None
    each: Matrix | None = None
    heads: tuple[Matrix, ...] = ()
    follows_precision: bool = False
    shares_vocabulary: bool = True
    modules: int = 1
    of_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding: `tokens` drafted a step, each accepted with a chance, and what drafts them (None: no GPU time).

    `acceptance` has the chance of each, given that those before it were accepted. `source` says where the acceptance is from, `needs` what must be there.
    """

    method: str
    tokens: int
    acceptance: tuple[float, ...]
    draft: Draft | None
    evidence: str = "assumed"
    source: str = "as asked"
    needs: str = ""

    @property
    def verified(self) -> int:
        """Tokens of a sequence in a step of the target: the drafted ones and the one that follows them."""
        return self.tokens + 1

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step gives a sequence, on average."""
        return expected_by_depth(self.acceptance)


@dataclass(frozen=True, slots=True)
class Adapters:
    """LoRA adapters on the GPU at once, their rank, and whether routed experts have them too."""

    slots: int
    rank: int
    facts: LoraFacts
    experts: bool = False


@dataclass(frozen=True, slots=True)
class Encoder:
    """Images of a request: `tokens` of the prompt for all of them, and `pieces` of so many `patches` that the encoder works on.

    The encoder has a width, layers and parameters; `own` says that it is the model's, as its config states it.
    """

    tokens: int
    pieces: int
    patches: int
    hidden_size: int
    layers: int
    parameters: float
    title: str
    source: str
    evidence: str = "assumed"
    own: bool = False


@dataclass(frozen=True, slots=True)
class Cached:
    """What of a prompt need not be computed: shares found in cache and restored from host memory; what is shared.

    `shared_tokens` of every live prompt are one of `distinct` prefixes, which a cache holds once each. `hit` and `distinct`
    are those `over` so many engines, each with a cache of its own: of a `talk`, where `think_time_s` passes between turns,
    and of `prefixes` in all, under a router that knows (`affinity`) where what begins alike is.
    """

    hit: float = 0.0
    shared_tokens: int = 0
    distinct: int = 1
    restored: float = 0.0
    restore_bytes_per_s: float | None = None
    talk: Conversation | None = None
    think_time_s: float | None = None
    prefixes: int = 1
    affinity: bool = False
    engines: int = 1
    block: int = 1
    kept: float = 1.0

    @property
    def share(self) -> float:
        """Share of a prompt that need not be computed, in cache or restored to it."""
        return self.hit + self.brought

    @property
    def brought(self) -> float:
        """Share of a prompt that is brought back: of what is not in cache."""
        return self.restored * (1 - self.hit)

    @property
    def finding(self) -> Finding:
        """How a turn comes to its conversation's cache."""
        return Finding(1 if self.affinity else self.engines, self.block, self.kept)

    @property
    def varies(self) -> bool:
        """Whether the number of replicas changes what is found, or what prefixes take of a cache."""
        talks = self.talk is not None and (not self.affinity or self.think_time_s is not None)
        return talks or self.eases

    @property
    def eases(self) -> bool:
        """Whether more replicas leave each less to keep."""
        return self.think_time_s is not None or (self.affinity and self.prefixes > 1)

    def over(self, engines: int, kept: float = 1.0) -> Cached:
        """Return the same over so many engines, which keep a share of the histories that turns come back to."""
        distinct = -(-self.prefixes // engines) if self.affinity else self.prefixes
        return replace(self, engines=engines, kept=kept, distinct=distinct)._found()

    def in_blocks(self, block: int) -> Cached:
        """Return the same in a cache of whole blocks of so many tokens."""
        return self if self.talk is None or block == self.block else replace(self, block=block)._found()

    def _found(self) -> Cached:
        return self if self.talk is None else replace(self, hit=reuse.share(self.talk, self.finding))

    @property
    def finds(self) -> Callable[[int, int], int] | None:
        """Return what says how many tokens of a prompt need not be computed, by a request's number and prompt; None for a share."""
        talk, finding = self.talk, self.finding
        if talk is None:
            return None

        def tokens(number: int, prompt: int) -> int:
            found = reuse.drawn(talk, finding, number, prompt)
            return min(found + math.floor(self.restored * (prompt - found)), prompt - 1)

        return tokens

    def within(self, tokens: int) -> bool:
        """Whether what prompts of so many tokens share is part of what is found of them in cache."""
        return self.talk is not None or self.shared_tokens <= self.hit * tokens + HAIR


@dataclass(frozen=True, slots=True)
class Extras:
    """All of it; each part absent where it was not asked for."""

    speculation: Speculation | None = None
    sparsity: SparsityFacts | None = None
    adapters: Adapters | None = None
    encoder: Encoder | None = None
    cached: Cached = Cached()

    @property
    def verified(self) -> int:
        """Tokens of a decoding sequence in a step: 1 without speculation."""
        return self.speculation.verified if self.speculation else 1

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a decode step gives a sequence on average: 1 without speculation."""
        return self.speculation.tokens_per_step if self.speculation else 1.0

    @property
    def draft(self) -> Draft | None:
        """What drafts, where something does."""
        return self.speculation.draft if self.speculation else None

    def over(self, engines: int, kept: float = 1.0) -> Extras:
        """Return the same over so many engines, each with a prefix cache of its own."""
        return replace(self, cached=self.cached.over(engines, kept)) if self.cached.varies else self

    def on(self, ranks: int, block: int) -> Extras:
        """Return the same on replicas of so many ranks, each with a cache of its own in blocks of so many tokens."""
        cached = self.cached
        if cached.talk is None:
            return self
        whole = cached.over(ranks, cached.kept) if cached.varies and cached.engines < ranks else cached
        return replace(self, cached=whole.in_blocks(block))


NOTHING = Extras()


def expected_tokens(acceptance: float, tokens: int) -> float:
    """Tokens a step gives: E = (1 - a^(g+1))/(1 - a), all g+1 at a = 1 (Leviathan et al., arXiv:2211.17192, eq. 1)."""
    return float(tokens + 1) if acceptance == 1 else (1 - acceptance ** (tokens + 1)) / (1 - acceptance)


def expected_by_depth(acceptance: Sequence[float]) -> float:
    """Tokens a step gives where each drafted one has its own chance: E = 1 + a1 + a1*a2 + ...; the formula above where all are equal."""
    if len(set(acceptance)) == 1:
        return expected_tokens(acceptance[0], len(acceptance))
    return 1.0 + sum(math.prod(acceptance[: depth + 1]) for depth in range(len(acceptance)))


def speed_up(acceptance: float, tokens: int, cost: float) -> float:
    """Steps saved over time added where verification is free: E/(g*c + 1), c = draft over target step (the same, theorem 3.8).

    An upper bound for any model whose verification is not free; the step model says how much of it is left.
    """
    return expected_tokens(acceptance, tokens) / (tokens * cost + 1)


def cached_tokens(prompt: int, hit: float) -> int:
    """Tokens of a prompt that need not be computed; the last one always is, for its logits."""
    return min(math.floor(hit * prompt), prompt - 1)


def speculation(
    asked: Speculative,
    method: Method,
    target: Model,
    drafting: Model | None,
    with_modules: Callable[[], Iterable[str]] = tuple,
) -> Speculation:
    """Return speculative decoding as asked, the method's published values where it is silent.

    `with_modules` names models that have what a method needs of a checkpoint, for one that lacks it. Raises InputError where an acceptance is needed, where a draft model has another vocabulary, or where a checkpoint lacks
    the modules that the method drafts with.
    """
    one = method.acceptance if asked.acceptance is None else asked.acceptance
    stated = asked.by_depth or (() if one is None else (one,))
    if not stated:
        raise InputError(
            Fault(
                f"{method.title} has no published acceptance that holds for other texts",
                field="optimisations.speculative",
                allowed=f"{asked.method}:{asked.tokens or method.tokens}@ACCEPTANCE, as measured on your own",
            )
        )
    tokens = asked.tokens or method.tokens
    draft = None
    if drafting is not None:
        draft = _draft_model(target, drafting, tokens)
    elif method.head is not None:
        if method.head.of_checkpoint and not has_modules(target):
            raise InputError(_no_modules(method, target, with_modules()))
        draft = _drafting_head(method.head, target, tokens)
    as_asked = asked.acceptance is not None or asked.by_depth is not None
    known = ("assumed", "as asked") if as_asked else (method.evidence, method.source)
    return Speculation(method.title, tokens, _of_each(stated, tokens), draft, *known, method.needs)


def _of_each(stated: Sequence[float], tokens: int) -> tuple[float, ...]:
    """Return the acceptance of each drafted token; the last one stated holds for those beyond. Raises InputError for too many."""
    if len(stated) > tokens:
        raise InputError(
            Fault(
                f"{len(stated)} acceptances of {tokens} drafted tokens",
                field="optimisations.speculative",
                allowed=f"at most {tokens}",
            )
        )
    return (*stated, *[stated[-1]] * (tokens - len(stated)))


def _draft_model(target: Model, drafting: Model, tokens: int) -> Draft:
    if drafting.vocab_size > target.vocab_size * 1.05 or drafting.vocab_size < target.vocab_size * 0.95:
        raise InputError(
            Fault(
                f"{drafting.name} has a vocabulary of {drafting.vocab_size:,}, {target.name} one of {target.vocab_size:,}: "
                "it cannot draft for it",
                field="optimisations.speculative",
                allowed="a draft model with the target's tokenizer",
            )
        )
    return Draft(drafting, tokens, shares_vocabulary=False)


def has_modules(model: Model) -> bool:
    """Return whether a model's config states modules for multi-token prediction."""
    return model.mtp is not None and model.mtp.modules > 0


def _no_modules(method: Method, target: Model, others: Iterable[str]) -> Fault:
    stated = "states no modules for it" if target.mtp is None else f"says that it has none ({target.mtp.field})"
    known = ", ".join(others)
    return Fault(
        f"{target.name} cannot draft by {method.title}: its config {stated}",
        field="optimisations.speculative",
        allowed=f"another method, as eagle3 or draft:MODEL; or {method.needs}" + (f": {known}" if known else ""),
    )


def _drafting_head(head: DraftHead, target: Model, tokens: int) -> Draft:
    if head.of_checkpoint and (mtp := target.mtp) is not None:
        model, own = module_model(target, mtp), not mtp.kept_16bit
        join = _join(head, target)
        return Draft(model, tokens, each=join, follows_precision=own, modules=mtp.modules, of_checkpoint=True)
    return _parallel_heads(head, target, tokens) if head.parallel_heads else _head(head, target, tokens)


def module_model(target: Model, mtp: Mtp) -> Model:
    """Return one multi-token prediction module of a model, with the target's own embedding and output head."""
    kinds = tuple(dict.fromkeys(mtp.layers))
    stored = Quantisation(target.activation_precision) if mtp.kept_16bit else target.quantisation
    return _beside(target, "MTP module", kinds, tuple(map(kinds.index, mtp.layers)), stored)


def _beside(
    target: Model, name: str, kinds: tuple[LayerKind, ...], layers: tuple[int, ...], stored: Quantisation
) -> Model:
    """Return a model of the target's sizes that has nothing but these layers."""
    return replace(
        target,
        name=f"{name} of {target.name}",
        kinds=kinds,
        layers=layers,
        extra_parameters=0,
        vision_parameters=0,
        mtp=None,
        checkpoint_bytes=None,
        quantisation=stored,
    )


def _join(head: DraftHead, target: Model) -> Matrix | None:
    hidden = target.hidden_size
    return Matrix("draft_join", "dense_mlp", head.joined_states * hidden, hidden) if head.joined_states else None


def _head(head: DraftHead, target: Model, tokens: int) -> Draft:
    """Return a head of decoder layers as the target's last one, with a dense MLP."""
    last = target.kinds[target.layers[-1]]
    kind = replace(last, mlps=(_dense(last, target),))
    stored = Quantisation(target.activation_precision)
    model = replace(
        _beside(target, "draft head", (kind,), (0,) * head.layers, stored),
        vocab_size=head.vocabulary or target.vocab_size,
    )
    hidden, join = target.hidden_size, _join(head, target)
    mixer = kind.mixer
    widened = None
    if head.widened and isinstance(mixer, (GqaAttention, SlidingWindowAttention)):
        outputs = (mixer.q_heads + KEY_AND_VALUE * mixer.kv_heads) * mixer.head_dim
        widened = Matrix("draft_widened_qkv", "attention", hidden, outputs)
    return Draft(
        model,
        tokens,
        joined=join if head.widened else None,
        each=widened if head.widened else join,
        shares_vocabulary=head.vocabulary is None,
    )


def _dense(kind: LayerKind, target: Model) -> DenseMlp:
    """Return a dense MLP as wide as the target's densest one, or as the experts that a token meets."""
    dense = [mlp for each in target.kinds for mlp in each.mlps if isinstance(mlp, DenseMlp)]
    if dense:
        return max(dense, key=lambda mlp: mlp.intermediate)
    met = [mlp for mlp in kind.mlps if isinstance(mlp, MoeMlp)]
    return DenseMlp(sum(m.experts_per_token * m.intermediate + m.shared_intermediate for m in met), gated=True)


def _parallel_heads(head: DraftHead, target: Model, tokens: int) -> Draft:
    """Return a residual block and an output head for each drafted token (Medusa)."""
    hidden = target.hidden_size
    heads = (
        Matrix("draft_residual", "dense_mlp", hidden, hidden, copies=tokens),
        Matrix("draft_heads", "lm_head", hidden, head.vocabulary or target.vocab_size, copies=tokens),
    )
    return Draft(None, 1, heads=heads)


def encoder(asked: Images, model: Model, assumed: EncoderFacts, rules: Mapping[str, ImageRule]) -> Encoder:
    """Return what images add, by the model's own encoder where its config says how images become tokens, else by an assumed one."""
    vision = model.vision
    rule = None if vision is None or vision.field is None else rules[vision.field]
    cut = None if vision is None or rule is None else _cut(asked, vision, rule)
    if vision is None or rule is None or cut is None:
        of = assumed
        cut = images.merged(asked.height, asked.width, of.patch_pixels, of.merge, of.most_tokens)
        sizes = (of.hidden_size, of.layers, of.parameters, of.title, of.source)
        return Encoder(asked.count * cut.tokens, asked.count * cut.pieces, cut.patches, *sizes)
    return Encoder(
        asked.count * cut.tokens,
        asked.count * cut.pieces,
        cut.patches,
        vision.hidden_size,
        vision.layers,
        model.vision_parameters,
        rule.title,
        rule.source,
        rule.evidence,
        own=True,
    )


def _cut(asked: Images, vision: Vision, rule: ImageRule) -> images.Cut | None:
    """Return how a rule cuts an image; None where the config lacks a size that the rule needs."""
    height, width, patch, merge, side = (
        asked.height,
        asked.width,
        vision.patch_pixels,
        vision.merge,
        vision.image_pixels,
    )
    if rule.most_tokens is not None:
        return images.merged(height, width, patch, merge, rule.most_tokens)
    if vision.tokens is not None:
        return images.fixed(vision.tokens, vision.tokens * merge**2 if side is None else (side // patch) ** 2)
    if side is None:
        return None
    if rule.most_tiles is not None:
        return images.tiled(height, width, patch, merge, side, rule.most_tiles)
    return images.in_rows(height, width, patch, merge, side)


def cached(asked: Optimisations, talk: Conversation | None = None) -> Cached:
    """Return what of a prompt need not be computed; a share of nothing is nothing, whatever else is said of it.

    `talk` are the conversations where turns are asked for.
    """
    prefix, offload = asked.prefix or Prefix(hit=0.0), asked.kv_offload
    prefixes = (prefix.distinct or 1) if prefix.shared_tokens else 1
    grows = talk is not None and (talk.turns > 1 or talk.shared > 0)
    found = Cached(
        hit=prefix.hit or 0.0,
        shared_tokens=prefix.shared_tokens or 0,
        distinct=prefixes,
        restored=offload.hit if offload else 0.0,
        restore_bytes_per_s=offload.gb_per_s * GIGA if offload and offload.hit and offload.gb_per_s else None,
        talk=talk if grows else None,
        think_time_s=prefix.think_time_s if grows else None,
        prefixes=prefixes,
        affinity=prefix.routing == "affinity",
    )
    return found.over(1) if grows else found


def adapters(asked: Lora, facts: LoraFacts, model: Model) -> Adapters:
    """Return the adapters that are on the GPU at once. Raises InputError for experts that a model does not route to."""
    if asked.experts and not any(isinstance(mlp, MoeMlp) for kind in model.kinds for mlp in kind.mlps):
        raise InputError(
            Fault(
                f"{model.name} has no routed experts to adapt",
                field="optimisations.lora",
                allowed=f"{asked.slots}x{asked.rank}",
            )
        )
    return Adapters(asked.slots, asked.rank, facts, bool(asked.experts))
