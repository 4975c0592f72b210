"""What every spec shares: frozen, unknown keys forbidden, numbers finite and of the right kind."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

# Far beyond anything that is counted or timed here, and far from where products of several numbers overflow.
MOST = 1e12
Positive = Annotated[float, Field(gt=0, le=MOST, strict=True)]
NonNegative = Annotated[float, Field(ge=0, le=MOST, strict=True)]
Fraction = Annotated[float, Field(gt=0, le=1, strict=True)]
PositiveInt = Annotated[int, Field(gt=0, le=int(MOST), strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, le=int(MOST), strict=True)]
MOST_GROUP = 1024  # GPUs that share a layer, a prompt or experts: those of a large cluster
GroupSize = Annotated[int, Field(gt=0, le=MOST_GROUP, strict=True)]
Text = Annotated[str, Field(min_length=1, strict=True)]

Kind = Literal["measured", "datasheet", "derived", "assumed"]


class Spec(BaseModel):
    """Base of every type that is read from a file."""

    # Validators are built when first used: most commands read a few of these types.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
