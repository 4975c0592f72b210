"""What takes memory on one GPU: weights, recurrent states and windows in the cache pool, and work memory.

Weights are counted matrix by matrix in the format of their role, and scaled to the checkpoint's exact size.
`specs.engine.StateRule` states how a pool is divided. In vLLM, a block holds either a layer's state or tokens. SGLang has two
pools. TensorRT-LLM reserves the states of all sequences. Without states, or with nothing but states, the pool is not divided.
Work memory is the peak activation of a profile run, the workspace of attention, and buffers of the exchange with experts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple

from sizing.model import architecture
from sizing.model.architecture import Layout, Shard, Stage
from sizing.model.attention import Cache
from sizing.model.extras import adapters, drafts, images
from sizing.model.operations import dispatches
from sizing.model.precision import PrecisionPlan
from sizing.specs.errors import InputError
from sizing.specs.model import DenseMlp, Heads, MlaAttention, Model, MoeMlp
from sizing.specs.units import GIGA, MIB

ROTARY_BYTES = 2  # tables are in 16 bit


def weight_bytes(shard: Shard, stage: Stage) -> float:
    """Bytes of the weights on one GPU of a stage, matrix by matrix, each in the format of its role.

    MXFP4 experts are padded to the width that the kernels require. Parameters outside the text layers are on the first
    stage, whole on every rank, except an image encoder that the engine splits.
    """
    model, plan, settings = shard.model, shard.plan, shard.settings
    padding = settings.mxfp4_padding if plan.weight_format == "mxfp4" else architecture.NO_PADDING
    vocabulary, bias_bytes = settings.vocabulary_padding, plan.weight_bytes("norm")
    matrices = architecture.stage_matrices(model, stage, shard.held, vocabulary_padding=vocabulary, padding=padding)
    total = 0.0
    for of, count in matrices:
        weights = of.copies * of.inputs * of.outputs * shard.weight_bytes(of)
        total += count * (weights + of.copies * of.bias * bias_bytes)
    if stage.first:
        split = model.vision_parameters if settings.encoder == "split" else 0
        total += (model.extra_parameters - split + split / shard.held.tp) * plan.weight_bytes("norm")
    return total


def extras_bytes(shard: Shard, stage: Stage) -> float:
    """Weight bytes of extras on one GPU of a stage. A draft is on the last stage, an image encoder on the first."""
    total, extras = 0.0, shard.extras
    if extras.draft is not None and stage.last:
        total += drafts.weight_bytes(extras.draft, shard.draft)
    if extras.adapters is not None:
        total += adapters.weight_bytes(shard, extras.adapters, stage)
    if extras.encoder is not None and stage.first:
        total += images.weight_bytes(extras.encoder, shard.model)
    return total


def rotary_bytes(model: Model) -> float:
    """Bytes of the rotary embedding tables, in 16 bit and whole on every GPU; logs count them as weights."""
    return model.rotary_values * ROTARY_BYTES


def scaled(shard: Shard, computed: float) -> float:
    """Scale computed weights to the exact checkpoint size, if the checkpoint's index states it in this format.

    Raises InputError if the two are too far apart to be of one model.
    """
    model, plan = shard.model, shard.plan
    if model.checkpoint_bytes is None or plan.weight_format != model.quantisation.precision:
        return computed
    stated = model.checkpoint_bytes
    # A pooled model may come from a generating checkpoint, so compare with the variant whose size is nearer.
    alike = {model, replace(model, pooled=False)}
    whole = min((_checkpoint_bytes(variant, plan) for variant in alike), key=lambda size: abs(math.log(stated / size)))
    ratio = stated / whole
    if not 1 / model.checkpoint_ratio <= ratio <= model.checkpoint_ratio:
        made = f"the {whole / GIGA:,.6g} GB of weights that config.json makes in {plan.weight_format}"
        what, file = f"{model.checkpoint_bytes / GIGA:,.6g} GB do not fit {made}", model.checkpoint_index
        allowed = f"up to {model.checkpoint_ratio:g} times more or less; or remove the file"
        raise InputError(what, file=file, field="metadata.total_size", allowed=allowed)
    return computed * ratio


def _checkpoint_bytes(model: Model, plan: PrecisionPlan) -> float:
    """Bytes of a whole checkpoint by its config: dense even if pruned later, with modules that may not be loaded."""
    matrices = architecture.stage_matrices(model, architecture.whole(model), Layout())
    layers = sum(count * matrix.parameters * plan.dense.weight_bytes(matrix.role) for matrix, count in matrices)
    return layers + model.extra_parameters * plan.weight_bytes("norm") + drafts.module_bytes(model, plan.dense)


class Pages(NamedTuple):
    """Blocks of one pool. A block holds `block_tokens` tokens of a group of layers, or one state of the group.

    `block_bytes` covers all layers of a group. A sequence takes `growing` blocks per `block_tokens` tokens. In each of
    `state_groups` it takes `states` blocks, or one per block of tokens if None.
    """

    block_tokens: int
    block_bytes: float
    growing: int
    state_groups: int
    states: int | None

    def blocks(self, token_blocks: int) -> int:
        """Blocks of a sequence whose tokens fill `token_blocks` blocks in one group."""
        held = max(token_blocks, 1) if self.states is None else self.states
        return self.growing * token_blocks + self.state_groups * held


def states_held(shard: Shard) -> int | None:
    """States that one sequence holds in each layer; None for one per block of tokens."""
    rule = shard.settings.states
    slots = rule.cached_slots if shard.settings.prefix_caching else rule.slots
    return None if slots is None else slots + rule.per_drafted * _drafted(shard)


def state_bytes(shard: Shard, stage: Stage) -> float:
    """Bytes of one state of every layer of a stage on one GPU."""
    return sum(count * _state(shard, held) for held, count in caches(shard, stage))


def _drafted(shard: Shard) -> int:
    return shard.extras.verified - 1


def _state(shard: Shard, cache: Cache) -> float:
    return cache.fixed_bytes_per_sequence + cache.bytes_per_drafted * _drafted(shard)


@lru_cache(maxsize=4096)
def caches(shard: Shard, stage: Stage) -> tuple[tuple[Cache, int], ...]:
    """(cache of one layer on one GPU of a stage, number of such layers) for each kind of layer.

    If the engine does not cut layers to their windows, they count as layers without a window.
    """
    held = tuple((shard.cache(index), count) for index, count in stage.layers)
    if shard.settings.mixed_windows == "cut":
        return held
    return tuple((one._replace(window_tokens=None), count) for one, count in held)


def _layers_of_a_group(types: Collection[int], spread: float) -> int:
    """Layers per group where types of layers share a pool: those of the smallest type, or of the largest if they are close."""
    fewest, most = min(types), max(types)
    return most if most < spread * fewest else fewest


@lru_cache(maxsize=4096)
def filled(shard: Shard, stage: Stage) -> dict[int | None, float]:
    """Padding factor of layers by window: the last group of each type is padded to a full group.

    1 where nothing is padded: the engine has no groups, or layers differ in bytes per token.
    """
    settings, types = shard.settings, Counter[int | None]()
    sizes = set[float]()
    for held, count in caches(shard, stage):
        if held.bytes_per_token:
            types[held.window_tokens] += count
            sizes.add(held.bytes_per_token)
    if settings.states.rule != "pages" or len(sizes) != 1:
        return dict.fromkeys(types, 1.0)
    group = _layers_of_a_group(types.values(), settings.states.group_spread)
    return {window: group * math.ceil(layers / group) / layers for window, layers in types.items()}


def blocks_by_window(
    shard: Shard, stage: Stage, slots: float, whole: int, in_flight_tokens: int
) -> dict[int | None, float]:
    """Blocks of a sequence in a layer, by window; a layer without a window, which keeps all `slots`, takes `whole`.

    If windows have their own pool, it has a share of the blocks of the other pool, and the tighter of the two decides.
    """
    settings, block = shard.settings, shard.settings.block_tokens
    found: dict[int | None, float] = {held.window_tokens: whole for held, _ in caches(shard, stage)}
    windows = [window for window in found if window is not None]
    for window in windows:
        in_flight = min(window - 1 + in_flight_tokens, slots)
        found[window] = min(math.ceil(slots / block), math.ceil(in_flight / block) + 1)
    share = settings.window_share
    if share is not None and windows and None in found:
        both = max(whole, max(found[window] for window in windows) / share)
        return {window: both if window is None else share * both for window in found}
    filled_up = filled(shard, stage)
    return {window: filled_up.get(window, 1.0) * blocks for window, blocks in found.items()}


@lru_cache(maxsize=4096)
def pages(shard: Shard, stage: Stage) -> Pages | None:
    """The blocks of a stage whose layers share one pool; None if states are not paged."""
    settings = shard.settings
    growing: Counter[float] = Counter()
    states: Counter[float] = Counter()
    for held, count in caches(shard, stage):
        if held.bytes_per_token:
            growing[held.bytes_per_token] += count
        if held.fixed_bytes_per_sequence:
            states[_state(shard, held)] += count
    if settings.states.rule != "pages" or not growing or not states:
        return None
    token_bytes = max(growing)
    if shard.extras.draft is not None and stage.last:  # the draft's attention layers are of the same type
        growing[token_bytes] += round(drafts.cache_bytes(shard.extras.draft, shard.draft) / token_bytes)
    align = settings.state_alignment_tokens
    block = align * math.ceil(max(states) / (align * token_bytes))
    group = _layers_of_a_group([*growing.values(), *states.values()], settings.states.group_spread)
    return Pages(
        block,
        group * block * token_bytes,
        sum(math.ceil(layers / group) for layers in growing.values()),
        sum(math.ceil(layers / group) for layers in states.values()),
        states_held(shard),
    )


class Room(NamedTuple):
    """Bytes of a pool for tokens and for states, and the number of sequences that states allow (None: no limit)."""

    tokens: float
    states: float
    sequences: int | None


def room_of(shard: Shard, stage: Stage, pool: float, slots: int | None) -> Room:
    """Split a pool into tokens and states by the engine's rule; `slots` is the number of states if it is stated."""
    settings, rule = shard.settings, shard.settings.states
    one = state_bytes(shard, stage)
    if not one or rule.rule == "pages":
        paged = pages(shard, stage)
        checked = rule.checked and settings.full_decode_graph and paged is not None and pool > 0
        return Room(pool, 0.0, int(pool / paged.block_bytes) if checked and paged is not None else None)
    if rule.rule == "reserved":
        reserved = one * settings.max_num_seqs * shard.layout.pp
        return Room(pool - reserved, reserved, None)
    states = max(0.0, pool) * rule.share / (1 + rule.share)
    if slots is None:
        slots = max(0, int(states / one) - rule.spare_slots)
    else:
        states = one * (slots + rule.spare_slots)
    return Room(pool - states, states, slots // (states_held(shard) or 1))


RESIDUAL_BYTES = 2  # the hidden state kept at 16 bit while logits are sampled
EXPERT_BUFFER_BYTES = 2  # fused experts keep two 16-bit buffers per routed token, and the output
EXPANDED_BYTES = 2  # latent attention expands its latents into keys and values in 16 bit
CONVOLUTION_BYTES = 2  # values of the convolution before a recurrent state are 16 bit


def forward_bytes(shard: Shard, tokens: int) -> float:
    """Peak of the forward pass at `tokens` tokens: hidden states and MLP buffers, and the experts' workspace.

    `tokens` counts all attention-data ranks together. Expert kernels work in chunks, and in a published log of eight ranks
    (MF32 of tests/data/memory_cases.yaml) the workspace is for no more tokens than this.
    """
    model, layout, rule = shard.model, shard.layout, shard.settings.forward_activation
    rank_tokens = max(1, tokens // layout.token_ranks)
    mlps = [mlp for kind in model.kinds for mlp in kind.mlps]
    dense = (mlp.intermediate if isinstance(mlp, DenseMlp) else mlp.shared_intermediate for mlp in mlps)
    widest = max(dense, default=0)
    convolved = (held.bytes_per_drafted for held, _ in caches(shard, architecture.whole(model)))
    states = max(convolved, default=0.0) / CONVOLUTION_BYTES
    expanded = max((_expanded(kind.mixer) for kind in model.kinds if isinstance(kind.mixer, MlaAttention)), default=0)
    buffers = max(
        rule.per_intermediate_bytes * widest / layout.tp,
        rule.per_state_width_bytes * states,
        EXPANDED_BYTES * expanded / layout.tp,
    )
    hidden = rule.per_hidden_bytes * model.hidden_size
    experts = (_experts_bytes(model, mlp, layout, tokens) for mlp in mlps)
    forward = max(rank_tokens * (hidden + buffers), max(experts, default=0.0))
    return rank_tokens * rule.per_hidden_bytes * model.hidden_size * (model.streams - 1) + forward


def _expanded(mixer: MlaAttention) -> int:
    """Values per token in latent attention, over all heads: queries, expanded keys and values, whole keys, the output."""
    query = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    return mixer.q_heads * (2 * query + mixer.qk_nope_head_dim + 2 * mixer.v_head_dim)


def _experts_bytes(model: Model, mlp: DenseMlp | MoeMlp, layout: Layout, tokens: int) -> float:
    """Workspace of the fused experts: two buffers of routed tokens and the output (vLLM triton_moe.py)."""
    if isinstance(mlp, DenseMlp):
        return 0.0
    width, inner = mlp.intermediate / layout.moe_tp, mlp.latent or model.hidden_size
    routed = tokens * mlp.experts_per_token * (max(width, inner) + max(2 * width, inner))
    return EXPERT_BUFFER_BYTES * (routed + tokens * inner)


def activation_bytes(shard: Shard, stage: Stage, tokens: int) -> float:
    """Peak activation of one GPU: the larger of the forward pass and, on the last stage, logits and sampling.

    The sampling rank has logits of the whole vocabulary, so tensor parallelism does not shrink them. A pooled model has no
    logits. If the engine profiles its image encoder, the encoder's output stays allocated during both, unless the encoder
    itself takes more.
    """
    encoding, kept = _encoder_bytes(shard, tokens) if stage.first else (0.0, 0.0)
    return max(encoding, kept + _text_bytes(shard, stage, tokens))


def _encoder_bytes(shard: Shard, tokens: int) -> tuple[float, float]:
    """(peak of the image encoder, bytes of its output) in a profile run with the largest images that fit its budget."""
    profile, image = shard.settings.vision_profile, shard.model.vision
    if profile is None or image is None or image.largest_tokens is None:
        return 0.0, 0.0
    count = max(1, tokens // image.largest_tokens)
    kept = count * image.largest_tokens * shard.model.hidden_size * RESIDUAL_BYTES
    per_patch = image.hidden_size * (profile.whole_bytes + profile.split_bytes / shard.layout.tp)
    return kept + count * image.largest_patches * per_patch, kept


def _text_bytes(shard: Shard, stage: Stage, tokens: int) -> float:
    model, settings = shard.model, shard.settings
    forward = forward_bytes(shard, tokens)
    if model.pooled or not stage.last:
        return forward
    rows = min(settings.max_num_seqs, tokens)
    sampling = rows * model.vocab_size * settings.sampler_bytes_per_logit
    return max(forward, sampling + RESIDUAL_BYTES * tokens * model.hidden_size)


def workspace_bytes(shard: Shard) -> float:
    """Bytes of the attention kernels' workspace on one GPU, by the widest queries of a layer."""
    rule = shard.settings.attention_workspace
    widths = [kind.mixer.q_heads * kind.mixer.head_dim for kind in shard.model.kinds if isinstance(kind.mixer, Heads)]
    if rule is None or (rule.caches and shard.plan.kv_format not in rule.caches) or shard.model.pooled:
        return 0.0
    values = shard.settings.max_num_batched_tokens * max(widths, default=0) / shard.layout.tp
    return max(rule.mib * MIB, rule.per_query_value_bytes * values)


def why_no_exchange(shard: Shard) -> Literal["engine", "layout"] | None:
    """The reason why no memory is kept for an exchange under any all-to-all backend; None where a backend needs some."""
    more = shard.settings.reserve_more
    if shard.settings.exchange_buffers is None and not (more is not None and more.exchange_mib):
        return "engine"
    spread = shard.settings.model_copy(update={"all2all_backend": "low_latency"})
    return None if dispatches(shard.layout, spread) else "layout"


def exchange_bytes(shard: Shard) -> float:
    """Bytes of the buffers through which one GPU's tokens reach experts on other GPUs; 0 if all tokens are gathered.

    With low latency, every expert has space for the messages of each token of a rank.
    """
    rule, settings, model = shard.settings.exchange_buffers, shard.settings, shard.model
    if rule is None or not architecture.is_moe(model) or not dispatches(shard.layout, settings):
        return 0.0
    if settings.all2all_backend == "high_throughput":
        return rule.high_throughput_mib * MIB
    experts = max(mlp.slots for kind in model.kinds for mlp in kind.mlps if isinstance(mlp, MoeMlp))
    sent = rule.message.copies * experts * rule.low_latency_tokens * rule.message.bytes_of(model.hidden_size)
    return rule.low_latency_mib * MIB + sent
