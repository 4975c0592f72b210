"""Additions to a model: a draft, adapters, an image encoder, cached prefixes; also the pruning of weights.

The optimisations asked for (`specs.optimisations`) and published facts become `Extras`, which operations, memory and
schedule read. Nothing here depends on a GPU or a layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sizing.model.attention import Matrix
from sizing.model.extras import prefixes
from sizing.model.extras.prefixes import Conversation, Finding
from sizing.specs.bisection import ends
from sizing.specs.frozen import Frozen
from sizing.specs.model import Model
from sizing.specs.optimisations import Optimisations, Prefix
from sizing.specs.units import GIGA

if TYPE_CHECKING:
    from sizing.specs.facts import LoraFacts, SparsityFacts


HAIR = 1e-9  # rounding tolerance in tokens: 0.29 * 100 counts as 29


def expected_tokens(acceptance: float, tokens: int) -> float:
    """Tokens per step: E = (1 - a^(g+1))/(1 - a), and g+1 at a = 1 (Leviathan et al., arXiv:2211.17192, eq. 1)."""
    return float(tokens + 1) if acceptance == 1 else (1 - acceptance ** (tokens + 1)) / (1 - acceptance)


def acceptance_of(tokens_per_step: float, tokens: int) -> float:
    """The acceptance of a drafted token, equal for all, with which a step gives `tokens_per_step`: inverts `expected_tokens`."""
    return ends(lambda acceptance: expected_tokens(acceptance, tokens) < tokens_per_step, 0.0, 1.0)[1]


def expected_by_depth(acceptance: Sequence[float]) -> float:
    """Tokens per step if each drafted token has its own acceptance: E = 1 + a1 + a1*a2 + ...

    If all are equal this is `expected_tokens`.
    """
    if len(set(acceptance)) == 1:
        return expected_tokens(acceptance[0], len(acceptance))
    return 1.0 + sum(math.prod(acceptance[: depth + 1]) for depth in range(len(acceptance)))


class Draft(NamedTuple):
    """A draft: a small model that runs `passes` times per step, or heads on each sequence's last state.

    `joined` projects the target's hidden states once per step; `each` is applied before the model in every pass. Weights
    have the draft's own precision, or the target's if `follows_precision`. There are `modules` equal models: each holds
    weights and cache, and a pass runs through one of them. `of_checkpoint` marks a draft that is in the target's own
    checkpoint.
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


class Speculation(NamedTuple):
    """Speculative decoding: `tokens` drafted per step, their acceptance, and the draft (None: it takes no GPU time).

    `acceptance` has the probability of each token, given that those before it were accepted. `source` is the source of the
    acceptance. `needs` says what must be available. A step takes the time of `passes` reads of a sequence's cache from the memory.
    """

    method: str
    tokens: int
    acceptance: tuple[float, ...]
    draft: Draft | None
    evidence: str = "assumed"
    source: str = "as asked"
    needs: str = ""
    passes: float = 1.0

    @property
    def verified(self) -> int:
        """Tokens of a sequence in a step of the target: the drafted ones plus one."""
        return self.tokens + 1

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens that a step gives a sequence."""
        return expected_by_depth(self.acceptance)


class Encoder(NamedTuple):
    """Images of a request: `tokens` of the prompt for all of them, and `pieces` of `patches` each for the encoder.

    `hidden_size`, `layers` and `parameters` are the encoder's. `own` means that it is the model's own, as its config states
    it.
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


class Adapters(NamedTuple):
    """LoRA adapters that are on the GPU at once, their rank, and whether routed experts have adapters too."""

    slots: int
    rank: int
    facts: LoraFacts
    experts: bool = False


class Cached(Frozen):
    """The part of a prompt that is not computed: found in cache, or restored from host memory; and the shared prefixes.

    The first `shared_tokens` of every live prompt are one of `distinct` prefixes, each held once in a cache. `hit` and
    `distinct` are those over `engines` engines with separate caches. They follow from a `conversation` with `think_time_s`
    between turns, and from the number of `prefixes`. With `affinity`, the router knows which engine holds a prefix. Caches
    that keep only a share `kept` of the prefixes find that share of the `stated` hit and shared tokens, on average. The first
    `repeated` requests of a run are those of a run before, so their whole prompts are in cache.
    """

    hit: float = 0.0
    shared_tokens: int = 0
    distinct: int = 1
    restored: float = 0.0
    restore_bytes_per_s: float | None = None
    conversation: Conversation | None = None
    think_time_s: float | None = None
    prefixes: int = 1
    affinity: bool = False
    engines: int = 1
    block: int = 1
    kept: float = 1.0
    repeated: int = 0
    stated: tuple[float, int] = (0.0, 0)

    @property
    def share(self) -> float:
        """Share of a prompt that is not computed, because it is in cache or restored to it."""
        return self.hit + self.brought

    @property
    def brought(self) -> float:
        """Share of a prompt that is restored from host memory: of the part that is not in cache."""
        return self.restored * (1 - self.hit)

    @property
    def finding(self) -> Finding:
        """How a turn reaches the cache of its conversation."""
        return Finding(1 if self.affinity else self.engines, self.block, self.kept)

    @property
    def varies(self) -> bool:
        """Whether the number of replicas changes what is found in cache or how much cache the prefixes take."""
        varying = self.conversation is not None and (not self.affinity or self.think_time_s is not None)
        return varying or self.is_relieved or self.evicts

    @property
    def evicts(self) -> bool:
        """Whether a cache may keep only a part of the prefixes: with a stated hit on several, the others are computed anew."""
        return self.conversation is None and self.prefixes > 1 and self.stated[0] > 0

    @property
    def is_relieved(self) -> bool:
        """Whether each replica keeps less if there are more replicas."""
        return self.affinity and self.prefixes > 1

    def over(self, engines: int, kept: float = 1.0) -> Cached:
        """This cache spread over `engines` engines that keep a share `kept` of histories or prefixes."""
        distinct = -(-self.prefixes // engines) if self.affinity else self.prefixes
        placed = replace(self, engines=engines, kept=kept, distinct=distinct)
        if not self.evicts:
            return placed._found()
        hit, shared = self.stated
        return replace(placed, hit=hit * kept, shared_tokens=math.floor(shared * kept))

    def in_blocks(self, block: int) -> Cached:
        """This cache with blocks of `block` tokens."""
        return self if self.conversation is None or block == self.block else replace(self, block=block)._found()

    def _found(self) -> Cached:
        return self if self.conversation is None else replace(self, hit=prefixes.share(self.conversation, self.finding))

    @property
    def finds(self) -> Callable[[int, int], int] | None:
        """Function of a request's number and prompt length that gives the tokens found in cache; None for a fixed share."""
        conversation, finding = self.conversation, self.finding
        if self.evicts and self.kept < 1:
            return self._found_or_not
        if conversation is None:
            return (lambda number, prompt: prompt - 1 if number < self.repeated else 0) if self.repeated else None

        def tokens(number: int, prompt: int) -> int:
            found = prefixes.drawn(conversation, finding, number, prompt)
            return min(found + math.floor(self.restored * (prompt - found)), prompt - 1)

        return tokens

    def _found_or_not(self, number: int, prompt: int) -> int:
        """Tokens that request `number` does not compute: its whole stated hit where its prefix is kept, none of it elsewhere."""
        hit = self.stated[0] if (number + 1) * prefixes.SPREAD % 1.0 < self.kept else 0.0
        return cached_tokens(prompt, hit + self.restored * (1 - hit))

    def within(self, tokens: int) -> bool:
        """Whether the shared prefix is part of the cached share of prompts with `tokens` tokens."""
        return self.conversation is not None or self.shared_tokens <= self.hit * tokens + HAIR


class Extras(Frozen):
    """All additions to a model. A part is None, or empty, if it was not asked for."""

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
        """Mean tokens that a decode step gives a sequence: 1 without speculation."""
        return self.speculation.tokens_per_step if self.speculation else 1.0

    @property
    def draft(self) -> Draft | None:
        """The draft, or None."""
        return self.speculation.draft if self.speculation else None

    def over(self, engines: int, kept: float = 1.0) -> Extras:
        """These extras over `engines` engines with separate prefix caches, which keep a share `kept` of histories."""
        return replace(self, cached=self.cached.over(engines, kept)) if self.cached.varies else self

    def on(self, ranks: int, block: int) -> Extras:
        """These extras on replicas of `ranks` ranks, each with a cache in blocks of `block` tokens."""
        cached = self.cached
        if cached.conversation is None:
            return self
        whole = cached.over(ranks, cached.kept) if cached.varies and cached.engines < ranks else cached
        return replace(self, cached=whole.in_blocks(block))


NOTHING = Extras()


def cached_tokens(prompt: int, hit: float) -> int:
    """Tokens of a prompt that are not computed. The last token is always computed, for its logits."""
    return min(math.floor(hit * prompt), prompt - 1)


def cached(
    optimisations: Optimisations, conversation: Conversation | None = None, think_s: float | None = None
) -> Cached:
    """The part of a prompt that is not computed; nothing if nothing can be shared.

    `conversation` describes the conversations if prompts are turns, with `think_s` between them where no time is stated.
    """
    prefix, offload = optimisations.prefix or Prefix(hit=0.0), optimisations.kv_offload
    prefixes = (prefix.distinct or 1) if prefix.shared_tokens else 1
    grows = conversation is not None and (conversation.turns > 1 or conversation.shared > 0)
    think_s = think_s if prefix.think_time_s is None else prefix.think_time_s
    found = Cached(
        hit=prefix.hit or 0.0,
        shared_tokens=prefix.shared_tokens or 0,
        distinct=prefixes,
        restored=offload.hit if offload else 0.0,
        restore_bytes_per_s=offload.gb_per_s * GIGA if offload and offload.hit and offload.gb_per_s else None,
        conversation=conversation if grows else None,
        think_time_s=think_s if grows else None,
        prefixes=prefixes,
        affinity=prefix.routing == "affinity",
        stated=(prefix.hit or 0.0, prefix.shared_tokens or 0),
    )
    return found.over(1) if grows else found
