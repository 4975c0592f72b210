"""LoRA adapters: their weights, and the grouped products of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sizing.model import architecture
from sizing.model.architecture import Shard, Stage
from sizing.model.attention import ACTIVATION_BYTES, FLOPS_PER_MAC, Matrix, Numeric
from sizing.model.extras import Adapters
from sizing.model.operations import Operation, expected_experts
from sizing.model.precision import LINEAR
from sizing.specs.errors import InputError
from sizing.specs.model import Model, MoeMlp
from sizing.specs.optimisations import Lora

if TYPE_CHECKING:
    from sizing.specs.facts import LoraFacts


def adapters(lora: Lora, facts: LoraFacts, model: Model) -> Adapters:
    """The adapters on the GPU at once. Raises InputError if adapters of experts are asked for and the model has none."""
    if lora.experts and not architecture.is_moe(model):
        what, allowed = f"{model.name} has no routed experts to adapt", f"{lora.slots}x{lora.rank}"
        raise InputError(what, field="optimisations.lora", allowed=allowed)
    return Adapters(lora.slots, lora.rank, facts, bool(lora.experts))


def _adapted(shard: Shard, adapters: Adapters, index: int) -> list[tuple[Matrix, float]]:
    """The matrices of a layer that adapters change, each with the (inputs + outputs) of its adapters.

    Each part of a fused projection has an adapter, and all parts read the same inputs. Routed experts have one adapter
    each, or none.
    """
    return [
        (m, adapters.facts.fused.get(m.name, 1) * m.inputs + m.outputs)
        for m in architecture.layer_matrices(shard.model, index, shard.layout)
        if m.role in LINEAR and (m.role != "expert" or adapters.experts)
    ]


def weight_bytes(shard: Shard, adapters: Adapters, stage: Stage) -> float:
    """Bytes of all adapter slots on one GPU of a stage: slots * rank * (inputs + outputs) of each matrix."""
    adapted = ((_adapted(shard, adapters, index), count) for index, count in stage.layers)
    widths = sum(count * matrix.copies * width for matrices, count in adapted for matrix, width in matrices)
    return adapters.slots * adapters.rank * adapters.facts.value_bytes * widths


def operations(shard: Shard, adapters: Adapters, tokens: Numeric) -> tuple[Operation, ...]:
    """The grouped products of adapters. Each token uses one adapter, and each adapter that is hit is read once.

    Tokens are spread at random over the n slots, so n*(1-(1-1/n)^T) are hit. Experts increase both numbers: each expert of
    a rank has all slots, and a token goes to several experts.
    """
    found = []
    facts = adapters.facts
    for index, count in architecture.whole(shard.model).layers:
        for matrix, width in _adapted(shard, adapters, index):
            rank_tokens = tokens / shard.layout.token_ranks
            if matrix.role == "expert":
                routed = [mlp for mlp in shard.model.kinds[index].mlps if isinstance(mlp, MoeMlp)]
                rank_tokens = tokens * sum(mlp.experts_per_token for mlp in routed) / shard.layout.ep
            several = adapters.slots * matrix.copies
            hit = expected_experts(several, 1, rank_tokens) if several > 1 else np.minimum(rank_tokens, 1)
            values = adapters.rank * width
            bytes_ = hit * values * facts.value_bytes + rank_tokens * width * ACTIVATION_BYTES
            kernels, name, of_all = facts.kernels_per_matrix, f"lora_{matrix.name}", matrix.role == "expert"
            flops = FLOPS_PER_MAC * rank_tokens * values / kernels
            found.append(Operation(name, "adapter", count * kernels, flops, bytes_ / kernels, of_all=of_all))
    return tuple(found)
