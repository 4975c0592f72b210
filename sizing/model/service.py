"""What a replica runs, whatever the demand: a model on an engine, and the class that figures of it belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sizing.model import architecture
from sizing.model.extras import NOTHING, Extras
from sizing.specs.bands import DrivingMode, LoadRegion, ModelKind, Situation
from sizing.specs.engine import Engine
from sizing.specs.gpu import Gpu
from sizing.specs.model import Model
from sizing.specs.optimisations import NOTHING_ASKED, Optimisations
from sizing.specs.workload import GENERATE, Serving, Task

Phase = Literal["whole", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Service:
    """What a replica runs: the model on an engine, with its flags, extras, formats and lengths. It states no demand.

    `isl` and `osl` are mean lengths in tokens. `phase` is what the replica does: all of a request, or, in separate
    pools, its prefill or its decode alone.
    """

    model: Model
    isl: int
    osl: int
    max_model_len: int
    serving: Serving
    engine: Engine
    engine_version: str
    kv_precision: str
    optimisations: Optimisations = NOTHING_ASKED
    extras: Extras = NOTHING
    phase: Phase = "whole"
    task: Task = GENERATE

    @property
    def output_tokens(self) -> int:
        """Tokens that a request returns: its OSL, 0 for a task that pools."""
        return 0 if self.model.pooled else self.osl

    def situation(self, gpu: Gpu, mode: DrivingMode, load: LoadRegion | None) -> Situation:
        """The class that figures of this service on a GPU type belong to, by which their error bands are looked up."""
        kind: ModelKind = "moe" if architecture.is_moe(self.model) else "dense"
        return Situation(mode, gpu.vendor, self.engine.name, gpu.architecture, kind, load)
