"""What runs or is held beside a model: a draft, adapters, an image encoder, prefixes in cache; and how weights are pruned.

Optimisations as asked (`specs.optimisations`) with what is published of them become `Extras`, which operations, memory and
schedule read. Nothing here depends on a GPU or a layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sizing.model.attention.terms import Matrix
from sizing.model.extras import prefixes
from sizing.model.extras.prefixes import Conversation, Finding
from sizing.specs.model import Model
from sizing.specs.optimisations import Optimisations, Prefix
from sizing.specs.units import GIGA

if TYPE_CHECKING:
    from sizing.specs.facts import LoraFacts, SparsityFacts


HAIR = 1e-9  # of a token: 0.29 of 100 tokens are 29


def expected_tokens(acceptance: float, tokens: int) -> float:
    """Tokens a step gives: E = (1 - a^(g+1))/(1 - a), all g+1 at a = 1 (Leviathan et al., arXiv:2211.17192, eq. 1)."""
    return float(tokens + 1) if acceptance == 1 else (1 - acceptance ** (tokens + 1)) / (1 - acceptance)


def expected_by_depth(acceptance: Sequence[float]) -> float:
    """Tokens a step gives where each drafted one has its own chance: E = 1 + a1 + a1*a2 + ...; the formula above where all are equal."""
    if len(set(acceptance)) == 1:
        return expected_tokens(acceptance[0], len(acceptance))
    return 1.0 + sum(math.prod(acceptance[: depth + 1]) for depth in range(len(acceptance)))


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
class Adapters:
    """LoRA adapters on the GPU at once, their rank, and whether routed experts have them too."""

    slots: int
    rank: int
    facts: LoraFacts
    experts: bool = False


@dataclass(frozen=True, slots=True)
class Cached:
    """What of a prompt need not be computed: shares found in cache and restored from host memory; what is shared.

    `shared_tokens` of every live prompt are one of `distinct` prefixes, which a cache holds once each. `hit` and `distinct`
    are those over `engines` engines with separate caches: of a `conversation` with `think_time_s` between turns, and of
    `prefixes` in all, under a router that knows (`affinity`) which engine holds a prefix.
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
        varying = self.conversation is not None and (not self.affinity or self.think_time_s is not None)
        return varying or self.eases

    @property
    def eases(self) -> bool:
        """Whether more replicas leave each less to keep."""
        return self.think_time_s is not None or (self.affinity and self.prefixes > 1)

    def over(self, engines: int, kept: float = 1.0) -> Cached:
        """This cache spread over `engines` engines that keep the share `kept` of the histories of turns."""
        distinct = -(-self.prefixes // engines) if self.affinity else self.prefixes
        return replace(self, engines=engines, kept=kept, distinct=distinct)._found()

    def in_blocks(self, block: int) -> Cached:
        """This cache in whole blocks of `block` tokens."""
        return self if self.conversation is None or block == self.block else replace(self, block=block)._found()

    def _found(self) -> Cached:
        return self if self.conversation is None else replace(self, hit=prefixes.share(self.conversation, self.finding))

    @property
    def finds(self) -> Callable[[int, int], int] | None:
        """Tokens found in cache by a request's number and prompt length, or None for a fixed share."""
        conversation, finding = self.conversation, self.finding
        if conversation is None:
            return None

        def tokens(number: int, prompt: int) -> int:
            found = prefixes.drawn(conversation, finding, number, prompt)
            return min(found + math.floor(self.restored * (prompt - found)), prompt - 1)

        return tokens

    def within(self, tokens: int) -> bool:
        """Whether the shared prefix of prompts of `tokens` tokens is part of their cached share."""
        return self.conversation is not None or self.shared_tokens <= self.hit * tokens + HAIR


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
        """These extras over `engines` engines with separate prefix caches that keep the share `kept` of histories."""
        return replace(self, cached=self.cached.over(engines, kept)) if self.cached.varies else self

    def on(self, ranks: int, block: int) -> Extras:
        """These extras on replicas of `ranks` ranks. Each rank has a cache in blocks of `block` tokens."""
        cached = self.cached
        if cached.conversation is None:
            return self
        whole = cached.over(ranks, cached.kept) if cached.varies and cached.engines < ranks else cached
        return replace(self, cached=whole.in_blocks(block))


NOTHING = Extras()


def cached_tokens(prompt: int, hit: float) -> int:
    """Tokens of a prompt that need not be computed; the last one always is, for its logits."""
    return min(math.floor(hit * prompt), prompt - 1)


def cached(asked: Optimisations, conversation: Conversation | None = None) -> Cached:
    """The share of a prompt that is not computed. It is zero where nothing can be shared.

    `conversation` states the conversations if prompts are turns.
    """
    prefix, offload = asked.prefix or Prefix(hit=0.0), asked.kv_offload
    prefixes = (prefix.distinct or 1) if prefix.shared_tokens else 1
    grows = conversation is not None and (conversation.turns > 1 or conversation.shared > 0)
    found = Cached(
        hit=prefix.hit or 0.0,
        shared_tokens=prefix.shared_tokens or 0,
        distinct=prefixes,
        restored=offload.hit if offload else 0.0,
        restore_bytes_per_s=offload.gb_per_s * GIGA if offload and offload.hit and offload.gb_per_s else None,
        conversation=conversation if grows else None,
        think_time_s=prefix.think_time_s if grows else None,
        prefixes=prefixes,
        affinity=prefix.routing == "affinity",
    )
    return found.over(1) if grows else found
