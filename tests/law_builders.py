"""Steps of one replica by which laws are stated, and how near two times count as equal."""

from __future__ import annotations

from dataclasses import replace

from sizing.model.architecture import Layout
from sizing.replica.kernels import Kernels
from sizing.replica.step import Batch, step
from sizing.specs.model import Model

HAIR = 1 + 1e-9


def seconds(model: Model, layout: Layout, kernels: Kernels, batch: Batch) -> float:
    return step(replace(kernels, shard=replace(kernels.shard, model=model, layout=layout)), batch).total_s
