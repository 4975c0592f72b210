"""The rules of a scheduler as data: slots, token budget, what shares a step, when requests are admitted.

A prompt is prefilled in units: tokens under a real clock, chunks under ticks. In each step, a prefilling request gets up to
`units_per_request` units, and all together get up to `budget`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from sizing.specs.engine import EngineSettings
from sizing.specs.errors import InputError, unknown
from sizing.specs.frozen import Frozen

Policy = Literal["static", "dynamic", "inflight", "one-prefill", "chunked"]
POLICIES: tuple[Policy, ...] = ("static", "dynamic", "inflight", "one-prefill", "chunked")


class SchedulerRules(Frozen):
    """The rules of one scheduler.

    - `slots`: the most requests that run at once, over all ranks; with `slots_of_microbatch`, those of one microbatch.
    - `budget`: the most units in a step, for each rank and each microbatch.
    - `shared_budget`: decodes take `tokens_per_decode` units each from the budget, before any prefill.
    - `units_per_request`: the most units of one prompt in a step.
    - `mixed`: a step may hold prefill and decode. Otherwise a step with prefill holds nothing else.
    - `splits`: a prompt may be cut where the budget ends.
    - `whole_batches`: requests are admitted only when all slots are empty (static batching): once `batch_size` requests wait,
      or the oldest has waited `batch_window` (dynamic batching; 0 admits at once).
    - `most_prefilling`: the most requests in prefill at once.
    - `reserve`: what must be free in the cache to admit a request: its first chunk, its prompt, prompt and output, or
      SGLang's estimate.
    - `preempts`: which request leaves when the cache is full.
    - `hold_steps`, `hold_ratio`: while requests decode, prompts wait until prompts and decodes fill this share of the budget,
      or until this number of steps has passed.
    - `hold_balanced`: attention-data ranks that all decode hold prompts until each rank has one, for at most `hold_steps` steps, and
      then for `ready_steps` more, in which others may join.
    - `poll_steps`: the scheduler looks at arrivals once in this number of decode steps.
    - `block_steps`: answers end after a whole number of blocks of this many decode steps.
    - `ahead`: a step is made up while the one before it runs, so a request that arrives meanwhile joins one step later.
    - `ranks`: attention-data ranks that step together.
    - `microbatches`: those of one pass of a pipeline.
    """

    slots: int
    slots_of_microbatch: bool = False
    budget: float = math.inf
    shared_budget: bool = False
    tokens_per_decode: int = 1
    units_per_request: float = math.inf
    mixed: bool = True
    splits: bool = True
    whole_batches: bool = False
    batch_size: int = 1
    batch_window: float = 0.0
    most_prefilling: float = math.inf
    reserve: Literal["first_chunk", "prompt", "reserve", "estimate"] = "prompt"
    preempts: Literal["recompute_last", "retract_shortest_output", "never"] = "recompute_last"
    hold_steps: int = 0
    hold_ratio: float = 0.0
    hold_balanced: bool = False
    ready_steps: int = 0
    poll_steps: int = 0
    block_steps: int = 1
    ahead: bool = False
    ranks: int = 1
    microbatches: int = 1

    def fill_hold(self, prompts: int, units: float, decoding: int, ready: int = 0) -> bool:
        """Whether waiting `prompts` with `units` to prefill need not wait longer beside `decoding` sequences.

        For `ready` steps each rank has had one.
        """
        if self.hold_balanced:
            return (prompts >= self.ranks and ready >= self.ready_steps) or decoding < self.ranks
        return units + decoding >= self.hold_ratio * self.budget * self.ranks

    def ready_wait(self, prompts: int, ready: int) -> float:
        """Steps that waiting prompts are still held because others may join; without end until each rank has one."""
        return self.ready_steps - ready if self.hold_balanced and prompts >= self.ranks else math.inf

    def over(self, ranks: int, microbatches: int = 1) -> SchedulerRules:
        """The rules of `ranks` ranks together, each with these rules, in a pipeline of `microbatches`."""
        return replace(
            self,
            slots=self.slots * ranks * (microbatches if self.slots_of_microbatch else 1),
            batch_size=self.batch_size * ranks,
            most_prefilling=self.most_prefilling * ranks,
            ahead=self.ahead and microbatches == 1,
            ranks=ranks,
            microbatches=microbatches,
        )


def of_engine(settings: EngineSettings, slots: int | None = None, *, verified: int = 1) -> SchedulerRules:
    """The scheduling rules of an engine version. `slots` defaults to max_num_seqs.

    A decode step holds `verified` tokens of each sequence, more than one with speculative decoding.
    """
    mixed = settings.step_order != "prefill_first"
    return SchedulerRules(
        slots=min(slots or settings.max_num_seqs, settings.max_num_seqs),
        slots_of_microbatch=slots is None and settings.max_num_seqs_of == "microbatch",
        budget=float(settings.max_num_batched_tokens),
        shared_budget=mixed,
        tokens_per_decode=verified,
        mixed=mixed,
        splits=settings.chunked_prefill,
        reserve=settings.admission,
        preempts=settings.preemption,
        ahead=settings.host.ahead and settings.host.overlapped,
    )


def with_policy(
    rules: SchedulerRules, policy: str, *, ticks: bool, batch_size: int = 1, batch_window: float = 0.0
) -> SchedulerRules:
    """`rules` under a teaching policy. Raises InputError for an unknown `policy`.

    static: a batch runs until its last request ends; its cache is reserved when it starts. dynamic: a batch forms by size
    or after a time window, then runs as static. inflight: free slots are refilled at each step. one-prefill: the same, with
    at most one request in prefill. chunked: decodes first, then prefill chunks within a budget (one chunk per step in
    ticks).
    """
    if policy == "static":
        return replace(rules, whole_batches=True, reserve="reserve")
    if policy == "dynamic":
        static = replace(rules, whole_batches=True, reserve="reserve")
        return replace(static, batch_size=batch_size, batch_window=batch_window)
    if policy == "inflight":
        return rules if ticks else replace(rules, shared_budget=False, splits=False)
    if policy == "one-prefill":
        return replace(rules, most_prefilling=1)
    if policy == "chunked":
        if ticks:
            return replace(rules, budget=1.0)
        return replace(rules, shared_budget=True, mixed=True, splits=True)
    raise InputError(unknown(policy, "batching policy", POLICIES, field="--policy"))
