"""How a checkpoint's weights are stored, from `quantization_config` or ModelOpt's hf_quant_config.json.

A method, algorithm or mix that is not listed is refused. Bytes and speed depend on it, and a guess would look like a fact.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from sizing.catalog.config.fields import ConfigKeys, Fields, report_unread_lists, shown, spelled
from sizing.catalog.shelf import only
from sizing.specs.errors import nearest
from sizing.specs.model import (
    CompressedAttention,
    DenseMlp,
    LayerKind,
    LinearAttention,
    MlaAttention,
    MoeMlp,
    Quantisation,
    Role,
    ShortConv,
    SsmAttention,
    Stored,
)

# Every engine and toolkit leaves these in 16 bit unless a checkpoint states otherwise.
ALWAYS_KEPT: frozenset[Role] = frozenset({"embedding", "lm_head", "norm", "router"})
MLP_ROLES: frozenset[Role] = frozenset({"dense_mlp", "expert", "shared_expert", "router"})
LEAST_SHARE = 0.002  # smaller shares of a role's weights are not reported

_LAYER = re.compile(r"(?:^|[.*])(?:layers|h|blocks)\.(?P<index>[^.]+?)(?:\.(?P<tail>.+))?$")
_PROJECTION = re.compile(r"(?:^|\.)(?P<name>[a-z0-9_]*proj[a-z_]*|fc[12]|w[123]|wq_[ab]|wo_[ab]|wkv|dense[a-z0-9_]*)$")
_REGEX_TO_GLOB = ((r"\.", "."), (".*", "*"), ("^", ""), ("$", ""))
_REGEX_MARK = "re:"

Rule = tuple[str, str | None]  # a module's name or pattern, and its precision; None for 16 bit


class _Cell(NamedTuple):
    """A projection of one layer."""

    layer: int
    role: Role
    projection: str


def projections(layer: LayerKind, hidden_size: int) -> dict[tuple[Role, str], int]:
    """The number of weights of one layer by role and projection, without norms; routers count as 0."""
    found: dict[tuple[Role, str], int] = {}
    mixer = layer.mixer
    if isinstance(mixer, MlaAttention):
        key, value = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim, mixer.v_head_dim
        rank, heads = mixer.q_lora_rank, mixer.q_heads
        queries = {"q_a_proj": hidden_size * rank, "q_b_proj": rank * heads * key} if rank else {}
        sizes = queries or {"q_proj": hidden_size * heads * key}
        sizes["kv_a_proj"] = hidden_size * (mixer.kv_lora_rank + mixer.qk_rope_head_dim)
        sizes["kv_b_proj"] = mixer.kv_lora_rank * heads * (mixer.qk_nope_head_dim + value)
        sizes["o_proj"] = heads * value * hidden_size
    elif isinstance(mixer, LinearAttention):
        keys, values = mixer.key_heads * mixer.key_head_dim, mixer.value_heads * mixer.value_head_dim
        sizes = {"in_proj": 2 * hidden_size * (keys + values), "o_proj": values * hidden_size}
    elif isinstance(mixer, SsmAttention):
        inner = mixer.heads * mixer.head_dim
        shared = 2 * mixer.groups * mixer.state_size + mixer.heads
        sizes = {"in_proj": hidden_size * (2 * inner + shared), "o_proj": inner * hidden_size}
    elif isinstance(mixer, CompressedAttention):
        width = mixer.q_heads * mixer.head_dim
        sizes = {"q_a_proj": hidden_size * mixer.q_lora_rank, "q_b_proj": mixer.q_lora_rank * width}
        sizes["kv_a_proj"] = hidden_size * mixer.head_dim
        sizes["o_proj"] = mixer.o_lora_rank * (width + mixer.o_groups * hidden_size)
    elif isinstance(mixer, ShortConv):
        sizes = {"in_proj": 3 * hidden_size * mixer.width, "o_proj": hidden_size * mixer.width}
    elif mixer is not None:
        width, kept = mixer.q_heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
        sizes = {"q_proj": width * (1 + mixer.output_gate), "k_proj": kept, "v_proj": kept, "o_proj": width}
    else:
        sizes = {}
    found |= {("attention", name): size for name, size in sizes.items()}
    for mlp in layer.mlps:
        found |= _mlp_projections(mlp)
    return found


def _mlp_projections(mlp: DenseMlp | MoeMlp) -> dict[tuple[Role, str], int]:
    names = ("gate_proj", "up_proj", "down_proj") if mlp.gated else ("up_proj", "down_proj")
    if isinstance(mlp, DenseMlp):
        return {("dense_mlp", name): mlp.intermediate for name in names}
    shared = {("shared_expert", name): mlp.shared_intermediate for name in names} if mlp.shared_intermediate else {}
    experts = {("expert", name): mlp.experts * mlp.intermediate for name in names}
    return {**experts, **shared, ("router", ""): 0}  # type: ignore[dict-item]


def stored(
    rules: Iterable[Rule], base: str | None, layers: Sequence[LayerKind], hidden_size: int
) -> tuple[str | None, frozenset[Role], tuple[Stored, ...]]:
    """The precision of most weights, the roles in 16 bit, and the shares of roles with any other storage.

    `base` is the precision of weights that no rule names. If two rules name a projection, the later one holds.
    """
    present = [projections(layer, hidden_size) for layer in layers]
    cells: dict[_Cell, str | None] = {
        _Cell(index, role, name): None if role in ALWAYS_KEPT else base
        for index, sizes in enumerate(present)
        for role, name in sizes
    }
    for pattern, precision in rules:
        for cell in _cells(pattern, present):
            if cell.role not in ALWAYS_KEPT:
                cells[cell] = precision
    by_role: dict[Role, Counter[str | None]] = {}
    for cell, precision in cells.items():
        by_role.setdefault(cell.role, Counter())[precision] += present[cell.layer][cell.role, cell.projection]
    # The precision of the experts is that of the checkpoint: they are most of it and have their own kernel.
    ranked = [by_role[role] for role in ("expert", "dense_mlp", "attention", "shared_expert") if role in by_role]
    main = next((name for sizes in ranked for name, _ in sizes.most_common() if name is not None), base)
    kept = frozenset(role for role, sizes in by_role.items() if not any(n for name, n in sizes.items() if name))
    return main, ALWAYS_KEPT | kept, tuple(_others(by_role, main, kept))


def _others(by_role: Mapping[Role, Counter[str | None]], main: str | None, kept: frozenset[Role]) -> Iterator[Stored]:
    for role in sorted(by_role.keys() - kept):
        whole = by_role[role].total()
        for precision, size in by_role[role].items():
            if precision != main and size >= LEAST_SHARE * whole:
                yield Stored(role, precision, size / whole)


def _cells(pattern: str, present: Sequence[Mapping[tuple[Role, str], int]]) -> Iterator[_Cell]:
    """The projections that a module's name or pattern covers."""
    name = _as_glob(pattern)
    if any(word in name.lower() for word in only(ConfigKeys).outside):
        return
    match = _LAYER.search(name)
    index, tail = (match["index"], match["tail"] or "") if match else ("*", name)
    if match is None and not tail.strip("*."):
        return
    found = None if "(" in tail else _PROJECTION.search(tail.strip("*."))
    wanted = None if found is None else set(only(ConfigKeys).projections.get(found["name"], found["name"]).split())
    for layer, sizes in enumerate(present):
        if fnmatchcase(str(layer), index):
            roles = _named_roles(tail.lower(), frozenset(role for role, _ in sizes))
            for role, projection in sizes:
                if role in roles and (wanted is None or projection in wanted):
                    yield _Cell(layer, role, projection)


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
    table = only(ConfigKeys).roles.items()
    role = next((role for role, words in table if any(word in name for word in words.split())), None)
    if role == "none" or "bias" in last:
        return frozenset()
    if last == "gate" or name.endswith("shared_expert_gate"):
        return roles & {"router"}
    if "mixer" in name and role in (None, "dense_mlp"):
        return roles & {"attention"} or roles & MLP_ROLES
    if role is not None and role != "dense_mlp":
        return roles & {role}
    if role is not None:
        # In a layer with routed experts a module named `mlp` is the dense MLP; otherwise it is the layer's only MLP.
        return roles & {"dense_mlp"} or (frozenset() if _PROJECTION.search(name) or "(" in name else roles & MLP_ROLES)
    # A projection alone, such as `down_proj`, means every role that has it.
    return roles if _PROJECTION.fullmatch(name) else frozenset()


SECTIONS = ("quantization_config", "compression_config")


MIXED = "MIXED_PRECISION"
EXPERT_MODULES = "*.mlp.experts.*"
GENERAL_TARGETS = ("Linear",)
SCALE_BITS = 16
# bitsandbytes at 4 bits: weights of a block share a 32-bit scale; double quantisation makes it 8 bits, with one of 32 a block of scales.
BNB_BLOCK, BNB_SCALE_BITS, BNB_DOUBLE_BITS, BNB_DOUBLE_BLOCK = 64, 32, 8, 256
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
    experts, known = fields.text("expert_dtype"), only(ConfigKeys).expert_types
    if experts is not None and experts not in known:
        fields.fault("expert_dtype", f"unknown type {shown(experts)}", ", ".join(known))
    if own := known.get(experts or ""):
        yield EXPERT_MODULES, own
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
    words = only(ConfigKeys)
    return any(name in words.weight_only and words.algorithms[name] == main for name in algorithms if name)


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
    named, known = section.text("kv_cache_quant_algo", "kv_cache_scheme"), only(ConfigKeys).cache_algorithms
    if named is not None and named not in known:
        section.fault("kv_cache_quant_algo", f"unknown algorithm {shown(named)}", ", ".join(known))
    return known.get(named or "")
