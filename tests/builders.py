"""Shared builders: models of a few layers, a GPU of round numbers, requests, and the real catalogue, read
once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from sizing.catalog import models, profiles, shelf
from sizing.model import architecture, memory, precision
from sizing.model.architecture import Layout, Shard
from sizing.model.memory import MemoryUse
from sizing.model.precision import PrecisionPlan
from sizing.question import question
from sizing.question.question import Question
from sizing.replica import replica
from sizing.replica.kernels import Kernels
from sizing.specs.data import Formats
from sizing.specs.engine import Engine, EngineSettings
from sizing.specs.gpu import Gpu, GpuType
from sizing.specs.model import Attention, DenseMlp, GqaAttention, LayerKind, Mlp, Model, Quantisation
from sizing.specs.values import OneFile
from sizing.specs.workload import Workload


@contextmanager
def files(*specs: OneFile) -> Iterator[None]:
    """These files in place of the catalogue's own, while the block runs."""
    kept = {type(spec): shelf.only(type(spec)) for spec in specs}
    shelf.SINGLE_FILES.update((type(spec), spec) for spec in specs)
    try:
        yield
    finally:
        shelf.SINGLE_FILES.update(kept)


@cache
def real_gpu(name: str) -> Gpu:
    return profiles.load_gpu(name).spec


@cache
def found_model(name: str) -> models.FoundModel:
    return models.load_model(name)


def real_model(name: str) -> Model:
    return found_model(name).spec


@cache
def engine_of(name: str) -> tuple[Engine, str]:
    """An engine and its version, from `vllm:0.19.0`; without a version, the newest."""
    found, version = profiles.load_engine(name)
    return found.spec, version or found.spec.newest


def with_visible_gib(gpu: Gpu, gib: float) -> Gpu:
    """The GPU with the memory that one log reports."""
    sheet = gpu.datasheet
    mem = sheet.memory.model_copy(update={"cuda_visible_gib": gib})
    return gpu.model_copy(update={"datasheet": sheet.model_copy(update={"memory": mem})})


def with_memory(gpu: Gpu, **fields: float) -> Gpu:
    sheet = gpu.datasheet
    mem = sheet.memory.model_copy(update=fields)
    return gpu.model_copy(update={"datasheet": sheet.model_copy(update={"memory": mem})})


def with_flops_times(gpu: Gpu, factor: float) -> Gpu:
    """The GPU with every dense peak multiplied."""
    sheet = gpu.datasheet
    peaks = {k: v * factor for k, v in sheet.dense_tflops.model_dump().items() if v is not None}
    tflops = sheet.dense_tflops.model_copy(update=peaks)
    return gpu.model_copy(update={"datasheet": sheet.model_copy(update={"dense_tflops": tflops})})


def ask(
    model: Model,
    *,
    engine: str = "vllm:0.19.0",
    isl: int = 1000,
    osl: int = 200,
    demand: dict[str, Any] | None = None,
    gpu_budget: int | None = None,
    **fields: Any,
) -> Question:
    """A resolved request; `fields` are those of a workload."""
    spec, version = engine_of(engine)
    stated = demand if demand or gpu_budget or fields.get("mode") == "offline" else {"requests_per_s": 1.0}
    workload = Workload.model_validate(
        {"model": model.name, "tokens": {"isl": isl, "osl": osl}, "demand": stated, **fields}
    )
    service = question.service_of(workload, model, (spec, version))
    return question.question_of_workload(workload, service, gpu_budget=gpu_budget)


def option(name: str, usd_per_gpu_hour: float | None = None) -> GpuType:
    return GpuType(name, real_gpu(name), usd_per_gpu_hour, None)


def settings_for(model: Model, gpu: Gpu, layout: Layout, engine: str = "vllm:0.19.0", **changes: Any) -> EngineSettings:
    """The engine's settings on a GPU and layout, with some of them changed."""
    resolved = replica.resolve_settings(ask(model, engine=engine, isl=8, osl=8).service, gpu, layout)
    return resolved.model_copy(update=changes)


def plan_for(
    model: Model, gpu: Gpu, settings: EngineSettings, name: str | None = None, kv: str = "auto"
) -> PrecisionPlan:
    return precision.plan(model, gpu, settings, shelf.only(Formats), precision=name, kv_precision=kv)


def memory_of(
    model: Model,
    gpu: Gpu,
    layout: Layout | None = None,
    *,
    engine: str = "vllm:0.19.0",
    max_model_len: int = 8192,
    precision_name: str | None = None,
    kv: str = "auto",
    **changes: Any,
) -> MemoryUse:
    """What `memory.use` says of a model on a GPU, with settings changed as a log's own options say."""
    where = layout or Layout()
    resolved = settings_for(model, gpu, where, engine, **changes)
    plan = plan_for(model, gpu, resolved, precision_name, kv)
    return memory.use(Shard(model, where, resolved, plan), gpu, max_model_len)


def kernels_for(
    model: Model,
    gpu: Gpu,
    layout: Layout | None = None,
    *,
    engine: str = "vllm:0.19.0",
    precision_name: str | None = None,
    kv: str = "auto",
) -> Kernels:
    """Kernels of a GPU for a model, engine and precision."""
    resolved = settings_for(model, gpu, layout or Layout(), engine)
    plan = plan_for(model, gpu, resolved, precision_name, kv)
    return Kernels(
        gpu,
        engine.partition(":")[0],
        Shard(model, layout or Layout(), resolved, plan),
    )


def toy_model(
    layers: int = 8,
    *,
    mixer: Attention | None = None,
    mlp: Mlp | None = None,
    hidden_size: int = 1024,
    vocab_size: int = 32_000,
    tied: bool = False,
    max_position: int = 131_072,
) -> Model:
    """A model of equal layers and 16-bit weights: 16 query heads, 4 KV heads of 64, gated MLP of 4,096."""
    kind = LayerKind(mixer or GqaAttention(16, 4, 64), (mlp or DenseMlp(4096, gated=True),))
    return Model(
        name="toy",
        kinds=(kind,),
        layers=(0,) * layers,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        tied_embeddings=tied,
        max_position=max_position,
        activation_precision="bf16",
        quantisation=Quantisation("bf16", kept_16bit=frozenset()),
    )


def sequence_bytes(
    model: Model,
    tokens: int,
    *,
    gpu: str = "h100-sxm",
    engine: str = "vllm:0.19.0",
    tp: int = 1,
    kv: str = "auto",
    **changes: Any,
) -> float:
    """Cache bytes of one sequence on one GPU, the whole model on one stage."""
    layout = Layout(tp=tp)
    resolved = settings_for(model, real_gpu(gpu), layout, engine, **changes)
    plan = plan_for(model, real_gpu(gpu), resolved, kv=kv)
    return memory.sequence_bytes(Shard(model, layout, resolved, plan), architecture.whole(model), tokens)
