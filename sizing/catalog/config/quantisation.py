"""How a checkpoint's weights are stored, from `quantization_config` or ModelOpt's hf_quant_config.json.

A method, algorithm or mix that is not listed is refused. Bytes and speed depend on it, and a guess would look like a fact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sizing.catalog.config.fields import ConfigKeys, Fields, report_unread_lists, shown, spelled
from sizing.catalog.config.stored import Rule, stored
from sizing.catalog.shelf import only
from sizing.specs.errors import nearest
from sizing.specs.model import LayerKind, Quantisation

SECTIONS = ("quantization_config", "compression_config")


MIXED = "MIXED_PRECISION"
WEIGHT_ONLY = ("W4A16_NVFP4", "W4A16_AWQ", "W8A16")  # products run at 16 bit
EXPERT_MODULES = "*.mlp.experts.*"
EXPERT_TYPES = {"fp4": "mxfp4", "fp8": None}  # None: like the other weights
GENERAL_TARGETS = ("Linear",)
SCALE_BITS = 16
# bitsandbytes at 4 bits: weights of a block share a 32-bit scale; double quantisation makes it 8 bits, with one of 32 a block of scales.
BNB_BLOCK, BNB_SCALE_BITS, BNB_DOUBLE_BITS, BNB_DOUBLE_BLOCK = 64, 32, 8, 256
CACHE_ALGORITHMS = {"FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4"}
BITS = {4: "int4", 8: "int8"}
# (type, bits) of a compressed-tensors group. Four-bit floats differ by the size of the group that shares a scale.
GROUP_FORMATS = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4"}
FLOAT4_BY_GROUP = {16: "nvfp4", 32: "mxfp4"}
FP8_BLOCK = "fp8_block"
WHOLE_CHANNEL = -1  # this group size means one scale for a whole channel


def read_quantisation(
    fields: Fields,
    layers: Sequence[LayerKind],
    activation_precision: str,
    hf_quant_config: Mapping[str, Any] | None = None,
) -> Quantisation:
    """The storage of the weights. Unquantised checkpoints have their activation precision.

    Unknown names are recorded as faults in `fields`, and the result is a placeholder.
    """
    section = _section(fields, hf_quant_config)
    method = None if section is None else _method(section)
    if section is None or method is None:
        return Quantisation(precision=activation_precision)
    base, block = _weights(section, method)
    # In FP8 checkpoints with experts in another format, the exceptions are exceptions from that format: they are in FP8.
    listed = _excluded(section)
    excluded = () if section.stated("moe_quant_algo") and _kind(method) == "fp8" else listed
    rules = [*_own_precisions(fields, section), *((pattern, None) for pattern in excluded)]
    report_unread_lists(section)
    main, kept, shares = stored(rules, base, layers, fields.integer("HIDDEN"))
    if section.flag("lm_head") or any(pattern.endswith("lm_head") and name for pattern, name in rules):
        kept -= {"lm_head"}
    if shares:
        told = ", ".join(f"{one.share:.0%} of {one.role} {one.precision or '16 bit'}" for one in shares)
        fields.note(f"weights of several precisions: {told}")
    return Quantisation(
        precision=main or activation_precision,
        kept_16bit=kept,
        block=block,
        kv_precision=_cache_precision(section),
        method=method,
        weight_only=_kind(method) == "bits" or _is_weight_only(section, main),
        stored=shares,
        bits=_bits_with_scales(section, _kind(method)),
    )


def excluded_modules(fields: Fields, hf_quant_config: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """The names or patterns of modules that a quantised checkpoint does not quantise."""
    section = _section(fields, hf_quant_config)
    return () if section is None else _excluded(section)


def _section(fields: Fields, hf_quant_config: Mapping[str, Any] | None) -> Fields | None:
    """The section with the quantisation: the config's own, or ModelOpt's file if that has more."""
    section = next((found for key in SECTIONS if (found := fields.section(key)) is not None), None)
    modelopt = _modelopt_file(fields, hf_quant_config)
    if section is None or (modelopt is not None and section.stated("quant_algo", "config_groups", "bits") is None):
        section = modelopt if modelopt is not None else section
    return section


def _modelopt_file(fields: Fields, hf_quant_config: Mapping[str, Any] | None) -> Fields | None:
    """The `quantization` part of ModelOpt's file. Its faults are recorded with those of the config."""
    if hf_quant_config is None:
        return None
    outer = Fields(hf_quant_config, fields.where, fields.faults, fields.notes)
    return outer.section("quantization") or outer


def _method(section: Fields) -> str | None:
    """The name of the method. ModelOpt's files state the algorithm and omit the method."""
    method = section.text("quant_method")
    if section.stated("quant_algo") and method in (None, "modelopt", "modelopt_fp4"):
        return "modelopt"
    if method is None and section.stated("config_groups"):
        return "compressed-tensors"
    known = list(only(ConfigKeys).methods)
    if method not in known:
        what = "missing" if method is None else f"unknown method {shown(method)}"
        section.fault("quant_method", what, ", ".join(known), nearest(method or "", known))
        return None
    return method


def _kind(method: str) -> str:
    """The kind of field that states the precision of a method."""
    return only(ConfigKeys).methods[method]


def _weights(section: Fields, method: str) -> tuple[str | None, int | None]:
    """The precision of the quantised weights, and the block width of block-wise FP8, which limits splits."""
    kind = _kind(method)
    if section.text("quant_algo") == MIXED and kind != "fp8":
        if section.section("quantized_layers") is None:
            section.fault("quantized_layers", f"missing, and quant_algo is {MIXED}", "each module with its quant_algo")
        return None, None
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
        return next(((form, block) for targets, form, block in _groups(section) if _is_general(targets)), (None, None))
    return _by_algorithm(section), None


def _own_precisions(fields: Fields, section: Fields) -> Iterator[Rule]:
    """Yield modules with their own precision in the section, general ones first."""
    experts = fields.text("expert_dtype")
    if experts is not None and experts not in EXPERT_TYPES:
        fields.fault("expert_dtype", f"unknown type {shown(experts)}", ", ".join(EXPERT_TYPES))
    if EXPERT_TYPES.get(experts or ""):
        yield EXPERT_MODULES, EXPERT_TYPES[experts or ""]
    if section.stated("moe_quant_algo"):
        yield EXPERT_MODULES, _by_algorithm(section, "moe_quant_algo")
    if section.stated("config_groups") and section.text("quant_algo") in (None, MIXED):
        for targets, form, _ in _groups(section):
            yield from ((target, form) for target in targets if not _is_general((target,)))
    for name in _names(section, "quantized_layers"):
        module = _inner(section, "quantized_layers", name)
        if module is not None:
            yield name, _by_algorithm(module)
    yield from _own_widths(section)


def _own_widths(section: Fields) -> Iterator[Rule]:
    """Yield modules with their own number of bits in GPTQ (`+:`, a regular expression) or AutoRound."""
    for key, mark in (("dynamic", "re:"), ("extra_config", "")):
        for name in _names(section, key):
            one = None if name.startswith("-:") else _inner(section, key, name)
            bits = None if one is None else one.optional_integer("bits")
            if one is not None and bits is not None and bits < SCALE_BITS:
                yield f"{mark}{name.removeprefix('+:')}", _by_bits(one)


def _is_weight_only(section: Fields, main: str | None) -> bool:
    """Whether the algorithm with weights in the precision `main` multiplies them at 16 bit."""
    layers = [_inner(section, "quantized_layers", name) for name in _names(section, "quantized_layers")]
    algorithms = {holder.text("quant_algo") for holder in (section, *layers) if holder is not None}
    return any(name in WEIGHT_ONLY and only(ConfigKeys).algorithms[name] == main for name in algorithms if name)


def _is_general(targets: tuple[str, ...]) -> bool:
    """Whether a group covers every linear layer, not only named modules."""
    return any(target in GENERAL_TARGETS for target in targets)


def _bits_with_scales(section: Fields, kind: str) -> float | None:
    """Mean bits of an integer weight with its share of scale and zero point, if groups are stated."""
    if kind == "loading":
        return _bits_of_loading(section) if section.flag("load_in_4bit") else None
    groups = [group for key in _names(section, "config_groups") if (group := _inner(section, "config_groups", key))]
    holders = [weights for group in groups if (weights := group.section("weights"))] if kind == "groups" else [section]
    sizes = {_group_size(holder) for holder in holders}
    size = sizes.pop() if len(sizes) == 1 else None
    bits = holders[0].value("num_bits", "bits", "w_bit") if holders else None
    if kind not in ("groups", "bits") or size is None or bits not in BITS or holders[0].text("type") == "float":
        return None
    zero_bits = 0 if kind == "groups" and holders[0].flag("symmetric") is not False else bits
    return float(bits) + (SCALE_BITS + zero_bits) / size


def _bits_of_loading(section: Fields) -> float:
    """Mean bits of a weight that bitsandbytes loads in 4 bits: a scale for each block of weights, which may itself be quantised.

    Source: bitsandbytes, functional.quantize_4bit; Transformers' BitsAndBytesConfig leaves double quantisation off.
    """
    scale = float(BNB_SCALE_BITS)
    if section.flag("bnb_4bit_use_double_quant"):
        scale = BNB_DOUBLE_BITS + BNB_SCALE_BITS / BNB_DOUBLE_BLOCK
    return 4 + scale / BNB_BLOCK


def _names(section: Fields, key: str) -> tuple[str, ...]:
    inner = section.section(key)
    return () if inner is None else inner.names()


def _inner(section: Fields, *keys: str) -> Fields | None:
    found: Fields | None = section
    for key in keys:
        found = None if found is None else found.section(key)
    return found


def _group_size(holder: Fields) -> int | None:
    key = holder.stated("group_size", "q_group_size")
    return None if key is None or holder.value(key) == WHOLE_CHANNEL else holder.optional_integer(key, least=1)


def _block_width(section: Fields, block: tuple[Any, ...]) -> int:
    return section.inner("weight_block_size", block[-1]).integer("weight_block_size")


def _by_bits(section: Fields) -> str | None:
    bits = section.integer("bits", "w_bit")
    if bits not in BITS:
        section.fault("bits", f"{bits} bits are not modelled", ", ".join(map(str, BITS)))
    return BITS.get(bits)


def _by_algorithm(section: Fields, key: str = "quant_algo") -> str | None:
    algorithm = section.text(key) or ""
    known = only(ConfigKeys).algorithms
    if algorithm not in known:
        section.fault(key, f"unknown algorithm {shown(algorithm)}", ", ".join(known), nearest(algorithm, list(known)))
    return known.get(algorithm)


def _groups(section: Fields) -> Iterator[tuple[tuple[str, ...], str | None, int | None]]:
    """Yield each group's targets, precision and block width."""
    groups = section.section("config_groups")
    if groups is None:
        section.fault("config_groups", "missing, and no quant_algo either", "config_groups or quant_algo")
    for key in _names(section, "config_groups"):
        group = _inner(section, "config_groups", key)
        if group is not None:
            targets = tuple(map(str, group.sequence("targets") or GENERAL_TARGETS))
            yield (targets, *_group_format(group))


def _group_format(group: Fields) -> tuple[str | None, int | None]:
    weights = group.section("weights")
    if weights is None:
        group.fault("weights", "missing", "num_bits and type of the weights")
        return None, None
    form, bits = weights.text("type") or "", weights.integer("num_bits")
    if (form, bits) == ("float", 8) and weights.text("strategy") == "block":
        block = weights.sequence("block_structure")
        return FP8_BLOCK, _block_width(weights, block) if block else None
    size = _group_size(weights)
    found = FLOAT4_BY_GROUP.get(size or 0) if (form, bits) == ("float", 4) else GROUP_FORMATS.get((form, bits))
    if found is None:
        known = "int4, int8, fp8, nvfp4 (groups of 16), mxfp4 (groups of 32)"
        weights.fault("num_bits", f"{bits}-bit {form or 'untyped'} weights in groups of {size} are unknown", known)
    return found, None


def _excluded(section: Fields) -> tuple[str, ...]:
    """Modules in 16 bit: listed by name, or exceptions of GPTQ (`-:`) and AutoRound (16 bits)."""
    listed = [str(name) for key in spelled("EXCLUDED") for name in section.sequence(key) or ()]
    listed += [f"re:{name.removeprefix('-:')}" for name in _names(section, "dynamic") if name.startswith("-:")]
    for name in _names(section, "extra_config"):
        one = _inner(section, "extra_config", name)
        if one is not None and (one.optional_integer("bits") or 0) >= SCALE_BITS:
            listed.append(name)
    return tuple(listed)


def _cache_precision(section: Fields) -> str | None:
    """The cache precision for which the checkpoint has scales, or None."""
    scheme = None if isinstance(section.value("kv_cache_scheme"), str) else section.section("kv_cache_scheme")
    if scheme is not None:
        return GROUP_FORMATS.get((scheme.text("type") or "", scheme.integer("num_bits")))
    named = section.text("kv_cache_quant_algo", "kv_cache_scheme")
    if named is not None and named not in CACHE_ALGORITHMS:
        section.fault("kv_cache_quant_algo", f"unknown algorithm {shown(named)}", ", ".join(CACHE_ALGORITHMS))
    return CACHE_ALGORITHMS.get(named or "")
