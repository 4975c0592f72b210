"""A published config.json, read by field into a model: never by class name, model type or model name.

Fields that a family leaves to its code are inferred from others that only such families write; each inference
is documented where it is made and, where it could matter, stated in the model's notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sizing.catalog.config_attention import HIDDEN, MAX_POSITION, read_mixer
from sizing.catalog.config_blocks import read_blocks
from sizing.catalog.config_extra import other_parameters
from sizing.catalog.config_fields import Fields, shown
from sizing.catalog.config_layers import Slot, read_layout
from sizing.catalog.config_mlp import read_mlp
from sizing.catalog.config_mtp import read_mtp
from sizing.catalog.config_quantisation import excluded_modules, read_quantisation
from sizing.catalog.config_spelling import report_misspelt
from sizing.catalog.config_vision import read_vision
from sizing.errors import Fault, InputError
from sizing.specs.model import LayerKind, Model

DTYPES: dict[str, Literal["fp32", "fp16", "bf16"]] = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
}
DTYPE_PREFIX = "torch."
# Fields of architectures that the layer kinds can't express, with why.
INEXPRESSIBLE = {
    "compress_ratios": "attention over a compressed cache is not modelled",
    "mamba_dt_rank": "the first Mamba generation is not modelled",
    "cross_attention_layers": "cross attention to images is not modelled",
}
# Keys that only families with tied embeddings write; the others untie unless the config says otherwise.
TIED_FAMILIES = (
    "query_pre_attn_scalar",
    "final_logit_softcapping",
    "logit_scale",
    "expansion_ratio",
    "new_decoder_architecture",
    "multi_query",
    "word_embed_proj_dim",
    "apply_residual_connection_post_layernorm",
)


def read_model(
    config: Mapping[str, Any],
    *,
    name: str,
    source: str,
    where: str | None = None,
    hf_quant_config: Mapping[str, Any] | None = None,
    checkpoint_bytes: int | None = None,
) -> Model:
    """Return the model that a config.json states.

    `where` is the file that faults name; `hf_quant_config` is ModelOpt's file of that name, where a
    checkpoint has one; `checkpoint_bytes` the exact size of the weights in bytes, where an index gives it.
    Raises InputError with one fault for each field that is missing or wrong, or whose meaning can't be
    expressed.
    """
    if not isinstance(config, Mapping):
        raise InputError(Fault("not a mapping of fields", file=where))
    fields = Fields(config, where)
    for key, reason in INEXPRESSIBLE.items():
        if fields.stated(key):
            fields.fault(key, reason)
    layers = _layers(fields)
    if not layers and not fields.faults:
        fields.fault("num_hidden_layers", "no layers")
    activation = _activation_precision(fields)
    kinds = tuple(dict.fromkeys(layers))
    tower = read_vision(fields)
    model = Model(
        name=name,
        kinds=kinds,
        layers=tuple(kinds.index(layer) for layer in layers),
        hidden_size=fields.integer(*HIDDEN),
        vocab_size=fields.integer("vocab_size", "padded_vocab_size", "n_vocab"),
        tied_embeddings=_tied(fields),
        max_position=fields.integer(*MAX_POSITION),
        activation_precision=activation,
        quantisation=read_quantisation(fields, layers, activation, hf_quant_config),
        parallel_blocks=_parallel(fields),
        extra_parameters=tower.parameters + other_parameters(fields, len(layers)),
        vision_parameters=tower.parameters,
        vision=tower.vision,
        mtp=read_mtp(
            fields,
            layers,
            lambda slot: _layer(fields, slot, len(layers) - 1, len(layers)),
            excluded_modules(fields, hf_quant_config),
        ),
        checkpoint_bytes=checkpoint_bytes,
        source=source,
        notes=tuple(fields.notes),
    )
    report_misspelt(fields)
    if fields.faults:
        raise InputError(fields.faults)
    return model


def _layers(fields: Fields) -> tuple[LayerKind, ...]:
    """Return every layer, first to last."""
    if fields.stated("block_configs"):
        return read_blocks(fields)
    slots = read_layout(fields)
    return tuple(_layer(fields, slot, index, len(slots)) for index, slot in enumerate(slots))


def _layer(fields: Fields, slot: Slot, index: int, layers: int) -> LayerKind:
    mixer = None if slot.mixer is None else read_mixer(fields, slot.mixer, index, layers)
    reuses = bool(getattr(mixer, "reuses_cache", False))
    return LayerKind(mixer, tuple(read_mlp(fields, mlp, reuses_cache=reuses) for mlp in slot.mlps))


def _activation_precision(fields: Fields) -> Literal["fp32", "fp16", "bf16"]:
    stated = fields.text("torch_dtype", "dtype")
    if stated is None:
        fields.note("torch_dtype absent: bf16 taken for activations and unquantised weights")
        return "bf16"
    dtype = stated.removeprefix(DTYPE_PREFIX)
    if dtype not in DTYPES:
        fields.fault("torch_dtype", f"unknown type {shown(stated)}", ", ".join(DTYPES))
    return DTYPES.get(dtype, "bf16")


def _tied(fields: Fields) -> bool:
    """Return whether input embedding and output head share their weights.

    Inferred where the config is silent.
    """
    stated = fields.flag("tie_word_embeddings")
    if stated is not None:
        return stated
    evidence = fields.stated(*TIED_FAMILIES) or next((key for key in TIED_FAMILIES[:2] if fields.has(key)), None)
    if evidence:
        fields.note(f"tie_word_embeddings absent: tied, as in families that write {evidence}")
        return True
    fields.note("tie_word_embeddings absent: untied")
    return False


def _parallel(fields: Fields) -> bool:
    """Return whether attention and MLP read the same input and share one norm and one reduction.

    A flag says so, or fields that only such families write: a logit scale (Cohere), or rotary width beside
    GPT-2's names (GPT-J).
    """
    stated = fields.flag("parallel_attn", "use_parallel_residual", "parallel_residual")
    if stated is not None:
        return stated
    if fields.flag("new_decoder_architecture"):
        return True
    cohere, gpt_j = fields.stated("logit_scale"), fields.stated("rotary_dim") and fields.stated("n_embd")
    if cohere or gpt_j:
        fields.note(f"parallel_attn absent: attention and MLP in parallel, as in families that write {cohere or gpt_j}")
    return bool(cohere or gpt_j)
