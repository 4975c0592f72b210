"""From a model to its weight matrices and cache, layer by layer, as one GPU of a layout holds them.

Bytes in memory and FLOPs and bytes of a step are all derived from these matrices, so memory and time always agree on the
model. A `Shard` is what the GPUs of a replica hold and run: a model on a layout, with the formats and settings of its
engine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from sizing.model.attention import Cache, Matrix, compressed, pick
from sizing.model.extras import NOTHING, Extras
from sizing.model.precision import PrecisionPlan
from sizing.specs.engine import EngineSettings, ExpertPadding, Sparse, Windows
from sizing.specs.frozen import Frozen
from sizing.specs.model import (
    CompressedAttention,
    DenseMlp,
    GqaAttention,
    Heads,
    LayerKind,
    MlaAttention,
    Mlp,
    Model,
    MoeMlp,
    Role,
    SlidingWindowAttention,
)

GATE_AND_UP = 2
NORMS_PER_BLOCK = 1


class Layout(NamedTuple):
    """How one replica is laid out: tensor, pipeline, attention-data, expert and context parallelism.

    A replica has tp*pp*dp*cp GPUs. Attention and dense MLPs are split over tp GPUs. Their dp copies serve different
    requests; their cp copies serve different tokens of the same requests. Experts are split over ep GPUs, and the width of
    each expert over stage_gpus/ep. With dcp, each of dcp GPUs that would hold the same cache keeps a different part of it.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    cp: int = 1
    dcp: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.stage_gpus * self.pp

    @property
    def stage_gpus(self) -> int:
        """GPUs of one pipeline stage."""
        return self.tp * self.token_ranks

    @property
    def token_ranks(self) -> int:
        """Copies of attention and dense MLPs in a stage, each with its share of the tokens of a step."""
        return self.dp * self.cp

    @property
    def cache_parts(self) -> int:
        """Number of parts into which a sequence's cache is split by tokens."""
        return self.cp * self.dcp

    @property
    def moe_tp(self) -> int:
        """GPUs over which one expert's width is split."""
        return max(1, self.stage_gpus // self.ep)

    def __str__(self) -> str:
        """The layout as engine users write it, such as TP4 PP2 EP8."""
        others = ("pp", "dp", "ep", "cp", "dcp")
        parts = [f"{name.upper()}{size}" for name in others if (size := getattr(self, name)) > 1]
        return " ".join([f"TP{self.tp}", *parts])


SIZES = ("tp", "pp", "dp", "ep", "cp", "dcp")  # sizes of a layout, as `serving` names them


class Stage(NamedTuple):
    """One pipeline stage: the number of layers of each kind, and whether it has the embedding or the head."""

    layers: tuple[tuple[int, int], ...]
    first: bool
    last: bool


def dense_matrices(mlp: DenseMlp, hidden_size: int, tp: int, *, name: str = "mlp") -> tuple[Matrix, ...]:
    """Matrices of a dense MLP on one GPU: up projection (with gate) and down projection."""
    width = mlp.intermediate / tp
    up = width * (GATE_AND_UP if mlp.gated else 1)
    role: Role = "shared_expert" if name == "shared_expert" else "dense_mlp"
    return (
        Matrix(f"{name}_up", role, hidden_size, up, bias=up if mlp.bias else 0),
        Matrix(f"{name}_down", role, width, hidden_size, bias=hidden_size if mlp.bias else 0),
    )


NO_PADDING = ExpertPadding(intermediate=1, hidden=1)  # builds no validator


def expert_matrices(
    mlp: MoeMlp, hidden_size: int, layout: Layout, padding: ExpertPadding = NO_PADDING
) -> tuple[Matrix, ...]:
    """Matrices of the routed experts on one GPU, with widths rounded up by `padding`."""
    inner = _padded(mlp.latent or hidden_size, padding.hidden)
    width = _padded(mlp.intermediate / layout.moe_tp, padding.intermediate)
    local = -(-mlp.slots // layout.ep)  # the fullest rank has one more if the split is uneven
    up = width * (GATE_AND_UP if mlp.gated else 1)
    return (
        Matrix("experts_up", "expert", inner, up, copies=local, bias=up if mlp.bias else 0),
        Matrix("experts_down", "expert", width, inner, copies=local, bias=inner if mlp.bias else 0),
    )


def _padded(width: float, multiple: int) -> float:
    return -(-width // multiple) * multiple if multiple > 1 else width


def mlp_matrices(mlp: Mlp, hidden_size: int, layout: Layout, padding: ExpertPadding = NO_PADDING) -> tuple[Matrix, ...]:
    """All matrices of an MLP on one GPU: dense, or router, shared expert, latent projections and experts."""
    if isinstance(mlp, DenseMlp):
        return dense_matrices(mlp, hidden_size, layout.tp)
    found = [Matrix("router", "router", hidden_size, mlp.experts)]
    if mlp.shared_intermediate:
        shared = DenseMlp(mlp.shared_intermediate, mlp.gated)
        found += dense_matrices(shared, hidden_size, layout.tp, name="shared_expert")
        if mlp.shared_gate:
            found.append(Matrix("shared_expert_gate", "router", hidden_size, 1))
    if mlp.latent:
        found += [
            Matrix("latent_down", "shared_expert", hidden_size, mlp.latent),
            Matrix("latent_up", "shared_expert", mlp.latent, hidden_size),
        ]
    return (*found, *expert_matrices(mlp, hidden_size, layout, padding))


def norm_count(kind: LayerKind, model: Model) -> int:
    """Norms of one layer: one before the mixer and one before the MLPs, or one for both in parallel blocks."""
    blocks = (kind.mixer is not None) + bool(kind.mlps)
    return NORMS_PER_BLOCK if model.parallel_blocks else blocks * NORMS_PER_BLOCK


@lru_cache(maxsize=4096)
def layer_matrices(
    model: Model, kind_index: int, layout: Layout, padding: ExpertPadding = NO_PADDING
) -> tuple[Matrix, ...]:
    """All matrices of a layer of kind `kind_index` on one GPU of `layout`, norms included."""
    kind = model.kinds[kind_index]
    found: list[Matrix] = [Matrix("norms", "norm", model.hidden_size, norm_count(kind, model))]
    if kind.mixer is not None:
        found += pick(kind.mixer.kind).matrices(kind.mixer, model.hidden_size, layout.tp)
    for mlp in kind.mlps:
        found += mlp_matrices(mlp, model.hidden_size, layout, padding)
    return tuple(found)


def embedding_matrix(model: Model, tp: int, vocabulary_padding: int = 1) -> Matrix:
    """The input embedding on one GPU, split by vocabulary over `tp` GPUs."""
    return Matrix("embedding", "embedding", _padded(model.vocab_size, vocabulary_padding) / tp, model.hidden_size)


def head_matrix(model: Model, tp: int, vocabulary_padding: int = 1) -> Matrix:
    """The output head on one GPU, split by vocabulary over `tp` GPUs. A tied head is the embedding again."""
    return Matrix("lm_head", "lm_head", model.hidden_size, _padded(model.vocab_size, vocabulary_padding) / tp)


def stage_matrices(
    model: Model, stage: Stage, layout: Layout, *, vocabulary_padding: int = 1, padding: ExpertPadding = NO_PADDING
) -> tuple[tuple[Matrix, int], ...]:
    """Each matrix of `stage` on one GPU, with its count. A stage holds a tied embedding once."""
    layers = ((layer_matrices(model, index, layout, padding), count) for index, count in stage.layers)
    found = [(matrix, count) for matrices, count in layers for matrix in matrices]
    if stage.first:
        found.append((embedding_matrix(model, layout.tp, vocabulary_padding), 1))
    if stage.last and not model.pooled and not (model.tied_embeddings and stage.first):
        found.append((head_matrix(model, layout.tp, vocabulary_padding), 1))
    if stage.last:
        found.append((Matrix("final_norm", "norm", model.hidden_size, 1), 1))
    return tuple(found)


def whole(model: Model) -> Stage:
    """`model` as one pipeline stage."""
    return Stage(_kind_counts(model.layers), first=True, last=True)


def _kind_counts(layers: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(Counter(layers).items()))


def stage_sizes(layers: int, pp: int, remainder: str | tuple[int, ...]) -> tuple[int, ...]:
    """Split `layers` over `pp` stages. `remainder` is the engine's rule for uneven splits, or the sizes of all stages.

    `last`: the last stage takes the remainder (vLLM to 0.7). `before_last`: one layer each, from the last but one backwards
    (vLLM from 0.8). `tail`: the last stages (SGLang). `head`: the first stages (TensorRT-LLM 1.x).
    """
    if isinstance(remainder, tuple):
        return remainder
    base, left = divmod(layers, pp)
    sizes = [base] * pp
    takers = {
        "last": [pp - 1] * left,
        "before_last": [pp - 2 - k for k in range(left)],
        "tail": [pp - 1 - k for k in range(left)],
        "head": list(range(left)),
        "must_divide": list(range(left)),
    }[remainder]
    for stage in takers:
        sizes[stage] += 1
    return tuple(sizes)


def stage_shares(model: Model, pp: int, remainder: str | tuple[int, ...]) -> tuple[float, float]:
    """Shares of the layers in the largest and in the last of `pp` stages; both are 0 where `pp` is 1."""
    if pp == 1:
        return 0.0, 0.0
    sizes = stage_sizes(len(model.layers), pp, remainder)
    return max(sizes) / len(model.layers), sizes[-1] / len(model.layers)


@lru_cache(maxsize=1024)
def stages(model: Model, pp: int, remainder: str | tuple[int, ...]) -> tuple[Stage, ...]:
    """The `pp` pipeline stages of `model`, first to last."""
    found: list[Stage] = []
    start = 0
    for index, size in enumerate(stage_sizes(len(model.layers), pp, remainder)):
        layers = model.layers[start : start + size]
        found.append(Stage(_kind_counts(layers), first=index == 0, last=index == pp - 1))
        start += size
    return tuple(found)


def layer_cache(kind: LayerKind, layout: Layout, kv_bytes: float) -> Cache:
    """Cache of one layer on one GPU. If a layout splits caches by tokens, the bytes per token are divided."""
    if kind.mixer is None:
        return Cache()
    held = pick(kind.mixer.kind).cache(kind.mixer, layout.tp, kv_bytes)
    return held._replace(bytes_per_token=held.bytes_per_token / layout.cache_parts) if layout.cache_parts > 1 else held


def cache_copies(kind: LayerKind, tp: int) -> int:
    """Number of GPUs in a tensor-parallel group of `tp` that hold the same cache of a layer."""
    over_one, over_all = (layer_cache(kind, Layout(tp=gpus), 1.0).bytes_per_token for gpus in (1, tp))
    return round(tp * over_all / over_one) if over_one else 1


def parameters(model: Model) -> float:
    """Number of all parameters: every expert, a tied embedding once, the vision tower and learned positions."""
    matrices = stage_matrices(model, whole(model), Layout())
    return sum(matrix.parameters * count for matrix, count in matrices) + model.extra_parameters


def active_parameters(model: Model) -> float:
    """Number of the parameters that one token uses, embedding and head included, as model cards count them."""
    routed = (mlp for index in model.layers for mlp in model.kinds[index].mlps if isinstance(mlp, MoeMlp))
    idle = (
        (1 - mlp.experts_per_token / mlp.experts)
        * sum(m.parameters for m in expert_matrices(mlp, model.hidden_size, Layout()))
        for mlp in routed
    )
    return parameters(model) - sum(idle)


def cache_bytes_per_token(model: Model) -> float:
    """Bytes that a token adds to the 16-bit caches of all layers while no window is full."""
    return sum(layer_cache(model.kinds[index], Layout(), 2.0).bytes_per_token for index in model.layers)


def is_moe(model: Model) -> bool:
    """Whether any layer routes tokens to experts."""
    return any(isinstance(mlp, MoeMlp) for kind in model.kinds for mlp in kind.mlps)


def has_states(model: Model) -> bool:
    """Whether any layer keeps a recurrent state (linear attention, state space)."""
    return any(kind.mixer.kind in ("linear", "ssm", "short_conv") for kind in model.kinds if kind.mixer)


def attention_class(model: Model) -> Literal["mla", "hybrid", "other"]:
    """The class of attention on which engine settings depend; `hybrid` models have fixed states and a cache."""
    kinds = {kind.mixer.kind for kind in model.kinds if kind.mixer}
    if kinds & {"mla", "compressed"}:
        return "mla"
    return "hybrid" if has_states(model) else "other"


def sparse_class(model: Model) -> Sparse | None:
    """How a sparse cache holds tokens; None where attention covers the whole cache."""
    mixers = [kind.mixer for kind in model.kinds]
    if any(isinstance(mixer, CompressedAttention) for mixer in mixers):
        return "compressed"
    return "indexed" if any(isinstance(mixer, MlaAttention) and mixer.index_topk for mixer in mixers) else None


def attending(model: Model, settings: EngineSettings) -> Model:
    """The model as the engine runs it: with attention to the whole context in every layer where the engine ignores windows."""
    if settings.mixed_windows != "ignored":
        return model

    def whole(kind: LayerKind) -> LayerKind:
        if not isinstance(kind.mixer, SlidingWindowAttention):
            return kind
        return replace(kind, mixer=GqaAttention(**{one.name: getattr(kind.mixer, one.name) for one in fields(Heads)}))

    return replace(model, kinds=tuple(whole(kind) for kind in model.kinds))


def windows_class(model: Model) -> Windows | None:
    """How windowed layers differ from the layers that keep all tokens; None if all layers are of one sort."""
    held = [layer_cache(kind, Layout(), 1.0) for kind in model.kinds]
    windowed = {one.bytes_per_token for one in held if one.window_tokens is not None}
    full = {one.bytes_per_token for one in held if one.window_tokens is None and one.bytes_per_token}
    if not windowed or not full:
        return None
    if any(isinstance(kind.mixer, SlidingWindowAttention) and kind.mixer.chunked for kind in model.kinds):
        return "chunked"
    return "alike" if windowed <= full else "unlike"


def why_not(model: Model, layout: Layout, settings: EngineSettings, *, block: int | None = None) -> str | None:
    """The reason why the engine refuses `layout`, or None.

    Checks heads, vocabulary, widths, FP8 blocks, experts and layers. `block` is the block width of block-quantised weights;
    the width of every split must be a multiple of it.
    """
    return split_why_not(model, layout, settings, block=block) or pipeline_why_not(model, layout, settings)


@lru_cache(maxsize=1024)
def split_why_not(model: Model, layout: Layout, settings: EngineSettings, *, block: int | None = None) -> str | None:
    """The reason why the engine refuses to split a layer over `layout`, or None. It does not depend on `layout.pp`."""
    mixers = (kind.mixer for kind in model.kinds if kind.mixer is not None)
    reasons = (pick(mixer.kind).why_not(mixer, layout.tp) for mixer in mixers)
    if layout.ep > 1 and not is_moe(model):
        return f"EP{layout.ep} spreads experts, and a dense model has none"
    padded = int(_padded(model.vocab_size, settings.vocabulary_padding))
    if refused := next(filter(None, reasons), None) or _widths_why_not(model, layout, settings, block):
        return refused
    if padded % layout.tp:
        return f"vocabulary {padded:,} is not divisible by TP{layout.tp}"
    return _context_why_not(model, layout)


@lru_cache(maxsize=1024)
def with_redundant_experts(model: Model, copies: int) -> Model:
    """The model with `copies` redundant experts in each MoE layer."""

    def with_copies(mlp: Mlp) -> Mlp:
        return replace(mlp, redundant=copies) if isinstance(mlp, MoeMlp) else mlp

    return replace(model, kinds=tuple(replace(kind, mlps=tuple(map(with_copies, kind.mlps))) for kind in model.kinds))


def _widths_why_not(model: Model, layout: Layout, settings: EngineSettings, block: int | None) -> str | None:
    for kind in model.kinds:
        for mlp in kind.mlps:
            split, label = layout.tp, "MLP width"
            if isinstance(mlp, MoeMlp):
                split, label = layout.moe_tp, "expert width"
            if isinstance(mlp, MoeMlp) and mlp.slots % layout.ep and (mlp.redundant or not settings.uneven_experts):
                more = mlp.redundant + -mlp.slots % layout.ep
                held = f"{mlp.experts} experts" + (f" and {mlp.redundant} redundant ones" if mlp.redundant else "")
                return f"{held} are not divisible by EP{layout.ep}; they are with --redundant-experts {more}"
            if mlp.intermediate % split:
                return f"{label} {mlp.intermediate:,} is not divisible by {split}"
            part = mlp.intermediate // split
            if block and part % block:
                what = f"{label} {mlp.intermediate:,}/{split} = {part:,}"
                return f"{what} is not a multiple of the FP8 block width {block}"
    return None


def _context_why_not(model: Model, layout: Layout) -> str | None:
    if layout.cache_parts > 1 and model.encoder:
        return "the model keeps no cache that could be cut by tokens (CP, DCP)"
    for kind in model.kinds:
        held = layer_cache(kind, Layout(tp=layout.tp), 1.0)
        if layout.cache_parts > 1 and held.fixed_bytes_per_sequence:
            return "a recurrent state is of a whole sequence and cannot be cut by tokens (CP, DCP)"
        if layout.dcp > 1 and held.window_tokens is not None:
            return f"DCP{layout.dcp} cuts caches of full attention, and the model has sliding windows"
        copies = cache_copies(kind, layout.tp)
        if held.bytes_per_token and copies % layout.dcp:
            held_by = f"{copies} GPUs hold" if copies > 1 else "no two GPUs hold"
            return f"DCP{layout.dcp} cuts what GPUs would hold twice, and at TP{layout.tp} {held_by} the same cache"
    return None


def pipeline_why_not(model: Model, layout: Layout, settings: EngineSettings) -> str | None:
    """The reason why the layers cannot be split over `layout.pp` pipeline stages, or None."""
    layers = len(model.layers)
    if layout.pp > layers:
        return f"PP{layout.pp} is more than the model's {layers} layers"
    asked = settings.pp_remainder
    if isinstance(asked, tuple) and (len(asked) != layout.pp or sum(asked) != layers):
        return f"{', '.join(map(str, asked))} layers are not the model's {layers} over PP{layout.pp}"
    if asked == "must_divide" and layers % layout.pp:
        return f"{layers} layers are not divisible by PP{layout.pp}, as this engine version requires"
    return None


class Shard(Frozen):
    """A model as a layout splits it, with the engine's settings, the formats of weights and cache, and the extras."""

    model: Model
    layout: Layout
    settings: EngineSettings
    plan: PrecisionPlan
    extras: Extras = NOTHING

    def __hash__(self) -> int:
        """Hash what most often differs, because shards are looked up often."""
        cached, plan = self.extras.cached, self.plan
        found = (cached.hit, cached.distinct, cached.shared_tokens)
        return hash((self.model.name, self.layout, self.settings, plan.weight_format, plan.kv_format, found))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The pipeline stages, first to last."""
        return stages(self.model, self.layout.pp, self.settings.pp_remainder)

    @property
    def held(self) -> Layout:
        """The layout of the weights in memory.

        If the engine keeps attention whole on each GPU, tp counts as attention-data ranks.
        """
        whole = self.settings.compressed.whole and sparse_class(self.model) == "compressed"
        return self.layout._replace(tp=1, dp=self.layout.dp * self.layout.tp) if whole else self.layout

    def weight_bytes(self, matrix: Matrix) -> float:
        """Bytes of one weight of a matrix, in the format of its role; some matrices are kept in 16 bit by the engine."""
        return self.plan.weight_bytes("norm" if matrix.name in self.settings.compressed.wide else matrix.role)

    def cache(self, kind: int) -> Cache:
        """Cache of one layer of the kind with number `kind`, on one GPU."""
        mixer, rule = self.model.kinds[kind].mixer, self.settings.compressed
        if isinstance(mixer, CompressedAttention) and rule.pages != "tuples":
            return compressed.cache_of(mixer, self.plan.kv_bytes, rule, speculating=self.extras.draft is not None)
        return layer_cache(self.model.kinds[kind], self.layout, self.plan.kv_bytes)

    @property
    def draft(self) -> Shard:
        """The draft's shard: split like the model where possible, else whole on each GPU, and never in pipeline stages.

        Its small cache is replicated, not split by dcp. Draft heads have no model of their own.
        """
        drafts, plan = self.extras.draft, self.plan.draft
        assert drafts is not None and plan is not None
        split = self.layout._replace(pp=1, ep=1, dcp=1)
        model = drafts.model or self.model
        if drafts.model is not None and split_why_not(model, split, self.settings) is not None:
            split = split._replace(tp=1)
        return Shard(model, split, self.settings, plan)
