"""Prices of APIs per million tokens: the file hardware_profiles/_api_prices.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from sizing.specs.gpu import Confidence
from sizing.specs.values import OneFile, Sourced, Spec, Text, within

AsFloat = BeforeValidator(lambda value: float(value) if type(value) is int else value)
UsdPerMillion = Annotated[float, within(0, 100_000), AsFloat]


class ApiModel(Spec):
    """One model of a provider: $ per million input, output and cached input tokens, and the confidence in them."""

    model: Text
    input: UsdPerMillion
    output: UsdPerMillion
    cached: UsdPerMillion | None = None
    confidence: Confidence
    closed: bool = False
    note: Text | None = None


class ApiProvider(Spec):
    """One provider: its page of prices, and its models."""

    name: Text
    page: Text
    models: tuple[ApiModel, ...]


class ApiPriceList(OneFile, Sourced):
    """The price lists of all providers, with their date and source."""

    FILE = "hardware_profiles/_api_prices.yaml"

    providers: tuple[ApiProvider, ...]
