"""What extras add to a step and to the memory of a GPU: the one place that says which of them compute or hold weights."""

from __future__ import annotations

from sizing.model.architecture import Shard, Stage
from sizing.model.attention import Numeric
from sizing.model.extras import adapters, drafts, images
from sizing.model.operations import Operation


def of_tokens(shard: Shard, tokens: Numeric) -> tuple[Operation, ...]:
    """Operations of extras over the `tokens` of a step, timed by the model's own kernels."""
    extras = shard.extras
    return () if extras.adapters is None else adapters.operations(shard, extras.adapters, tokens)


def of_prompts(shard: Shard, prompts: Numeric) -> tuple[Operation, ...]:
    """Operations of extras for each of `prompts` new prompts."""
    encoder = shard.extras.encoder
    return () if encoder is None else images.operations(encoder, shard.plan, prompts)


def weight_bytes(shard: Shard, stage: Stage) -> float:
    """Weight bytes of extras on one GPU of a stage. A draft is on the last stage, an image encoder on the first."""
    total, extras = 0.0, shard.extras
    if extras.draft is not None and stage.last:
        total += drafts.weight_bytes(extras.draft, shard.draft)
    if extras.adapters is not None:
        total += adapters.weight_bytes(shard, extras.adapters, stage)
    if extras.encoder is not None and stage.first:
        total += images.weight_bytes(extras.encoder, shard.model)
    return total
