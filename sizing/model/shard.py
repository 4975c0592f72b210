"""What GPUs of a replica hold and run: a model on a layout, in the formats and with the settings of its engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sizing.model import architecture
from sizing.model.architecture import Layout
from sizing.model.extras import NOTHING, Extras
from sizing.model.precision import PrecisionPlan
from sizing.specs.engine import EngineSettings
from sizing.specs.model import Model


@dataclass(frozen=True, slots=True)
class Shard:
    """A model as a layout splits it: with the engine's settings, the formats of weights and cache, and its extras."""

    model: Model
    layout: Layout
    settings: EngineSettings
    plan: PrecisionPlan
    extras: Extras = NOTHING

    @property
    def stages(self) -> tuple[architecture.Stage, ...]:
        """The pipeline stages, first to last."""
        return architecture.stages(self.model, self.layout.pp, self.settings.pp_remainder)

    @property
    def draft(self) -> Shard:
        """The draft of the model, split like the model where possible, else whole on each GPU; never in stages.

        Its own small cache is not cut over the GPUs that hold the same. Heads have no model of their own.
        """
        drafts, plan = self.extras.draft, self.plan.draft
        assert drafts is not None and plan is not None
        split = replace(self.layout, pp=1, ep=1, dcp=1)
        model = drafts.model or self.model
        if drafts.model is not None and architecture.split_why_not(model, split, self.settings) is not None:
            split = replace(split, tp=1)
        return Shard(model, split, self.settings, plan)
