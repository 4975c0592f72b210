"""Conversations whose turns are the requests: in the inputs of a record, and those that wait in cache for their next turn."""

from __future__ import annotations

from typing import NamedTuple

from sizing.answers import counts
from sizing.answers.answer import Pool
from sizing.formats.view import Line
from sizing.formats.words import number, percent
from sizing.model.extras import prefixes
from sizing.question.question import Question


class ConversationInputs(NamedTuple):
    """The conversations whose turns are the requests.

    The share found in cache depends on blocks and replicas, so it is null without a single layout.
    """

    turns: int
    isl_first: int
    shared_tokens: int
    added_tokens_per_turn: int
    isl_mean: float
    isl_by_turn: tuple[int, ...]
    cached_tokens_by_turn: tuple[float, ...] | None
    hit: float | None
    routing: str
    caches: int | None
    block_tokens: int | None
    think_time_s: float | None
    histories_kept: float | None


def conversation(question: Question, *, placed: bool) -> ConversationInputs | None:
    """The conversations in a document's inputs; None if requests are not turns. `placed` says whether a layout is known."""
    cached = question.service.extras.cached
    conversation = cached.conversation
    if conversation is None:
        return None
    return ConversationInputs(
        turns=conversation.turns,
        isl_first=conversation.first,
        shared_tokens=conversation.shared,
        added_tokens_per_turn=conversation.adds,
        isl_mean=conversation.mean_isl,
        isl_by_turn=tuple(conversation.prompts),
        cached_tokens_by_turn=tuple(prefixes.found_by_turn(conversation, cached.finding)) if placed else None,
        hit=cached.hit if placed else None,
        routing="affinity" if cached.affinity else "random",
        caches=cached.engines if placed else None,
        block_tokens=cached.block if placed else None,
        think_time_s=cached.think_time_s,
        histories_kept=cached.kept if placed else None,
    )


class IdleConversations(NamedTuple):
    """Idle conversations of one replica: the number to keep in cache, the room for them, and the assumed cache hit share."""

    needed: float
    room: float
    histories_kept: float


def idle(pool: Pool, question: Question) -> IdleConversations | None:
    """The idle conversations of one replica of `pool`; None without a think time."""
    found = counts.idle_conversations(pool.replica, question.target, pool.point, pool.count)
    if found is None:
        return None
    return IdleConversations(found.needed, found.room, pool.replica.service.extras.cached.kept)


def idle_line(idle: IdleConversations) -> Line:
    """Write the number of conversations that wait for their next turn, and whether they fit the cache."""
    text = f"{number(idle.needed)} conversations to keep between turns on each replica, room for {number(idle.room)}"
    if idle.histories_kept < 1:
        text += (
            f": the hit rate of a large enough cache cannot hold, {percent(idle.histories_kept)} of turns are taken to find "
            "their history"
        )
    return Line(text, "Idle caches")
