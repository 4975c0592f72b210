"""Typed reading of a published config.json: the synonyms of every field, wrappers, misspelt keys.

Families name the same size differently (`hidden_size`, `n_embd`, `d_model`), nest the language model in a
wrapper, or keep attention and MLP fields in sections of their own. `Fields` hides that and collects faults
instead of raising at the first, so that a user sees all of them at once. A null value counts as absent.

Configs hold dozens of keys that are no concern of sizing, so an unknown key alone is no mistake. One that
resembles a size that is then missing, or left to its default, is: the model would silently be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from difflib import get_close_matches
from reprlib import Repr
from typing import Any

from sizing.specs.errors import Fault

# Sections that hold the language model inside a multimodal config, and those that hold fields of one block.
WRAPPERS = ("thinker_config", "text_config", "llm_config", "language_config", "language_model_config")
SECTIONS = ("attn_config", "ffn_config")
# No model comes near this; larger values are typing errors and would only overflow later.
LARGEST = 2**40
SMALLEST_STAND_IN = 1


def _keys(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# One line a field: the key that most configs have, then what other families call the same.
LAYERS = _keys("num_hidden_layers n_layer n_layers num_layers")
HIDDEN = _keys("hidden_size n_embd d_model n_embed")
VOCABULARY = _keys("vocab_size padded_vocab_size n_vocab")
MAX_POSITION = _keys(
    "max_position_embeddings n_positions max_seq_len seq_length max_sequence_length model_max_length n_ctx"
)
DTYPE = _keys("torch_dtype dtype")
# compressed attention (DeepSeek-V4)
COMPRESSED = _keys(
    "compress_ratios compress_rates o_groups o_lora_rank hc_mult index_topk index_n_heads index_head_dim"
)
TIED = _keys("tie_embedding share_embedding share_input_output_layers")  # other words for tie_word_embeddings
PARALLEL = _keys("parallel_attn use_parallel_residual parallel_residual")
# attention
LINEAR = _keys(
    "linear_conv_kernel_dim linear_num_heads linear_head_dim linear_attn_alpha_factor full_attn_alpha_factor"
)
Q_HEADS = _keys("num_attention_heads n_head n_heads num_heads")
KV_HEADS = _keys("num_key_value_heads n_head_kv num_kv_heads multi_query_group_num kv_n_heads num_attention_groups")
HEAD_DIM = _keys("head_dim attention_head_dim kv_channels")
WINDOW = _keys("sliding_window sliding_window_size")
WINDOW_PERIOD = _keys("sliding_window_pattern _sliding_window_pattern global_attn_every_n_layers")
BIAS = _keys("attention_bias qkv_bias add_qkv_bias enable_bias")
OUTPUT_GATE = _keys("attn_output_gate attention_output_gate")
# state-space layers
SSM_HEADS = _keys("mamba_num_heads mamba_n_heads")
SSM_HEAD_DIM = _keys("mamba_head_dim mamba_d_head")
SSM_GROUPS = _keys("n_groups mamba_n_groups")
SSM_STATE = _keys("ssm_state_size mamba_d_state")
SSM_CONV = _keys("conv_kernel mamba_d_conv")
STATE_DTYPE = _keys("mamba_ssm_cache_dtype mamba_ssm_dtype")
# MLPs
ACTIVATION = _keys("hidden_act mlp_hidden_act activation_function activation ffn_act_fn")
DENSE_WIDTH = _keys(
    "intermediate_size_mlp dense_intermediate_size intermediate_size ffn_hidden_size n_inner ffn_dim block_ff_dim"
)
ADJUSTED_WIDTH = _keys("block_auto_adjust_ff_dim block_ffn_dim_multiplier block_multiple_of")
MLP_BIAS = _keys("mlp_bias enable_bias")
EXPERTS = _keys("num_experts n_routed_experts num_local_experts moe_num_experts")
EXPERT_WIDTH = _keys(
    "moe_intermediate_size expert_intermediate_size moe_ffn_hidden_size intermediate_size ffn_hidden_size"
)
EXPERT_LATENT = _keys("moe_latent_size routed_expert_hidden_size")
EXPERTS_PER_TOKEN = _keys(
    "num_experts_per_tok num_experts_per_token experts_per_token top_k_experts moe_topk moe_top_k moe_k"
)
SHARED_WIDTH = _keys(
    "shared_expert_intermediate_size moe_shared_expert_intermediate_size shared_intermediate_size share_expert_dim"
)
SHARED_EXPERTS = _keys("n_shared_experts num_shared_experts moe_num_shared_experts num_shared_expert")
FIRST_DENSE = _keys("first_k_dense_replace num_dense_layers")
MOE_LISTED = _keys("moe_layers moe_layers_enum")
MOE_STEP = _keys("decoder_sparse_step interleave_moe_layer_step")
# Sizes that some configs state for each layer in a list.
BY_LAYER = (*Q_HEADS, *KV_HEADS, *HEAD_DIM, *DENSE_WIDTH, *EXPERT_WIDTH, *EXPERTS_PER_TOKEN, *SHARED_EXPERTS, *EXPERTS)
OF_ONE_LAYER = "per_layer_config"  # what single layers have otherwise, by their numbers (Transformers 5)
# modules of multi-token prediction: DeepSeek, GLM, MiMo, Nemotron and Step; Qwen; MiniMax
MTP_MODULES = _keys("num_nextn_predict_layers mtp_num_hidden_layers num_mtp_modules")
# vision towers
VISION_HIDDEN = _keys("hidden_size vt_hidden_size embed_dim")
VISION_LAYERS = _keys("num_hidden_layers depth vt_num_hidden_layers")
VISION_WIDTH = _keys("intermediate_size vt_intermediate_size")
VISION_OUTPUT = _keys("out_hidden_size text_hidden_size projection_dim")
VISION_ACTIVATION = _keys("hidden_act hidden_activation")
# Layouts of which a config needs one, and the others are then not looked at.
LAYOUTS = _keys(
    "layer_types layers_block_type hybrid_override_pattern attn_type_list no_rope_layers hybrid_layer_pattern "
    "attn_layer_indices full_attn_idxs conv_L_cache conv_dim full_attention_interval no_rope_layer_interval mlp_layer_types moe_layer_freq mlp_only_layers "
    "moe_layer_start_index moe_layer_end_index moe_layer_interval use_sliding_window num_hidden_layers full_attn_layers "
    "num_sliding_attention_heads"
)
# lists of modules that a quantised checkpoint leaves alone
EXCLUDED = _keys("modules_to_not_convert ignore ignored_layers exclude_modules exclude llm_int8_skip_modules")

# Keys that tell a family by what only it writes. Tied embeddings, where the others untie unless the config says otherwise;
TIED_FAMILIES = _keys(
    "query_pre_attn_scalar final_logit_softcapping logit_scale expansion_ratio new_decoder_architecture multi_query "
    "word_embed_proj_dim apply_residual_connection_post_layernorm"
)
# and MLPs of four times the hidden size, where the width is null or absent.
IMPLIED_WIDTH = _keys("multi_query new_decoder_architecture apply_residual_connection_post_layernorm n_embed")


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60


def shown(value: Any) -> str:
    """A wrong value as a message shows it; long texts, numbers and lists are cut."""
    return _SHORT.repr(value)


def flattened(config: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping: the innermost language model's values take precedence over the wrapper's; sections are merged."""
    merged = dict(config)
    for wrapper in WRAPPERS:
        inner = config.get(wrapper)
        if isinstance(inner, Mapping):
            own = flattened(inner)
            merged = {
                **merged,
                **{key: value for key, value in own.items() if value is not None or key not in merged},
            }
    for section in SECTIONS:
        inner = merged.get(section)
        if isinstance(inner, Mapping):
            merged = {**inner, **merged}
    return merged


class Fields:
    """A config to be read by field; `faults` and `notes` gather what was wrong and what was inferred.

    Reading leaves traces, by which misspelt keys are found: `asked` holds every key looked for, `unmet` those
    of which neither the key nor a synonym has a value, `missing` the faults of required fields by their keys.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        where: str | None,
        faults: list[Fault] | None = None,
        notes: list[str] | None = None,
        prefix: str = "",
    ) -> None:
        """Wrap `config`; `where` is the file that faults name, `prefix` the section of the fields."""
        self._values = flattened(config)
        self.where = where
        self._prefix = prefix
        self.faults: list[Fault] = [] if faults is None else faults
        self.notes: list[str] = [] if notes is None else notes
        self.asked: set[str] = set()
        self.unmet: dict[str, None] = {}
        self.missing: dict[tuple[str, ...], Fault] = {}

    def fault(self, field: str, message: str, allowed: str | None = None, nearest: str | None = None) -> Fault:
        """Record a fault once; the fault is the result."""
        found = Fault(message, file=self.where, field=self._prefix + field, allowed=allowed, nearest=nearest)
        if found not in self.faults:
            self.faults.append(found)
        return found

    def note(self, text: str) -> None:
        """Record, once, an inference that the result should state."""
        if text not in self.notes:
            self.notes.append(text)

    def of_layer(self, index: int, layers: int) -> Fields:
        """The fields of one layer: of a list with a size for each layer, that of the layer."""
        own = {
            key: value[index]
            for key in BY_LAYER
            if isinstance(value := self._values.get(key), list | tuple) and len(value) == layers
        }
        for number, stated in self._items(OF_ONE_LAYER):
            if str(number).isdecimal() and int(number) == index and isinstance(stated, Mapping):
                own |= stated
        if not own:
            return self
        view = copy(self)
        view._values = {**self._values, **own}
        return view

    def _items(self, key: str) -> Iterable[tuple[Any, Any]]:
        value = self.value(key)
        return value.items() if isinstance(value, Mapping) else ()

    def has(self, key: str) -> bool:
        """Whether the key is written, null or not."""
        self.stated(key)
        return key in self._values

    def stated(self, *keys: str) -> str | None:
        """The first of the keys that has a value, or None."""
        found = next((key for key in keys if self._values.get(key) is not None), None)
        self.asked.update(keys)
        if found is None:
            self.unmet.update(dict.fromkeys(keys))
        return found

    def names(self) -> tuple[str, ...]:
        """Every key, in its order in the file."""
        return tuple(self._values)

    def unread(self) -> tuple[tuple[str, Any], ...]:
        """The keys that no reader has looked for, with their values."""
        return tuple((key, value) for key, value in self._values.items() if key not in self.asked)

    def value(self, *keys: str) -> Any:
        """The value of the first key that has one, or None, unchecked."""
        key = self.stated(*keys)
        return None if key is None else self._values[key]

    def _typed(
        self,
        keys: tuple[str, ...],
        fits: Callable[[Any], bool],
        kind: str,
        allowed: str | None = None,
        *,
        same: bool = False,
    ) -> Any:
        """A value that fits; with `same` also of a list whose items are all the same."""
        key = self.stated(*keys)
        value = None if key is None else self._values[key]
        if same and isinstance(value, list | tuple) and value and all(item == value[0] for item in value):
            value = value[0]
        if key is None or fits(value):
            return value
        self.fault(key, f"{shown(self._values[key])} is not a {kind}", allowed)
        return None

    def optional_integer(self, *keys: str, least: int = 0) -> int | None:
        """A whole number of at least `least`; None where no key has a value. A wrong value is a fault."""

        def fits(value: Any) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST

        found: int | None = self._typed(keys, fits, "size", f"a whole number from {least} to 2^40", same=True)
        return found

    def integer(self, *keys: str) -> int:
        """A whole number above zero.

        Where it is missing or wrong, record a fault and return a stand-in.
        """
        if self.stated(*keys) is None:
            others = f" (or {', '.join(keys[1:])})" if len(keys) > 1 else ""
            self.missing[keys] = self.fault(keys[0], "missing", f"a whole number above zero{others}")
            return SMALLEST_STAND_IN
        return self.optional_integer(*keys, least=1) or SMALLEST_STAND_IN

    def flag(self, *keys: str) -> bool | None:
        """True or false; None where no key has a value. Anything else is a fault."""
        found: bool | None = self._typed(keys, lambda value: isinstance(value, bool), "switch", "true or false")
        return found

    def text(self, *keys: str) -> str | None:
        """A string; None where no key has a value. Anything else is a fault."""
        found: str | None = self._typed(keys, lambda value: isinstance(value, str), "text")
        return found

    def sequence(self, *keys: str) -> tuple[Any, ...] | None:
        """A list; None where no key has a value. Anything else is a fault."""
        found = self._typed(keys, lambda value: isinstance(value, list | tuple), "list")
        return None if found is None else tuple(found)

    def inner(self, key: str, value: object) -> Fields:
        """A value of a list or section as fields, which record into the same faults and notes."""
        return Fields({key: value}, self.where, self.faults, self.notes)

    def section(self, key: str) -> Fields | None:
        """A nested section that records into the same faults and notes; None where there is none. Anything else is a fault."""
        value = self._typed((key,), lambda value: isinstance(value, Mapping), "section", "fields in braces")
        if value is None:
            return None
        return Fields(value, self.where, self.faults, self.notes, f"{self._prefix}{key}.")


# Above the most alike pair of published keys that mean different things (q_lora_rank and kv_lora_rank: 0.87).
SAME_KEY = 0.88
# Where a required field is missing anyway, a looser likeness still helps.
LIKELY_KEY = 0.8


def report_misspelt(fields: Fields) -> None:
    """Record a fault for each misspelt key, after all other fields have been read.

    The fault of a missing field turns into one at the key that was written in its place, so that it has a line.
    """
    fields.stated(*WRAPPERS), fields.stated(*SECTIONS)
    unknown = {_plain(key): key for key in fields.names() if isinstance(key, str) and key not in fields.asked}
    for keys, fault in fields.missing.items():
        pair = _most_alike(unknown, keys, LIKELY_KEY)
        if pair is not None and fault in fields.faults:
            written, meant = pair
            moved = replace(fault, message=f"unknown key, and {keys[0]} is missing", field=written, nearest=meant)
            fields.faults[fields.faults.index(fault)] = moved
            unknown.pop(_plain(written))
    for plain, written in unknown.items():
        pair = _most_alike({plain: written}, [key for key in fields.unmet if not fields.has(key)], SAME_KEY)
        if pair is not None:
            fields.fault(written, "unknown key, and the one that it resembles is not stated", nearest=pair[1])


def _plain(key: str) -> str:
    return key.strip().lower().replace("-", "_")


def _most_alike(written: Mapping[str, str], known: Sequence[str], cutoff: float) -> tuple[str, str] | None:
    """The most similar pair of a written and a known key; None where no pair reaches `cutoff`."""
    for key in known:
        hits = get_close_matches(key, list(written), n=1, cutoff=cutoff)
        if hits:
            best = get_close_matches(hits[0], known, n=1, cutoff=cutoff)
            return written[hits[0]], best[0] if best else key
    return None
