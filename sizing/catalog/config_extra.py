"""Parameters beside the text layers.

Vision towers, learned positions, per-layer embeddings, sparse-attention indexers.

All are held in memory and none is multiplied for every text token, so they are counted, not modelled.
"""

from __future__ import annotations

from sizing.catalog.config_attention import HIDDEN, MAX_POSITION
from sizing.catalog.config_fields import Fields
from sizing.catalog.config_mlp import is_gated

VISION_HIDDEN = ("hidden_size", "vt_hidden_size", "embed_dim")
VISION_LAYERS = ("num_hidden_layers", "depth", "vt_num_hidden_layers")
VISION_WIDTH = ("intermediate_size", "vt_intermediate_size")
VISION_OUTPUT = ("out_hidden_size", "text_hidden_size", "projection_dim")
VISION_ACTIVATION = ("hidden_act", "hidden_activation")
COLOURS = 3
PLAIN_MATRICES, GATED_MATRICES = 2, 3
PER_LAYER_PROJECTIONS = 3  # one from the input embedding, a gate and a way back in each layer
ATTENTION_MATRICES = 4  # query, key, value and output, each hidden x hidden


def other_parameters(fields: Fields, layers: int) -> int:
    """Return how many parameters lie outside the text layers, embedding, head and vision tower.

    Notes say what is estimated.
    """
    return _learned_positions(fields) + _per_layer_embeddings(fields, layers) + _block_indexers(fields)


def vision_parameters(fields: Fields) -> int:
    """Estimate a vision transformer from its config.

    Patches, blocks, and the merger's two matrices where stated.
    """
    vision = fields.section("vision_config")
    if vision is None:
        return 0
    hidden = vision.optional_integer(*VISION_HIDDEN, least=1)
    depth = vision.optional_integer(*VISION_LAYERS, least=1)
    width = vision.optional_integer(*VISION_WIDTH, least=1)
    patch = vision.optional_integer("patch_size", least=1)
    if hidden is None or depth is None or width is None or patch is None:
        fields.note("vision tower not counted: vision_config lacks its hidden size, layers, MLP width or patch size")
        return 0
    frames = vision.optional_integer("temporal_patch_size", least=1) or 1
    gated = vision.stated(*VISION_ACTIVATION) is not None and is_gated(vision)
    mlp_matrices = GATED_MATRICES if gated else PLAIN_MATRICES
    blocks = depth * (ATTENTION_MATRICES * hidden * hidden + mlp_matrices * hidden * width)
    positions = vision.optional_integer("num_position_embeddings") or 0
    embeddings = patch * patch * COLOURS * frames * hidden + positions * hidden
    fields.note("vision tower's parameters estimated from vision_config; it has no work in a step of text alone")
    return blocks + embeddings + _merger(vision, hidden)


def _merger(vision: Fields, hidden: int) -> int:
    """Return the two matrices that join patches, once for the output and once for each layer also tapped."""
    merge = vision.optional_integer("spatial_merge_size", least=1)
    output = vision.optional_integer(*VISION_OUTPUT, least=1)
    if merge is None or output is None:
        return 0
    mergers = 1 + len(vision.sequence("deepstack_visual_indexes") or ())
    merged = merge * merge * hidden
    return mergers * (merged * merged + merged * output)


def _learned_positions(fields: Fields) -> int:
    """Return a learned position table.

    MPT without ALiBi, and families with a word-embedding width of their own.
    """
    learned = fields.flag("learned_pos_emb") and not fields.flag("alibi")
    if not (learned or fields.stated("word_embed_proj_dim")):
        return 0
    return fields.integer(*MAX_POSITION) * fields.integer(*HIDDEN)


def _per_layer_embeddings(fields: Fields, layers: int) -> int:
    """Return Gemma 3n's and 4's embeddings of every layer, with the projections around them."""
    width = fields.optional_integer("hidden_size_per_layer_input") or 0
    if not width:
        return 0
    hidden = fields.integer(*HIDDEN)
    vocabulary = fields.integer("vocab_size_per_layer_input", "vocab_size")
    fields.note("per-layer embeddings counted as resident parameters outside the layers")
    return layers * (vocabulary + PER_LAYER_PROJECTIONS * hidden) * width


def _block_indexers(fields: Fields) -> int:
    """Return the indexers of block-sparse grouped attention, whose layers are modelled as full attention."""
    sparse = fields.section("sparse_attention_config")
    if sparse is None or not sparse.flag("use_sparse_attention"):
        return 0
    layers = sum(1 for used in sparse.sequence("sparse_attention_freq") or () if used)
    width = sparse.integer("sparse_index_dim") * (sparse.integer("sparse_num_index_heads") + 1)
    fields.note("block-sparse attention modelled as full attention: long contexts come out too slow")
    return layers * width * fields.integer(*HIDDEN)
