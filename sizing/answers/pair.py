"""Separate pools as they are asked for, nothing searched: a layout of each, and the way between them."""

from __future__ import annotations

from typing import NamedTuple

from sizing.answers.deployment import running
from sizing.answers.pools import ALIKE, unlike
from sizing.answers.resolved import Resolved
from sizing.engine.transfer import Transfer, transfer_of
from sizing.question.names import SEPARATE
from sizing.question.question import Question, SeparatePools
from sizing.specs.data import Data
from sizing.specs.errors import Fault, InputError
from sizing.specs.optimisations import HandOver


class PairOfLayouts(NamedTuple):
    """A layout of the prefill pool and one of the decode pool, and how caches go from the one to the other."""

    prefill: Resolved
    decode: Resolved
    transfer: Transfer
    facts: HandOver


def pair_of_layouts(question: Question, data: Data) -> PairOfLayouts:
    """The layouts of both pools of a question that asks for separate ones. Raises as `way_between` does."""
    pools = question.space.pools
    assert pools is not None
    prefill, decode = (running(question, data, pool) for pool in (pools.prefill, pools.decode))
    return PairOfLayouts(prefill, decode, way_between(pools, prefill, decode), pools.facts)


def way_between(pools: SeparatePools, prefill: Resolved, decode: Resolved) -> Transfer:
    """How caches go from one pool to the other.

    Raises InputError for pools whose caches differ or that nothing joins.
    """
    apart = unlike(prefill, decode)
    if apart is not None:
        raise InputError(Fault(apart, field=SEPARATE, allowed=ALIKE))
    of_both = ((pools.prefill, prefill), (pools.decode, decode))
    gpus = sum((space.pool.replicas or 1) * resolved.layout.gpus for space, resolved in of_both)
    same = prefill.gpu_type.id == decode.gpu_type.id
    within_node = same and gpus <= prefill.gpu_type.gpu.datasheet.node.gpus
    return transfer_of(
        prefill.kernels(),
        decode.kernels(),
        within_node=within_node,
        by_layer=pools.facts.by_layer,
    )
