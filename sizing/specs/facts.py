"""What is published of optimisations, and the page on one of them that `llmsize explain` shows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sizing.specs.errors import InputError, unknown
from sizing.specs.values import Fraction, NonNegativeInt, OneFile, Positive, PositiveInt, Sourced, Spec, Text

TopicKind = Literal["term", "optimisation"]
Evidence = Literal["read", "from memory", "derived", "assumed"]


class DraftHead(Spec):
    """A draft made of the target's own parts, in 16 bit; or the modules `of_checkpoint` that its config must state.

    `layers` decoder layers as the target's last, whose input joins `joined_states` hidden states in one projection, and
    whose query/key/value projection reads the embedding too where it is `widened`. `parallel_heads`: a residual block and
    an output head for each drafted token instead, all from one pass. The output head is the target's own, or one of
    `vocabulary` rows.
    """

    layers: NonNegativeInt
    joined_states: NonNegativeInt = 0
    widened: bool = False
    parallel_heads: bool = False
    vocabulary: PositiveInt | None = None
    of_checkpoint: bool = False


class Method(Sourced):
    """A way to draft tokens: what drafts, how many tokens a step, the chance that one is accepted.

    `head` is None for a draft model of its own (named by the user) and for drafts that take no GPU time (`free`).
    `acceptance` is None where nothing published holds for other texts: then it must be stated.
    """

    title: Text
    aliases: tuple[Text, ...] = ()
    tokens: PositiveInt
    acceptance: Fraction | None = None
    head: DraftHead | None = None
    free: bool = False
    needs: Text
    evidence: Evidence
    note: Text | None = None


class SparsityFacts(Sourced):
    """2:4 sparsity: what is stored, on which architectures sparse products run, and how much faster.

    A kept value takes its own bits and `metadata_bits`; `kept` of the values are. `rate` is the datasheets' ratio of sparse
    to dense peaks, and `reached` the share of that gain that products get.
    """

    architectures: tuple[Text, ...]
    formats: tuple[Text, ...]
    kept: Fraction
    metadata_bits: Positive
    rate: Annotated[float, Field(ge=1, le=4, strict=True)]
    reached: Annotated[float, Field(ge=0, le=1, strict=True)]
    reached_source: Text
    needs: Text
    evidence: Evidence


class LoraFacts(Sourced):
    """LoRA: bytes of a value, and how many adapters a fused projection has, by the projection's name."""

    value_bytes: Positive
    fused: dict[str, PositiveInt]
    kernels_per_matrix: PositiveInt

    def __hash__(self) -> int:
        """Hash what names the facts, for `fused` is a mapping; memory is cached by them."""
        return hash((self.value_bytes, self.kernels_per_matrix, self.source))


class EncoderFacts(Sourced):
    """An image encoder and its rule of tokens: a patch of `patch_pixels` squared, `merge` squared patches to a token.

    Width, depth and parameters of the encoder give its weights and work; `most_tokens` caps an image.
    """

    title: Text
    patch_pixels: PositiveInt
    merge: PositiveInt
    most_tokens: PositiveInt
    hidden_size: PositiveInt
    layers: PositiveInt
    parameters: Positive


class ImageRule(Sourced):
    """How a family's image processor cuts images, and what of it no config.json states: the most tokens or tiles of one."""

    title: Text
    rule: Literal["merged", "rows", "fixed", "tiled"]
    most_tokens: PositiveInt | None = None
    most_tiles: PositiveInt | None = None
    evidence: Evidence

    @model_validator(mode="after")
    def _bounded(self) -> ImageRule:
        if (self.rule == "merged") != (self.most_tokens is not None):
            raise ValueError("most_tokens belongs to rule merged, and to it alone")
        if (self.rule == "tiled") != (self.most_tiles is not None):
            raise ValueError("most_tiles belongs to rule tiled, and to it alone")
        return self


class Assumed(Spec):
    """What a trial assumes and nobody can know beforehand, a value of 0 to 1, and how far off it may well be."""

    what: Text
    value: Fraction
    step: Fraction


class OptimisationTrial(Spec):
    """An optimisation that `whatif` tries, as command-line options with their values.

    `{value}` in a value stands for what is `assumed`; it `presumes` weights that are not those of the checkpoint. Of one `group` at most one is in a combination. It is tried where the
    workload does not ask for its `optimisation` already, where weights and cache have at least so many bits a value, and
    where the model has modules for multi-token prediction if it needs them, attention of a kind, and, `of_caches`, where turns or several
    prefixes come to caches at random.
    """

    group: Text
    title: Text
    options: dict[str, str | int]
    assumed: Assumed | None = None
    presumes: Text | None = None
    optimisation: Text | None = None
    least_weight_bits: Positive | None = None
    least_kv_bits: Positive | None = None
    of_checkpoint: bool = False
    of_caches: bool = False
    attention: Literal["mla", "hybrid", "other"] | None = None
    needs: Text
    risk: Text
    source: Text

    def values(self, assumed: float | None = None) -> dict[str, Any]:
        """The options with their values, at what is assumed or another value of it."""
        value = self.assumed.value if self.assumed and assumed is None else assumed
        return {
            name: text.format(value=f"{value:.4g}") if isinstance(text, str) and value is not None else text
            for name, text in self.options.items()
        }


class OptimisationFacts(OneFile):
    """Everything published that optimisations rest on; `image_rules` by the field of a config that says which one holds."""

    FILE = "hardware_profiles/_optimisations.yaml"

    speculative: dict[str, Method]
    sparsity: SparsityFacts
    lora: LoraFacts
    encoder: EncoderFacts
    image_rules: dict[str, ImageRule]
    trials: dict[str, OptimisationTrial]

    def method(self, name: str) -> Method:
        """The method of speculative decoding that a name or an alias means. Raises InputError for an unknown one."""
        for known, method in self.speculative.items():
            if name in (known, *method.aliases):
                return method
        raise InputError(
            unknown(name, "method of speculative decoding", self.speculative, field="optimisations.speculative")
        )


class Topic(Spec):
    """One file of workloads/topics: a term of the answers, or an optimisation, with its sources.

    `does` is what it is or does, `modelled` how it is computed here; `formulas` are lines of their own, `options` say how to
    ask for it. Of an optimisation `helps` and `does_not_help` say where, `quality` what is known of changed outputs and which
    evaluation tells.
    """

    name: Text
    aliases: tuple[Text, ...] = ()
    kind: TopicKind = "optimisation"
    does: Text
    formulas: tuple[Text, ...] = ()
    modelled: Text
    helps: Text | None = None
    does_not_help: Text | None = None
    quality: Text | None = None
    options: tuple[Text, ...]
    sources: tuple[Text, ...]
    date: Text

    @model_validator(mode="after")
    def _whole(self) -> Topic:
        judged = ("helps", "does_not_help", "quality")
        missing = [name for name in judged if getattr(self, name) is None]
        if self.kind == "optimisation" and missing:
            raise ValueError(f"an optimisation needs {', '.join(missing)}")
        return self
