"""Operations and bytes of what runs beside a model on one GPU of a layout: draft, adapters, image encoder.

The draft is timed with kernels of its own plan, so its operations come apart from the others. Its first pass of a step takes
the tokens that the target's took (a prompt's chunk too), each further one a token of every sequence.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from sizing.model import architecture, operations
from sizing.model.architecture import Layout, Stage
from sizing.model.attention.terms import FLOPS_PER_MAC, Matrix, Numeric
from sizing.model.extras import Adapters, Extras
from sizing.model.extras.drafts import Draft, module_model
from sizing.model.extras.images import Encoder
from sizing.model.operation import ACTIVATION_BYTES, Operation, expected_experts, gemm
from sizing.model.precision import LINEAR, PrecisionPlan
from sizing.specs.engine import EngineSettings
from sizing.specs.model import Model, MoeMlp

SIXTEEN_BIT_BYTES = 2


def draft_layout(draft: Draft, layout: Layout, settings: EngineSettings) -> Layout:
    """Return how a draft is laid out: split as the target where it can be, else whole on each GPU; never in stages.

    Its own small cache is not cut over the GPUs that hold the same.
    """
    split = replace(layout, pp=1, ep=1, dcp=1)
    if draft.model is None or architecture.split_why_not(draft.model, split, settings) is None:
        return split
    return replace(split, tp=1)


def draft_body(
    draft: Draft, layout: Layout, settings: EngineSettings, plan: PrecisionPlan, tokens: Numeric
) -> tuple[Operation, ...]:
    """Return the first pass of a draft in a step, for the `tokens` of a replica that the target worked on."""
    where = draft_layout(draft, layout, settings)
    joined = (
        [gemm(_split(draft.joined, where.tp), tokens / where.token_ranks, 1, plan)] if draft.joined is not None else []
    )
    return (*joined, *_pass(draft, layout, settings, plan, tokens))


def _pass(
    draft: Draft, layout: Layout, settings: EngineSettings, plan: PrecisionPlan, tokens: Numeric
) -> tuple[Operation, ...]:
    found: list[Operation] = []
    where = draft_layout(draft, layout, settings)
    if draft.each is not None:
        found.append(gemm(_split(draft.each, where.tp), tokens / where.token_ranks, 1, plan))
    if draft.model is not None:
        found += operations.split_body(draft.model, where, settings, plan, tokens)
    return _named(found)


def draft_again(
    draft: Draft, layout: Layout, settings: EngineSettings, plan: PrecisionPlan, sequences: Numeric
) -> tuple[Operation, ...]:
    """Return what a draft does for each decoding sequence beyond its first pass over the step's tokens: heads, further passes."""
    where = draft_layout(draft, layout, settings)
    rows = sequences / where.token_ranks
    found = [gemm(_split(head, where.tp), rows, head.copies, plan) for head in draft.heads]
    if draft.model is not None:
        found += [_times(o, draft.passes) for o in operations.head(draft.model, where, settings, plan, sequences)]
    body = _pass(draft, layout, settings, plan, sequences)
    return (*_named(found), *(_times(o, draft.passes - 1) for o in body if draft.passes > 1))


def draft_attention(
    draft: Draft,
    layout: Layout,
    settings: EngineSettings,
    plan: PrecisionPlan,
    sequences: Numeric,
    context_tokens: Numeric,
) -> tuple[Operation, ...]:
    """Return the decode attention of all passes of a draft."""
    if draft.model is None:
        return ()
    where = draft_layout(draft, layout, settings)
    found = operations.decode_attention(draft.model, where, plan, sequences, context_tokens)
    return _named([_times(o, draft.passes) for o in found])


def draft_prefill(
    draft: Draft,
    layout: Layout,
    settings: EngineSettings,
    plan: PrecisionPlan,
    sequences: Numeric,
    tokens: Numeric,
    prior_tokens: Numeric,
) -> tuple[Operation, ...]:
    """Return the prefill attention of a draft, whose cache holds the prompt as the target's does."""
    if draft.model is None:
        return ()
    where = draft_layout(draft, layout, settings)
    return _named(list(operations.prefill_attention(draft.model, where, plan, sequences, tokens, prior_tokens)))


def _named(found: list[Operation]) -> tuple[Operation, ...]:
    return tuple(o if o.name.startswith("draft") else replace(o, name=f"draft_{o.name}") for o in found)


def _times(operation: Operation, times: float) -> Operation:
    return replace(operation, count=operation.count * times)


def _split(matrix: Matrix, tp: int) -> Matrix:
    return replace(matrix, outputs=matrix.outputs / tp)


@lru_cache(maxsize=4096)
def draft_weight_bytes(draft: Draft, layout: Layout, settings: EngineSettings, plan: PrecisionPlan) -> float:
    """Bytes of a draft's weights on one GPU; an embedding or head that it shares with the target is not held twice."""
    where = draft_layout(draft, layout, settings)
    matrices = [(_split(m, where.tp), 1) for m in (*draft.heads, draft.joined, draft.each) if m is not None]
    if draft.model is not None:
        whole = architecture.whole(draft.model)
        for matrix, count in architecture.stage_matrices(draft.model, whole, where):
            shared = matrix.role == "embedding" or (matrix.role == "lm_head" and draft.shares_vocabulary)
            if not (shared and draft.each is not None):  # a head reads the target's own embedding
                matrices.append((matrix, count))
    return draft.modules * sum(
        count * matrix.copies * (matrix.inputs * matrix.outputs + matrix.bias) * plan.weight_bytes(matrix.role)
        for matrix, count in matrices
    )


def module_bytes(model: Model, plan: PrecisionPlan) -> float:
    """Bytes of the layers of all multi-token prediction modules that a checkpoint holds; engines load them only to draft."""
    mtp = model.mtp
    if mtp is None:
        return 0.0
    module = module_model(model, mtp)
    return mtp.modules * sum(
        count * matrix.parameters * (plan.weight_bytes("norm") if mtp.kept_16bit else plan.weight_bytes(matrix.role))
        for index, count in architecture.whole(module).layers
        for matrix in architecture.layer_matrices(module, index, Layout())
    )


def draft_cache_bytes(draft: Draft, layout: Layout, settings: EngineSettings, plan: PrecisionPlan) -> float:
    """Cache bytes that a draft keeps for one token on one GPU."""
    if draft.model is None:
        return 0.0
    where = draft_layout(draft, layout, settings)
    return draft.modules * sum(
        count * architecture.layer_cache(draft.model.kinds[index], where, plan.kv_bytes).bytes_per_token
        for index, count in architecture.whole(draft.model).layers
    )


def adapted(model: Model, index: int, layout: Layout, adapters: Adapters) -> list[tuple[Matrix, float]]:
    """Return the matrices of a layer that adapters change, each with the (inputs + outputs) of the adapters of its parts.

    Fused projections have an adapter for each part, all of which read the same inputs. Routed experts have one each, or none.
    """
    return [
        (m, adapters.facts.fused.get(m.name, 1) * m.inputs + m.outputs)
        for m in architecture.layer_matrices(model, index, layout)
        if m.role in LINEAR and (m.role != "expert" or adapters.experts)
    ]


def adapter_weight_bytes(model: Model, stage: Stage, layout: Layout, adapters: Adapters) -> float:
    """Bytes of all adapters' slots on one GPU of a stage: slots * rank * (inputs + outputs) of each matrix."""
    widths = sum(
        count * matrix.copies * width
        for index, count in stage.layers
        for matrix, width in adapted(model, index, layout, adapters)
    )
    return adapters.slots * adapters.rank * adapters.facts.value_bytes * widths


def adapter_operations(model: Model, layout: Layout, adapters: Adapters, tokens: Numeric) -> tuple[Operation, ...]:
    """Return the grouped products of adapters: each token through one of them, each of those hit read once.

    Tokens are spread over the slots as evenly as chance does: n*(1-(1-1/n)^T) of n are hit. Experts multiply both: each of
    a rank's experts has all slots, and a token goes to several of them.
    """
    found = []
    for index, count in architecture.whole(model).layers:
        for matrix, width in adapted(model, index, layout, adapters):
            rank_tokens = tokens / layout.token_ranks
            if matrix.role == "expert":
                rank_tokens = tokens * _experts_per_token(model, index) / layout.ep
            several = adapters.slots * matrix.copies
            hit = expected_experts(several, 1, rank_tokens) if several > 1 else np.minimum(rank_tokens, 1)
            values = adapters.rank * width
            found.append(
                Operation(
                    name=f"lora_{matrix.name}",
                    rule="adapter",
                    count=count * adapters.facts.kernels_per_matrix,
                    flops=FLOPS_PER_MAC * rank_tokens * values / adapters.facts.kernels_per_matrix,
                    bytes=(hit * values * adapters.facts.value_bytes + rank_tokens * width * ACTIVATION_BYTES)
                    / adapters.facts.kernels_per_matrix,
                    of_all=matrix.role == "expert",
                )
            )
    return tuple(found)


def _experts_per_token(model: Model, index: int) -> int:
    return sum(mlp.experts_per_token for mlp in model.kinds[index].mlps if isinstance(mlp, MoeMlp))


def encoder_weight_bytes(encoder: Encoder, model: Model) -> float:
    """Bytes of an image encoder, whole on each GPU; a model that brings one (`vision_parameters`) has it in its weights."""
    return 0.0 if model.vision_parameters else encoder.parameters * SIXTEEN_BIT_BYTES


def encoder_operations(encoder: Encoder, plan: PrecisionPlan, requests: Numeric) -> tuple[Operation, ...]:
    """Return an image encoder's work for the images of `requests` prompts: its matrices, and attention over each piece."""
    hidden, layers = encoder.hidden_size, encoder.layers
    patches = requests * encoder.pieces * encoder.patches
    width = encoder.parameters / layers / hidden
    return (
        gemm(Matrix("image_encoder", "embedding", hidden, width), patches, layers, plan),
        Operation(
            "image_attention",
            "state",
            layers,
            flops=2 * FLOPS_PER_MAC * patches * encoder.patches * hidden,
            bytes=4 * patches * hidden * ACTIVATION_BYTES,
        ),
    )


def weight_bytes(
    model: Model, stage: Stage, layout: Layout, plan: PrecisionPlan, settings: EngineSettings, extras: Extras
) -> float:
    """Bytes of weights beside the model's on one GPU of a stage: a draft sits on the last, an encoder on the first."""
    total = 0.0
    if extras.draft is not None and plan.draft is not None and stage.last:
        total += draft_weight_bytes(extras.draft, layout, settings, plan.draft)
    if extras.adapters is not None:
        total += adapter_weight_bytes(model, stage, layout, extras.adapters)
    if extras.encoder is not None and stage.first:
        total += encoder_weight_bytes(extras.encoder, model)
    return total


def cache_bytes_per_token(
    stage: Stage, layout: Layout, plan: PrecisionPlan, settings: EngineSettings, extras: Extras
) -> float:
    """Cache bytes a token beside the model's on one GPU of a stage: those of a draft, on the last."""
    if extras.draft is None or plan.draft is None or not stage.last:
        return 0.0
    return draft_cache_bytes(extras.draft, layout, settings, plan.draft)
