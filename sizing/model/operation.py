"""One operation on one GPU: products, experts and small kernels with their FLOPs and bytes; what a rank of experts gets to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sizing.model import architecture
from sizing.model.architecture import Layout
from sizing.model.attention.terms import FLOPS_PER_MAC, Matrix, Numeric
from sizing.model.precision import PrecisionPlan
from sizing.model.shard import Shard
from sizing.specs.engine import EngineSettings
from sizing.specs.model import MoeMlp

ACTIVATION_BYTES = 2  # activations travel between kernels at 16 bit


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on one GPU: `count` times a step, each with `flops`, memory traffic `bytes` and `message_bytes`.

    `rule` names how it is timed; `role` whose weights it reads; `gpus` how many take part in a collective, one of every
    `apart` GPUs of a stage, and `fan_out` to how many experts a token goes;
    `of_all` says that it works on the tokens of all attention-data ranks together, others on those of one's own;
    `input_values` is how many values enter a product; `head_dim`, `q_heads`, `prompt_tokens` choose the measured row of attention.
    """

    name: str
    rule: str
    count: float
    flops: Numeric = 0.0
    bytes: Numeric = 0.0
    input_values: Numeric = 0.0
    message_bytes: Numeric = 0.0
    role: str = ""
    gpus: int = 1
    apart: int = 1
    fan_out: int = 0
    head_dim: int = 0
    q_heads: float = 0
    kv_heads: int = 0
    prompt_tokens: Numeric = 0.0
    context_tokens: Numeric = 0.0
    of_all: bool = False


def unevenly(
    build: Callable[[Numeric], tuple[Operation, ...]], tokens: Numeric, fullest: Numeric, ranks: int
) -> tuple[Operation, ...]:
    """The operations on `tokens` tokens of a replica. Its fullest attention-data rank has `fullest` tokens.

    `build` makes operations for tokens that are spread evenly over the ranks. All ranks meet at the experts of every
    layer. So each operation takes its time on the fullest rank, except those that share all tokens.
    """
    as_full, together = build(fullest * ranks), build(tokens)
    return tuple(every if own.of_all else own for own, every in zip(as_full, together, strict=True))


def expected_experts(experts: float, experts_per_token: int, tokens: Numeric) -> Numeric:
    """Distinct experts hit by `tokens` under uniform routing: N*(1-(1-k/N)^T). Skew makes it lower."""
    return experts * (1 - np.power(1 - experts_per_token / experts, tokens))


def busiest(mean: Numeric, ranks: int) -> Numeric:
    """Load of the busiest of `ranks` that draw loads with a mean at random, about m + sqrt(2 m ln n); never more than all."""
    most: Numeric = np.minimum(mean + np.sqrt(2 * mean * np.log(ranks)), mean * ranks)
    return most


def busiest_load(mean: Numeric, layout: Layout, settings: EngineSettings) -> Numeric:
    """Load of the busiest rank of ep: as measured where an imbalance is stated, else of random routing."""
    if settings.expert_imbalance is None:
        return busiest(mean, layout.ep)
    return mean * min(settings.expert_imbalance, layout.ep)


def gemm(matrix: Matrix, tokens: Numeric, count: float, plan: PrecisionPlan) -> Operation:
    """A dense product of `tokens` rows with one matrix: weights read once, inputs read and outputs written."""
    input_bytes = plan.input_bytes(matrix.role)
    return Operation(
        name=matrix.name,
        rule="gemm",
        count=count,
        flops=FLOPS_PER_MAC * tokens * matrix.inputs * matrix.outputs,
        bytes=matrix.inputs * matrix.outputs * plan.weight_bytes(matrix.role)
        + tokens * (matrix.inputs * input_bytes + matrix.outputs * ACTIVATION_BYTES),
        input_values=tokens * matrix.inputs,
        role=matrix.role,
    )


def dispatches(layout: Layout, settings: EngineSettings) -> bool:
    """Whether tokens go only to the ranks of their experts: several attention ranks share whole experts."""
    whole = layout.token_ranks > 1 and layout.ep == layout.stage_gpus
    return whole and settings.all2all_backend != "allgather"


def moe(shard: Shard, mlp: MoeMlp, tokens: Numeric, count: float) -> Operation:
    """The routed experts of one layer, fused, on the busiest rank of ep: `tokens` are of the whole replica."""
    hidden_size, layout, settings = shard.model.hidden_size, shard.layout, shard.settings
    experts = architecture.expert_matrices(mlp, hidden_size, layout)
    weights_per_expert = sum(matrix.inputs * matrix.outputs for matrix in experts)
    pairs = busiest_load(tokens * mlp.experts_per_token / layout.ep, layout, settings)
    rows = pairs if dispatches(layout, settings) else tokens  # that a rank gets: its own, or all that were gathered
    hit = expected_experts(mlp.experts, mlp.experts_per_token, pairs * layout.ep / mlp.experts_per_token) / layout.ep
    return Operation(
        name="experts",
        rule="moe",
        count=count,
        flops=FLOPS_PER_MAC * pairs * weights_per_expert,
        bytes=hit * weights_per_expert * shard.plan.weight_bytes("expert")
        + 2 * rows * (mlp.latent or hidden_size) * ACTIVATION_BYTES,
        role="expert",
        of_all=True,
    )


def small(name: str, bytes_: Numeric, count: float) -> Operation:
    """A kernel that only moves activations: norm, rotary embedding and cache write, activation function, routing."""
    return Operation(name=name, rule="small", count=count, bytes=bytes_)
