"""Recurrent states and windows in the cache pool: how the engine's rule divides the pool.

`specs.engine.StateRule` states the rules. In vLLM, a block holds either a layer's state or tokens. SGLang has two pools.
TensorRT-LLM reserves the states of all sequences. Without states, or with nothing but states, the pool is not divided.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from sizing.model.architecture import Shard, Stage
from sizing.model.attention.terms import Cache
from sizing.model.extras import drafts


class Pages(NamedTuple):
    """Blocks of one pool. A block holds `block_tokens` tokens of a group of layers, or one state of the group.

    `block_bytes` covers all layers of a group. A sequence takes `growing` blocks per `block_tokens` tokens. In each of
    `state_groups` it takes `states` blocks, or one per block of tokens if None.
    """

    block_tokens: int
    block_bytes: float
    growing: int
    state_groups: int
    states: int | None

    def blocks(self, token_blocks: int) -> int:
        """Blocks of a sequence whose tokens fill `token_blocks` blocks in one group."""
        held = max(token_blocks, 1) if self.states is None else self.states
        return self.growing * token_blocks + self.state_groups * held


def states_held(shard: Shard) -> int | None:
    """States that one sequence holds in each layer; None for one per block of tokens."""
    rule = shard.settings.states
    slots = rule.cached_slots if shard.settings.prefix_caching else rule.slots
    return None if slots is None else slots + rule.per_drafted * _drafted(shard)


def state_bytes(shard: Shard, stage: Stage) -> float:
    """Bytes of one state of every layer of a stage on one GPU."""
    return sum(count * _state(shard, held) for held, count in caches(shard, stage))


def _drafted(shard: Shard) -> int:
    return shard.extras.verified - 1


def _state(shard: Shard, held: Cache) -> float:
    return held.fixed_bytes_per_sequence + held.bytes_per_drafted * _drafted(shard)


@lru_cache(maxsize=4096)
def caches(shard: Shard, stage: Stage) -> tuple[tuple[Cache, int], ...]:
    """(cache of one layer on one GPU of a stage, number of such layers) for each kind of layer.

    If the engine does not cut layers to their windows, they count as layers without a window.
    """
    held = tuple((shard.cache(index), count) for index, count in stage.layers)
    if shard.settings.mixed_windows == "cut":
        return held
    return tuple((replace(one, window_tokens=None), count) for one, count in held)


def _layers_of_a_group(types: Collection[int], spread: float) -> int:
    """Layers per group where types of layers share a pool: those of the smallest type, or of the largest if they are close."""
    fewest, most = min(types), max(types)
    return most if most < spread * fewest else fewest


@lru_cache(maxsize=4096)
def filled(shard: Shard, stage: Stage) -> dict[int | None, float]:
    """Padding factor of layers by window: the last group of each type is padded to a full group.

    1 where nothing is padded: the engine has no groups, or layers differ in bytes per token.
    """
    settings, types = shard.settings, Counter[int | None]()
    sizes = set[float]()
    for held, count in caches(shard, stage):
        if held.bytes_per_token:
            types[held.window_tokens] += count
            sizes.add(held.bytes_per_token)
    if settings.states.rule != "pages" or len(sizes) != 1:
        return dict.fromkeys(types, 1.0)
    group = _layers_of_a_group(types.values(), settings.states.group_spread)
    return {window: group * math.ceil(layers / group) / layers for window, layers in types.items()}


def blocks_by_window(
    shard: Shard, stage: Stage, slots: float, whole: int, in_flight_tokens: int
) -> dict[int | None, float]:
    """Blocks of a sequence in a layer, by window; a layer without a window, which keeps all `slots`, takes `whole`.

    If windows have their own pool, it has a share of the blocks of the other pool, and the tighter of the two decides.
    """
    settings, block = shard.settings, shard.settings.block_tokens
    found: dict[int | None, float] = {held.window_tokens: whole for held, _ in caches(shard, stage)}
    windows = [window for window in found if window is not None]
    for window in windows:
        in_flight = min(window - 1 + in_flight_tokens, slots)
        found[window] = min(math.ceil(slots / block), math.ceil(in_flight / block) + 1)
    share = settings.window_share
    if share is not None and windows and None in found:
        both = max(whole, max(found[window] for window in windows) / share)
        return {window: both if window is None else share * both for window in found}
    filled_up = filled(shard, stage)
    return {window: filled_up.get(window, 1.0) * blocks for window, blocks in found.items()}


@lru_cache(maxsize=4096)
def pages(shard: Shard, stage: Stage) -> Pages | None:
    """The blocks of a stage whose layers share one pool; None if states are not paged."""
    settings = shard.settings
    growing: Counter[float] = Counter()
    states: Counter[float] = Counter()
    for held, count in caches(shard, stage):
        if held.bytes_per_token:
            growing[held.bytes_per_token] += count
        if held.fixed_bytes_per_sequence:
            states[_state(shard, held)] += count
    if settings.states.rule != "pages" or not growing or not states:
        return None
    token_bytes = max(growing)
    if shard.extras.draft is not None and stage.last:  # the draft's attention layers are of the same type
        growing[token_bytes] += round(drafts.cache_bytes(shard.extras.draft, shard.draft) / token_bytes)
    align = settings.state_alignment_tokens
    block = align * math.ceil(max(states) / (align * token_bytes))
    group = _layers_of_a_group([*growing.values(), *states.values()], settings.states.group_spread)
    return Pages(
        block,
        group * block * token_bytes,
        sum(math.ceil(layers / group) for layers in growing.values()),
        sum(math.ceil(layers / group) for layers in states.values()),
        states_held(shard),
    )


class Room(NamedTuple):
    """Bytes of a pool for tokens and for states, and the number of sequences that states allow (None: no limit)."""

    tokens: float
    states: float
    sequences: int | None


def room_of(shard: Shard, stage: Stage, pool: float, slots: int | None) -> Room:
    """Split a pool into tokens and states by the engine's rule; `slots` is the number of states if it is stated."""
    settings, rule = shard.settings, shard.settings.states
    one = state_bytes(shard, stage)
    if not one or rule.rule == "pages":
        paged = pages(shard, stage)
        checked = rule.checked and settings.full_decode_graph and paged is not None and pool > 0
        return Room(pool, 0.0, int(pool / paged.block_bytes) if checked and paged is not None else None)
    if rule.rule == "reserved":
        reserved = one * settings.max_num_seqs * shard.layout.pp
        return Room(pool - reserved, reserved, None)
    states = max(0.0, pool) * rule.share / (1 + rule.share)
    if slots is None:
        slots = max(0, int(states / one) - rule.spare_slots)
    else:
        states = one * (slots + rule.spare_slots)
    return Room(pool - states, states, slots // (states_held(shard) or 1))
