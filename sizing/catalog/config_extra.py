"""Parameters beside the text layers.

Learned positions, per-layer embeddings, sparse-attention indexers.

All are held in memory and none is multiplied for every text token, so they are counted, not modelled.
"""

from __future__ import annotations

from sizing.catalog.config_attention import HIDDEN, MAX_POSITION
from sizing.catalog.config_fields import Fields

PER_LAYER_PROJECTIONS = 3  # one from the input embedding, a gate and a way back in each layer


def other_parameters(fields: Fields, layers: int) -> int:
    """Return how many parameters lie outside the text layers, embedding, head and vision tower.

    Notes say what is estimated.
    """
    return _learned_positions(fields) + _per_layer_embeddings(fields, layers) + _block_indexers(fields)


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
