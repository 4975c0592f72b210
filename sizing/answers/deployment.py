"""A deployment as it is asked for, nothing searched: one layout on one GPU type."""

from __future__ import annotations

from dataclasses import replace

from sizing.answers.resolved import Resolved, resolve
from sizing.model.memory import MemoryUse
from sizing.question.ask import layout_of
from sizing.question.question import PoolSpace, Question, load_data
from sizing.replica.replica import started
from sizing.specs.data import Data
from sizing.specs.errors import Fault, InputError


def memory(question: Question, data: Data | None = None) -> MemoryUse:
    """What the memory of one GPU holds in the layout that a question's flags describe, on its first GPU type.

    Raises InputError for a layout that the engine or the hardware refuses.

    >>> from sizing import ask_layout
    >>> held = memory(ask_layout(model="llama-3.1-8b", gpu="h100-sxm", max_model_len=8192))
    >>> held.fits, round(held.weights_gib, 2)
    (True, 14.99)
    """
    found = deployment(question, data or load_data())
    if found.refused is not None:
        raise InputError(Fault(f"{found.layout} is refused: {found.refused}", allowed="another layout"))
    return found.memory


def deployment(question: Question, data: Data, pool: PoolSpace | None = None) -> Resolved:
    """The layout that a question's flags describe, on its first GPU type; of one of separate pools with `pool`."""
    serving = question.service.serving if pool is None else pool.serving(question.service.serving)
    gpu_types = question.space.gpu_types if pool is None else pool.gpu_types
    precision = question.space.precisions[0]
    return resolve(question, gpu_types[0], layout_of(serving), precision, data, notes=question.origin.notes)


def running(question: Question, data: Data, pool: PoolSpace | None = None) -> Resolved:
    """The same deployment as it is run: with as many sequences as its engine starts with, where nobody said how many."""
    found = deployment(question, data, pool)
    return replace(found, replica=started(found.replica))
