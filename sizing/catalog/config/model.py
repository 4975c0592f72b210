"""Reads a published config.json into a model by its fields, never by class name, model type or model name.

Fields that a family leaves to its code are inferred from other fields that only such families write. Each inference is documented
where it is made. If it could matter, the model's notes state it.

This file also reads layers from an architecture search (`block_configs`), vision towers with the field that says how an image
becomes tokens, and parameters outside the text layers (learned positions, per-layer embeddings, indexers of sparse attention).
These parameters are counted but not modelled, because no text token is multiplied by them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from sizing.catalog.config.blocks import head_dim_of, is_gated, read_mixer, read_mlp, read_mtp
from sizing.catalog.config.fields import (
    UNKNOWN_TYPE,
    WRAPPERS,
    Fields,
    completed,
    is_known,
    left_to_defaults,
    report_contradictory,
    report_misspelt,
    report_unread,
    shown,
    spelled,
)
from sizing.catalog.config.layers import ENCODER, Slot, layer_count, read_layout, rotary_values, unstretched
from sizing.catalog.config.quantisation import excluded_modules, read_quantisation
from sizing.specs.errors import InputError, raise_any
from sizing.specs.model import Attention, DenseMlp, GqaAttention, LayerKind, Model, Vision

# The published model code rounds two thirds of mult x hidden up to a multiple of 256 (modeling_decilm.py).
GATED_SHARE_NUMERATOR, GATED_SHARE_DENOMINATOR = 2, 3
WIDTH_MULTIPLE = 256
MOST_MULTIPLE = 1_000  # of the hidden size: published MLPs are at most 5.25 times as wide
LINEAR_KEY = "replace_with_linear"


def read_blocks(fields: Fields) -> tuple[LayerKind, ...]:
    """Every layer of `block_configs`, first to last."""
    listed = fields.sequence("block_configs") or ()
    count = layer_count(fields)
    if len(listed) != count:
        fields.fault("block_configs", f"{len(listed)} blocks do not agree with {count} layers")
    return tuple(_block(fields, block, index) for index, block in enumerate(listed))


def _block(fields: Fields, block: object, index: int) -> LayerKind:
    place = f"block_configs[{index}]"
    wrapped = fields.inner(place, block).section(place)
    attention = wrapped.section("attention") if wrapped else None
    ffn = wrapped.section("ffn") if wrapped else None
    if attention is None or ffn is None:
        fields.fault(place, "missing its sections", "attention and ffn")
        return LayerKind(None, ())
    for section in (attention, ffn):
        if section.flag(LINEAR_KEY):
            section.fault(LINEAR_KEY, "a linear layer in place of a block can't be expressed", "false")
    return LayerKind(_attention(fields, attention), _mlps(fields, ffn))


def _attention(fields: Fields, block: Fields) -> Attention | None:
    if block.flag("no_op"):
        return None
    q_heads = fields.integer("Q_HEADS")
    group = block.integer("n_heads_in_group")
    if q_heads % group:
        block.fault("n_heads_in_group", f"{group} does not divide the {q_heads} attention heads")
    head_dim = head_dim_of(fields, q_heads)
    return GqaAttention(q_heads=q_heads, kv_heads=max(1, q_heads // group), head_dim=head_dim)


def _mlps(fields: Fields, block: Fields) -> tuple[DenseMlp, ...]:
    if block.flag("no_op"):
        return ()
    multiple = block.value("ffn_mult")
    if isinstance(multiple, bool) or not isinstance(multiple, int | float) or not 0 < multiple <= MOST_MULTIPLE:
        block.fault("ffn_mult", f"{shown(multiple)} is not a factor", f"a number above zero, at most {MOST_MULTIPLE:,}")
        return ()
    width = int(GATED_SHARE_NUMERATOR * multiple * fields.integer("HIDDEN") / GATED_SHARE_DENOMINATOR)
    return (DenseMlp(intermediate=-(-width // WIDTH_MULTIPLE) * WIDTH_MULTIPLE, gated=is_gated(fields)),)


BLOCK_SPARSE = "block-sparse attention modelled as full attention: long contexts come out too slow"
ABSOLUTE = "absolute"
PER_LAYER_PROJECTIONS = 3  # one from the input embedding; a gate and an output projection in each layer


def other_parameters(fields: Fields, layers: int) -> int:
    """The number of parameters outside the text layers, embedding, head and vision tower. Notes state estimates."""
    found = _learned_positions(fields) + _per_layer_embeddings(fields, layers) + _block_indexers(fields)
    found += _alternating_updates(fields, layers)
    return found + _hyper_connections(fields, layers) + _hashed_routing(fields) + _sound_tower(fields)


def _alternating_updates(fields: Fields, layers: int) -> int:
    """Parameters of Gemma 3n's additional streams (a matrix each to join and to split) and low-rank residuals."""
    hidden, streams = fields.integer("HIDDEN"), fields.optional_integer("altup_num_inputs") or 1
    return 2 * (streams - 1) * hidden * hidden + layers * 2 * (fields.optional_integer("laurel_rank") or 0) * hidden


def _hyper_connections(fields: Fields, layers: int) -> int:
    """Parameters of DeepSeek-V4's hidden-state streams: two mixings of all streams in each layer, and one at the head."""
    streams = fields.optional_integer("hc_mult") or 0
    width = streams * fields.integer("HIDDEN")
    return layers * 2 * (2 + streams) * streams * width + streams * width


def _hashed_routing(fields: Fields) -> int:
    """The table that maps each vocabulary entry to its experts, in layers that route by token."""
    layers = fields.optional_integer("num_hash_layers") or 0
    return layers * fields.integer("VOCABULARY") * (fields.optional_integer("EXPERTS_PER_TOKEN") or 0) if layers else 0


def _is_absolute(fields: Fields) -> bool:
    """Whether an encoder has a table of learned positions."""
    return bool(fields.stated(ENCODER)) and (fields.text("position_embedding_type") or ABSOLUTE) == ABSOLUTE


def _longest(fields: Fields) -> int:
    """The most tokens of a sequence. As in RoBERTa, the first token's position follows that of the padding token.

    Source: vLLM 0.33.0, model_executor/models/roberta.py (position_ids + padding_idx + 1).
    """
    positions = fields.integer("MAX_POSITION")
    if not _is_absolute(fields) or not fields.stated(PADDING):
        return positions
    padding = fields.optional_integer("pad_token_id", PADDING) or 0
    return max(1, positions - padding - 1)


def _learned_positions(fields: Fields) -> int:
    """Parameters of a learned position table: MPT without ALiBi, and families with a separate word-embedding width."""
    learned = fields.flag("learned_pos_emb") and not fields.flag("alibi")
    types = fields.optional_integer("type_vocab_size") or 0
    if types and not fields.stated(ENCODER):
        what = "is an encoder's, and this model_type is not known as one"
        fields.fault("type_vocab_size", what, "model_type: bert, or its like")
    learned = learned or _is_absolute(fields)
    width = fields.optional_integer("word_embed_proj_dim", least=1)
    if width is not None and width != fields.integer("HIDDEN"):
        what = f"{width} is not the hidden size: projections between them are not modelled"
        fields.fault("word_embed_proj_dim", what)
    rows = fields.integer("MAX_POSITION") if learned or fields.stated("word_embed_proj_dim") else 0
    return (rows + types) * fields.integer("HIDDEN")


def _per_layer_embeddings(fields: Fields, layers: int) -> int:
    """Parameters of the per-layer embeddings of Gemma 3n and 4, with their projections."""
    width = fields.optional_integer("hidden_size_per_layer_input") or 0
    if not width:
        return 0
    hidden = fields.integer("HIDDEN")
    vocabulary = fields.integer("vocab_size_per_layer_input", "vocab_size")
    fields.note("per-layer embeddings counted as resident parameters outside the layers")
    return layers * (vocabulary + PER_LAYER_PROJECTIONS * hidden) * width


def _block_indexers(fields: Fields) -> int:
    """Parameters of the indexers of block-sparse grouped attention. Its layers are modelled as full attention."""
    types = fields.sequence("layer_types") or ()
    listed = sum(1 for kind in types if kind == "indexed_attention")
    if listed and not fields.stated("kv_lora_rank"):
        fields.note(BLOCK_SPARSE)
        width = fields.integer("index_head_dim") * (fields.integer("index_n_heads") + 1)
        return listed * width * fields.integer("HIDDEN")
    sparse = fields.section("sparse_attention_config")
    if sparse is None or not sparse.flag("use_sparse_attention"):
        return 0
    layers = sum(1 for used in sparse.sequence("sparse_attention_freq") or () if used)
    width = sparse.integer("sparse_index_dim") * (sparse.integer("sparse_num_index_heads") + 1)
    fields.note(BLOCK_SPARSE)
    return layers * width * fields.integer("HIDDEN")


SECTION, SOUND = "vision_config", "audio_config"
# A fact of a family: the frames of a video that an engine profiles (vLLM 0.24.0, qwen2_vl.py: _MAX_FRAMES_PER_VIDEO).
PROFILED_FRAMES = "profiled_frames"
# A fact of a family: the number of the padding token. Positions begin after it (RoBERTa and similar).
PADDING = "padding_token"
COLOURS = 3
PLAIN_MATRICES, GATED_MATRICES = 2, 3
ATTENTION_MATRICES = 4  # query, key, value and output, each hidden x hidden


class Tower(NamedTuple):
    """A vision tower with its estimated parameters."""

    vision: Vision | None = None
    parameters: int = 0


HALF_FFNS, CONFORMER_ATTENTION, LIGHT_CONV = 16, 5, 3  # matrices of a conformer block, each hidden x hidden


def _sound_tower(fields: Fields) -> int:
    """The parameters of a sound tower: a conformer (Gemma) or Whisper's encoder. 0 without one; another kind is a fault."""
    sound = fields.section(SOUND)
    if sound is None:
        return 0
    hidden = sound.optional_integer("d_model", "hidden_size", least=1)
    layers = sound.optional_integer("encoder_layers", "conf_num_hidden_layers", "num_hidden_layers", least=1)
    width = sound.optional_integer("encoder_ffn_dim", least=1)
    conformer = sound.stated("conf_num_hidden_layers", "conf_conv_kernel_size", "conv_kernel_size")
    if hidden is None or layers is None or not (width or conformer):
        fields.fault(SOUND, "a sound tower of this kind is not counted", "a config without it, for text alone")
        return 0
    fields.note("sound tower's parameters estimated from audio_config; it has no work in a step of text alone")
    if width:
        return layers * (ATTENTION_MATRICES * hidden * hidden + PLAIN_MATRICES * hidden * width)
    return layers * (HALF_FFNS + CONFORMER_ATTENTION + LIGHT_CONV) * hidden * hidden


def read_vision(fields: Fields) -> Tower:
    """The vision transformer of a config; an empty tower if there is none or it lacks sizes.

    Parameters are those of patches, blocks, and the merger's two matrices if stated.
    """
    vision, profiled = fields.section(SECTION), fields.optional_integer(PROFILED_FRAMES)
    if vision is None:
        if fields.stated(*WRAPPERS) and fields.section(SOUND) is None:
            fields.note("no tower for images or sound is stated; one that the checkpoint has comes on top")
        return Tower()
    hidden = vision.optional_integer("VISION_HIDDEN", least=1)
    depth = vision.optional_integer("VISION_LAYERS", least=1)
    depth = depth and depth + (vision.optional_integer("num_global_layers") or 0)
    swapped = vision.text("blocks_width")  # GLM: blocks have the output's width, the merger has the stated width
    width = vision.optional_integer(swapped or "VISION_WIDTH", least=1)
    embedded, ratio = vision.optional_integer("embed_dim", least=1), vision.value("mlp_ratio")
    if embedded and isinstance(ratio, int | float):  # Qwen2-VL: here `hidden_size` is the output's
        hidden, width = embedded, round(ratio * embedded)
    patch = vision.optional_integer("patch_size", least=1)
    stated = vision.optional_integer("tower_parameters")
    if stated:
        fields.note("vision tower's parameters are those of its model type; it has no work in a step of text alone")
        return Tower(parameters=stated)
    if hidden is None or depth is None or width is None or patch is None:
        fields.note("vision tower not counted: vision_config lacks its hidden size, layers, MLP width or patch size")
        return Tower()
    frames = vision.optional_integer("temporal_patch_size", least=1) or 1
    gated = vision.stated("VISION_ACTIVATION") is not None and is_gated(vision)
    mlp_matrices = GATED_MATRICES if gated else PLAIN_MATRICES
    blocks = depth * (ATTENTION_MATRICES * hidden * hidden + mlp_matrices * hidden * width)
    positions = vision.optional_integer("num_position_embeddings") or 0
    embeddings = patch * patch * COLOURS * frames * hidden + positions * hidden
    fields.note("vision tower's parameters estimated from vision_config; it has no work in a step of text alone")
    rule = _rule(fields, vision)
    image = vision.optional_integer("image_size", least=1)
    tower = Vision(hidden, depth, patch, *rule, image_pixels=image, video_patches=(profiled or frames) // frames)
    return Tower(tower, blocks + embeddings + _merger(vision, hidden))


def _rule(fields: Fields, vision: Fields) -> tuple[str | None, int, int | None]:
    """The field that determines image tokens, the patches along a side of a token, and the fixed number of tokens."""
    for key in ("mm_tokens_per_image", "vision_soft_tokens_per_image"):
        tokens = fields.optional_integer(key, least=1)
        if tokens is not None:
            return key, vision.optional_integer("pooling_kernel_size", least=1) or 1, tokens
    if vision.stated("pixel_shuffle_ratio"):
        return f"{SECTION}.pixel_shuffle_ratio", _of_ratio(vision, vision.value("pixel_shuffle_ratio")), None
    kernel = vision.sequence("merge_kernel_size")
    if kernel:
        side = fields.inner("merge_kernel_size", kernel[0]).integer("merge_kernel_size")
        return f"{SECTION}.merge_kernel_size", side, None
    for holder, prefix in ((vision, f"{SECTION}."), (fields, "")):
        merge = holder.optional_integer("spatial_merge_size", least=1)
        if merge is not None:
            return f"{prefix}spatial_merge_size", merge, None
    return None, 1, None


def _of_ratio(vision: Fields, ratio: Any) -> int:
    """The patches along a side of a token: 1 over the ratio."""
    side = 1 / ratio if isinstance(ratio, int | float) and not isinstance(ratio, bool) and 0 < ratio <= 1 else 0.0
    if side != round(side) or not side:
        vision.fault("pixel_shuffle_ratio", f"{shown(ratio)} is no ratio", "1 over a whole number, as 0.5")
        return 1
    return round(side)


def _merger(vision: Fields, hidden: int) -> int:
    """Parameters of the two matrices that join patches, once for the output and once for each deepstack layer."""
    merge = vision.optional_integer("spatial_merge_size", least=1)
    embedded = vision.stated("embed_dim") and vision.stated("mlp_ratio")
    output = vision.optional_integer("hidden_size" if embedded else "VISION_OUTPUT", least=1)
    if merge is None or output is None:
        return 0
    if vision.stated("blocks_width"):
        width = vision.integer("VISION_WIDTH")
        return (GATED_MATRICES * width + output + merge * merge * hidden) * output
    mergers = 1 + len(vision.sequence("deepstack_visual_indexes") or ())
    merged = merge * merge * hidden
    return mergers * (merged * merged + merged * output)


DTYPES: dict[str, Literal["fp32", "fp16", "bf16"]] = {
    "float32": "fp16",  # engines serve 32-bit checkpoints in 16 bit unless told otherwise
    "float16": "fp16",
    "bfloat16": "bf16",
}
DTYPE_PREFIX, WIDE = "torch.", "float32"
# Fields of architectures that the layer kinds can't express, with the reason.
INEXPRESSIBLE = {
    "mamba_dt_rank": "the first Mamba generation is not modelled",
    "logit_scale_init_value": "encoders of images and of text side by side are not modelled",
}


def read_model(
    config: Mapping[str, Any],
    *,
    name: str,
    source: str,
    where: str | None = None,
    hf_quant_config: Mapping[str, Any] | None = None,
) -> Model:
    """The model of a config.json.

    `where` is the file that faults name. `hf_quant_config` is the content of ModelOpt's file with that name, if there is one.
    Raises InputError with one fault for each field that is missing, wrong, or can't be expressed.
    """
    if not isinstance(config, Mapping):
        raise InputError("not a mapping of fields", file=where)
    given, config = config, completed(config, where)
    fields = Fields(config, where)
    if config.get("is_encoder_decoder") is True:  # its other fields have other meanings than a decoder's
        raise InputError("an encoder beside a decoder is not modelled", file=where, field="is_encoder_decoder")
    for key, reason in INEXPRESSIBLE.items():
        if fields.stated(key):
            fields.fault(key, reason)
    layers = _layers(fields)
    if not layers and not fields.faults:
        fields.fault("num_hidden_layers", "no layers")
    activation = _activation_precision(fields)
    kinds = tuple(dict.fromkeys(layers))
    tower, read_last = read_vision(fields), lambda slot: _layer(fields, slot, len(layers) - 1, len(layers))
    model = Model(
        name=name,
        kinds=kinds,
        layers=tuple(kinds.index(layer) for layer in layers),
        hidden_size=fields.integer("HIDDEN"),
        vocab_size=fields.integer("VOCABULARY"),
        tied_embeddings=_tied(fields, given),
        max_position=_longest(fields),
        rotary_values=rotary_values(fields, kinds),
        unstretched=unstretched(fields),
        activation_precision=activation,
        quantisation=read_quantisation(fields, layers, activation, hf_quant_config),
        parallel_blocks=_parallel(fields),
        extra_parameters=tower.parameters + other_parameters(fields, len(layers)),
        vision_parameters=tower.parameters,
        streams=fields.optional_integer("hc_mult", least=1) or 1,
        norms_after=bool(fields.flag("norms_after")),
        layer_inputs=fields.optional_integer("hidden_size_per_layer_input") or 0,
        vision=tower.vision,
        mtp=read_mtp(fields, layers, read_last, excluded_modules(fields, hf_quant_config)),
        pooled=bool(fields.flag(ENCODER)),
        encoder=bool(fields.flag(ENCODER)),
        source=source,
        notes=(*fields.notes, *_taken(given, fields)),
    )
    report_misspelt(fields)
    report_unread(fields)
    report_contradictory(fields)
    raise_any(fields.faults)
    return model


def _taken(given: Mapping[str, Any], fields: Fields) -> Iterator[str]:
    """Yield notes on the sizes for which a wrapped config uses the defaults of its model type."""
    taken = [
        f"{key} {value:,}"
        for key in sorted(fields.asked & left_to_defaults(given))
        if isinstance(value := fields.value(key), int) and not isinstance(value, bool)
    ]
    if taken:
        yield f"absent, and taken from the defaults of the model type: {', '.join(taken)}"


def _layers(fields: Fields) -> tuple[LayerKind, ...]:
    if fields.stated("block_configs"):
        return read_blocks(fields)
    slots = read_layout(fields)
    heads = fields.value("Q_HEADS")
    if isinstance(heads, list | tuple) and len(set(map(str, heads))) > 1 and not fields.stated("HEAD_DIM"):
        fields.fault("head_dim", "missing, and layers have unequal numbers of heads", "the width of a head")
    return tuple(_layer(fields, slot, index, len(slots)) for index, slot in enumerate(slots))


def _layer(fields: Fields, slot: Slot, index: int, layers: int) -> LayerKind:
    fields = fields.of_layer(index, layers)
    mixer = None if slot.mixer is None else read_mixer(fields, slot.mixer, index, layers)
    reuses = bool(getattr(mixer, "reuses_cache", False))
    return LayerKind(mixer, tuple(read_mlp(fields, mlp, reuses_cache=reuses) for mlp in slot.mlps))


def _activation_precision(fields: Fields) -> Literal["fp32", "fp16", "bf16"]:
    stated = fields.text("DTYPE")
    if stated is None:
        fields.note("torch_dtype absent: bf16 taken for activations and unquantised weights")
        return "bf16"
    dtype = stated.removeprefix(DTYPE_PREFIX)
    if dtype not in DTYPES:
        fields.fault("torch_dtype", f"unknown type {shown(stated)}", ", ".join(DTYPES))
    if dtype == WIDE:
        fields.note("the files hold 32-bit values; engines serve them in 16 bit unless told otherwise")
    return DTYPES.get(dtype, "bf16")


def _tied(fields: Fields, given: Mapping[str, Any]) -> bool:
    """Whether input embedding and output head share their weights. Inferred if the `given` config does not state it.

    A wrapper and its language model may both state it. If they differ, libraries do not agree on which one holds.
    """
    inner = [given[key] for key in WRAPPERS if isinstance(given.get(key), Mapping)]
    said = {value for one in (given, *inner) if isinstance(value := one.get("tie_word_embeddings"), bool)}
    if len(said) > 1:
        what = "true and false, in the wrapper and in its language model"
        fields.fault("tie_word_embeddings", what, "the same in both")
    others = [fields.flag(key) for key in spelled("TIED")]
    stated = fields.flag("tie_word_embeddings")
    if stated is not None or any(others):
        return bool(stated) or any(others)
    written = (key for key in spelled("TIED_FAMILIES")[:2] if fields.has(key))
    if evidence := fields.stated("TIED_FAMILIES") or next(written, None):
        fields.note(f"tie_word_embeddings absent: tied, as in families that write {evidence}")
        return True
    if not is_known(fields):
        fields.fault("tie_word_embeddings", UNKNOWN_TYPE, "true or false")
    fields.note("tie_word_embeddings absent: untied")
    return False


def _parallel(fields: Fields) -> bool:
    """Whether attention and MLP read the same input and share one norm and one reduction.

    A flag states it, or a field that only such families write: a logit scale (Cohere), or a rotary width together with GPT-2's
    names (GPT-J).
    """
    stated = fields.flag("PARALLEL")
    if stated is not None:
        return stated
    if fields.flag("new_decoder_architecture"):
        return True
    cohere, gpt_j = fields.stated("logit_scale"), fields.stated("rotary_dim") and fields.stated("n_embd")
    if cohere or gpt_j:
        fields.note(f"parallel_attn absent: attention and MLP in parallel, as in families that write {cohere or gpt_j}")
    return bool(cohere or gpt_j)
