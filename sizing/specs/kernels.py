"""Measured kernels: a line of hardware_profiles/kernels/<gpu>.csv, and what the lines share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from sizing.specs.experts import ExpertKnots, Knots
from sizing.specs.values import Fraction, NonNegative, OneFile, PositiveInt, Sourced, Spec, Text


@dataclass(frozen=True, slots=True)
class Surface:
    """One kernel on one GPU: the constants of its operation's form, and a grid that corrects the logarithm of its time.

    `precision` is that of the product, in decode that of the cache; `cache` the cache's where both are told apart. `variant` names the shapes or the
    cutting that the form is of, `head_sizes` those that were measured. Errors are of whole shapes left out, as shares.
    """

    operation: str
    gpu: str
    engine: str
    version: str
    precision: str
    cache: str
    kernel: str
    variant: str
    head_sizes: tuple[int, ...]
    constants: Mapping[str, float]
    points: int
    median_error: float
    p90_error: float
    grid: tuple[float, ...]
    source: str
    date: str


class Chips(Spec):
    """Multiprocessors of the GPUs of an architecture: usual ones, and those of GPUs that differ, by name.

    `reference` is the GPU whose kernels time those that have none of their own, with its watts and its 16-bit peak. `files` hold the kernels;
    `sustained` is the rate of long products in service, of that in the tables; `drawn_gb_per_s` what products draw from a memory that
    is wider than their few multiprocessors can use, by GPU.
    """

    files: tuple[Text, ...]
    reference: Text
    reference_w: Annotated[float, Field(gt=0)]
    reference_tflops: Annotated[float, Field(gt=0)]
    multiprocessors: PositiveInt
    sustained: Fraction
    of: dict[Text, PositiveInt] = Field(default_factory=dict)
    drawn_gb_per_s: dict[Text, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)

    def weight_of_the_rest(self, gpu: str, tflops: float) -> float:
        """What all but the tensor cores' work weighs in a kernel's time on another GPU, over what it does on the reference: it takes as
        long on each multiprocessor, while their tensor cores are slower or faster. 1 where none are stated to differ.
        """
        own = self.of.get(gpu)
        return 1.0 if own is None else tflops / own / (self.reference_tflops / self.multiprocessors)


def carried(share: float, weight: float) -> float:
    """The share of a peak that a kernel reaches where all but its tensor cores' work has another weight."""
    return share if share >= 1 else 1 / (1 + weight * (1 / share - 1))


class Power(Sourced):
    """Clock under power limits: long products of a GPU slow down by watts a FLOP of their own over those of the reference, to `exponent`."""

    exponent: NonNegative


class ProductKnots(Spec):
    """Axes of the corrections of products: rows, and outputs and inputs; `measured` is the largest of each, beyond which they fade."""

    rows: Knots
    widths: Knots
    most_rows: PositiveInt
    most_width: PositiveInt


class AttentionKnots(Spec):
    """Axes of the corrections of attention: heads times sequences, tokens, queries a key, and coarser ones of tokens and of heads."""

    heads: Knots
    tokens: Knots
    group: Knots
    few_tokens: Knots
    few_heads: Knots


class Forms(Sourced):
    """What the forms of dense kernels share; between `contexts`, in tokens, decode attention is linear."""

    products: ProductKnots
    decode: AttentionKnots
    prefill: AttentionKnots
    pair_heads: Knots
    contexts: Annotated[tuple[float, ...], Field(min_length=1)]
    fading_octaves: Annotated[float, Field(gt=0)]


class MeasuredKernels(OneFile):
    """The file hardware_profiles/_kernels.yaml."""

    FILE = "hardware_profiles/_kernels.yaml"

    experts: ExpertKnots
    forms: Forms
    power: Power
    chips: dict[Text, Chips]
