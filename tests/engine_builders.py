"""Builders for tests of the engine simulator: deployments by name, replicas with chosen pools, loads, a stub clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from builders import kernels_for, real_gpu, real_model

from sizing.engine import deployment, rules, run, simulation
from sizing.engine.batch import DecodeBatch, KvCache, Piece, StepSeries
from sizing.engine.deployment import StepClock, step_clock, windows_of
from sizing.engine.requests import Lengths, Requests
from sizing.engine.rules import SchedulerRules
from sizing.engine.run import History
from sizing.engine.scheduler import Scheduler
from sizing.model import memory
from sizing.model.architecture import Layout
from sizing.replica.kernels import Kernels
from sizing.specs.model import Model

LONGEST_TOKENS = 16_384
TABLED_TOKENS = 20_000


@dataclass(frozen=True, slots=True)
class Served:
    """A model on a layout under one engine version, with its clock and full pool."""

    model: Model
    layout: Layout
    kernels: Kernels
    rules: SchedulerRules
    clock: StepClock
    pool: KvCache


@cache
def served(
    model_name: str,
    engine: str,
    *,
    gpu: str = "h100-sxm",
    tp: int = 1,
    pp: int = 1,
    precision_name: str | None = None,
) -> Served:
    """A catalogue model on a GPU and engine; building its clock takes a tenth of a second, so it is kept."""
    model, card, layout = real_model(model_name), real_gpu(gpu), Layout(tp=tp, pp=pp)
    kernels = kernels_for(model, card, layout, engine=engine, precision_name=precision_name)
    used = memory.use(kernels.shard, card, LONGEST_TOKENS)
    scheduling = rules.of_engine(kernels.settings)
    clock = step_clock(kernels, most_tokens=TABLED_TOKENS, most_rows=scheduling.slots + 1)
    cache = deployment.kv_cache(deployment.Deployment(kernels, used, scheduling), LONGEST_TOKENS)
    return Served(model, layout, kernels, scheduling, clock, cache)


def replica_of(
    of: Served, requests: Requests, *, pool_tokens: int | None = None, one_by_one: bool = False, **changes: Any
) -> Scheduler:
    """A replica of a deployment; `pool_tokens` shrinks its pool, `changes` are to its rules.

    A pool of `pool_tokens` holds the blocks of so many tokens, besides the fixed part of every slot.
    """
    scheduling = replace(of.rules, **changes)
    pool = replace(of.pool)
    if pool_tokens is not None:
        blocks = -(-pool_tokens // pool.block_tokens)
        size = blocks * pool.block_bytes + scheduling.slots * pool.fixed_bytes
        pool = replace(of.pool, size_bytes=size)
    return Scheduler(requests, of.clock, scheduling, pool, DecodeBatch(windows_of(of.model)), one_by_one=one_by_one)


def store(arrivals: Sequence[float], isl: Sequence[int], osl: Sequence[int]) -> Requests:
    requests = Requests()
    for entry in zip(arrivals, isl, osl, strict=True):
        requests.add(*entry)
    return requests


def poisson(count: int, rate: float, seed: int) -> list[float]:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count)).tolist()


@dataclass(frozen=True, slots=True)
class StubClock:
    """Steps of constant length: a prefill step takes `prefill`, a decode step `decode`, whatever they hold."""

    prefill: float = 1.0
    decode: float = 1.0

    @property
    def serial(self) -> float:
        return 0.0

    def launching(self, units: float) -> float:
        return 0.0

    def outside(self, prompt_tokens: int) -> float:
        return 0.0

    def step(self, pieces: Sequence[Piece], batch: DecodeBatch, decodes: bool) -> tuple[float, float]:
        return self.prefill, 0.0

    def series(self, batch: DecodeBatch) -> StepSeries:
        return StepSeries(self.decode)


def stub_replica(requests: Requests, clock: Any, scheduling: SchedulerRules) -> Scheduler:
    """A replica without a cache limit."""
    return Scheduler(requests, clock, scheduling, KvCache(float("inf"), 0.0, 1), DecodeBatch())


def repeated(isl: int, osl: int) -> Iterator[tuple[int, int]]:
    while True:
        yield isl, osl


def run_open(replica: Scheduler) -> History:
    return run.open_loop(replica.requests, [replica])


@cache
def llama_replica() -> deployment.Deployment:
    """One replica of a small model on one GPU."""
    card, layout = real_gpu("h100-sxm"), Layout()
    kernels = kernels_for(real_model("llama-3.1-8b"), card, layout)
    used = memory.use(kernels.shard, card, 4096)
    return deployment.Deployment(kernels, used, rules.of_engine(kernels.settings))


def driven(count: int, *, progress: Any = None, **load: Any) -> simulation.Run:
    """`count` requests of 500 tokens through that replica."""
    lengths = Lengths(500), Lengths(50, 30, "lognormal")
    traffic = simulation.Traffic(*lengths, count, longest=4096, **load)
    return simulation.simulate(llama_replica(), traffic, progress=progress)
