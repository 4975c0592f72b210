"""A deployment as it is asked for, nothing searched: one layout on one GPU type."""

from __future__ import annotations

from sizing.answers.resolved import Resolved, resolve
from sizing.question.ask import layout_of
from sizing.question.question import PoolSpace, Question
from sizing.specs.data import Data


def deployment(question: Question, data: Data, pool: PoolSpace | None = None) -> Resolved:
    """The layout that a question's flags describe, on its first GPU type; of one of separate pools with `pool`."""
    serving = question.service.serving if pool is None else pool.serving(question.service.serving)
    gpu_types = question.space.gpu_types if pool is None else pool.gpu_types
    precision = question.space.precisions[0]
    return resolve(question, gpu_types[0], layout_of(serving), precision, data, notes=question.origin.notes)
