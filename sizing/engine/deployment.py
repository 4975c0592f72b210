"""Builds the simulated replicas of a deployment: clock, rules, cache pool and batch of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sizing.engine.batch import DecodeBatch, KvCache
from sizing.engine.clock import step_clock, windows_of
from sizing.engine.requests import Requests
from sizing.engine.rules import SchedulerRules, of_engine
from sizing.engine.scheduler import Scheduler
from sizing.model.architecture import Shard
from sizing.model.extras import NOTHING
from sizing.model.memory import MemoryUse, block_tokens, growing_bytes, lost_bytes, sequence_bytes
from sizing.replica.kernels import Kernels
from sizing.replica.timing import Timed
from sizing.specs.engine_time import FrontEnd
from sizing.specs.units import GIB

if TYPE_CHECKING:  # imported at run time only if pools are used
    from sizing.engine.transfer import Transfer

MOST_TABLED = 2**17  # most tokens of a step in a table; larger steps extend its last slope


@dataclass(frozen=True, slots=True)
class Deployment:
    """Equal replicas: a shard with its timing constants, the memory of one GPU, and the scheduler rules of one rank.

    With a `prefill` part, these replicas decode what that part has prefilled. `transfer` brings its prompts with their
    cache and first token.
    """

    kernels: Kernels
    memory: MemoryUse
    rules: SchedulerRules
    count: int = 1
    prefill: Deployment | None = None
    transfer: Transfer | None = None

    @property
    def shard(self) -> Shard:
        """What each replica runs."""
        return self.kernels.shard

    @property
    def parts(self) -> tuple[Deployment, ...]:
        """The parts through which a request goes, in order: one, or prefill and decode."""
        return (self,) if self.prefill is None else (self.prefill, self)

    @property
    def gpus(self) -> int:
        """GPUs of all replicas in all parts."""
        return sum(part.count * part.shard.layout.gpus for part in self.parts)


def deployment_of(timed: Timed, count: int = 1) -> Deployment:
    """Equal replicas with the scheduling rules of their engine."""
    replica = timed.replica
    rules = of_engine(replica.settings, verified=replica.service.extras.verified)
    return Deployment(timed.kernels, replica.memory, rules, count)


def kv_cache(of: Deployment, longest: int) -> KvCache:
    """The cache of a GPU of the tightest stage: blocks for layers that keep all tokens, a fixed part for the others.

    Prefixes that sequences share are subtracted from the pool once and do not count for a sequence. A windowed layer keeps
    the window of every sequence. What prompts in prefill need beyond it is bounded by a step's token budget, for all of
    them together, and is subtracted once.
    """
    extras = of.shard.extras
    prefilling = replace(of.shard, extras=replace(extras, cached=NOTHING.cached))
    stage = max(of.shard.stages, key=lambda s: sequence_bytes(prefilling, s, longest, 1))
    growing, block = growing_bytes(of.shard, stage), block_tokens(of.shard, stage)
    whole = sequence_bytes(prefilling, stage, longest, 1)
    in_prefill = sequence_bytes(prefilling, stage, longest) - whole
    blocks = -(-(longest + extras.verified - 1) // block)
    shared = extras.cached.shared_tokens // block
    lost = lost_bytes(of.shard, stage)
    return KvCache(
        size_bytes=of.memory.kv_cache_gib * GIB - lost - in_prefill - extras.cached.distinct * shared * growing * block,
        block_bytes=growing * block,
        block_tokens=block,
        fixed_bytes=max(0.0, whole - blocks * block * growing),
        shared_blocks=shared,
    )


def schedulers(of: Deployment, requests: Requests, *, longest: int, one_by_one: bool = False) -> tuple[Scheduler, ...]:
    """The schedulers of equal replicas for requests of up to `longest` tokens.

    Slots and cache of a replica's ranks are pooled, so a rank that is full while another has room is not modelled. Requests
    handed over by a prefill part have passed a front end before, so they take no front-end time here.
    """
    shard, rules, handed = of.shard, of.rules, of.prefill is not None
    most = int(min(rules.budget + rules.slots * rules.tokens_per_decode, MOST_TABLED))
    ticking = step_clock(of.kernels, most_tokens=most, most_rows=min(rules.slots, MOST_TABLED) + 1)
    if handed:
        ticking = replace(ticking, front_end=FrontEnd(per_request_ms=0.0, per_prompt_token_us=0.0))
        rules = replace(rules, ahead=False)
    of_rank, windows = kv_cache(of, longest), windows_of(shard.model)
    template = replace(of_rank, size_bytes=of_rank.size_bytes * shard.layout.dp)
    return tuple(
        Scheduler(
            requests,
            ticking,
            rules.over(shard.layout.dp, shard.layout.pp),
            replace(template),
            DecodeBatch(windows),
            prefix_hit=shard.extras.cached.share,
            finds=shard.extras.cached.finds,
            tokens_per_step=shard.extras.tokens_per_step,
            one_by_one=one_by_one,
            handed=handed,
        )
        for _ in range(of.count)
    )
