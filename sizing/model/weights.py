"""Weights of one GPU: matrix by matrix in the format of its role, and scaled to the checkpoint's exact size."""

from __future__ import annotations

import math
from dataclasses import replace

from sizing.model import architecture
from sizing.model.architecture import Layout, Shard, Stage
from sizing.model.extras import drafts
from sizing.model.precision import PrecisionPlan
from sizing.specs.errors import InputError
from sizing.specs.model import Model
from sizing.specs.units import GIGA

ROTARY_BYTES = 2  # tables are in 16 bit


def weight_bytes(shard: Shard, stage: Stage) -> float:
    """Bytes of the weights on one GPU of a stage, matrix by matrix, each in the format of its role.

    MXFP4 experts are padded to the width that the kernels require. Parameters outside the text layers are on the first
    stage, whole on every rank, except an image encoder that the engine splits.
    """
    model, plan, settings = shard.model, shard.plan, shard.settings
    padding = settings.mxfp4_padding if plan.weight_format == "mxfp4" else architecture.NO_PADDING
    matrices = architecture.stage_matrices(
        model, stage, shard.held, vocabulary_padding=settings.vocabulary_padding, padding=padding
    )
    total = sum(
        count
        * (
            matrix.copies * matrix.inputs * matrix.outputs * shard.weight_bytes(matrix)
            + matrix.copies * matrix.bias * plan.weight_bytes("norm")
        )
        for matrix, count in matrices
    )
    if stage.first:
        split = model.vision_parameters if settings.encoder == "split" else 0
        total += (model.extra_parameters - split + split / shard.held.tp) * plan.weight_bytes("norm")
    return total


def rotary_bytes(model: Model) -> float:
    """Bytes of the rotary embedding tables, in 16 bit and whole on every GPU; logs count them as weights."""
    return model.rotary_values * ROTARY_BYTES


def scaled(shard: Shard, computed: float) -> float:
    """Scale computed weights to the exact checkpoint size, if the checkpoint's index states it in this format.

    Raises InputError if the two are too far apart to be of one model.
    """
    model, plan = shard.model, shard.plan
    if model.checkpoint_bytes is None or plan.weight_format != model.quantisation.precision:
        return computed
    stated = model.checkpoint_bytes
    # A pooled model may come from a generating checkpoint, so compare with the variant whose size is nearer.
    alike = {model, replace(model, pooled=False)}
    whole = min((_checkpoint_bytes(variant, plan) for variant in alike), key=lambda size: abs(math.log(stated / size)))
    ratio = stated / whole
    if not 1 / model.checkpoint_ratio <= ratio <= model.checkpoint_ratio:
        raise InputError(
            f"{model.checkpoint_bytes / GIGA:,.6g} GB do not fit the {whole / GIGA:,.6g} GB of weights that "
            f"config.json makes in {plan.weight_format}",
            file=model.checkpoint_index,
            field="metadata.total_size",
            allowed=f"up to {model.checkpoint_ratio:g} times more or less; or remove the file",
        )
    return computed * ratio


def _checkpoint_bytes(model: Model, plan: PrecisionPlan) -> float:
    """Bytes of a whole checkpoint by its config: dense even if pruned later, with modules that may not be loaded."""
    matrices = architecture.stage_matrices(model, architecture.whole(model), Layout())
    layers = sum(count * matrix.parameters * plan.dense.weight_bytes(matrix.role) for matrix, count in matrices)
    return layers + model.extra_parameters * plan.weight_bytes("norm") + drafts.module_bytes(model, plan.dense)
