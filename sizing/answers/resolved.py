"""One layout as the commands that look at a single one resolve it."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.model import memory
from sizing.model.architecture import Layout
from sizing.model.precision import PrecisionPlan
from sizing.question.question import Question
from sizing.replica import replica as replicas
from sizing.replica.kernels import Kernels
from sizing.replica.replica import Replica
from sizing.specs.data import Data
from sizing.specs.engine import EngineSettings
from sizing.specs.gpu import GpuType


@dataclass(frozen=True, slots=True)
class Resolved:
    """A question for one layout. `refusals` say why hardware or engine won't run it; `notes` what the model's name says."""

    question: Question
    replica: Replica
    refusals: tuple[tuple[str, str], ...]
    data: Data
    notes: tuple[str, ...] = ()

    @property
    def refused(self) -> str | None:
        """Why hardware or engine won't run the layout."""
        return "; ".join(detail for _, detail in self.refusals) or None

    @property
    def gpu_type(self) -> GpuType:
        """The GPU type of the replica."""
        return self.replica.gpu_type

    @property
    def layout(self) -> Layout:
        """The layout of the replica."""
        return self.replica.layout

    @property
    def settings(self) -> EngineSettings:
        """The settings of the replica's engine."""
        return self.replica.settings

    @property
    def plan(self) -> PrecisionPlan:
        """The formats of the replica."""
        return self.replica.plan

    @property
    def memory(self) -> memory.MemoryUse:
        """The memory of the replica."""
        return self.replica.memory

    def kernels(self) -> Kernels:
        """The timing constants of the replica."""
        return Kernels.of(self.replica, self.data)


def resolve(
    question: Question,
    gpu_type: GpuType,
    layout: Layout,
    precision_name: str | None,
    data: Data,
    *,
    notes: tuple[str, ...] = (),
) -> Resolved:
    """Resolve one layout. What hardware or engine refuse is reported, not raised: the sizes are still worth seeing."""
    replica, refused = replicas.unchecked(question.service, gpu_type, layout, precision_name, data)
    return Resolved(question.with_(extras=replica.service.extras), replica, refused, data, notes)
