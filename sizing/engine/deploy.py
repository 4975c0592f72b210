"""From a deployment to replicas that can be simulated: clock, rules, pool and batch of each."""

from __future__ import annotations

from dataclasses import replace

from sizing import architecture, beside
from sizing.architecture import Layout
from sizing.engine.batch import Batch
from sizing.engine.cache import Pool
from sizing.engine.clock import StepClock, step_clock, windows_of
from sizing.engine.replica import Replica
from sizing.engine.requests import Requests
from sizing.engine.rules import Rules
from sizing.extras import NOTHING
from sizing.kernels import Kernels
from sizing.memory import MemoryUse, sequence_bytes
from sizing.specs.engine import FrontEnd
from sizing.specs.model import Model
from sizing.units import GIB

MOST_TABLED = 2**17  # tokens of a step that a table is made for; longer ones extend its last slope


def pool(model: Model, layout: Layout, kernels: Kernels, used: MemoryUse, longest: int) -> Pool:
    """Return the cache pool of the tightest stage's GPU: blocks for layers that keep everything, a fixed part for others.

    Prefixes that sequences share are taken out of it once, and are none of a sequence's own.

    A windowed layer keeps its window of every sequence; what it keeps of prompts in prefill beyond that is bounded by the
    token budget of a step, for all of them together, and taken out of the pool once.
    """
    plan, settings, extras = kernels.plan, kernels.settings, kernels.extras
    whole_prompts = replace(extras, cached=NOTHING.cached)
    decoding = settings.model_copy(update={"max_num_batched_tokens": 1})
    stage = max(
        architecture.stages(model, layout.pp, settings.pp_remainder),
        key=lambda s: sequence_bytes(model, s, layout, plan, decoding, longest, whole_prompts),
    )
    growing = beside.cache_bytes_per_token(stage, layout, plan, settings, extras)
    for index, count in stage.layers:
        held = architecture.layer_cache(model.kinds[index], layout, plan.kv_bytes)
        if held.window_tokens is None:
            growing += count * held.bytes_per_token
    block = settings.block_tokens
    whole = sequence_bytes(model, stage, layout, plan, decoding, longest, whole_prompts)
    in_prefill = sequence_bytes(model, stage, layout, plan, settings, longest, whole_prompts) - whole
    blocks = -(-(longest + extras.verified - 1) // block)
    shared = extras.cached.shared_tokens // block
    lost = settings.blocks_lost * block * growing
    return Pool(
        size_bytes=used.kv_cache_gib * GIB - lost - in_prefill - extras.cached.distinct * shared * growing * block,
        block_bytes=growing * block,
        block_tokens=block,
        fixed_bytes=max(0.0, whole - blocks * block * growing),
        shared_blocks=shared,
    )


def clock(model: Model, layout: Layout, kernels: Kernels, rules: Rules) -> StepClock:
    """Return the clock of a layout for the steps that the rules of one of its attention-data ranks allow."""
    most = int(min(rules.budget + rules.slots * rules.tokens_per_decode, MOST_TABLED))
    return step_clock(model, layout, kernels, most_tokens=most, most_rows=min(rules.slots, MOST_TABLED) + 1)


def replicas(
    model: Model,
    layout: Layout,
    kernels: Kernels,
    used: MemoryUse,
    rules: Rules,
    requests: Requests,
    *,
    count: int,
    longest: int,
    prefix_hit: float = 0.0,
    one_by_one: bool = False,
    handed: bool = False,
) -> tuple[Replica, ...]:
    """Return `count` replicas, given the rules of one attention-data rank and the memory of one GPU.

    A replica has the slots and the cache of all of its ranks in one: what each rank's own scheduler would turn away while
    another has room is not seen. What is `handed` over to them has been in a front end before.
    """
    ticking = clock(model, layout, kernels, rules)
    if handed:
        ticking = replace(ticking, front_end=FrontEnd(per_request_ms=0.0, per_prompt_token_us=0.0))
    of_rank = pool(model, layout, kernels, used, longest)
    template = replace(of_rank, size_bytes=of_rank.size_bytes * layout.dp)
    windows = windows_of(model)
    return tuple(
        Replica(
            requests,
            ticking,
            rules.over(layout.dp),
            replace(template),
            Batch(windows),
            prefix_hit=prefix_hit,
            finds=kernels.extras.cached.finds,
            tokens_per_step=kernels.extras.tokens_per_step,
            one_by_one=one_by_one,
            handed=handed,
        )
        for _ in range(count)
    )
