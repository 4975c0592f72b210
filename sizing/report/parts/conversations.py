"""Conversations: the growth of prompts by turn, the part found in cache, and idle conversations kept by caches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sizing.answers import counts
from sizing.answers.answer import Pool
from sizing.formats.view import Explanation, Line
from sizing.formats.words import number, percent
from sizing.question.question import Question


class IdleConversations(NamedTuple):
    """Idle conversations of one replica: those to keep in cache, the room for them, and the assumed share of turns that
    find their history.
    """

    needed: float
    room: float
    histories_kept: float


def explanations(pool: Pool) -> Iterator[Explanation]:
    """Yield the derivation of lengths and hit rate of conversations."""
    cached = pool.replica.service.extras.cached
    conversation = cached.conversation
    if conversation is None:
        return
    lengths = (
        f"s = {conversation.shared:,}, n = {conversation.adds:,}, o = {conversation.osl:,}, T = {conversation.turns:,}"
    )
    yield Explanation(
        "ISL", conversation.mean_isl, "tokens, mean over turns", "derived", "mean over t = 1..T of s + t*n + (t-1)*o", lengths,
        "--isl (s + n, the first prompt), --prefix-shared (s), --osl (o), --turns (T)",
    )  # fmt: skip
    yield Explanation(
        "prompt tokens in cache", cached.hit, "of all", "derived",
        "sum of E(t) / sum of prompts, E(1) = s, E(t) = s + k*(H(t) - s), H(t) = held(t-1)/R + (1 - 1/R)*H(t-1), in whole blocks",
        f"{lengths}, R = {cached.finding.engines:,} caches, k = {cached.kept:.3g} kept, blocks of {cached.block:,} tokens",
        "the last earlier turn on the same of R caches, each picked with 1/R; R = 1 under affinity",
    )  # fmt: skip


def idle(pool: Pool, question: Question) -> IdleConversations | None:
    """The idle conversations of one replica of `pool`; None without a think time."""
    found = counts.alive(pool.replica, question.target, pool.point, pool.count)
    if found is None:
        return None
    return IdleConversations(found.needed, found.room, pool.replica.service.extras.cached.kept)


def idle_line(idle: IdleConversations) -> Line:
    """Write the number of conversations that wait for their next turn, and whether caches have room for them."""
    text = f"{number(idle.needed)} conversations to keep between turns on each replica, room for {number(idle.room)}"
    if idle.histories_kept < 1:
        text += (
            f": the hit rate of a large enough cache cannot hold, {percent(idle.histories_kept)} of turns are taken to find "
            "their history"
        )
    return Line(text, "Idle caches")
