"""What the next turn of a conversation finds in a prefix cache: prompts that grow by their history, replicas that a router picks.

Every turn sends the conversation so far again. Of turn t, with s shared tokens at the start of the first prompt, n added by a
turn and o of output:

    prompt(t) = s + t*n + (t-1)*o,    held(t) = prompt(t) + o,

held(t) being what the cache has of it once it is answered. The next turn on the same engine finds that much, in whole blocks.
Where a router picks one of R engines at random, the last earlier turn that came to this one was t-1 with chance 1/R, else what
turn t-1 would have found here is all there is; so expected tokens follow E(t) = held(t-1)/R + (1 - 1/R)*E(t-1), E(1) = s.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

SPREAD = (math.sqrt(5) - 1) / 2  # whose multiples modulo 1 fill 0 to 1 evenly, however few or many


@dataclass(frozen=True, slots=True)
class Conversation:
    """Conversations of so many turns: tokens of the first prompt, of them shared by all that begin alike, and of an output."""

    turns: int
    first: int
    shared: int
    osl: int

    @property
    def adds(self) -> int:
        """Tokens that the user adds in a turn."""
        return self.first - self.shared

    def prompt(self, turn: int) -> int:
        """Tokens of the prompt of a turn, from 1: shared ones, all that the user wrote, and the answers so far."""
        return self.shared + turn * self.adds + (turn - 1) * self.osl

    def held(self, turn: int) -> int:
        """Tokens in cache when a turn has been answered; before the first the shared ones."""
        return self.prompt(turn) + self.osl if turn else self.shared

    @property
    def prompts(self) -> tuple[int, ...]:
        """Tokens of the prompts, turn by turn."""
        return tuple(self.prompt(turn) for turn in range(1, self.turns + 1))

    @property
    def mean_isl(self) -> float:
        """Mean tokens of a prompt, each turn as frequent as another."""
        return sum(self.prompts) / self.turns


@dataclass(frozen=True, slots=True)
class Finding:
    """How turns come to the cache of their conversation: over `engines` caches picked at random (1: always the right one).

    Caches keep whole blocks of `block` tokens, and `kept` of the histories that a turn comes back to.
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
    """Share of all prompt tokens that is found in cache."""
    return sum(found_by_turn(conversation, how)) / sum(conversation.prompts)


def last_here(turn: int, engines: int, at: float) -> int:
    """The last earlier turn on the engine of `turn`, 0 for none, at quantile `at` (0 to 1).

    Turn t-1-k is the last one with probability (1/R)*(1 - 1/R)^k: a geometric distribution, cut at the first turn.
    """
    if engines == 1:
        return turn - 1
    skipped = math.log1p(-at) / math.log1p(-1 / engines)
    return max(0, turn - 1 - math.floor(skipped)) if skipped < turn else 0


def drawn(conversation: Conversation, how: Finding, number: int, prompt: int) -> int:
    """Tokens that request `number` finds in cache. `prompt` determines its turn.

    Requests are spread evenly over the distribution, in an order without a pattern to a scheduler.
    """
    turn = min(bisect_left(conversation.prompts, prompt) + 1, conversation.turns)
    at = (number + 1) * SPREAD % 1.0
    if at >= how.kept:
        return how.whole(conversation.shared)
    return how.whole(conversation.held(last_here(turn, how.engines, at / how.kept)))
