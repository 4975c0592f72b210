"""Builders for tests of optimisations: requests that ask for them, and one layout's kernels, memory and load."""

from __future__ import annotations

from typing import Any, NamedTuple

from builders import ask, engine_of, option, real_gpu, real_model

from sizing.catalog import shelf
from sizing.model import memory, precision
from sizing.model.architecture import Layout, Shard
from sizing.model.extras import Extras
from sizing.model.memory import MemoryUse
from sizing.question.ask import extras_of
from sizing.question.question import Question
from sizing.replica import replica
from sizing.replica.kernels import Kernels
from sizing.replica.replica import Replica
from sizing.replica.step import Batch, Step, step
from sizing.replica.timing import Timed, timed
from sizing.specs.data import Formats
from sizing.specs.model import Model
from sizing.specs.workload import Workload


def extras_for(model: Model, **asked: Any) -> Extras:
    """What the named optimisations put beside a model."""
    workload = Workload.model_validate({"model": model.name, "tokens": {"isl": 1, "osl": 1}, "optimisations": asked})
    return extras_of(workload, model)


def asking(model_name: str, asked: dict[str, Any], **fields: Any) -> Question:
    """A request for a catalogue model with optimisations."""

    model = real_model(model_name)
    request = ask(model, **fields)
    return request.with_(extras=extras_for(model, **asked)) if asked else request


class Laid(NamedTuple):
    """One layout, resolved."""

    question: Question
    layout: Layout
    kernels: Kernels
    memory: MemoryUse

    def step(self, sequences: float = 0.0, context: float = 0.0, **prefill: float) -> Step:
        """Time one step."""
        batch = Batch(decode_sequences=sequences, decode_context_tokens=context, **prefill)
        return step(self.kernels, batch)


def laid(
    model_name: str,
    gpu_name: str = "h100-sxm",
    *,
    engine: str = "vllm:0.19.0",
    tp: int = 1,
    precision_name: str | None = None,
    kv: str = "auto",
    max_model_len: int = 4096,
    **asked: Any,
) -> Laid:
    """A catalogue model on one layout with optimisations."""
    gpu, layout = real_gpu(gpu_name), Layout(tp=tp)
    request = asking(model_name, asked, engine=engine)
    settings = replica.resolve_settings(request.service, gpu, layout)
    plan = precision.plan(
        request.service.model,
        gpu,
        settings,
        shelf.only(Formats),
        precision=precision_name,
        kv_precision=kv,
        extras=request.service.extras,
    )
    shard = Shard(request.service.model, layout, settings, plan, request.service.extras)
    kernels = Kernels(gpu, engine_of(engine)[0].name, shard)
    used = memory.use(shard, gpu, max_model_len)
    return Laid(request, layout, kernels, used)


def candidate_of(question: Question, gpu_name: str, precision_name: str | None = None) -> Replica:
    """The layout that `serving` states, which must be accepted."""
    found = list(replica.candidates(question.service, option(gpu_name), precision_name))
    assert len(found) == 1, found
    assert isinstance(found[0], Replica), found[0]
    return found[0]


def load_of(question: Question, gpu_name: str = "h100-sxm", precision_name: str | None = None) -> tuple[Replica, Timed]:
    """A layout's candidate and load."""
    candidate = candidate_of(question, gpu_name, precision_name)
    return candidate, timed(candidate)
