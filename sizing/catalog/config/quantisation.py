"""How a checkpoint's weights are stored, from `quantization_config` or ModelOpt's hf_quant_config.json.

A method, algorithm or mix that is not listed here is refused: bytes and speed both hang on it, and a guess
would look like knowledge.

Lists of modules left in 16 bit name them as globs, as regular expressions (`re:`), or plainly, one layer at a time or
all at once. A role counts as kept only where the lists cover every layer that has it; what stays 16 bit in a few
layers is quantised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sizing.catalog.config.fields import EXCLUDED, Fields, shown
from sizing.specs.errors import nearest
from sizing.specs.model import DenseMlp, LayerKind, MoeMlp, Quantisation, Role

# Every engine and toolkit leaves these in 16 bit unless a checkpoint says otherwise.
ALWAYS_KEPT: frozenset[Role] = frozenset({"embedding", "lm_head", "norm", "router"})
OUTSIDE = ("mtp", "visi", "visual", "mm_", "multi_modal", "audio", "patch_merge")
MLP_ROLES: frozenset[Role] = frozenset({"dense_mlp", "expert", "shared_expert", "router"})

_LAYER = re.compile(r"(?:^|[.*])(?:layers|h|blocks)\.(?P<index>[^.]+?)(?:\.(?P<tail>.+))?$")
_PROJECTION = re.compile(r"(?:^|\.)(?P<name>[a-z0-9_]*proj[a-z_]*|fc[12]|w[123]|dense[a-z0-9_]*)$")
_OUTPUTS = frozenset({"o_proj", "out_proj", "down_proj", "dense", "fc2", "w2", "dense_4h_to_h"})
_REGEX_TO_GLOB = ((r"\.", "."), (".*", "*"), ("^", ""), ("$", ""))
_REGEX_MARK = "re:"


@dataclass(frozen=True, slots=True)
class _Part:
    """A module in a list: its layer, its role, and the projection where the list names only that."""

    layer: int
    role: Role
    projection: str | None


def roles_of(layer: LayerKind) -> frozenset[Role]:
    """The roles of one layer."""
    found: set[Role] = {"norm"}
    if layer.mixer is not None:
        found.add("attention")
    for mlp in layer.mlps:
        if isinstance(mlp, DenseMlp):
            found.add("dense_mlp")
        elif isinstance(mlp, MoeMlp):
            found |= {"expert", "router"}
            if mlp.shared_intermediate:
                found.add("shared_expert")
    return frozenset(found)


def kept_roles(excluded: Iterable[str], layers: Sequence[LayerKind]) -> frozenset[Role]:
    """The roles that stay in 16 bit in every layer with them, the usual ones included."""
    present = [roles_of(layer) for layer in layers]
    parts = {part for pattern in excluded for part in _parts(pattern, present)}
    whole = {(part.layer, part.role) for part in parts if part.projection is None}
    outputs = {(part.layer, part.role) for part in parts if part.projection in _OUTPUTS}
    inputs = {(part.layer, part.role) for part in parts if part.projection and part.projection not in _OUTPUTS}
    covered = whole | (outputs & inputs)
    kept = {
        role
        for role in frozenset().union(*present)
        if all((index, role) in covered for index, roles in enumerate(present) if role in roles)
    }
    return ALWAYS_KEPT | frozenset(kept)


def _parts(pattern: str, present: Sequence[frozenset[Role]]) -> Iterator[_Part]:
    name = _as_glob(pattern)
    if any(word in name.lower() for word in OUTSIDE):
        return
    match = _LAYER.search(name)
    index, tail = (match["index"], match["tail"] or "") if match else ("*", name)
    if match is None and not tail.strip("*."):
        return
    alternatives = "(" in tail
    projection = None if alternatives else _PROJECTION.search(tail.rstrip("*."))
    for layer, roles in enumerate(present):
        if fnmatchcase(str(layer), index):
            for role in _named_roles(tail.lower(), roles):
                yield _Part(layer, role, projection["name"] if projection else None)


def _as_glob(pattern: str) -> str:
    if not pattern.startswith(_REGEX_MARK):
        return pattern
    text = pattern.removeprefix(_REGEX_MARK)
    for regex, glob in _REGEX_TO_GLOB:
        text = text.replace(regex, glob)
    return text


def _named_roles(tail: str, roles: frozenset[Role]) -> frozenset[Role]:
    """The roles of one layer covered by a module's name; an empty name covers the layer."""
    name = tail.strip("*.")
    last = name.rpartition(".")[2]
    if not name:
        return roles
    if "norm" in name or "conv" in name or "indexer" in name or "bias" in last:
        return frozenset()
    if last in ("gate", "router") or "router" in name or name.endswith("shared_expert_gate"):
        return roles & {"router"}
    if "shared_expert" in name or "share_expert" in name:
        return roles & {"shared_expert"}
    if "expert" in name:
        return roles & {"expert"}
    if "attn" in name or "attention" in name:
        return roles & {"attention"}
    if "mixer" in name:
        return roles & {"attention"} or roles & MLP_ROLES
    if any(word in name for word in ("mlp", "ffn", "feed_forward", "block_sparse_moe")):
        # In a layer with routed experts a module named `mlp` is the dense MLP; otherwise it is the layer's only MLP.
        return roles & {"dense_mlp"} or (frozenset() if _PROJECTION.search(name) or "(" in name else roles & MLP_ROLES)
    return frozenset()


SECTIONS = ("quantization_config", "compression_config")


def _by_name(names: Mapping[str, str]) -> dict[str, str]:
    return {name: meaning for meaning, text in names.items() for name in text.split()}


# ModelOpt's algorithms (modelopt.torch.export, 0.45) and the precision of their weights.
ALGORITHMS = _by_name(
    {
        "fp8": "FP8 FP8_PER_CHANNEL_PER_TOKEN",
        "fp8_block": "FP8_PB_REAL FP8_PB_WO",
        "nvfp4": "NVFP4 NVFP4_AWQ W4A16_NVFP4 W4A8_NVFP4_FP8",
        "mxfp4": "MXFP4 W4A8_MXFP4_FP8",
        "int4": "W4A16_AWQ W4A8_AWQ",
        "int8": "W8A16 W8A8_SQ_PER_CHANNEL",
    }
)
CACHE_ALGORITHMS = {"FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4"}
BITS = {4: "int4", 8: "int8"}
# (type, bits) of a compressed-tensors group; four-bit floats differ by the group that shares a scale.
GROUP_FORMATS = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4"}
FLOAT4_BY_GROUP = {16: "nvfp4", 32: "mxfp4"}
FP8_BLOCK = "fp8_block"
WHOLE_CHANNEL = -1  # a group size written so means one scale for a whole channel
# Quantisation methods by what states their precision.
METHODS = _by_name(
    {
        "fp8": "fp8 fbgemm_fp8",
        "algorithm": "modelopt modelopt_fp4",
        "groups": "compressed-tensors",
        "bits": "gptq gptq_marlin awq awq_marlin auto-round",
        "loading": "bitsandbytes",
        "mxfp4": "mxfp4",
    }
)


def read_quantisation(
    fields: Fields,
    layers: Sequence[LayerKind],
    activation_precision: str,
    hf_quant_config: Mapping[str, Any] | None = None,
) -> Quantisation:
    """The storage of the weights; unquantised checkpoints are in their activation precision.

    Unknown names are recorded as faults in `fields`, with a stand-in as the result.
    """
    section = _section(fields, hf_quant_config)
    method = None if section is None else _method(section)
    if section is None or method is None:
        return Quantisation(precision=activation_precision)
    precision, block = _weights(section, method)
    kept = kept_roles(_excluded(section), layers)
    if section.flag("lm_head"):
        kept -= {"lm_head"}
    return Quantisation(
        precision=precision or activation_precision,
        kept_16bit=frozenset(kept),
        block=block,
        kv_precision=_cache_precision(section),
        method=method,
        weight_only=METHODS[method] == "bits",
    )


def excluded_modules(fields: Fields, hf_quant_config: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """The names or patterns of modules that a quantised checkpoint leaves alone."""
    section = _section(fields, hf_quant_config)
    return () if section is None else _excluded(section)


def _section(fields: Fields, hf_quant_config: Mapping[str, Any] | None) -> Fields | None:
    """The section with the quantisation: the config's own, or ModelOpt's file where that has more."""
    section = next((found for key in SECTIONS if (found := fields.section(key)) is not None), None)
    modelopt = _modelopt_file(fields, hf_quant_config)
    if section is None or (modelopt is not None and section.stated("quant_algo", "config_groups", "bits") is None):
        section = modelopt if modelopt is not None else section
    return section


def _modelopt_file(fields: Fields, hf_quant_config: Mapping[str, Any] | None) -> Fields | None:
    """The `quantization` part of ModelOpt's file, with faults recorded among the config's."""
    if hf_quant_config is None:
        return None
    outer = Fields(hf_quant_config, fields.where, fields.faults, fields.notes)
    return outer.section("quantization") or outer


def _method(section: Fields) -> str | None:
    """The method's name; files of ModelOpt give the algorithm and leave the method out."""
    method = section.text("quant_method")
    if section.stated("quant_algo") and method in (None, "modelopt", "modelopt_fp4"):
        return "modelopt"
    if method is None and section.stated("config_groups"):
        return "compressed-tensors"
    if method not in METHODS:
        known = list(METHODS)
        section.fault(
            "quant_method",
            "missing" if method is None else f"unknown method {shown(method)}",
            ", ".join(known),
            nearest(method or "", known),
        )
        return None
    return method


def _weights(section: Fields, method: str) -> tuple[str | None, int | None]:
    """The precision of the quantised weights.

    And the block width of block-wise FP8, which limits splits.
    """
    mixed = section.stated("moe_quant_algo", "quantized_layers")
    if mixed:
        section.fault(mixed, "weights of several precisions in one checkpoint are not modelled", "one precision")
        return None, None
    kind = METHODS[method]
    if kind == "fp8":
        block = section.sequence("weight_block_size")
        return (FP8_BLOCK, _block_width(section, block)) if block else ("fp8", None)
    if kind == "mxfp4":
        return "mxfp4", None
    if kind == "bits":
        return _by_bits(section), None
    if kind == "loading":
        return ("int4" if section.flag("load_in_4bit") else "int8"), None
    if kind == "groups" or section.stated("quant_algo") is None:
        return _by_groups(section)
    return _by_algorithm(section), None


def _block_width(section: Fields, block: tuple[Any, ...]) -> int:
    return section.inner("weight_block_size", block[-1]).integer("weight_block_size")


def _by_bits(section: Fields) -> str | None:
    bits = section.integer("bits", "w_bit")
    if bits not in BITS:
        section.fault("bits", f"{bits} bits are not modelled", ", ".join(map(str, BITS)))
    return BITS.get(bits)


def _by_algorithm(section: Fields) -> str | None:
    algorithm = section.text("quant_algo") or ""
    if algorithm not in ALGORITHMS:
        known = list(ALGORITHMS)
        section.fault(
            "quant_algo", f"unknown algorithm {shown(algorithm)}", ", ".join(known), nearest(algorithm, known)
        )
    return ALGORITHMS.get(algorithm)


def _by_groups(section: Fields) -> tuple[str | None, int | None]:
    groups = section.section("config_groups")
    if groups is None:
        section.fault("config_groups", "missing, and no quant_algo either", "config_groups or quant_algo")
        return None, None
    found = {_group_format(group) for key in groups.names() if (group := groups.section(key)) is not None}
    if len(found) != 1:
        section.fault("config_groups", f"{len(found)} different weight formats", "one precision")
        return None, None
    return found.pop()


def _group_format(group: Fields) -> tuple[str | None, int | None]:
    weights = group.section("weights")
    if weights is None:
        group.fault("weights", "missing", "num_bits and type of the weights")
        return None, None
    form, bits = weights.text("type") or "", weights.integer("num_bits")
    if (form, bits) == ("float", 8) and weights.text("strategy") == "block":
        block = weights.sequence("block_structure")
        return FP8_BLOCK, _block_width(weights, block) if block else None
    size = None if weights.value("group_size") == WHOLE_CHANNEL else weights.optional_integer("group_size", least=1)
    found = FLOAT4_BY_GROUP.get(size or 0) if (form, bits) == ("float", 4) else GROUP_FORMATS.get((form, bits))
    if found is None:
        known = "int4, int8, fp8, nvfp4 (groups of 16), mxfp4 (groups of 32)"
        weights.fault("num_bits", f"{bits}-bit {form or 'untyped'} weights in groups of {size} are unknown", known)
    return found, None


def _excluded(section: Fields) -> tuple[str, ...]:
    return tuple(str(name) for key in EXCLUDED for name in section.sequence(key) or ())


def _cache_precision(section: Fields) -> str | None:
    """The cache precision for which the checkpoint has scales, or None."""
    scheme = section.section("kv_cache_scheme")
    if scheme is not None:
        return GROUP_FORMATS.get((scheme.text("type") or "", scheme.integer("num_bits")))
    named = section.text("kv_cache_quant_algo", "kv_cache_scheme")
    if named is not None and named not in CACHE_ALGORITHMS:
        section.fault("kv_cache_quant_algo", f"unknown algorithm {shown(named)}", ", ".join(CACHE_ALGORITHMS))
    return CACHE_ALGORITHMS.get(named or "")
