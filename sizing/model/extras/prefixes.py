"""What the next turn of a conversation finds in a prefix cache, when a router picks among replicas.

Every turn sends the whole conversation again, so prompts grow. Let s be the shared tokens at the start of the first prompt,
n the tokens that each turn adds, and o the output tokens. For turn t,

    prompt(t) = s + t*n + (t-1)*o,    held(t) = prompt(t) + o,

where held(t) is in the cache after the answer. The next turn on the same engine finds these tokens, in whole blocks. If a
router picks one of R engines at random, turn t-1 came to the same engine with probability 1/R. Otherwise turn t finds only
what turn t-1 would have found there. So the expected tokens are E(t) = held(t-1)/R + (1 - 1/R)*E(t-1), E(1) = s.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache
from typing import NamedTuple

SPREAD = (math.sqrt(5) - 1) / 2  # inverse golden ratio: any number of its multiples modulo 1 fills 0 to 1 evenly


class Conversation(NamedTuple):
    """Conversations of `turns` turns: tokens of the first prompt, those of them that are `shared`, tokens of an output."""

    turns: int
    first: int
    shared: int
    osl: int

    @property
    def adds(self) -> int:
        """Tokens that the user adds in a turn."""
        return self.first - self.shared

    def prompt(self, turn: int) -> int:
        """Tokens of the prompt of a turn (from 1): the shared ones, all that the user wrote, and the answers so far."""
        return self.shared + turn * self.adds + (turn - 1) * self.osl

    def held(self, turn: int) -> int:
        """Tokens in cache after the answer to a turn; the shared ones for turn 0."""
        return self.prompt(turn) + self.osl if turn else self.shared

    @property
    def prompts(self) -> tuple[int, ...]:
        """Tokens of the prompts, turn by turn."""
        return tuple(self.prompt(turn) for turn in range(1, self.turns + 1))

    @property
    def mean_isl(self) -> float:
        """Mean tokens of a prompt, with every turn equally frequent."""
        return sum(self.prompts) / self.turns


class Finding(NamedTuple):
    """How turns reach the cache of their conversation: one of `engines` caches picked at random (1: always the right one).

    Caches hold whole blocks of `block` tokens. They keep a share `kept` of the histories to which turns return.
    """

    engines: int = 1
    block: int = 1
    kept: float = 1.0

    def whole(self, tokens: int) -> int:
        """`tokens` rounded down to whole blocks."""
        return tokens // self.block * self.block


@lru_cache(maxsize=4096)
def found_by_turn(conversation: Conversation, how: Finding) -> tuple[float, ...]:
    """Mean tokens that each turn finds in cache, from its history and from the shared prefix."""
    least = float(how.whole(conversation.shared))
    history, found = least, [least]
    for turn in range(2, conversation.turns + 1):
        history += (how.whole(conversation.held(turn - 1)) - history) / how.engines
        found.append(how.kept * history + (1 - how.kept) * least)
    return tuple(found)


def share(conversation: Conversation, how: Finding) -> float:
    """Share of all prompt tokens found in cache."""
    return sum(found_by_turn(conversation, how)) / sum(conversation.prompts)


def last_here(turn: int, engines: int, at: float) -> int:
    """The last earlier turn on the engine of `turn` (0 for none), at quantile `at` (0 to 1).

    Turn t-1-k is the last one with probability (1/R)*(1 - 1/R)^k: a geometric distribution, cut at the first turn.
    """
    if engines == 1:
        return turn - 1
    skipped = math.log1p(-at) / math.log1p(-1 / engines)
    return max(0, turn - 1 - math.floor(skipped)) if skipped < turn else 0


def drawn(conversation: Conversation, how: Finding, number: int, prompt: int) -> int:
    """Tokens that request `number` finds in cache. The length `prompt` determines its turn.

    Requests cover the distribution evenly, in an order without a pattern that a scheduler could see.
    """
    turn = min(bisect_left(conversation.prompts, prompt) + 1, conversation.turns)
    at = (number + 1) * SPREAD % 1.0
    if at >= how.kept:
        return how.whole(conversation.shared)
    return how.whole(conversation.held(last_here(turn, how.engines, at / how.kept)))
