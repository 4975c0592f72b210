"""How a service follows its load in a cloud: the file workloads/_scaling.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sizing.specs.base import NonNegative, Positive, PositiveInt, Spec, Text

Discount = Annotated[float, Field(ge=0, lt=1, strict=True)]


class Scaling(Spec):
    """What passes until a new replica serves, the fewest replicas, and usual discounts of contracts; all assumed."""

    network_gb_per_s: Positive
    disk_gb_per_s: Positive
    engine_start_s: NonNegative
    node_start_s: NonNegative
    min_replicas: PositiveInt
    reserved_discount: Discount
    spot_discount: Discount
    source: Text
    date: Text
