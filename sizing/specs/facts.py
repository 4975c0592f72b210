"""Published facts about optimisations, what no profile models, and the pages that `llmsize explain` shows."""

import re
from typing import Annotated, Any, Literal

from sizing.specs.errors import InputError, unknown
from sizing.specs.spec import Spec
from sizing.specs.values import Fraction, NonNegativeInt, OneFile, Positive, PositiveInt, Sourced, Text, within

TopicKind = Literal["term", "optimisation"]
Evidence = Literal["read", "from memory", "derived", "assumed"]


class DraftHead(Spec):
    """A draft head built from parts of the target model, in 16 bit, or from modules `of_checkpoint` that its config states.

    It has `layers` decoder layers like the target's last one. A projection joins `joined_states` hidden states as their input. If
    `widened`, the query/key/value projection also reads the embedding. With `parallel_heads` it has instead a residual block and
    an output head for each drafted token, all computed in one pass. The output head is the target's, or has `vocabulary` rows.
    """

    layers: NonNegativeInt
    joined_states: NonNegativeInt = 0
    widened: bool = False
    parallel_heads: bool = False
    vocabulary: PositiveInt | None = None
    of_checkpoint: bool = False


class Method(Sourced):
    """A method of speculative decoding: what drafts, tokens per step, and the acceptance rate.

    `head` is None for a separate draft model (named by the user) and for drafts without GPU time (`free`). `acceptance` is None
    if no published value carries over to other texts. Then the user must state it. The vocabulary of a draft model may differ from
    the target's by the share `vocabulary_within`.
    """

    title: Text
    aliases: tuple[Text, ...] = ()
    tokens: PositiveInt
    acceptance: Fraction | None = None
    vocabulary_within: Fraction | None = None
    head: DraftHead | None = None
    free: bool = False
    needs: Text
    evidence: Evidence
    note: Text | None = None


class SparsityFacts(Sourced):
    """2:4 sparsity: what is stored, which architectures run sparse products, and the speed-up.

    The share `kept` of the values is stored, each with `metadata_bits` in addition to its own bits. `rate` is the datasheets'
    ratio of sparse to dense peaks. `reached` is the share of that gain that products reach.
    """

    architectures: tuple[Text, ...]
    formats: tuple[Text, ...]
    kept: Fraction
    metadata_bits: Positive
    rate: Annotated[float, within(1, 4)]
    reached: Annotated[float, within(0, 1)]
    reached_source: Text
    needs: Text
    evidence: Evidence


class LoraFacts(Sourced):
    """LoRA: bytes per value, and the number of adapters of a fused projection, by its name."""

    value_bytes: Positive
    fused: dict[str, PositiveInt]
    kernels_per_matrix: PositiveInt

    def __hash__(self) -> int:
        """Hash the plain fields, because `fused` is a mapping. Memory results are cached by these facts."""
        return hash((self.value_bytes, self.kernels_per_matrix, self.source))


class EncoderFacts(Sourced):
    """An image encoder and its token rule: a patch is `patch_pixels` squared, and `merge` squared patches make one token.

    Its width, depth and parameters give weights and FLOPs. An image has at most `most_tokens`.
    """

    title: Text
    patch_pixels: PositiveInt
    merge: PositiveInt
    most_tokens: PositiveInt
    hidden_size: PositiveInt
    layers: PositiveInt
    parameters: Positive


class LeastImage(Spec):
    """The fewest tokens of an image whose tokens are squares of `side_pixels`: processors scale smaller images up."""

    side_pixels: PositiveInt
    tokens: PositiveInt


class ImageRule(Sourced):
    """How a family's image processor cuts images, and the bounds of tokens or tiles of an image, which no config.json states."""

    title: Text
    rule: Literal["merged", "padded", "rows", "fixed", "tiled"]
    most_tokens: PositiveInt | None = None
    most_tiles: PositiveInt | None = None
    least: tuple[LeastImage, ...] = ()
    evidence: Evidence

    def validate(self) -> None:
        """Refuse a bound of another rule, and a rule without its bound."""
        if (self.rule in ("merged", "padded")) != (self.most_tokens is not None):
            raise ValueError("most_tokens belongs to the rules merged and padded, and to them alone")
        if (self.rule == "tiled") != (self.most_tiles is not None):
            raise ValueError("most_tiles belongs to rule tiled, and to it alone")


class Assumed(Spec):
    """An assumption of a trial that cannot be known in advance: a value from 0 to 1, and a `step` for its uncertainty."""

    what: Text
    value: Fraction
    step: Fraction


class OptimisationTrial(Spec):
    """An optimisation that `whatif` tries, as command-line options with their values.

    `{value}` in an option stands for the `assumed` value. `presumes` says that other weights than the checkpoint's are needed. A
    combination has at most one trial of a `group`.

    A trial is skipped if the workload already asks for its `optimisation`. Weights and cache must have at least
    `least_weight_bits` and `least_kv_bits` per value. The model must have the stated kind of `attention`, and modules for
    multi-token prediction if `of_checkpoint`. With `of_caches`, turns or several prefixes must reach caches at random.
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
        """The options with their values, with the trial's own assumption or with `assumed` in its place."""
        value = self.assumed.value if self.assumed and assumed is None else assumed
        return {
            name: text.format(value=f"{value:.4g}") if isinstance(text, str) and value is not None else text
            for name, text in self.options.items()
        }


class OptimisationFacts(OneFile):
    """All published facts about optimisations. The key of `image_rules` is the config field that selects the rule."""

    FILE = "hardware_profiles/_optimisations.yaml"

    speculative: dict[str, Method]
    sparsity: SparsityFacts
    lora: LoraFacts
    encoder: EncoderFacts
    image_rules: dict[str, ImageRule]
    trials: dict[str, OptimisationTrial]

    def method(self, name: str) -> Method:
        """The method of speculative decoding with a name or an alias. Raises InputError for an unknown name."""
        for known, method in self.speculative.items():
            if name in (known, *method.aliases):
                return method
        field = "optimisations.speculative"
        raise InputError(unknown(name, "method of speculative decoding", self.speculative, field=field))


class Topic(Spec):
    """One file of workloads/topics: a term of the answers, or an optimisation, with its sources.

    `does` says what the topic is or does, `modelled` how it is computed here. Each of `formulas` has its own line. `options` say
    how to ask for it. For an optimisation, `helps` and `does_not_help` say when it pays, and `quality` says how outputs change
    and which evaluation shows it.
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

    def validate(self) -> None:
        """Refuse an optimisation without its judgement."""
        judged = ("helps", "does_not_help", "quality")
        missing = [name for name in judged if getattr(self, name) is None]
        if self.kind == "optimisation" and missing:
            raise ValueError(f"an optimisation needs {', '.join(missing)}")


class Unmodelled(Spec):
    """One thing that is not modelled: how its names begin, what it is, and the nearest thing that is modelled."""

    begins: tuple[Text, ...]
    what: Text
    nearest: Text | None = None


class NotModelled(OneFile, Sourced):
    """The file hardware_profiles/_not_modelled.yaml. `modelled` says what is modelled."""

    FILE = "hardware_profiles/_not_modelled.yaml"

    modelled: Text
    entries: tuple[Unmodelled, ...]

    def of(self, name: str) -> Unmodelled | None:
        """The entry that matches a word of `name`, or None."""
        words = [word for word in re.split(r"[^a-z0-9.]+", name.lower()) if word]
        words.append(name.lower().rpartition(".")[2])  # the ending of a file
        found = (
            (len(begin), entry)
            for entry in self.entries
            for begin in entry.begins
            if any(word == begin or re.fullmatch(rf"{re.escape(begin)}[\d.]*[a-z]?", word) for word in words)
            or "".join(words).startswith(begin.replace("-", ""))
        )
        return max(found, key=lambda pair: pair[0], default=(0, None))[1]
